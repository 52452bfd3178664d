"""Limits per type and key on a real server: which jobs are parked, which pass, and which are released."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import redis

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.limits import Limit, Usage
from oxcart.model.errors import ValidationError
from oxcart.model.state import State
from oxcart.sync import Queue as SyncQueue
from tests.conftest import MakeQueue
from tests.formal.test_history import check
from tests.signals import eventually

DAY = 86_400_000


async def claim(queue: Queue, count: int = 100, lock_ms: int = 30_000) -> list[ClaimedJob]:
    return (await queue._core.broker.claim(Ask(count, lock_ms=lock_ms))).jobs


async def claim_all(queue: Queue) -> list[ClaimedJob]:
    """Claims until no ready job is left: one claim stops after a number of held-back jobs."""
    found = await claim(queue, 50)
    while (await queue.counts())["waiting"]:
        found += await claim(queue, 50)
    return found


async def end(
    queue: Queue, *jobs: ClaimedJob, kind: str = "c", take: int = 0, **more: Any
) -> list[ClaimedJob]:
    """Finishes attempts and claims up to `take` jobs in the same call."""
    now = queue._core.broker.clock()
    outcomes = [
        Outcome(OutcomeKind(kind), job.id, job.token, job.starts, now, b"1", b"[]", **more) for job in jobs
    ]
    codes, claimed = await queue._core.broker.finish(outcomes, Ask(take))
    assert codes == [1] * len(jobs)
    return claimed.jobs


def names(jobs: list[ClaimedJob]) -> Counter[str]:
    return Counter(job.name for job in jobs)


class TestSettings:
    async def test_type_and_key_limits_are_set_read_and_removed(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        limits = queue.limits
        assert (await limits.type_limits(), await limits.key_limit()) == ({}, None)
        await limits.set_type_limit("a", concurrent=2)
        await limits.set_type_limit("b", per_minute=5, concurrent=1)
        await limits.set_key_limit(per_minute=3)
        assert await limits.type_limits() == {"a": Limit(2, None), "b": Limit(1, 5)}
        assert await limits.key_limit() == Limit(None, 3)
        await limits.remove_type_limit("a")
        await limits.remove_type_limit("b")
        await limits.remove_key_limit()
        assert (await limits.type_limits(), await limits.key_limit()) == ({}, None)
        assert store.hgetall("bull:q:meta") == {}, "a queue without limits has no settings left"

    def test_without_await(self, url: str) -> None:
        with SyncQueue("q", url=url) as queue:
            queue.limits.set_type_limit("a", concurrent=2)
            queue.limits.set_key_limit(concurrent=1, per_minute=9)
            assert queue.limits.type_limits() == {"a": Limit(2)}
            assert queue.limits.key_limit() == Limit(1, 9)
            assert queue.limits.type_usage("a") == queue.limits.key_usage("k") == Usage(0, 0, 0)
            queue.limits.remove_type_limit("a")
            queue.limits.remove_key_limit()
            assert (queue.limits.type_limits(), queue.limits.key_limit()) == ({}, None)

    @pytest.mark.parametrize("bad", [0, -1, True, 1.5, "1", 10**10])
    async def test_bad_numbers(self, queue: Queue, store: redis.Redis, bad: Any) -> None:
        with pytest.raises(ValidationError, match="concurrent"):
            await queue.limits.set_type_limit("a", concurrent=bad)
        with pytest.raises(ValidationError, match="per_minute"):
            await queue.limits.set_key_limit(per_minute=bad)
        assert store.keys() == []

    async def test_bad_names(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(ValidationError, match="concurrent must be given"):
            await queue.limits.set_type_limit("a")
        for bad in ("", "a\nb", "\ud800"):
            with pytest.raises(ValidationError):
                await queue.limits.set_type_limit(bad, concurrent=1)
            with pytest.raises(ValidationError, match="limit_key"):
                await queue.add("a", limit_key=bad)
        with pytest.raises(ValidationError, match="limit_key"):
            await queue.add("a", limit_key="x" * 257)
        assert store.keys() == []

    async def test_the_key_is_seen(self, queue: Queue) -> None:
        handle = await queue.add("a", limit_key="tenant-42")
        assert (await handle.get()).options.limit_key == "tenant-42"


class TestConcurrent:
    async def test_a_limited_type_does_not_block_others(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("slow", concurrent=2)
        await queue.add_many([("slow", n) for n in range(50)] + [("fast", n) for n in range(3)])
        first = await claim(queue, 10)
        assert names(first) == {"slow": 2, "fast": 3}
        assert await claim(queue) == []
        assert await queue.limits.type_usage("slow") == Usage(2, 48, 0)
        counts = await queue.counts()
        assert (counts["active"], counts["waiting"], counts["delayed"]) == (5, 0, 48)

    async def test_an_end_lets_the_next_one_in_in_the_order_of_their_adds(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        handles = await queue.add_many([("slow", n) for n in range(6)])
        done = []
        [job] = await claim(queue, 10)
        for kind in ("c", "f", "c", "c", "c"):
            done.append(job.id)
            [job] = await end(queue, job, kind=kind, take=10)
        done.append(job.id)
        assert done == [handle.id for handle in handles]

    @pytest.mark.parametrize("kind", ["r", "d", "w"])
    async def test_every_way_out_of_active_gives_the_place_up(self, queue: Queue, kind: str) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        await queue.add_many([("slow", n) for n in range(3)])
        [job] = await claim(queue)
        more = {"delay_ms": 60_000} if kind == "d" else {}
        [other] = await end(queue, job, kind=kind, take=5, **more)
        assert (other.id == job.id) == (kind == "w"), "a returned job is first in its list"
        assert (await queue.limits.type_usage("slow")).running == 1

    async def test_priorities_hold_among_those_let_in(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        await queue.add("slow", 0)
        [first] = await claim(queue)
        await queue.add("slow", 1, priority=5)
        await queue.add("other", 2, priority=9)
        assert names(await claim(queue)) == {"other": 1}
        await end(queue, first)
        [second] = await claim(queue)
        assert second.options.priority == 5

    async def test_a_limit_counts_jobs_that_run_already(self, queue: Queue) -> None:
        await queue.add_many([("slow", n, {"limit_key": "k"}) for n in range(5)])
        running = await claim(queue, 3)
        await queue.limits.set_type_limit("slow", concurrent=3)
        await queue.limits.set_key_limit(concurrent=4)
        assert (await queue.limits.type_usage("slow")).running == 3
        assert (await queue.limits.key_usage("k")).running == 3
        assert await claim(queue) == []
        assert len(await end(queue, running[0], take=9)) == 1

    async def test_a_higher_limit_and_none_let_jobs_in(self, queue: Queue, store: redis.Redis) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        await queue.add_many([("slow", n) for n in range(300)])
        held = await claim(queue)
        await queue.limits.set_type_limit("slow", concurrent=3)
        held += await claim(queue)
        assert len(held) == 3
        await queue.limits.remove_type_limit("slow")
        for _ in range(10):
            held += await claim(queue, 100)
        assert len(held) == 300
        assert not {key for key in store.scan_iter() if ":ox:" in key and ":ox:call" not in key}
        assert "ox:limits" not in store.hgetall("bull:q:meta")

    async def test_jobs_that_others_took_away(self, queue: Queue, store: redis.Redis) -> None:
        """A held-back job that is removed, promoted or delayed runs at most once and blocks no other."""
        await queue.limits.set_type_limit("slow", concurrent=1)
        handles = await queue.add_many([("slow", n) for n in range(5)])
        jobs = await claim(queue)
        await handles[1].remove()
        await handles[2].promote()
        await queue._core.broker.change_delay(handles[3].id, 60_000)
        assert await claim(queue) == [], "promoted by hand it is still over the limit"
        ran = []
        while jobs:
            ran += [job.id for job in jobs]
            jobs = await end(queue, *jobs, take=9)
        assert sorted(ran) == sorted(handles[n].id for n in (0, 2, 4))
        assert await handles[3].state() == "delayed"
        assert await queue.limits.type_usage("slow") == Usage(0, 0, 0)

    async def test_held_back_job_is_formally_ready(self, queue: Queue) -> None:
        """Its history has only transitions that the model allows."""
        await queue.limits.set_type_limit("slow", concurrent=1)
        running, promoted, cancelled, last = await queue.add_many(
            [("slow", n) for n in range(4)], history=True, attempts=2
        )
        await claim_all(queue)
        for handle in (promoted, cancelled, last):
            assert await handle.state() == "delayed"
            assert (await handle.get()).state is State.SCHEDULED
        await promoted.promote()
        await cancelled.cancel("no")
        job = await cancelled.get()
        assert [(one.source, one.target) for one in job.transitions][-1] == (State.SCHEDULED, State.CANCELLED)
        assert (await running.get()).state is State.RUNNING
        await queue.limits.remove_type_limit("slow")
        jobs = await claim_all(queue)
        assert {one.id for one in jobs} == {promoted.id, last.id}
        for handle in (running, promoted, cancelled, last):
            check(await handle.get())

    @pytest.mark.parametrize("many", [5, 700, 2500])
    async def test_notes_of_many_jobs_that_are_gone_do_not_stand_in_the_way(
        self, queue: Queue, store: redis.Redis, many: int
    ) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        await queue.add("slow")
        [first] = await claim(queue)
        await queue.add_many([("slow", n) for n in range(many)])
        assert await claim_all(queue) == []
        await queue.jobs.clear(delayed=True)
        assert (await queue.limits.type_usage("slow")).held_back == many, "no claim has looked at them yet"
        # Jobs held back in the same millisecond are ordered by id: this one is last in any case.
        new = await queue.add("slow", "new", job_id="zz")
        assert await claim(queue) == []
        taken = await end(queue, first, take=5)
        while not taken:  # at once, or with the next checks
            taken = await claim(queue)
        assert [job.id for job in taken] == [new.id]
        assert await queue.limits.type_usage("slow") == Usage(1, 0, 0)
        assert not store.exists("bull:q:ox:opening")

    async def test_a_holder_that_vanished_is_noticed(self, queue: Queue, store: redis.Redis) -> None:
        """Acts as a peer's removal, after which no finish of ours freed the place."""
        await queue.limits.set_type_limit("slow", concurrent=2)
        await queue.add_many([("slow", n) for n in range(4)])
        gone, kept = await claim(queue)
        store.delete(f"bull:q:{gone.id}", f"bull:q:{gone.id}:lock")
        store.lrem("bull:q:active", 0, gone.id)
        store.delete(
            f"bull:q:{kept.id}:lock"
        )  # its lease ran out, but it is still active: it keeps its place
        assert await claim(queue) == []
        store.zadd("bull:q:ox:opening", {"t:slow": 0})  # five seconds later
        await queue._core.broker.promote()
        assert len(await claim(queue)) == 1
        assert (await queue.limits.type_usage("slow")).running == 2

    async def test_the_stalled_check_gives_places_back(self, queue: Queue, store: redis.Redis) -> None:
        await queue.limits.set_type_limit("slow", concurrent=2)
        await queue.limits.set_key_limit(concurrent=1)
        await queue.add_many([("slow", n, {"limit_key": str(n)}) for n in range(3)])
        lost = await claim(queue, lock_ms=1)
        assert len(lost) == 2
        await asyncio.sleep(0.01)
        await queue._core.broker.recover(interval_ms=1)
        await asyncio.sleep(0.005)
        assert sorted((await queue._core.broker.recover(interval_ms=1)).ids) == sorted(job.id for job in lost)
        assert (await queue.limits.type_usage("slow")).running == 0
        again = await claim(queue)
        assert {job.id for job in again} == {job.id for job in lost}, "the recovered jobs come first"
        assert (await queue.limits.type_usage("slow")).running == 2
        assert (await queue.limits.key_usage()).running == 2


