"""The verbs of a queue: the state that each leaves, and its errors."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.port import Ask, Claimed, Lease
from oxcart.model.errors import ScriptError
from oxcart.model.options import JobOptions
from oxcart.model.retention import REMOVE, Retention
from tests.broker.bullmq.hashes import hash_of
from tests.broker.bullmq.making import Q, events_of


class TestAdd:
    async def test_order_and_counter(self, q: Q, store: redis.Redis) -> None:
        for job_id in "abc":
            await q.add(job_id)
        await q.add("first", lifo=True)
        assert store.lrange("bull:q:wait", 0, -1) == ["c", "b", "a", "first"]
        assert store.get("bull:q:id") == "4"
        assert [job.id for job in await q.claim(10)] == ["first", "a", "b", "c"]

    async def test_priorities(self, q: Q) -> None:
        for job_id, priority in (("low", 9), ("b", 2), ("a", 2), ("none", 0), ("top", 1)):
            await q.add(job_id, priority=priority)
        assert [job.id for job in await q.claim(10)] == ["none", "top", "b", "a", "low"]

    async def test_the_hash(self, q: Q, store: redis.Redis) -> None:
        await q.add("a", {"x": 1}, delay=5, priority=3, timeout=9)
        fields: Any = store.hgetall("bull:q:a")
        assert fields.pop("opts")
        assert fields == {
            "name": "n",
            "data": '{"x":1}',
            "timestamp": str(q.clock.now),
            "delay": "5000",
            "priority": "3",
            "ox:timeout": "9000",
        }

    async def test_a_batch_reports_existing_jobs(self, q: Q) -> None:
        await q.add("b")
        jobs = [q.broker.encode("n", None, JobOptions.build(job_id=job_id)) for job_id in "abc"]
        assert [added.created for added in await q.broker.add(jobs)] == [True, False, True]

    async def test_wakes_only_a_queue_that_hands_out(self, q: Q, store: redis.Redis) -> None:
        await q.broker.pause()
        await q.add("a")
        assert store.zcard("bull:q:marker") == 0
        await q.broker.resume()
        assert store.zscore("bull:q:marker", "0") == 0


class TestClaim:
    async def test_takes_up_to_a_number(self, q: Q) -> None:
        for job_id in "abcde":
            await q.add(job_id)
        assert [job.id for job in await q.claim(2)] == ["a", "b"]
        assert [job.id for job in await q.claim(9)] == ["c", "d", "e"]
        assert await q.claim(9) == []

    async def test_claim_writes_lock_worker_and_start_time(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        (job,) = await q.claim(1, worker="w1", lock_ms=5000)
        assert (job.token, job.starts, job.started_ms) == ("t1", 1, q.clock.now)
        assert store.get("bull:q:a:lock") == "t1"
        left = store.pttl("bull:q:a:lock")
        assert isinstance(left, int)
        assert 0 < left <= 5000
        assert store.hmget("bull:q:a", "ats", "pb", "processedOn") == ["1", "w1", str(q.clock.now)]
        assert await q.state() == "active"

    async def test_a_new_token_and_number_each_time(self, q: Q) -> None:
        first = await q.active()
        await q.end(first, "w")
        (second,) = await q.claim()
        assert (first.starts, second.starts) == (1, 2)
        assert first.token != second.token

    async def test_delayed_jobs_come_when_due(self, q: Q) -> None:
        await q.add("a", delay=5)
        claimed = await q.broker.claim(Ask(5))
        assert (claimed.jobs, claimed.due_ms) == ([], q.clock.now + 5000)
        q.clock.now += 5000
        assert [job.id for job in await q.claim(5)] == ["a"]

    async def test_paused(self, q: Q) -> None:
        await q.add("a")
        await q.broker.pause()
        claimed = await q.broker.claim(Ask(5))
        assert (claimed.jobs, claimed.closed) == ([], True)

    async def test_global_concurrency(self, q: Q, store: redis.Redis) -> None:
        for job_id in "abc":
            await q.add(job_id)
        store.hset("bull:q:meta", "concurrency", 2)
        assert len(await q.claim(5)) == 2
        assert (await q.broker.claim(Ask(5))).closed

    async def test_rate_limit(self, q: Q, store: redis.Redis) -> None:
        for job_id in "abcde":
            await q.add(job_id)
        ask = Ask(5, limit_max=3, limit_duration=60_000)
        assert len((await q.broker.claim(ask)).jobs) == 3
        limited = await q.broker.claim(ask)
        assert limited.jobs == []
        assert 0 < limited.limited_ms <= 60_000
        store.delete("bull:q:limiter")
        assert len((await q.broker.claim(ask)).jobs) == 2

    async def test_rate_limit_of_the_queue_itself(self, q: Q, store: redis.Redis) -> None:
        for job_id in "abc":
            await q.add(job_id)
        store.hset("bull:q:meta", mapping={"max": 2, "duration": 60_000})
        assert len(await q.claim(5)) == 2
        assert (await q.broker.claim(Ask(5))).limited_ms > 0

    async def test_stops_at_a_size(self, q: Q) -> None:
        for job_id in "abc":
            await q.add(job_id, "x" * 1000)
        assert len(await q.claim(5, max_bytes=1500)) == 2

    async def test_stops_after_a_time_and_reports_more(self, q: Q) -> None:
        jobs = [await q.add(f"job-{number}") for number in range(20)]
        first = await q.broker.claim(Ask(20, spell_us=1))
        assert ([job.id for job in first.jobs], first.more) == (jobs[:8], True)
        rest = await q.broker.claim(Ask(20, spell_us=60_000_000))
        assert ([job.id for job in rest.jobs], rest.more) == (jobs[8:], False)

    async def test_drops_ids_without_a_job(self, q: Q, store: redis.Redis) -> None:
        store.lpush("bull:q:wait", "ghost")
        await q.add("a")
        claimed = await q.broker.claim(Ask(5))
        assert [job.id for job in claimed.jobs] == ["a"]
        assert claimed.orphans == ["ghost"]


class TestFinish:
    async def test_completed(self, q: Q, store: redis.Redis) -> None:
        assert await q.end(await q.active(), value=b'{"x":1}') == 1
        assert await q.state() == "completed"
        assert store.hmget("bull:q:a", "returnvalue", "atm", "finishedOn") == [
            '{"x":1}',
            "1",
            str(q.clock.now),
        ]
        assert not store.exists("bull:q:a:lock")

    async def test_failed(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        ended = await q.end(job, "f", value=b"no", stack=b'["t"]', attempts=1, category="permanent")
        assert (ended, await q.state()) == (1, "failed")
        wanted = ["no", '["t"]', "permanent"]
        assert store.hmget("bull:q:a", "failedReason", "stacktrace", "ox:category") == wanted

    async def test_retry_now_and_later(self, q: Q) -> None:
        assert await q.end(await q.active(), "r", value=b"no", stack=b"[]") == 1
        assert await q.state() == "waiting"
        (job,) = await q.claim()
        assert await q.end(job, "d", value=b"no", stack=b"[]", delay_ms=5000) == 1
        assert await q.state() == "delayed"
        (found,) = await q.broker.get(["a"])
        assert found is not None
        assert (found.attempts_made, found.delay) == (2, 5000)

    async def test_snoozed_and_returned_jobs_use_no_attempt(self, q: Q) -> None:
        await q.end(await q.active(), "d", delay_ms=1, counts=False)
        q.clock.now += 1
        (job,) = await q.claim()
        await q.add("b")
        await q.end(job, "w")
        assert [one.id for one in await q.claim(5)] == ["a", "b"]
        (found,) = await q.broker.get(["a"])
        assert found is not None
        assert (found.attempts_made, found.attempts_started, found.failed_reason) == (0, 3, None)

    async def test_claims_into_the_freed_slots(self, q: Q) -> None:
        job = await q.active()
        for job_id in "bcd":
            await q.add(job_id)
        codes, claimed = await q.broker.finish([q.outcome(job)], Ask(2))
        assert codes == [1]
        assert [one.id for one in claimed.jobs] == ["b", "c"]
        assert claimed.active == 2

    async def test_refusals(self, q: Q, store: redis.Redis) -> None:
        job = await q.active("a")
        stolen = BullMQClaim("a", "somebody else", job.starts, 0, {})
        assert await q.end(stolen) == -6
        store.delete("bull:q:a:lock")
        old = BullMQClaim("a", "late", job.starts - 1, 0, {})
        assert await q.end(old) == -2
        insists = q.outcome(job)
        insists.starts = -1
        assert (await q.broker.finish([insists]))[0] == [-2]
        assert await q.end(BullMQClaim("none", "t", 1, 0, {})) == -1
        assert await q.end(job) == 1, "the lease ran out, but no other worker has started the job"

    async def test_a_job_that_left_active(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        store.lrem("bull:q:active", 1, "a")
        assert await q.end(job) == -3

    async def test_children_that_have_not_ended(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        store.sadd("bull:q:a:dependencies", "bull:q:child")
        assert await q.end(job) == -4
        store.delete("bull:q:a:dependencies")
        store.zadd("bull:q:a:unsuccessful", {"bull:q:child": 1})
        assert await q.end(job) == -9
        assert store.get("bull:q:a:lock") == job.token, "the lease is still held"

    async def test_refused_outcome_does_not_affect_the_others(self, q: Q, store: redis.Redis) -> None:
        for job_id in "abcd":
            await q.add(job_id)
        jobs = await q.claim(4)
        store.delete("bull:q:b")
        store.set("bull:q:c:lock", "stolen")
        codes, _ = await q.broker.finish([q.outcome(job) for job in jobs])
        assert codes == [1, -1, -6, 1]
        assert [await q.state(job_id) for job_id in "ad"] == ["completed", "completed"]

    @pytest.mark.parametrize(
        ("retention", "left"),
        [
            (None, 5),
            (REMOVE, 0),
            (Retention(count=2), 2),
            (Retention(age=60), 5),
            (Retention(age=0), 0),
            (Retention(age=60, count=3), 3),
        ],
    )
    async def test_retention(self, q: Q, store: redis.Redis, retention: Retention | None, left: int) -> None:
        for job_id in "abcde":
            await q.add(job_id)
        for job in await q.claim(5):
            await q.end(job, retention=retention)
        assert store.zcard("bull:q:completed") == left
        assert sum(bool(store.exists(f"bull:q:{job_id}")) for job_id in "abcde") == left

    async def test_the_end_of_all_work_writes_drained(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        await q.add("b")
        await q.end(job)
        assert "drained" not in events_of(store)
        (last,) = await q.claim()
        await q.end(last)
        assert events_of(store)[-1] == "drained"


class TestLeases:
    async def test_extend(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        store.sadd("bull:q:stalled", "a")
        store.pexpire("bull:q:a:lock", 10)
        lease = Lease(job.id, job.token, job.starts)
        assert await q.broker.renew([lease], 60_000) == []
        left = store.pttl("bull:q:a:lock")
        assert isinstance(left, int)
        assert left > 10_000
        assert store.scard("bull:q:stalled") == 0

    async def test_an_expired_lease_is_renewed_while_no_other_worker_started(
        self, q: Q, store: redis.Redis
    ) -> None:
        job = await q.active()
        store.delete("bull:q:a:lock")
        assert await q.broker.renew([Lease("a", job.token)], 60_000) == ["a"]
        assert await q.broker.renew([Lease("a", job.token, job.starts + 1)], 60_000) == ["a"]
        assert await q.broker.renew([Lease("a", job.token, job.starts)], 60_000) == []
        assert store.get("bull:q:a:lock") == job.token

    async def test_anothers_lease_is_never_touched(self, q: Q, store: redis.Redis) -> None:
        job = await q.active()
        store.set("bull:q:a:lock", "other")
        assert await q.broker.renew([Lease("a", job.token, job.starts)], 60_000) == ["a"]
        assert store.get("bull:q:a:lock") == "other"

    async def test_leases_are_renewed_independently(self, q: Q) -> None:
        for job_id in "ab":
            await q.add(job_id)
        one, two = await q.claim(2)
        leases = [Lease("none", "t", 1), Lease("a", one.token, 1), Lease("b", "wrong", 1)]
        assert await q.broker.renew(leases, 1000) == ["none", "b"]
        assert await q.broker.renew([], 1000) == []
        assert two.id == "b"


class TestRecovery:
    async def recover(self, q: Q, store: redis.Redis, most: int = 1) -> list[str]:
        store.delete("bull:q:stalled-check")
        return (await q.broker.recover(max_stalled=most, interval_ms=30_000)).ids

    async def test_in_two_phases(self, q: Q, store: redis.Redis) -> None:
        await q.active()
        store.delete("bull:q:a:lock")
        assert await self.recover(q, store) == []
        assert await self.recover(q, store) == ["a"]
        assert await q.state() == "waiting"
        assert store.hget("bull:q:a", "stc") == "1"

    async def test_a_held_job_is_left(self, q: Q, store: redis.Redis) -> None:
        await q.active()
        assert [await self.recover(q, store) for _ in range(3)] == [[], [], []]

    async def test_once_per_interval(self, q: Q, store: redis.Redis) -> None:
        assert (await q.broker.recover(max_stalled=1, interval_ms=30_000)).ran
        assert not (await q.broker.recover(max_stalled=1, interval_ms=30_000)).ran

    async def test_job_that_stalls_too_often_fails(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        for _ in range(2):
            await q.claim()
            store.delete("bull:q:a:lock")
            await self.recover(q, store)
            await self.recover(q, store)
        (job,) = await q.claim()
        assert hash_of(job)[b"defa"] == b"job stalled more than allowable limit"
        assert hash_of(job)[b"stc"] == b"2"

    async def test_more_than_a_step(self, q: Q, store: redis.Redis) -> None:
        jobs = [q.broker.encode("n", None, JobOptions.build(job_id=f"j{i}")) for i in range(2500)]
        await q.broker.add(jobs)
        while await q.claim(500):
            pass
        for key in store.scan_iter("bull:q:*:lock"):
            store.delete(key)
        await self.recover(q, store)
        found = await self.recover(q, store)
        assert len(set(found)) == 2500
        assert store.llen("bull:q:wait") == 2500
        assert store.llen("bull:q:active") == 0


class TestPromote:
    async def test_lets_due_jobs_through(self, q: Q) -> None:
        for number in range(5):
            await q.add(f"j{number}", delay=number + 1, priority=number % 2)
        q.clock.now += 3000
        assert await q.broker.promote(250) == (3, q.clock.now + 1000)
        assert [await q.state(f"j{number}") for number in range(5)] == [
            "waiting",
            "prioritized",
            "waiting",
            "delayed",
            "delayed",
        ]

    async def test_promote_moves_a_bounded_number_of_jobs(self, q: Q) -> None:
        for number in range(5):
            await q.add(f"j{number}", delay=1)
        q.clock.now += 1000
        assert [(await q.broker.promote(2))[0] for _ in range(3)] == [2, 2, 1]

    async def test_settles_the_lists(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        store.lpush("bull:q:paused", "b")
        store.hset("bull:q:b", mapping={"timestamp": 1, "name": "n"})
        await q.broker.promote()
        assert store.llen("bull:q:paused") == 0
        assert set(store.lrange("bull:q:wait", 0, -1)) == {"a", "b"}


class TestRefusedAsAWhole:
    async def test_a_key_of_the_wrong_type(self, q: Q, store: redis.Redis) -> None:
        store.set("bull:q:meta", "x")
        with pytest.raises(ScriptError, match=r"add: .*WRONGTYPE"):
            await q.add("a")
        with pytest.raises(ScriptError, match=r"claim: .*WRONGTYPE"):
            await q.claim()

    @pytest.mark.parametrize("place", ["events", "id", "wait", "marker"])
    async def test_a_job_that_finds_no_place_leaves_nothing(
        self, q: Q, store: redis.Redis, place: str
    ) -> None:
        if place == "wait":
            store.zadd("bull:q:wait", {"0": 0})
        else:
            store.rpush(f"bull:q:{place}", "x")
        with pytest.raises(ScriptError, match=r"WRONGTYPE|not an integer"):
            await q.add("a")
        assert not store.exists("bull:q:a")
        assert place == "wait" or not store.exists("bull:q:wait")

    async def test_reads(self, q: Q, store: redis.Redis) -> None:
        store.set("bull:q:wait", "x")
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await q.broker.counts()


def test_answers_to_a_claim_are_values() -> None:
    assert Claimed([]).orphans == []
