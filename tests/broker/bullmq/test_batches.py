"""A call for many jobs has the effect of single calls: order of `active`, leases, codes."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.claimed import BullMQClaim, NewClaim
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from oxcart.model.retention import REMOVE
from tests.broker.bullmq.hashes import hash_of

NOW = 1_700_000_000_000


@pytest_asyncio.fixture
async def broker(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "q", clock=lambda: NOW)
    yield made
    await made.close()


async def claimed(broker: BullMQBroker, count: int, **options: Any) -> list[ClaimedJob]:
    """Adds and claims a number of jobs, a few at a time."""
    jobs = [broker.encode("n", None, JobOptions.build(job_id=f"j{i}", **options)) for i in range(count)]
    await broker.add(jobs)
    found: list[ClaimedJob] = []
    while len(found) < count:
        found += (await broker.claim(Ask(min(7, count - len(found))))).jobs
    return found


def completed(job: ClaimedJob, at_ms: int = NOW, **fields: Any) -> Outcome:
    return Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, at_ms, b"1", claim=job, **fields)


def active(store: redis.Redis) -> list[str]:
    found: Any = store.lrange("bull:q:active", 0, -1)
    return list(found)


@pytest.mark.parametrize("seed", range(8))
async def test_ends_in_any_order_leave_the_others_in_theirs(
    broker: BullMQBroker, store: redis.Redis, seed: int
) -> None:
    chance = random.Random(seed)
    jobs = await claimed(broker, 40)
    before = active(store)
    while jobs:
        ending = chance.sample(jobs, min(len(jobs), chance.randint(1, 15)))
        codes, _ = await broker.finish([completed(job, NOW + chance.randint(0, 2)) for job in ending])
        assert codes == [1] * len(ending)
        jobs = [job for job in jobs if job not in ending]
        left = {job.id for job in jobs}
        before = [one for one in before if one in left]
        assert active(store) == before
    assert store.zcard("bull:q:completed") == 40


@pytest.mark.parametrize("odd", range(6))
async def test_a_job_with_a_parent_among_plain_ones(
    broker: BullMQBroker, store: redis.Redis, odd: int
) -> None:
    jobs = await claimed(broker, 6)
    store.hset(f"bull:q:{jobs[odd].id}", "parentKey", "bull:q:above")
    store.sadd("bull:q:above:dependencies", f"bull:q:{jobs[odd].id}", "bull:q:another")
    assert (await broker.finish([completed(job) for job in jobs]))[0] == [1] * 6
    assert (active(store), store.zcard("bull:q:completed")) == ([], 6)
    assert store.exists("bull:q:stalled", *(f"bull:q:{job.id}:lock" for job in jobs)) == 0
    assert store.hgetall("bull:q:above:processed") == {f"bull:q:{jobs[odd].id}": "1"}
    ended: Any = store.xrange("bull:q:events", "-", "+")
    assert [one["jobId"] for _, one in ended if one["event"] == "completed"] == [job.id for job in jobs]
    assert [store.hget(f"bull:q:{job.id}", "atm") for job in jobs] == ["1"] * 6


@pytest.mark.parametrize("odd", range(6))
async def test_the_lease_of_another_among_plain_ones(
    broker: BullMQBroker, store: redis.Redis, odd: int
) -> None:
    jobs = await claimed(broker, 6)
    store.set(f"bull:q:{jobs[odd].id}:lock", "another's")
    codes = [1] * 6
    codes[odd] = -6
    assert (await broker.finish([completed(job) for job in jobs]))[0] == codes
    assert active(store) == [jobs[odd].id]
    assert store.get(f"bull:q:{jobs[odd].id}:lock") == "another's"
    assert store.zscore("bull:q:completed", jobs[odd].id) is None


@pytest.mark.parametrize("room", range(1, 8))
async def test_a_batch_whose_events_cannot_all_be_written(
    broker: BullMQBroker, store: redis.Redis, room: int
) -> None:
    """A job whose event is refused has ended all the same; only its answer is an error."""
    jobs = await claimed(broker, 6)
    store.xadd("bull:q:events", {"event": "x"}, id=f"{2**64 - 1}-{2**64 - 1 - room}")
    codes, _ = await broker.finish([completed(job) for job in jobs], Ask(0))
    written = min(room, 6 if room > 6 else 5)  # the last one also writes that the queue is drained
    assert codes[:written] == [1] * written
    assert all("exhausted" in str(code) for code in codes[written:])
    assert (active(store), store.zcard("bull:q:completed")) == ([], 6)
    assert store.keys("bull:q:*:lock") == []


async def test_the_oldest_end_first(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 30)
    await broker.finish([completed(job) for job in jobs[:10]])
    assert active(store) == [job.id for job in reversed(jobs[10:])]


async def test_one_job_twice_in_a_batch_ends_once(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 6)
    codes, _ = await broker.finish([completed(job) for job in [*jobs[:3], jobs[1], *jobs[3:]]])
    assert codes == [1, 1, 1, -2, 1, 1, 1]
    assert (active(store), store.zcard("bull:q:completed")) == ([], 6)


async def test_an_id_that_left_the_list_is_not_active(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 6)
    store.lrem("bull:q:active", 1, jobs[2].id)
    codes, _ = await broker.finish([completed(job) for job in jobs])
    assert codes == [1, 1, -3, 1, 1, 1]
    assert active(store) == []


async def test_only_a_missing_job_is_refused(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 6)
    store.delete(f"bull:q:{jobs[2].id}")
    codes, _ = await broker.finish([completed(job) for job in jobs])
    assert codes == [1, 1, -1, 1, 1, 1]
    assert [store.hget(f"bull:q:{job.id}", "atm") for job in jobs] == ["1", "1", None, "1", "1", "1"]


async def test_a_parent_added_after_the_claim_is_notified(broker: BullMQBroker, store: redis.Redis) -> None:
    """A peer adds an existing id as a child, which makes the running job a child."""
    jobs = await claimed(broker, 6)
    child = f"bull:q:{jobs[3].id}"
    store.hset("bull:q:above", mapping={"name": "n", "data": "1", "opts": "{}"})
    store.zadd("bull:q:waiting-children", {"above": NOW})
    store.sadd("bull:q:above:dependencies", child)
    store.hset(child, mapping={"parentKey": "bull:q:above", "parent": '{"id":"above","queueKey":"bull:q"}'})
    codes, _ = await broker.finish([completed(job) for job in jobs])
    assert codes == [1] * 6
    assert store.lrange("bull:q:wait", 0, -1) == ["above"]
    assert store.hgetall("bull:q:above:processed") == {child: "1"}


async def test_an_expired_lease_finishes_in_a_batch_while_no_other_worker_started_the_job(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    jobs = await claimed(broker, 6)
    store.delete(*(f"bull:q:{job.id}:lock" for job in jobs[1:3]))
    store.hset(f"bull:q:{jobs[2].id}", "ats", 2)
    codes, _ = await broker.finish([completed(job) for job in jobs])
    assert codes == [1, 1, -2, 1, 1, 1]


async def test_attempts_that_ended_before_are_counted_on(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 4, attempts=3)
    await broker.finish(
        [Outcome(OutcomeKind.RETRY, job.id, job.token, job.starts, NOW, b"x", b"[]") for job in jobs], Ask(0)
    )
    again = (await broker.claim(Ask(4))).jobs
    assert [job.earlier for job in again if isinstance(job, BullMQClaim)] == [1] * 4
    assert (await broker.finish([completed(job) for job in again]))[0] == [1] * 4
    assert [store.hget(f"bull:q:{job.id}", "atm") for job in again] == ["2"] * 4


async def test_every_kind_of_end_in_one_batch(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 10, attempts=3)
    kinds: list[dict[str, Any]] = [
        {"kind": "c", "value": b"1"},
        {"kind": "f", "value": b"x", "stack": b"[]", "attempts": 3, "category": "PERMANENT"},
        {"kind": "r", "value": b"x", "stack": b"[]"},
        {"kind": "d", "value": b"x", "stack": b"[]", "delay_ms": 5000},
        {"kind": "w"},
    ]
    outcomes = [
        Outcome(id=job.id, token=job.token, starts=job.starts, at_ms=NOW, claim=job, **kinds[i % 5])
        for i, job in enumerate(jobs)
    ]
    codes, _ = await broker.finish(outcomes)
    assert codes == [1] * 10
    counts = await broker.counts()
    assert {state: counts[state] for state in ("active", "completed", "failed", "delayed", "wait")} == {
        "active": 0,
        "completed": 2,
        "failed": 2,
        "delayed": 2,
        "wait": 4,
    }


async def test_retention_differs_within_a_batch(broker: BullMQBroker, store: redis.Redis) -> None:
    jobs = await claimed(broker, 6)
    await broker.finish([completed(job, retention=REMOVE if i % 2 else None) for i, job in enumerate(jobs)])
    assert store.zrange("bull:q:completed", 0, -1) == [job.id for job in jobs[::2]]
    assert [store.exists(f"bull:q:{job.id}") for job in jobs] == [1, 0, 1, 0, 1, 0]


async def test_room_under_a_concurrency_counts_finished_jobs(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    store.hset("bull:q:meta", "concurrency", 6)
    await broker.add([broker.encode("n", None, JobOptions.build(job_id=f"j{i}")) for i in range(9)])
    jobs = (await broker.claim(Ask(10))).jobs
    assert len(jobs) == 6
    retried = Outcome(OutcomeKind.RETRY, jobs[5].id, jobs[5].token, jobs[5].starts, NOW, b"x", b"[]")
    codes, claim = await broker.finish([*(completed(job) for job in jobs[:5]), retried], Ask(10))
    assert codes == [1] * 6
    assert [job.id for job in claim.jobs] == ["j6", "j7", "j8", "j5"]


@pytest.mark.parametrize("seed", range(3))
async def test_the_lost_among_many_come_back(broker: BullMQBroker, store: redis.Redis, seed: int) -> None:
    """More than one step of the stalled check: it walks the list from its old end."""
    jobs = await claimed(broker, 1700)
    await broker.recover(interval_ms=1)
    assert store.scard("bull:q:stalled") == 1700
    chance = random.Random(seed)
    lost = {job.id for job in jobs if chance.random() < (0.05, 0.5, 1.0)[seed]}
    store.delete(*(f"bull:q:{job_id}:lock" for job_id in lost))
    store.sadd("bull:q:stalled", "gone")
    store.delete("bull:q:stalled-check")
    found = await broker.recover(interval_ms=1)
    assert (len(found.ids), set(found.ids)) == (len(lost), lost)
    assert active(store) == [job.id for job in reversed(jobs) if job.id not in lost]
    assert set(store.lrange("bull:q:wait", 0, -1)) == lost
    assert store.smembers("bull:q:stalled") == {job.id for job in jobs} - lost


async def test_fields_that_are_no_text_reach_the_worker_as_they_are(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    await broker.add([broker.encode("n", None, JobOptions.build(job_id="a"))])
    store.hset("bull:q:a", mapping={"data": b'"\xff\x00"', "odd\xff": b"\x80"})
    (job,) = (await broker.claim(Ask(1))).jobs
    assert hash_of(job)[b"data"] == b'"\xff\x00"'
    assert hash_of(job)["odd\xff".encode()] == b"\x80"


async def test_a_user_without_mset_renews_leases_one_by_one(url: str, store: redis.Redis) -> None:
    store.acl_setuser(
        "plain", True, passwords="+secret", keys=["*"], channels=["*"], commands=["+@all", "-msetex"]
    )
    try:
        broker = BullMQBroker(Server(url.replace("://", "://plain:secret@")), "q", clock=lambda: NOW)
        jobs = await claimed(broker, 5)
        assert [store.get(f"bull:q:{job.id}:lock") for job in jobs] == [job.token for job in jobs]
        lives: list[Any] = [store.pttl(f"bull:q:{job.id}:lock") for job in jobs]
        assert all(0 < life <= 30_000 for life in lives)
        await broker.close()
    finally:
        store.acl_deluser("plain")


async def test_jobs_with_fields_in_any_order_keep_their_values(
    broker: BullMQBroker, store: redis.Redis
) -> None:
    chance = random.Random(5)
    plain = ["name", "data", "opts", "timestamp", "delay", "priority"]
    orders = [plain, plain[::-1], [*plain[1:], "name"], ["name", "data", "opts", "timestamp", "delay", "ats"]]
    stored: dict[str, dict[str, str]] = {}
    for number in range(60):
        names = list(chance.choice(orders)) + (["ox:corr"] if chance.random() < 0.2 else [])
        values = {name: str(1000 * number + at) for at, name in enumerate(names)}
        values |= {"opts": f'{{"attempts":{number}}}', "data": f'"{number}\\u0000"'} | (
            {"name": f"\0name {number}"} if chance.random() < 0.2 else {}
        )
        stored[f"j{number}"] = values
        store.hset(f"bull:q:j{number}", mapping=dict[Any, Any](values))
        store.lpush("bull:q:wait", f"j{number}")
        if chance.random() < 0.1:
            store.lpush("bull:q:wait", f"gone{number}")  # an id without a job
    jobs = (await broker.claim(Ask(60))).jobs
    assert [job.id for job in jobs] == list(stored)
    for job in jobs:
        values = stored[job.id]
        assert hash_of(job) == {name.encode(): value.encode() for name, value in values.items()}
        assert job.starts == int(values.get("ats", 0)) + 1
        assert job.options.attempts == json.loads(values["opts"])["attempts"]
        assert job.correlation_id == values.get("ox:corr")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"name": "\udcff"},
        {"opts": '{"attempts":3,"timeout":5'},
        {"timestamp": "yesterday"},
        {"delay": "9" * 16},
        {"priority": ""},
        {"opts": '{"removeOnComplete":true,"backoff":"fixed"}', "data": "[1"},
    ],
)
async def test_new_jobs_read_as_those_with_more_fields(
    broker: BullMQBroker, store: redis.Redis, changed: dict[str, str]
) -> None:
    fields = {"name": "n", "data": "{}", "opts": "{}", "timestamp": "5", "delay": "0", "priority": "0"}
    for job_id in ("first", "second"):  # the second comes without names
        stored = {key: value.encode("utf-8", "surrogateescape") for key, value in (fields | changed).items()}
        store.hset(f"bull:q:{job_id}", mapping=dict[Any, Any](stored))
        store.lpush("bull:q:wait", job_id)
    whole, new = (await broker.claim(Ask(2))).jobs
    assert isinstance(new, NewClaim)
    assert not isinstance(whole, NewClaim)
    read = [name for name, member in vars(BullMQClaim).items() if isinstance(member, property)]
    assert {name: getattr(new, name) for name in read} == {name: getattr(whole, name) for name in read}
    assert (new.starts, type(new.starts)) == (1, int)