class TestPerMinute:
    async def test_starts_per_minute_are_bounded(self, queue: Queue, store: redis.Redis) -> None:
        await queue.limits.set_type_limit("mail", per_minute=3)
        await queue.add_many([("mail", n) for n in range(8)] + [("other", 0)])
        jobs = await claim(queue, 20)
        assert names(jobs) == {"mail": 3, "other": 1}
        assert await end(queue, *jobs, take=9) == [], "a finish admits no further start"
        assert 0 < store.pttl("bull:q:ox:rate:t:mail") <= 60_000
        at = store.zscore("bull:q:ox:opening", "t:mail")
        assert at is not None
        assert queue._core.broker.clock() < at <= queue._core.broker.clock() + 60_000
        assert await queue.limits.type_usage("mail") == Usage(0, 5, 3)
        # The window ends.
        store.delete("bull:q:ox:rate:t:mail")
        store.zadd("bull:q:ox:opening", {"t:mail": 0})
        await queue._core.broker.promote()
        assert names(await claim(queue, 20)) == {"mail": 3}
        assert await queue.limits.type_usage("mail") == Usage(0, 2, 3)

    async def test_both_bounds_at_once(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("mail", concurrent=2, per_minute=3)
        await queue.add_many([("mail", n) for n in range(8)])
        one, two = await claim(queue, 20)
        [three] = await end(queue, one, take=9)
        assert await end(queue, two, three, take=9) == [], "there are places, but no starts left"
        assert await queue.limits.type_usage("mail") == Usage(0, 5, 3)

    async def test_a_count_without_an_end_is_none(self, queue: Queue, store: redis.Redis) -> None:
        await queue.limits.set_type_limit("mail", per_minute=1)
        store.set("bull:q:ox:rate:t:mail", 1)
        await queue.add("mail")
        assert len(await claim(queue)) == 1


class TestKeys:
    async def test_each_key_has_a_limit_of_its_own(self, queue: Queue) -> None:
        await queue.limits.set_key_limit(concurrent=2)
        rows: list[Any] = [("n", i, {"limit_key": f"tenant-{i % 3}"}) for i in range(30)]
        await queue.add_many([*rows, ("n", 99)])
        jobs = await claim(queue)
        keys = Counter(job.options.limit_key or "" for job in jobs)
        assert keys == {"tenant-0": 2, "tenant-1": 2, "tenant-2": 2, "": 1}
        assert await queue.limits.key_usage() == Usage(6, 24, 0)
        assert await queue.limits.key_usage("tenant-1") == Usage(2, 8, 0)

    async def test_one_key_is_not_the_beginning_of_another(self, queue: Queue) -> None:
        await queue.limits.set_key_limit(concurrent=1)
        await queue.add_many([("n", 0, {"limit_key": key}) for key in ("a", "ab", "a:b", "a b", "á", "*")])
        assert len(await claim(queue)) == 6

    async def test_a_job_in_two_full_buckets_waits_for_both(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("slow", concurrent=1)
        await queue.limits.set_key_limit(concurrent=1)
        await queue.add("slow", 0, limit_key="a")
        await queue.add("quick", 1, limit_key="b")
        await queue.add("slow", 2, limit_key="b")  # over the type's, and then over the key's
        await queue.add("slow", 3, limit_key="c")
        running = {job.payload: job for job in await claim(queue)}
        assert set(running) == {b"0", b"1"}
        # The type's place is offered to job 2, whose key is taken: job 3 gets it.
        await end(queue, running[b"0"])
        taken = await claim(queue)
        if not taken:
            taken = await claim(queue)
        assert [job.payload for job in taken] == [b"3"]
        await end(queue, running[b"1"])
        assert await claim(queue) == [], "now the key has a place, and the type none"
        await end(queue, *taken)
        assert [job.payload for job in await claim(queue)] == [b"2"]

    async def test_many_keys(self, queue: Queue, store: redis.Redis) -> None:
        many = 1000
        await queue.limits.set_key_limit(concurrent=1)
        rows: list[Any] = [("n", i, {"limit_key": f"tenant-{i % many}"}) for i in range(2 * many)]
        await queue.add_many(rows)
        held = await claim_all(queue)
        assert len(held) == many
        assert await queue.limits.key_usage() == Usage(many, many, 0)
        for first in range(0, many, 50):
            await end(queue, *held[first : first + 50])
        again = await claim_all(queue)
        assert len(again) == many
        for first in range(0, many, 50):
            await end(queue, *again[first : first + 50])
        assert not {key for key in store.scan_iter() if ":ox:" in key and ":ox:call" not in key}


async def test_a_job_behind_many_parked_ones_runs(queue: Queue) -> None:
    """A claim stops after a bounded number of jobs, and the marker causes the next claim."""
    await queue.limits.set_type_limit("slow", concurrent=1)
    await queue.add_many([("slow", n) for n in range(1000)])
    await queue.add("fast")
    found: list[ClaimedJob] = []
    for _ in range(20):
        found += await claim(queue, 10)
        if names(found)["fast"]:
            break
    assert names(found) == {"slow": 1, "fast": 1}


async def test_workers_obey_and_lose_no_time(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.limits.set_type_limit("slow", concurrent=3)
    await queue.limits.set_key_limit(concurrent=2)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @queue.fallback
    async def work(job: RunningJob) -> str:
        key = job.options.limit_key or "-"
        for bucket in (job.name, key):
            running[bucket] += 1
            most[bucket] = max(most[bucket], running[bucket])
        await asyncio.sleep(0.002)
        for bucket in (job.name, key):
            running[bucket] -= 1
        return job.name

    rows: list[Any] = [
        ("slow" if n % 2 else "fast", n, {"limit_key": f"k{n % 5}", "priority": n % 3}) for n in range(200)
    ]
    async with Worker(queue, concurrency=20).running(), Worker(queue, concurrency=20).running():
        handles = await queue.add_many(rows)
        for handle in handles:
            assert await handle.result(30) in ("slow", "fast")
    assert most["slow"] <= 3
    assert max(most[f"k{n}"] for n in range(5)) <= 2
    assert most["slow"] == 3, "the limit is reached"
    assert await queue.limits.key_usage() == Usage(0, 0, 0)


async def test_a_full_minute_wakes_idle_workers_when_it_is_over(queue: Queue, store: redis.Redis) -> None:
    await queue.limits.set_type_limit("mail", per_minute=1)

    @queue.fallback
    async def work() -> str:
        return "sent"

    async with Worker(queue).running():
        first, second = await queue.add_many([("mail", 1), ("mail", 2)])
        assert await first.result(10) == "sent"
        await eventually(lambda: store.exists("bull:q:ox:opening"), "the second is held back")
        store.delete("bull:q:ox:rate:t:mail")  # the minute is over
        store.zadd("bull:q:ox:opening", {"t:mail": queue._core.broker.clock()})
        assert await second.result(10) == "sent"


async def test_a_plain_queue_pays_nothing(queue: Queue, store: redis.Redis) -> None:
    async def commands() -> Counter[str]:
        await queue.add_many([("n", n, {"limit_key": "k"}) for n in range(20)])
        store.config_resetstat()
        await end(queue, *await claim(queue, 20))
        stats: dict[str, dict[str, Any]] = store.info("commandstats")
        return Counter({name: stat["calls"] for name, stat in stats.items() if "info" not in name})

    await commands()
    plain = await commands()
    await queue.limits.set_type_limit("other", concurrent=1)
    limited = await commands()
    assert plain["cmdstat_zlexcount"] == plain["cmdstat_zrangebylex"] == 0
    assert sum(limited.values()) - sum(plain.values()) <= 20 + 10
