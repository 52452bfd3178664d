"""One poisoned item in a batch is refused or dropped whole, and its neighbours are not affected.

Poison is what a crash, a bug of a peer or an operator's hand leaves behind: an id without a job, a key of
another type, a lease of another worker, a hash that makes no sense, a payload at the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oxcart import JobHandle, Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.caller import script_error
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Claimed, ClaimedJob, Lease, Outcome, OutcomeKind
from oxcart.model.errors import ScriptError
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention
from tests.chaos.fleet import Store, eventually
from tests.servers import ValkeyServer

HUGE = "x" * 9_000_000
STRING, HASH = "a string where none should be", {"a": "hash"}


@pytest.fixture
async def broker(server: ValkeyServer) -> AsyncIterator[BullMQBroker]:
    broker = BullMQBroker(Server(server.url), "chaos")
    yield broker
    await broker.close()


async def _add(broker: BullMQBroker, *names: str, data: Any = None, **options: Any) -> None:
    built = [JobOptions.build(job_id=name, **options) for name in names]
    added = await broker.add([broker.encode("job", data, one) for one in built])
    assert all(one.created for one in added)


def _outcome(job: ClaimedJob, kind: str = "c", **more: Any) -> Outcome:
    now = 1_700_000_000_000
    return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, now, b'"done"', claim=job, **more)


def _ids(claimed: Claimed) -> list[str]:
    return [job.id for job in claimed.jobs]


# -- add


async def test_add_beside_an_id_whose_key_is_something_else(broker: BullMQBroker, store: Store) -> None:
    store.client.set(store.prefix + "poison", STRING)
    jobs = [broker.encode("job", n, JobOptions.build(job_id=n)) for n in ("one", "poison", "two")]
    added = await broker.add(jobs)
    assert [one.created for one in added] == [True, False, True]
    assert store.lengths() == {"wait": 2}
    assert store.client.get(store.prefix + "poison") == STRING


async def test_add_that_the_server_refuses_fails_alone(server: ValkeyServer, store: Store) -> None:
    """Adds of one turn of the loop share a call, but fail separately."""
    store.client.set(store.prefix + "delayed", STRING)
    queue = Queue("chaos", url=server.url)
    ends: list[Any] = await asyncio.gather(
        *(queue.add("job", 1), queue.add("job", 2, delay=60, job_id="late"), queue.add("job", 3)),
        return_exceptions=True,
    )
    assert [type(end) for end in ends] == [JobHandle, ScriptError, JobHandle]
    assert store.lengths_of("wait") == 2
    # The refused job does not exist: a second add must create it once the fault is gone.
    assert store.job("late") == {}
    store.client.delete(store.prefix + "delayed")
    assert (await queue.add("job", 2, delay=60, job_id="late")).created
    await queue.close()


async def test_add_to_a_broken_queue_writes_nothing(broker: BullMQBroker, store: Store) -> None:
    store.client.set(store.prefix + "wait", STRING)
    with pytest.raises(ScriptError):
        await _add(broker, "one", "two")
    assert store.job("one") == {}
    store.client.delete(store.prefix + "wait")
    await _add(broker, "one", "two")
    assert store.lengths() == {"wait": 2}


async def test_add_many_with_a_huge_payload_between(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)
    handles = await queue.add_many([("job", 1), ("job", HUGE), ("job", 2)])
    assert all(handle.created for handle in handles)
    assert store.lengths() == {"wait": 3}
    await queue.close()


# -- claim


@pytest.mark.parametrize("priority", [0, 5])
async def test_claim_drops_ids_without_a_job(broker: BullMQBroker, store: Store, priority: int) -> None:
    await _add(broker, "one", "gone", "string", "two", priority=priority)
    store.client.delete(store.prefix + "gone")
    store.client.set(store.prefix + "string", STRING)
    claimed = await broker.claim(Ask(10))
    assert _ids(claimed) == ["one", "two"]
    assert claimed.orphans == ["gone", "string"]
    assert store.lengths() == {"active": 2}


async def test_claim_with_a_huge_payload_between(broker: BullMQBroker, store: Store) -> None:
    await _add(broker, "one", "two")
    await _add(broker, "huge", data=HUGE)
    await _add(broker, "three")
    claimed = await broker.claim(Ask(10))
    assert _ids(claimed) == ["one", "two", "huge"], "the huge job ends the batch"
    assert _ids(await broker.claim(Ask(10))) == ["three"]


@pytest.mark.parametrize("broken", ["prioritized", "active", "limiter"])
async def test_claim_in_a_broken_queue_loses_nothing(broker: BullMQBroker, store: Store, broken: str) -> None:
    await _add(broker, "one", "two")
    if broken != "prioritized":
        await _add(broker, "low", priority=5)
    store.client.hset(store.prefix + "meta", mapping={"max": 100, "duration": 1000})
    if broken == "limiter":
        store.client.set(store.prefix + "limiter", "many")
    else:
        store.client.set(store.prefix + broken, STRING)
    with pytest.raises(ScriptError):
        await broker.claim(Ask(10))
    store.client.delete(store.prefix + broken)
    assert await broker.states(["one", "two"]) == ["waiting", "waiting"]
    claimed = await broker.claim(Ask(10))
    assert _ids(claimed) == (["one", "two"] if broken == "prioritized" else ["one", "two", "low"])


@pytest.mark.parametrize("verb", ["claim", "promote", "retry"])
async def test_due_jobs_beside_poison_are_not_lost(broker: BullMQBroker, store: Store, verb: str) -> None:
    """Due jobs leave the delayed set together; an unreadable job must not stop the others."""
    if verb == "retry":
        await _add(broker, "running")
        running = (await broker.claim(Ask(1))).jobs[0]
    await _add(broker, "one", "string", "gone", "two", delay=0.001)
    store.client.delete(store.prefix + "gone")
    store.client.set(store.prefix + "string", STRING)
    await asyncio.sleep(0.02)
    if verb == "claim":
        claimed = await broker.claim(Ask(10))
    else:
        if verb == "promote":
            await broker.promote()
        else:
            outcome = Outcome(
                OutcomeKind.RETRY, running.id, running.token, running.starts, broker.clock(), b"again"
            )
            assert (await broker.finish([outcome]))[0] == [1]
        claimed = await broker.claim(Ask(10))
    assert [job_id for job_id in _ids(claimed) if job_id != "running"] == ["one", "two"]
    assert set(store.lengths()) == {"active"}
    assert store.job("gone") == {}, "an id without a hash creates no job"


async def test_a_paused_queue_with_poison_at_its_end_still_takes_jobs(
    broker: BullMQBroker, store: Store
) -> None:
    await _add(broker, "string", "one")
    store.client.set(store.prefix + "string", STRING)
    await broker.pause()
    # A peer of version 6 keeps using `wait` while the queue is paused.
    store.client.set(store.prefix + "other", STRING)
    store.client.rpush(store.prefix + "wait", "other")
    await _add(broker, "two")
    await broker.resume()
    claimed = await broker.claim(Ask(10))
    assert sorted(_ids(claimed)) == ["one", "two"]
    assert sorted(claimed.orphans) == ["other", "string"]


# -- finish


async def _claim(broker: BullMQBroker, *names: str, **options: Any) -> dict[str, ClaimedJob]:
    await _add(broker, *names, **options)
    claimed = await broker.claim(Ask(len(names), lock_ms=60_000))
    assert len(claimed.jobs) == len(names)
    return {job.id: job for job in claimed.jobs}


async def test_finish_beside_poison_of_every_kind(broker: BullMQBroker, store: Store) -> None:
    names = ("one", "gone", "two", "string", "three", "stolen", "four", "lock", "five", "retaken")
    jobs = await _claim(broker, *names)
    at = store.prefix
    store.client.delete(at + "gone")
    store.client.set(at + "string", STRING)
    store.client.set(at + "stolen:lock", "somebody else")
    store.client.delete(at + "lock:lock")
    store.client.hset(at + "lock:lock", mapping=HASH)
    store.client.delete(at + "retaken:lock")
    store.client.hincrby(at + "retaken", "ats", 1)
    codes, _ = await broker.finish([_outcome(jobs[name]) for name in names])
    results = dict(zip(names, codes, strict=True))
    assert {name: results[name] for name in ("one", "two", "three", "four", "five")} == {
        "one": 1, "two": 1, "three": 1, "four": 1, "five": 1,
    }  # fmt: skip
    assert (results["gone"], results["stolen"], results["retaken"]) == (-1, -6, -2)
    assert "WRONGTYPE" in str(results["string"])
    assert results["lock"] == 1, "no lease at all, and no other worker started it"
    assert store.lengths() == {"completed": 6, "active": 4}
    for name in ("stolen", "retaken"):
        assert "finishedOn" not in store.job(name)


async def test_finish_with_a_huge_result_between(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)

    @queue.job
    async def echo(n: int) -> Any:
        return HUGE if n == 5 else n

    handles = await queue.add_many([("echo", {"n": n}) for n in range(10)])
    async with Worker(queue, concurrency=10).running():
        results = [await handle.result(20) for handle in handles]
    assert results == [HUGE if n == 5 else n for n in range(10)]
    await queue.close()


async def _untold(broker: BullMQBroker, store: Store, kind: str) -> None:
    """Finishes `one`, `child`, `two` together: all end, because a refused child would run without end."""
    claimed = await broker.claim(Ask(3, lock_ms=60_000))
    codes, _ = await broker.finish([_outcome(job, kind) for job in claimed.jobs])
    assert dict(zip(_ids(claimed), codes, strict=True)) == {"one": 1, "child": 2, "two": 1}
    assert await broker.states(["child"]) == ["completed" if kind == "c" else "failed"]
    assert store.client.hget(store.prefix + "child", "ox:untold")


@pytest.mark.parametrize("kind", ["c", "f"])
async def test_finish_of_a_child_whose_parent_is_poisoned(
    broker: BullMQBroker, store: Store, kind: str
) -> None:
    await _add(broker, "one", "child", "two")
    parent = '{"id":"parent","queueKey":"bull:chaos","fpof":true}'
    store.client.hset(store.prefix + "child", mapping={"parentKey": "bull:chaos:parent", "parent": parent})
    store.client.set(store.prefix + "parent:dependencies", STRING)
    await _untold(broker, store, kind)


@pytest.mark.parametrize("kind", ["c", "f"])
async def test_finish_of_a_child_whose_parent_cannot_be_read(
    broker: BullMQBroker, store: Store, kind: str
) -> None:
    await _add(broker, "one", "child", "two")
    store.client.hset(store.prefix + "child", mapping={"parentKey": "bull:chaos:parent", "parent": "{"})
    await _untold(broker, store, kind)


@pytest.mark.parametrize("kind", ["c", "f"])
@pytest.mark.parametrize(
    "kept",
    [None, HASH, {"name": "n", "data": "{}", "opts": "{"}, {"data": "{}", "opts": "{}"}, STRING],
    ids=["window alone", "no record", "bad options", "no name", "wrong type"],
)
async def test_finish_of_the_owner_of_a_poisoned_window(
    broker: BullMQBroker, store: Store, kind: str, kept: Any
) -> None:
    """It ends, because a refusal would make it run without end. The unreadable key is left alone."""
    await _add(broker, "one", "owner", "two")
    store.client.hset(store.prefix + "owner", "deid", "window")
    store.client.hset(store.prefix + "de:window", mapping=HASH)
    if isinstance(kept, str):
        store.client.set(store.prefix + "dn:window", kept)
    elif kept:
        store.client.hset(store.prefix + "dn:window", mapping=kept)
    claimed = await broker.claim(Ask(3, lock_ms=60_000))
    codes, _ = await broker.finish([_outcome(job, kind) for job in claimed.jobs])
    assert codes == [1, 1, 1]
    assert store.lengths() == {"completed" if kind == "c" else "failed": 3}
    assert store.client.hgetall(store.prefix + "de:window") == HASH
    assert store.client.exists(store.prefix + "dn:window") == bool(kept)
    assert store.client.get(store.prefix + "id") == "3"


async def test_a_window_of_a_wrong_type_is_handed_on_with_the_kept_job(
    broker: BullMQBroker, store: Store
) -> None:
    await _add(broker, "one", "owner", "two")
    store.client.hset(store.prefix + "owner", "deid", "window")
    store.client.hset(store.prefix + "de:window", mapping=HASH)
    kept = {"name": "n", "data": "{}", "opts": '{"de":{"id":"window"}}', "jid": "kept"}
    store.client.hset(store.prefix + "dn:window", mapping=kept)
    claimed = await broker.claim(Ask(3, lock_ms=60_000))
    codes, _ = await broker.finish([_outcome(job) for job in claimed.jobs])
    assert codes == [1, 1, 1]
    assert store.lengths() == {"completed": 3, "wait": 1}
    assert store.client.get(store.prefix + "de:window") == "kept"


async def test_finish_that_fails_half_way_puts_the_job_back(broker: BullMQBroker, store: Store) -> None:
    """The parent is readable, but its waiting list is not writable."""
    await _add(broker, "one", "child", "two")
    parent = {"parentKey": "bull:other:parent", "parent": '{"id":"parent","queueKey":"bull:other"}'}
    store.client.hset(store.prefix + "child", mapping=parent)
    store.client.hset("bull:other:parent", mapping=HASH)
    store.client.sadd("bull:other:parent:dependencies", store.prefix + "child")
    store.client.zadd("bull:other:waiting-children", {"parent": 1})
    store.client.set("bull:other:wait", STRING)
    claimed = await broker.claim(Ask(3, lock_ms=60_000))
    codes, _ = await broker.finish([_outcome(job) for job in claimed.jobs])
    results = dict(zip(_ids(claimed), codes, strict=True))
    assert results["one"] == results["two"] == 1
    assert isinstance(results["child"], str), results
    where = await broker.states(["child"])
    assert where == ["active"], f"a job must always be in some state: {store.lengths()}"


async def test_removal_of_the_owner_of_a_poisoned_window(broker: BullMQBroker, store: Store) -> None:
    await _add(broker, "owner")
    store.client.hset(store.prefix + "owner", "deid", "window")
    store.client.hset(store.prefix + "de:window", mapping=HASH)
    await broker.remove_job("owner")
    assert store.lengths() == {}
    assert store.client.hgetall(store.prefix + "de:window") == HASH


@pytest.mark.parametrize("kind", ["r", "d"])
async def test_finish_of_a_job_whose_attempts_are_no_number(
    broker: BullMQBroker, store: Store, kind: str
) -> None:
    jobs = await _claim(broker, "one", "odd", "two")
    store.client.hset(store.prefix + "odd", "atm", "many")
    codes, _ = await broker.finish([_outcome(job, kind, delay_ms=60_000) for job in jobs.values()])
    assert (codes[0], codes[2]) == (1, 1)
    assert await broker.states(["odd"]) != ["unknown"]


async def test_finish_when_the_oldest_active_job_is_poisoned(broker: BullMQBroker, store: Store) -> None:
    names = [f"job-{n}" for n in range(250)]
    jobs = await _claim(broker, *names)
    store.client.delete(store.prefix + names[0])
    store.client.set(store.prefix + names[0], STRING)
    codes, _ = await broker.finish([_outcome(jobs[name]) for name in names[1:51]])
    assert codes == [1] * 50


async def test_finish_in_a_broken_queue_changes_nothing(broker: BullMQBroker, store: Store) -> None:
    jobs = await _claim(broker, "one", "two")
    store.client.set(store.prefix + "completed", STRING)
    with pytest.raises(ScriptError):
        await broker.finish([_outcome(job) for job in jobs.values()])
    store.client.delete(store.prefix + "completed")
    assert (await broker.finish([_outcome(job) for job in jobs.values()]))[0] == [1, 1]


async def test_finish_when_an_old_job_to_be_forgotten_is_poisoned(broker: BullMQBroker, store: Store) -> None:
    for name in ("old", "older"):
        jobs = await _claim(broker, name)
        await broker.finish([_outcome(jobs[name])])
    store.client.delete(store.prefix + "old")
    store.client.set(store.prefix + "old", STRING)
    jobs = await _claim(broker, "one", "two")
    codes, _ = await broker.finish([_outcome(job, retention=Retention(count=1)) for job in jobs.values()])
    assert codes == [1, 1]
    assert store.lengths() == {"completed": 1}
    assert store.count_events("completed")["two"] == 1


# -- extend


async def test_extend_beside_poison_of_every_kind(broker: BullMQBroker, store: Store) -> None:
    names = ("one", "gone", "two", "stolen", "three", "lock", "four", "string", "five")
    jobs = await _claim(broker, *names)
    at = store.prefix
    store.client.delete(at + "gone", at + "gone:lock", at + "lock:lock", at + "string", at + "string:lock")
    store.client.set(at + "stolen:lock", "somebody else")
    store.client.hset(at + "lock:lock", mapping=HASH)
    store.client.set(at + "string", STRING)
    leases = [Lease(job.id, job.token, job.starts) for job in jobs.values()]
    refused = await broker.renew(leases, 600_000)
    assert sorted(refused) == ["gone", "lock", "stolen", "string"]
    for name in ("one", "two", "three", "four", "five"):
        assert store.lock_ms(name) > 500_000, name
    assert store.holder("stolen") == "somebody else"


# -- recover


async def test_recovery_beside_poison(broker: BullMQBroker, store: Store) -> None:
    names = ("one", "gone", "two", "string", "odd", "three")
    await _claim(broker, *names)
    at = store.prefix
    store.client.delete(at + "gone", *(f"{at}{name}:lock" for name in names))
    store.client.set(at + "string", STRING)
    store.client.hset(at + "odd", "stc", "often")
    await broker.recover(interval_ms=1)
    await asyncio.sleep(0.005)
    found = await broker.recover(interval_ms=1)
    assert {"one", "two", "three"} <= set(found.ids)
    assert await broker.states(["one", "two", "three"]) == ["waiting"] * 3
    assert await broker.states(["odd"]) != ["unknown"], "the job is still in a list"


# -- a whole worker


_NONSENSE: dict[str, dict[str, str]] = {
    "ats": {"ats": "many"},
    "atm": {"atm": "many"},
    "stc": {"stc": "often"},
    "opts": {"opts": "{"},
    "opts-list": {"opts": "[1]"},
    "opts-values": {
        "opts": '{"attempts":"x","backoff":{"type":[],"delay":{}},"removeOnComplete":"yes","removeOnFail":[],'
        '"delay":"x","stackTraceLimit":"x","kl":-1}'
    },
    "data": {"data": "{not json"},
    "no-data": {"data": ""},
    "name": {"name": ""},
    "stacktrace": {"stacktrace": "{"},
    "timeout": {"ox:timeout": "soon"},
    "backoff": {"ox:backoff": "{"},
    "empty": {},
}


async def test_a_worker_survives_invalid_jobs(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)

    @queue.fallback
    async def work(job: RunningJob) -> str:
        if job.id in _NONSENSE:
            # Everything a handler may look at.
            return f"{job.name} {job.attempt} {job.options} {job.stalls} {job!r} {job.snapshot()} {job.data}"
        return "done"

    others = set()
    for kind, fields in _NONSENSE.items():
        await queue.add("job", None, job_id=kind, attempts=1)
        others.add((await queue.add("job", kind)).id)
        if kind == "empty":
            store.client.delete(store.prefix + kind)
            store.client.hset(store.prefix + kind, "anything", "1")
        else:
            store.client.hset(store.prefix + kind, mapping=fields)
    async with Worker(queue, concurrency=4).running() as worker:
        await eventually(lambda: others <= set(store.count_events("completed")), "the others end")
        await eventually(lambda: store.lengths_of("active") == 0, "the poisoned jobs leave the active list")
        await queue.add("job", None, job_id="last")
        await eventually(lambda: store.count_events("completed")["last"] == 1, "the worker goes on")
        assert worker._failure is None
    for kind in _NONSENSE:
        assert await queue.jobs.state(kind) in ("completed", "failed", "delayed"), kind
    await queue.close()


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even my name")

    __repr__ = __str__


class _Surrogate(Exception):
    def __str__(self) -> str:
        return "half a pair: \udc80 and NUL: \0"


async def test_a_worker_survives_errors_of_every_shape(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)
    errors = {
        kind.__name__.strip("_"): kind
        for kind in (_Unspeakable, _Surrogate, GeneratorExit, KeyboardInterrupt, SystemExit)
    }

    @queue.fallback
    async def work(job: RunningJob) -> str:
        if job.id in errors:
            raise errors[job.id]()
        return "done"

    async with Worker(queue, concurrency=2).running() as worker:
        for name in errors:
            await queue.add("job", None, job_id=name, attempts=1)
            await queue.add("job")
        await eventually(lambda: store.lengths() == {"completed": 5, "failed": 5}, "all end")
        assert worker._failure is None
    assert all(store.job(name)["failedReason"] for name in errors)
    await queue.close()


def test_wrong_type_reply_is_a_script_error() -> None:
    assert isinstance(script_error("add", "WRONGTYPE Operation against a key"), ScriptError)
