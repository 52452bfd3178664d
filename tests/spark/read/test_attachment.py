"""Attaching: more events are kept, attempts are recorded, and without a reader nothing is different."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
import redis

from oxcart import Flow, JobHandle, PermanentError, Queue, RateLimited, Retry, Snooze, TemporaryError, Worker
from oxcart.model.errors import ValidationError
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.attachment import attach, detach, readers
from tests.conftest import MakeQueue
from tests.signals import eventually

META = "bull:q:meta"


def meta(store: redis.Redis) -> dict[str, str]:
    return cast(dict[str, str], store.hgetall(META))


def records(store: redis.Redis) -> list[tuple[str, dict[str, str]]]:
    return cast(list[tuple[str, dict[str, str]]], store.xrange("bull:q:ox:attempts"))


@pytest.fixture
def address(url: str) -> ServerAddress:
    return ServerAddress(url=url)


def test_a_queue_that_does_not_exist_is_not_made(address: ServerAddress, store: redis.Redis) -> None:
    assert attach(address, "q", "main") is None
    assert store.keys("*") == []


def test_attaching_raises_what_is_kept_and_detaching_restores_it(
    address: ServerAddress, store: redis.Redis
) -> None:
    store.hset(META, "opts.maxLenEvents", "5000")
    before = meta(store)
    made = attach(address, "q", "main", keep=50_000)
    assert made is not None
    assert (made.kept, made.before, made.was_reset) == (50_000, 5000, True)
    assert meta(store)["opts.maxLenEvents"] == "50000"
    again = attach(address, "q", "main", keep=50_000)
    assert again is not None
    assert (again.was_reset, again.mark) == (False, made.mark)
    assert detach(address, "q", "main") == 0
    assert meta(store) == before
    assert store.keys("*") == [META]


def test_the_last_of_several_readers_restores(address: ServerAddress, store: redis.Redis) -> None:
    store.hset(META, "opts.maxLenEvents", "10000")
    attach(address, "q", "a", keep=20_000)
    attach(address, "q", "b", keep=30_000)
    assert set(readers(address, "q")) == {"a", "b"}
    assert detach(address, "q", "b") == 1
    assert meta(store)["opts.maxLenEvents"] == "30000"
    assert detach(address, "q", "a") == 0
    assert meta(store) == {"opts.maxLenEvents": "10000"}


def test_a_reader_that_does_not_renew_is_forgotten(address: ServerAddress, store: redis.Redis) -> None:
    store.hset(META, "opts.maxLenEvents", "10000")
    attach(address, "q", "gone", term_ms=1000, clock=lambda: 1_000_000)
    attach(address, "q", "here")
    assert set(readers(address, "q")) == {"here"}


def test_keep_below_the_minimum_is_refused(address: ServerAddress) -> None:
    with pytest.raises(ValidationError, match="keep must be at least 1000, got 10"):
        attach(address, "q", "main", keep=10)


async def test_our_scripts_set_again_what_a_node_constructor_set_back(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("n")
    await asyncio.to_thread(attach, address, "q", "main", keep=50_000)
    store.hset(META, "opts.maxLenEvents", "10000")
    await queue.add("n")
    assert meta(store)["opts.maxLenEvents"] == "50000"


async def test_expired_attachment_is_not_restored(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("n")
    await asyncio.to_thread(attach, address, "q", "main", keep=50_000)
    store.hset(META, mapping={"ox:until": "1000", "opts.maxLenEvents": "10000"})
    await queue.add("n")
    assert meta(store)["opts.maxLenEvents"] == "10000"


class Bad(PermanentError):
    pass


def handlers(queue: Queue) -> None:
    tries: dict[str, int] = {}

    @queue.fallback
    async def run(job: Any) -> Any:
        tries[job.name] = tries.get(job.name, 0) + 1
        if job.name == "fails":
            raise Bad("never", code="E7")
        if tries[job.name] == 1:
            if job.name == "later":
                raise TemporaryError("not now", retry_after=0.01)
            if job.name == "now":
                return Retry(after=0, reason="again")
            if job.name == "snoozes":
                return Snooze(0.01)
        return tries[job.name]


async def work(queue: Queue, store: redis.Redis, ended: int) -> None:
    async with Worker(queue, name="w1").running():
        await eventually(
            lambda: int(store.zcard("bull:q:completed")) + int(store.zcard("bull:q:failed")) == ended,
            "all jobs have ended",
        )


async def test_every_ended_attempt_is_recorded_under_the_id_of_its_event(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    names = ("fine", "fails", "later", "now", "snoozes")
    for name in names:
        await queue.add(name, job_id=name)
    await asyncio.to_thread(attach, address, "q", "main")
    handlers(queue)
    await work(queue, store, len(names))
    events = dict(cast(Any, store.xrange("bull:q:events")))
    found: dict[str, list[dict[str, str]]] = {}
    for entry_id, fields in records(store):
        assert events[entry_id]["jobId"] == fields["jobId"], "the id is that of the event that ended it"
        assert fields["name"] == fields["jobId"]
        assert fields["worker"] == "w1"
        assert int(fields["began"]) <= int(fields["ended"])
        found.setdefault(fields["jobId"], []).append(fields)
    outcomes = {job: [fields["event"] for fields in actual] for job, actual in found.items()}
    assert outcomes == {
        "fine": ["completed"],
        "fails": ["failed"],
        "later": ["retried", "completed"],
        "now": ["retried", "completed"],
        "snoozes": ["snoozed", "completed"],
    }
    failed = found["fails"][0]
    assert (failed["failedReason"], failed["category"], failed["code"]) == ("never", "permanent", "E7")
    assert "Bad: never" in failed["stack"]
    later = found["later"][0]
    assert (later["failedReason"], later["category"], later["code"]) == (
        "not now",
        "temporary",
        "TemporaryError",
    )
    assert [int(actual["starts"]) for actual in found["later"]] == [1, 2]


async def test_records_have_the_version_of_the_program_and_the_limit_key(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("later", job_id="before", limit_key="acme")
    await asyncio.to_thread(attach, address, "q", "main")
    await queue.add("fine", job_id="plain")
    await queue.add("fine", job_id="added", limit_key="else", tags={"plan": "pro"}, correlation_id="o-7")
    unrun = await queue.add("fine", job_id="unrun", limit_key="acme", delay="1h")
    await unrun.cancel()
    handlers(queue)
    async with Worker(queue, version="v1.4-7f3a").running():
        await eventually(lambda: int(store.zcard("bull:q:completed")) == 3, "all jobs have ended")
    found: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for _, fields in records(store):
        facts = (fields["event"], fields.get("version"), fields.get("key"))
        found.setdefault(fields["jobId"], []).append(facts)
    assert found == {
        "before": [("retried", "v1.4-7f3a", "acme"), ("completed", "v1.4-7f3a", "acme")],
        "plain": [("completed", "v1.4-7f3a", None)],
        "added": [("added", None, "else"), ("completed", "v1.4-7f3a", "else")],
        "unrun": [("added", None, "acme"), ("failed", None, "acme")],
    }


async def test_records_have_the_parent_and_the_schedule(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("n", job_id="plain")
    await asyncio.to_thread(attach, address, "q", "main")
    await (
        Flow(queue, "top", job_id="top")
        .after(
            Flow(queue, "part", job_id="part", on_failure="ignore"),
        )
        .add()
    )
    run = await queue.schedules.upsert("beat", cron="0 0 1 1 *", tz="Europe/Berlin", immediately=True)
    handlers(queue)
    await work(queue, store, 4)
    found = {fields["jobId"]: fields for _, fields in records(store)}
    assert json.loads(found["part"]["parent"]) == {"id": "top", "queueKey": "bull:q", "idof": True}
    rule = json.loads(found[run.id]["rule"])
    assert (rule["pattern"], rule["tz"], rule["count"]) == ("0 0 1 1 *", "Europe/Berlin", 1)
    assert not {"parent", "rule"} & {*found["plain"], *found["top"]}


async def test_an_attempt_that_a_limit_ended_is_recorded(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("n", job_id="limited")
    await asyncio.to_thread(attach, address, "q", "main")
    tries = 0

    @queue.fallback
    async def run() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RateLimited("10ms", "too many requests")

    await work(queue, store, 1)
    assert [(actual["event"], actual["worker"]) for _, actual in records(store)] == [
        ("given_back", "w1"),
        ("completed", "w1"),
    ]
    assert all(int(actual["began"]) <= int(actual["ended"]) for _, actual in records(store))


async def test_tags_and_correlation_are_recorded_at_the_add_and_every_end(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    await queue.add("n", job_id="before", tags={"a": "1"}, correlation_id="c0")
    await asyncio.to_thread(attach, address, "q", "main")
    await queue.add("n", job_id="plain", history=True, lifetime="1h")
    await queue.add("n", job_id="tagged", tags={"a": "1"})
    both = await queue.add("n", job_id="both", tags={"a": "1"}, correlation_id="c1", delay="1h")
    await queue.add("n", job_id="after", correlation_id="c2", after=["plain"])
    await both.update(correlation_id="c3", tags={"b": "2"})
    await both.cancel("no")
    handlers(queue)
    await work(queue, store, 5)
    actual = [
        (fields["jobId"], fields["event"], fields.get("corr"), fields.get("tags"))
        for _, fields in records(store)
    ]
    assert actual[:3] == [
        ("tagged", "added", None, '{"a":"1"}'),
        ("both", "added", "c1", '{"a":"1"}'),
        ("after", "added", "c2", None),
    ]
    assert actual[3] == ("both", "failed", "c3", '{"b":"2"}')
    assert sorted(actual[4:], key=lambda one: one[0]) == [
        ("after", "completed", "c2", None),
        ("before", "completed", "c0", '{"a":"1"}'),
        ("plain", "completed", None, None),
        ("tagged", "completed", None, '{"a":"1"}'),
    ]


async def test_a_replay_records_name_creation_and_labels_of_the_job(
    queue: Queue, address: ServerAddress, store: redis.Redis
) -> None:
    """By hand, by time and from the dead letters; the earlier generation may have been built long ago."""
    names = ("one", "timed", "dead")
    for name in names:
        await queue.add("fails", job_id=name, tags={"a": "1"}, correlation_id="c", limit_key="acme")
    handlers(queue)
    await work(queue, store, len(names))
    await asyncio.to_thread(attach, address, "q", "main")
    await queue.jobs.retry("one")
    await queue.dead_letters.replay("dead", permanent=True)
    await queue.jobs.retry_all()
    events = dict(cast(Any, store.xrange("bull:q:events")))
    found = {}
    for entry_id, fields in records(store):
        event = events[entry_id]
        assert (event["event"], event["prev"], event["jobId"]) == ("waiting", "failed", fields["jobId"])
        found[fields.pop("jobId")] = fields
    assert found == {
        name: {
            "event": "replayed",
            "name": "fails",
            "created": store.hget(f"bull:q:{name}", "timestamp"),
            "corr": "c",
            "tags": '{"a":"1"}',
            "key": "acme",
        }
        for name in names
    }


async def test_a_job_that_ends_without_an_attempt_is_recorded_with_its_formal_state(
    queue: Queue, make_queue: MakeQueue, address: ServerAddress, store: redis.Redis
) -> None:
    """Jobs end in every state, by their lifetime, and by dependencies in this queue and another."""
    other = make_queue("other")
    await queue.add("n", job_id="early")
    await other.add("n", job_id="early")
    for name in ("q", "other"):
        await asyncio.to_thread(attach, address, name, "main")
    await queue.add("fails", job_id="fails")
    await queue.add("fails", job_id="late", lifetime="1ms", delay="0")
    for job_id, options in (("waits", {}), ("later", {"delay": "1h"}), ("gone", {"remove_on_fail": True})):
        job = await queue.add("n", job_id=job_id, **options)
        await job.cancel("not wanted")
    for name, dependency in (("failed", "fails"), ("dead", "late"), ("cancelled", "waits")):
        await queue.add("n", job_id=f"{name}-here", after=[dependency])
        await queue.add("n", job_id=f"{name}-chain", after=[f"{name}-here"], correlation_id="c")
        await other.add("n", job_id=f"{name}-there", after=[JobHandle(queue, dependency, "n", False)])
    handlers(queue)
    handlers(other)
    async with Worker(queue, other, name="w1").running():
        await eventually(
            lambda: int(store.zcard("bull:q:failed")) == 10 and int(store.zcard("bull:other:failed")) == 3,
            "all have ended",
        )
    found = {}
    for name in ("q", "other"):
        events = dict(cast(Any, store.xrange(f"bull:{name}:events")))
        for entry_id, fields in cast(Any, store.xrange(f"bull:{name}:ox:attempts")):
            assert events[entry_id]["jobId"] == fields["jobId"]
            if fields["event"] == "failed":
                assert events[entry_id]["event"] == "failed"
                assert fields["failedReason"] == events[entry_id]["failedReason"]
                found[fields["jobId"]] = (fields.get("state"), fields.get("category"), fields.get("corr"))
    assert found == {
        "fails": ("failed", "permanent", None),
        "late": ("dead_letter", "timeout", None),
        "waits": ("cancelled", "cancelled", None),
        "later": ("cancelled", "cancelled", None),
        "gone": ("cancelled", "cancelled", None),
        **{f"failed-{at}": ("failed", "permanent", None) for at in ("here", "there")},
        **{f"dead-{at}": ("dead_letter", "system", None) for at in ("here", "there")},
        **{f"cancelled-{at}": ("cancelled", "cancelled", None) for at in ("here", "there")},
        "failed-chain": ("failed", "permanent", "c"),
        "dead-chain": ("dead_letter", "system", "c"),
        "cancelled-chain": ("cancelled", "cancelled", "c"),
    }


async def test_unattached_no_record_and_no_further_key_is_written(queue: Queue, store: redis.Redis) -> None:
    for name in ("fine", "fails", "later"):
        await queue.add(name, job_id=name, tags={"a": "1"}, correlation_id="c")
    await (await queue.add("n", job_id="cancelled")).cancel()
    handlers(queue)
    await work(queue, store, 4)
    # Keys of every worker of ours: its journal, and the heartbeat of the queue.
    own = ("bull:q:ox:call", "bull:q:ox:alive")
    assert [key for key in cast(Any, store.keys("bull:q:ox:*")) if not key.startswith(own)] == []
    # A queue that Oxcart creates has a retention (docs/decisions/84).
    assert [name for name in meta(store) if name.startswith("ox:")] == ["ox:retention"]
