"""The verbs of a Bridge broker: the state that each leaves in the document's keys, and its errors."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from oxcart.broker.bridge.claimed import ClaimReply
from oxcart.broker.bridge.codec import outcome_of
from oxcart.broker.bridge.scripts import load
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.port import Added, Ask, Lease
from oxcart.model.errors import (
    JobLocked,
    JobNotFound,
    LeaseLost,
    NotSupported,
    ScriptError,
    UnknownDependency,
    WrongState,
)
from oxcart.model.retention import REMOVE
from oxcart.model.state import State
from oxcart.model.target import Target
from tests.broker.bridge.conftest import Desk

DAY = 86_400


async def test_add_follows_the_document(desk: Desk) -> None:
    job_id = await desk.add({"to": "ada"})
    assert desk.waiting() == [job_id]
    assert desk.status(job_id) == "waiting"
    assert desk.record(job_id)["payload"] == {"to": "ada"}
    assert desk.store.ttl(f"bridge:jobs:data:{job_id}") == -1
    keys = {key for key in desk.store.scan_iter() if not key.startswith("bridge:ox:")}
    assert keys == {"bridge:jobs:waiting", f"bridge:jobs:data:{job_id}", f"bridge:jobs:status:{job_id}"}


async def test_a_delayed_job_waits_for_its_time(desk: Desk) -> None:
    job_id = await desk.add(delay="5s")
    assert desk.status(job_id) == "delayed"
    assert desk.store.zscore("bridge:jobs:delayed", job_id) == desk.clock.now + 5000
    assert await desk.claim() == []
    desk.clock.now += 5000
    assert (await desk.broker().promote())[0] == 1
    assert desk.status(job_id) == "waiting"
    assert [job.id for job in await desk.claim()] == [job_id]


async def test_a_due_job_needs_no_promotion(desk: Desk) -> None:
    job_id = await desk.add(delay="5s")
    desk.clock.now += 5001
    assert [job.id for job in await desk.claim()] == [job_id]


async def test_a_claim_follows_the_document(desk: Desk) -> None:
    job = await desk.active(data={"n": 1})
    assert desk.waiting() == []
    assert desk.store.smembers("bridge:jobs:active") == {job.id}
    assert desk.store.get(f"bridge:jobs:lock:{job.id}") == "w1"
    assert 9_000 < desk.store.pttl(f"bridge:jobs:lock:{job.id}") <= 30_000
    assert desk.status(job.id) == "active"
    assert desk.record(job.id)["attempts"] == 1
    assert desk.counter() == 1
    assert desk.store.get("bridge:ratelimit:minute:email") == "1"
    assert 30 < desk.store.ttl("bridge:ratelimit:minute:email") <= 60
    assert json.loads(job.payload) == {"n": 1}


async def test_completion_follows_the_document(desk: Desk) -> None:
    job = await desk.active()
    desk.clock.now += 234
    assert await desk.end(job, value=b'{"sent":true}') == 1
    assert desk.result(job.id) == {
        "success": True,
        "data": {"sent": True},
        "completedAt": desk.clock.now,
        "processingTime": 234,
    }
    assert desk.status(job.id) == "completed"
    assert desk.store.smembers("bridge:jobs:active") == set()
    assert desk.store.exists(f"bridge:jobs:lock:{job.id}") == 0
    assert desk.counter() == 0
    assert desk.store.get("bridge:metrics:jobs:processed") == "1"


async def test_all_keys_of_an_ended_job_go_together(desk: Desk) -> None:
    job = await desk.active()
    await desk.broker().set_progress(job.id, 50)
    await desk.end(job)
    kept = [key for key in desk.store.scan_iter() if job.id in key]
    assert len(kept) == 5
    for key in kept:
        assert DAY - 60 < desk.store.ttl(key) <= DAY, key
    assert desk.store.hexists("bridge:ox:facts", job.id) is False


async def test_a_job_that_is_not_kept_leaves_nothing(desk: Desk) -> None:
    job = await desk.active(remove_on_complete=True)
    await desk.end(job, retention=REMOVE)
    assert [key for key in desk.store.scan_iter() if job.id in key] == []


async def test_a_failure_for_good_is_a_dead_letter(desk: Desk) -> None:
    job = await desk.active()
    desk.clock.now += 10
    assert await desk.end(
        job, "f", value=b"boom", stack=b'["Traceback: boom"]', category="permanent", code="ValueError"
    )
    assert desk.status(job.id) == "dead"
    assert desk.store.lrange("bridge:jobs:deadletter", 0, -1) == [job.id]
    assert desk.result(job.id) == {
        "success": False,
        "error": {"message": "boom", "stack": "Traceback: boom", "name": "ValueError"},
        "completedAt": desk.clock.now,
        "processingTime": 10,
    }
    assert desk.store.ttl(f"bridge:jobs:result:{job.id}") > DAY - 60
    assert desk.store.ttl(f"bridge:jobs:data:{job.id}") == -1, "as long as it is a dead letter"
    assert desk.store.get("bridge:metrics:jobs:failed") == "1"
    (read,) = await desk.broker().look([job.id])
    assert read is not None
    assert (read.state, read.failed_reason, read.category) == (State.FAILED, "boom", "permanent")


async def test_a_cancelled_job_is_failed_and_no_dead_letter(desk: Desk) -> None:
    job = await desk.active()
    await desk.end(job, "f", value=b"no more", category="cancelled")
    assert desk.status(job.id) == "failed"
    assert desk.store.llen("bridge:jobs:deadletter") == 0
    (read,) = await desk.broker().look([job.id])
    assert read is not None
    assert read.state is State.CANCELLED


async def test_a_retry_waits_in_delayed(desk: Desk) -> None:
    job = await desk.active()
    assert (
        await desk.end(job, "d", value=b"not yet", stack=b'["t"]', delay_ms=2000, category="temporary") == 1
    )
    assert desk.status(job.id) == "delayed"
    assert desk.store.zscore("bridge:jobs:delayed", job.id) == desk.clock.now + 2000
    assert desk.counter() == 0
    (read,) = await desk.broker().look([job.id])
    assert read is not None
    assert (read.state, read.attempts_made, read.failed_reason) == (State.RETRYING, 1, "not yet")
    assert read.delay == 2000
    desk.clock.now += 2000
    (again,) = await desk.claim()
    assert (again.starts, desk.record(job.id)["attempts"]) == (2, 2)
    assert again.stacktrace == ["t"]
    assert again.attempts_made == 1


async def test_returned_and_snoozed_runs_use_no_attempt(desk: Desk) -> None:
    job = await desk.active()
    await desk.end(job, "w")
    assert desk.record(job.id)["attempts"] == 0
    (again,) = await desk.claim()
    assert again.starts == 2, "the fencing number grows all the same"
    await desk.end(again, "d", delay_ms=10, counts=False)
    assert desk.record(job.id)["attempts"] == 0


async def test_returned_job_is_first_again(desk: Desk) -> None:
    first, second = await desk.add(), await desk.add()
    (job,) = await desk.claim()
    await desk.end(job, "w")
    assert desk.waiting() == [first, second]
    assert [one.id for one in await desk.claim(2)] == [first, second]


async def test_a_held_type_hands_out_nothing_for_a_while(desk: Desk) -> None:
    job = await desk.active()
    await desk.end(job, "l", delay_ms=30_000)
    claimed = await desk.broker().claim(Ask(1, worker="w1"))
    assert claimed.jobs == []
    assert 0 < claimed.limited_ms <= 30_000


async def test_refusals(desk: Desk) -> None:
    job = await desk.active()
    other = desk.outcome(job)
    other.token = "w2"
    assert (await desk.broker().finish([other]))[0] == [-6]
    stale = desk.outcome(job)
    stale.starts = 7
    assert (await desk.broker().finish([stale]))[0] == [-6]
    gone = desk.outcome(job)
    gone.id = "no-such-job"
    assert (await desk.broker().finish([gone]))[0] == [-1]
    assert await desk.end(job) == 1
    assert await desk.end(job) == -3
    assert desk.counter() == 0, "a refused finish frees no slot"


async def test_an_expired_lease_is_renewed_while_no_worker_claimed_the_job(desk: Desk) -> None:
    job = await desk.active()
    lease = Lease(job.id, job.token, job.starts)
    assert await desk.broker().renew([lease], 60_000) == []
    assert desk.store.pttl(f"bridge:jobs:lock:{job.id}") > 55_000
    desk.store.delete(f"bridge:jobs:lock:{job.id}")
    assert await desk.broker().renew([lease], 60_000) == []
    assert desk.store.get(f"bridge:jobs:lock:{job.id}") == "w1"
    desk.store.set(f"bridge:jobs:lock:{job.id}", "w2")
    assert await desk.broker().renew([lease], 60_000) == [job.id]


async def test_pause_is_of_the_type(desk: Desk) -> None:
    email, video = await desk.add(), await desk.add(job_type="video")
    await desk.broker().pause()
    assert desk.store.smembers("bridge:queues:paused") == {"email"}
    assert await desk.broker().is_paused()
    assert await desk.claim() == []
    assert [job.id for job in await desk.claim(job_type="video")] == [video]
    await desk.broker().resume()
    assert [job.id for job in await desk.claim()] == [email]


async def test_a_worker_takes_only_its_type(desk: Desk) -> None:
    await desk.add(job_type="video")
    assert await desk.claim(5) == []


async def test_progress_is_the_documents(desk: Desk) -> None:
    job_id = await desk.add()
    await desk.broker().set_progress(job_id, 75)
    assert json.loads(desk.store.get(f"bridge:jobs:progress:{job_id}")) == {
        "percent": 75,
        "updatedAt": desk.clock.now,
    }
    assert (await desk.broker().look([job_id]))[0].progress == 75  # type: ignore[union-attr]
    await desk.broker().set_progress(job_id, {"percent": 80, "message": "nearly", "step": 4})
    assert json.loads(desk.store.get(f"bridge:jobs:progress:{job_id}")) == {
        "percent": 80,
        "message": "nearly",
        "data": {"step": 4},
        "updatedAt": desk.clock.now,
    }
    with pytest.raises(JobNotFound):
        await desk.broker().set_progress("no-such-job", 1)


async def test_only_the_lease_holder_saves_a_checkpoint(desk: Desk) -> None:
    job = await desk.active()
    await desk.broker().set_checkpoint(job.id, "w1", b'{"row":7}')
    with pytest.raises(LeaseLost):
        await desk.broker().set_checkpoint(job.id, "w2", b"1")
    await desk.end(job, "w")
    (again,) = await desk.claim()
    assert again.checkpoint == b'{"row":7}'


async def test_update_data_keeps_the_rest_of_the_record(desk: Desk) -> None:
    job_id = desk.foreign("f1", mine=[], payload={"old": 1})
    await desk.broker().update_data(job_id, {"new": 2})
    record = desk.record(job_id)
    assert record["payload"] == {"new": 2}
    assert record["mine"] == []
    (job,) = await desk.claim()
    assert desk.record(job.id)["attempts"] == 1


async def test_a_delayed_job_can_be_hurried_and_put_off(desk: Desk) -> None:
    job_id = await desk.add(delay="1h")
    await desk.broker().change_delay(job_id, 1000)
    assert desk.store.zscore("bridge:jobs:delayed", job_id) == desk.clock.now + 1000
    await desk.broker().promote_job(job_id)
    assert desk.status(job_id) == "waiting"
    with pytest.raises(WrongState):
        await desk.broker().promote_job(job_id)
    with pytest.raises(WrongState):
        await desk.broker().change_delay(job_id, 1)
    with pytest.raises(JobNotFound):
        await desk.broker().change_delay("no-such-job", 1)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_dead_letter_can_be_replayed(desk: Desk, reset: bool) -> None:
    job = await desk.active()
    await desk.end(job, "f", value=b"boom")
    await desk.broker().retry_job(job.id, "failed", reset=reset)
    assert desk.store.llen("bridge:jobs:deadletter") == 0
    assert desk.store.exists(f"bridge:jobs:result:{job.id}") == 0
    (again,) = await desk.claim()
    assert desk.record(again.id)["attempts"] == (1 if reset else 2)
    with pytest.raises(WrongState):
        await desk.broker().retry_job(job.id, "failed")


async def test_removal_leaves_nothing_and_spares_what_is_held(desk: Desk) -> None:
    waiting, delayed = await desk.add(), await desk.add(delay="1h")
    for job_id in (waiting, delayed):
        await desk.broker().remove_job(job_id)
        assert [key for key in desk.store.scan_iter() if job_id in key] == []
    assert desk.waiting() == []
    assert desk.store.zcard("bridge:jobs:delayed") == 0
    assert desk.store.hlen("bridge:ox:facts") == 0
    job = await desk.active()
    with pytest.raises(JobLocked):
        await desk.broker().remove_job(job.id)
    with pytest.raises(JobNotFound):
        await desk.broker().remove_job("no-such-job")


async def test_counts_and_pages_are_of_the_type(desk: Desk) -> None:
    broker = desk.broker()
    first, second = await desk.add(), await desk.add()
    delayed = await desk.add(delay="1h")
    await desk.add(job_type="video", delay="1h")
    await desk.add(job_type="video")
    (held,) = await desk.claim()
    assert held.id == first
    assert {state: count for state, count in (await broker.counts()).items() if count} == {
        "wait": 1,
        "active": 1,
        "delayed": 1,
    }
    assert [job.id for job in await broker.page("wait", 0, 9)] == [second]
    assert [job.id for job in await broker.page("delayed", 0, 9)] == [delayed]
    assert [job.id for job in await broker.page("active", 0, 9)] == [first]
    await desk.end(held)
    assert [job.id for job in await broker.page("completed", 0, 9)] == [first]
    assert await broker.states([first, second, delayed, "x"]) == [
        "completed",
        "waiting",
        "delayed",
        "unknown",
    ]


async def test_the_monitoring_list(desk: Desk) -> None:
    await desk.active()
    await desk.add()
    await desk.add(job_type="video", delay="1h")
    desk.store.sadd("bridge:workers:active", "w1", "w2")
    desk.store.set("bridge:workers:heartbeat:w1", "1", ex=30)
    seen = await desk.broker().namespace.stats()
    assert (seen.waiting, seen.active, seen.delayed, seen.cron, seen.dead) == (1, 1, 1, 0, 0)
    assert seen.workers == {"w1": True, "w2": False}
    assert seen.concurrent == {"email": 1, "video": 0}


async def test_bridge_broker_has_no_unsupported_parts(desk: Desk) -> None:
    broker = desk.broker()
    for part in (
        "deduplication",
        "flows",
        "gates",
        "graphs",
        "lanes",
        "limits",
        "logs",
        "metrics",
        "updates",
    ):
        assert getattr(broker, part) is None
    with pytest.raises(NotSupported):
        broker.capabilities.part(broker.logs, "logs")


async def test_an_answer_that_is_lost_is_given_again(desk: Desk) -> None:
    """Every changing call returns the same reply for the same number and changes nothing more."""
    broker = desk.broker()
    await desk.add()
    await desk.add()
    args = broker._asked(Ask(1, worker="w1"), 1)
    one = await broker.caller.link.call(
        "EVAL", load("claim").text, 1, "bridge:jobs:waiting", "me:0", 1, *args
    )
    before = {key: desk.store.dump(key) for key in desk.store.scan_iter() if ":call:" not in key}
    two = await broker.caller.link.call(
        "EVAL", load("claim").text, 1, "bridge:jobs:waiting", "me:0", 1, *args
    )
    assert {key: desk.store.dump(key) for key in desk.store.scan_iter() if ":call:" not in key} == before
    first, again = (broker._jobs(ClaimReply(*answer), "w1") for answer in (one, two))
    assert [(job.id, job.starts) for job in first] == [(job.id, job.starts) for job in again]
    assert again[0].attempts_made == 0


@pytest.mark.parametrize(
    "record",
    [
        '{"type":"email"}',
        '{"attempts":null,"type":"email"}',
        '{"attempts":"0","type":"email"}',
        '{"type":"email","attempts":null}',
        '{"type":"email","attempts":-1}',
        '{"type":"email","attempts":1.5}',
        '{"type":"email","attempts":12345678901234567890}',
        '{"type":"email","\\u0061ttempts":0}',
    ],
)
async def test_attempts_are_counted_despite_invalid_records(desk: Desk, record: str) -> None:
    """Otherwise a failing job would be retried without end, or a job with a bad count would never run."""
    desk.store.set("bridge:jobs:data:f1", record)
    desk.store.rpush("bridge:jobs:waiting", "f1")
    made = []
    for _ in range(3):
        (job,) = await desk.claim()
        made.append(job.attempts_made)
        await desk.end(job, "r", value=b"no")
    assert made == [0, 1, 2]


async def test_a_job_that_is_never_due_wakes_no_worker(desk: Desk) -> None:
    desk.foreign("f1", push="")
    desk.store.zadd("bridge:jobs:delayed", {"f1": "+inf"})
    claimed = await desk.broker().claim(Ask(1, worker="w1"))
    assert (claimed.jobs, claimed.due_ms) == ([], 0)
    assert await desk.broker().promote() == (0, 0)


async def test_a_server_without_memory_renews_leases(desk: Desk) -> None:
    """Otherwise all leases expire while memory is full, and every job runs again afterwards."""
    job = await desk.active()
    lock, beat = f"bridge:jobs:lock:{job.id}", "bridge:workers:heartbeat:w1"
    desk.store.sadd("bridge:workers:active", "w1")
    desk.store.set(beat, 1, ex=15)
    desk.store.expire(lock, 15)
    desk.store.config_set("maxmemory", 1)
    try:
        async with asyncio.timeout(14):
            assert await desk.broker().renew([Lease(job.id, job.token, job.starts)], 30_000) == []
    finally:
        desk.store.config_set("maxmemory", 0)
    assert desk.store.ttl(lock) > 20
    assert desk.store.ttl(beat) > 20


async def test_a_server_without_memory_changes_nothing(desk: Desk) -> None:
    """Scripts run whole or not at all."""
    job = await desk.active()
    for _ in range(3):
        await desk.add()
    await desk.add(delay="1s")
    desk.clock.now += 5000
    before = {key: desk.store.dump(key) for key in desk.store.scan_iter()}
    broker = desk.broker()
    calls: dict[str, list[Any]] = {
        "claim": broker._asked(Ask(9, worker="w1"), 9),
        "finish": [
            *broker._asked(Ask(9, worker="w1"), 9),
            1,
            outcome_of(desk.outcome(job), b""),
        ],
        "promote": [desk.clock(), 100],
        "lost": [2000, "", 100],
    }
    desk.store.config_set("maxmemory", 1)
    try:
        for verb, args in calls.items():
            with pytest.raises(ScriptError, match="OOM"):
                await broker.caller.again(load(verb), broker.keys.waiting(), *args)
        with pytest.raises(ScriptError, match="OOM"):
            await desk.add()
    finally:
        desk.store.config_set("maxmemory", 0)
    assert {key: desk.store.dump(key) for key in desk.store.scan_iter()} == before


@pytest.mark.parametrize("category", ["permanent", "cancelled"])
async def test_a_job_that_is_removed_when_it_fails_leaves_nothing(desk: Desk, category: str) -> None:
    job = await desk.active()
    await desk.end(job, "f", value=b"x", category=category, retention=REMOVE)
    assert (await desk.broker().counts())["failed"] == 0
    assert [key for key in desk.store.scan_iter() if job.id in key] == []


async def test_cancelled_jobs_are_listed_for_a_day(desk: Desk) -> None:
    dead = await desk.active()
    await desk.end(dead, "f", value=b"x", category="permanent")
    ids = []
    for _ in range(2):
        desk.clock.now += DAY * 1000 + 1
        job = await desk.active()
        await desk.end(job, "f", value=b"x", category="cancelled")
        ids.append(job.id)
    assert (await desk.broker().counts())["failed"] == 2, (
        "the keys of the first are gone, the dead letter is not"
    )
    assert [job.id for job in await desk.broker().page("failed", 0, 9)] == [ids[1], dead.id]
    assert [job.id for job in await desk.broker().page("failed", 0, 0, oldest=True)] == [dead.id]
    await desk.broker().remove_job(ids[1])
    assert (await desk.broker().counts())["failed"] == 1


async def test_a_page_is_a_part_of_all(desk: Desk) -> None:
    ids = [await desk.add(priority=priority) for priority in (9, 9, 5, 5, 2)]
    ids.insert(2, await desk.add(priority=9, target=Target(capabilities="gpu")))
    broker = desk.broker()
    for first in range(6):
        for last in range(first, 7):
            page = await broker.page("wait", first, last, oldest=True)
            assert [job.id for job in page] == ids[first : last + 1]
            page = await broker.page("wait", first, last)
            assert [job.id for job in page] == ids[::-1][first : last + 1]


async def test_a_job_cannot_depend_on_a_missing_one(desk: Desk) -> None:
    first, own = await desk.add(), str(uuid.uuid4())
    before = {key: desk.store.dump(key) for key in desk.store.scan_iter() if ":ox:call:" not in key}
    for job_id, depends in ((None, [first, "nobody"]), (own, [own])):
        with pytest.raises(UnknownDependency) as refused:
            await desk.add(after=depends, job_id=job_id)
        assert refused.value.job_id == depends[-1]
    after = {key: desk.store.dump(key) for key in desk.store.scan_iter() if ":ox:call:" not in key}
    assert after == before
    broker = desk.broker()
    plain = DEFAULTS["bridge"]
    jobs = [
        broker.encode("email", 1, plain.replace(job_id=own)),
        broker.encode("email", 2, plain.replace(after=["nobody"])),
        broker.encode("email", 3, plain.replace(after=[own])),
    ]
    added = await broker.add_each(jobs)
    assert [type(one) for one in added] == [Added, UnknownDependency, Added], "each for itself"
    assert len(desk.store.keys("bridge:jobs:data:*")) == 3
