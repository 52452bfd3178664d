"""Operations on many jobs: what each removes or moves, what stays, and that steps are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq import bulk
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port import Ask
from oxcart.broker.port.results import DeadWork
from oxcart.broker.progress import Progress
from oxcart.model.errors import QueueBusy
from oxcart.model.filter import JobFilter
from oxcart.model.options import JobOptions
from tests.broker.bullmq.hashes import hash_of
from tests.broker.bullmq.test_broker import Q, events_of, whole

__all__ = ["whole"]  # a fixture

LATER = 3_600_000


@pytest_asyncio.fixture
async def q(url: str) -> AsyncIterator[Q]:
    made = Q(url)
    yield made
    await made.broker.close()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STEP", 3)
    monkeypatch.setattr(bulk, "MOST", 3)


async def add(q: Q, *ids: str, **options: Any) -> None:
    jobs = [q.broker.encode("n", None, JobOptions.build(job_id=one, **options)) for one in ids]
    await q.broker.add(jobs)


async def finish(q: Q, *ids: str, kind: str = "c") -> None:
    """Adds and finishes jobs, one ms apart."""
    await add(q, *ids)
    for claimed in (await q.broker.claim(Ask(len(ids)))).jobs:
        q.clock.now += 1
        code = await q.end(claimed, kind)
        assert code == 1


def names(count: int, letter: str = "j") -> list[str]:
    return [f"{letter}{number:03}" for number in range(count)]


def lost(store: redis.Redis, queue: str = "q") -> set[str]:
    """Returns the ids of all stored jobs."""
    keys = {str(key).removeprefix(f"bull:{queue}:") for key in store.scan_iter(f"bull:{queue}:[a-z][0-9]*")}
    return {key for key in keys if ":" not in key}


def scheduled(store: redis.Redis, state: str, at: int) -> str:
    """Makes a job the next run of a scheduler, as peers write one."""
    job_id = f"repeat:daily:{at}"
    store.zadd("bull:q:repeat", {"daily": at})
    fields: dict[Any, Any] = {
        "name": "n",
        "data": "{}",
        "opts": "{}",
        "timestamp": 1,
        "rjk": "daily",
        "priority": 0,
    }
    store.hset(f"bull:q:{job_id}", mapping=fields)
    if state == "delayed":
        store.zadd("bull:q:delayed", {job_id: at * 4096})
    else:
        store.lpush(f"bull:q:{state}", job_id)
    return job_id


@pytest.mark.usefixtures("small_steps")
class TestClean:
    @pytest.mark.parametrize(("state", "kind"), [("completed", "c"), ("failed", "f")])
    async def test_finished_jobs_by_their_end(self, q: Q, store: redis.Redis, state: str, kind: str) -> None:
        await finish(q, *names(8), kind=kind)
        cutoff = q.clock.now - 3
        assert await q.broker.bulk.clean([state], cutoff) == 5
        assert store.zrange(f"bull:q:{state}", 0, -1) == names(8)[5:]
        assert lost(store) == set(names(8)[5:])

    async def test_a_limit_takes_the_oldest(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(8))
        assert await q.broker.bulk.clean(["completed"], q.clock.now, limit=5) == 5
        assert store.zrange("bull:q:completed", 0, -1) == names(8)[5:]

    async def test_logs_and_children_records_go_with_the_job(self, q: Q, store: redis.Redis) -> None:
        await finish(q, "a1")
        await q.broker.logs.append("a1", ["x"], None)
        store.hset("bull:q:a1:processed", "child", "1")
        await q.broker.bulk.clean(["completed"], q.clock.now)
        assert list(store.scan_iter("bull:q:a1*")) == []

    @pytest.mark.parametrize("state", ["wait", "paused"])
    async def test_a_list_keeps_its_order(self, q: Q, store: redis.Redis, state: str) -> None:
        if state == "paused":
            await q.broker.pause()
        old, young = q.clock.now, q.clock.now + LATER
        kinds = [old, young, young, old, old, young, old, young, old, old, young]
        for job_id, at in zip(names(11), kinds, strict=True):
            await add(q, job_id, timestamp=at)
        assert await q.broker.bulk.clean([state], old + 1) == kinds.count(old)
        stay = [one for one, at in zip(names(11), kinds, strict=True) if at == young]
        assert store.lrange(f"bull:q:{state}", 0, -1) == stay[::-1]
        assert lost(store) == set(stay)

    async def test_limit_skips_young_jobs(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(4, "y"), timestamp=q.clock.now + LATER)
        await add(q, *names(4), timestamp=q.clock.now - LATER)
        assert await q.broker.bulk.clean(["wait"], q.clock.now, limit=2) == 2
        assert store.lrange("bull:q:wait", 0, -1) == names(4)[:1:-1] + names(4, "y")[::-1]

    async def test_deep_in_a_list_as_well(
        self, q: Q, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "STEP", 250)
        old, young = q.clock.now, q.clock.now + LATER
        await add(q, *names(1300, "y"), timestamp=young)
        await add(q, *names(300, "o"), timestamp=old)
        await add(q, *names(200, "z"), timestamp=young)
        await add(q, *names(40, "p"), timestamp=old)
        assert await q.broker.bulk.clean(["wait"], old + 1, limit=310) == 310
        stay = names(1300, "y") + names(200, "z") + names(40, "p")[10:]
        assert store.lrange("bull:q:wait", 0, -1) == stay[::-1]
        assert await q.broker.bulk.clean(["wait"], old + 1) == 30
        assert store.lrange("bull:q:wait", 0, -1) == (names(1300, "y") + names(200, "z"))[::-1]

    @pytest.mark.parametrize("state", ["delayed", "prioritized"])
    async def test_a_sorted_set(self, q: Q, store: redis.Redis, state: str) -> None:
        options: dict[str, Any] = {"delay": 60} if state == "delayed" else {"priority": 4}
        old, young = q.clock.now, q.clock.now + LATER
        kinds = [young, old, old, young, old, old, young, old]
        for job_id, at in zip(names(8), kinds, strict=True):
            await add(q, job_id, timestamp=at, **options)
        assert await q.broker.bulk.clean([state], old + 1) == kinds.count(old)
        assert lost(store) == {one for one, at in zip(names(8), kinds, strict=True) if at == young}
        assert store.zcard(f"bull:q:{state}") == kinds.count(young)

    async def test_active_jobs_are_cleaned_only_without_a_lease(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(7))
        await q.claim(7)
        for job_id in names(7)[::2]:
            store.delete(f"bull:q:{job_id}:lock")
        q.clock.now += 1000
        assert await q.broker.bulk.clean(["active"], q.clock.now) == 4
        assert store.lrange("bull:q:active", 0, -1) == names(7)[1::2][::-1]

    @pytest.mark.parametrize("state", ["wait", "delayed"])
    async def test_the_next_run_of_a_scheduler_stays(self, q: Q, store: redis.Redis, state: str) -> None:
        kept = scheduled(store, state, q.clock.now + LATER)
        await add(q, *names(5), **({"delay": 60} if state == "delayed" else {}))
        assert await q.broker.bulk.clean([state], q.clock.now + 1) == 5
        assert (await q.broker.states([kept])) == ["waiting" if state == "wait" else "delayed"]

    async def test_an_id_without_a_job_goes_too(self, q: Q, store: redis.Redis) -> None:
        store.rpush("bull:q:wait", "ghost")
        store.zadd("bull:q:completed", {"ghost": 5})
        assert await q.broker.bulk.clean(["wait"], 1) == 1
        assert await q.broker.bulk.clean(["completed"], 5) == 1
        assert not store.exists("bull:q:wait", "bull:q:completed")

    async def test_clean_skips_entries_that_are_no_jobs(self, q: Q, store: redis.Redis) -> None:
        await add(q, "a1")
        store.rpush("bull:q:wait", "strange")
        store.set("bull:q:strange", "text")
        await add(q, "a2")
        assert await q.broker.bulk.clean(["wait"], q.clock.now) == 2
        assert store.lrange("bull:q:wait", 0, -1) == ["strange"]

    async def test_one_event_counts_all_removed_jobs(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(8))
        store.delete("bull:q:events")
        await q.broker.bulk.clean(["completed"], q.clock.now)
        await q.broker.bulk.clean(["completed"], q.clock.now)
        entries: Any = store.xrange("bull:q:events")
        assert [fields for _, fields in entries] == [
            {"event": "cleaned", "count": "8"},
            {"event": "cleaned", "count": "0"},
        ]

    async def test_a_reached_limit_is_counted_too(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(8))
        store.delete("bull:q:events")
        await q.broker.bulk.clean(["completed"], q.clock.now, limit=6)
        entries: Any = store.xrange("bull:q:events")
        assert [fields for _, fields in entries] == [{"event": "cleaned", "count": "6"}]

    async def test_progress(self, q: Q) -> None:
        await finish(q, *names(8))
        reported: list[Progress] = []
        await q.broker.bulk.clean(["completed"], q.clock.now, progress=reported.append)
        assert [(one.step, one.done, one.total) for one in reported] == [
            ("completed", 3, 8),
            ("completed", 6, 8),
            ("completed", 8, 8),
        ]


class TestParentsOfRemovedChildren:
    """A parent without other children is removed too in its own queue, and released in another."""

    async def flow(self, store: redis.Redis, parents: str, *children: str) -> None:
        store.hset(f"bull:{parents}:p1", mapping={"name": "p", "data": "{}", "opts": "{}", "timestamp": 1})
        store.zadd(f"bull:{parents}:waiting-children", {"p1": 1})
        for child in children:
            store.hset(f"bull:q:{child}", "parentKey", f"bull:{parents}:p1")
            store.sadd(f"bull:{parents}:p1:dependencies", f"bull:q:{child}")

    async def test_of_the_same_queue(self, q: Q, store: redis.Redis) -> None:
        await add(q, "c1", "c2")
        await self.flow(store, "q", "c1", "c2")
        assert await q.broker.bulk.clean(["wait"], q.clock.now, limit=1) == 1
        assert store.zrange("bull:q:waiting-children", 0, -1) == ["p1"]
        assert await q.broker.bulk.clear() == 1
        assert not store.exists("bull:q:p1", "bull:q:waiting-children", "bull:q:wait")

    async def test_of_another_queue(self, q: Q, store: redis.Redis) -> None:
        await add(q, "c1", "c2")
        await self.flow(store, "other", "c1", "c2")
        assert await q.broker.bulk.clear() == 2
        assert store.lrange("bull:other:wait", 0, -1) == ["p1"]
        assert not store.exists("bull:other:waiting-children", "bull:other:events")
        assert store.zrange("bull:other:marker", 0, -1) == ["0"]

    async def test_of_another_queue_that_is_paused(self, q: Q, store: redis.Redis) -> None:
        await add(q, "c1")
        await self.flow(store, "other", "c1")
        store.hset("bull:other:meta", "paused", 1)
        await q.broker.bulk.clear()
        assert store.lrange("bull:other:paused", 0, -1) == ["p1"]
        assert not store.exists("bull:other:marker")

    async def test_a_deduplication_key_goes_with_its_owner_only(self, q: Q, store: redis.Redis) -> None:
        await add(q, "c1", "c2")
        for job_id, window in (("c1", "one"), ("c2", "two")):
            store.hset(f"bull:q:{job_id}", "deid", window)
        store.set("bull:q:de:one", "c1")
        store.set("bull:q:de:two", "somebody else")
        await q.broker.bulk.clear()
        assert not store.exists("bull:q:de:one")
        assert store.get("bull:q:de:two") == "somebody else"


@pytest.mark.usefixtures("small_steps")
class TestDrain:
    async def fill(self, q: Q) -> None:
        await finish(q, "e1")
        await finish(q, "e2", kind="f")
        await q.active("busy")
        await add(q, *names(7))
        await add(q, *names(5, "p"), priority=3)
        await add(q, *names(4, "d"), delay=60)

    async def test_leaves_running_finished_and_delayed_jobs(self, q: Q) -> None:
        await self.fill(q)
        assert await q.broker.bulk.clear() == 12
        left = {state: count for state, count in (await q.broker.counts()).items() if count}
        assert left == {"active": 1, "delayed": 4, "completed": 1, "failed": 1}

    async def test_with_delayed_jobs(self, q: Q, store: redis.Redis) -> None:
        await self.fill(q)
        assert await q.broker.bulk.clear(delayed=True) == 16
        assert lost(store) == {"e1", "e2"}

    async def test_a_paused_queue(self, q: Q) -> None:
        await self.fill(q)
        await q.broker.pause()
        assert await q.broker.bulk.clear() == 12
        assert (await q.broker.counts())["paused"] == 0

    @pytest.mark.parametrize("place", [0, 3, 7])
    async def test_the_next_run_of_a_scheduler_stays_wherever_it_is(
        self, q: Q, store: redis.Redis, place: int
    ) -> None:
        await add(q, *names(place))
        kept = scheduled(store, "wait", q.clock.now)
        await add(q, *names(7 - place, "x"))
        assert await q.broker.bulk.clear() == 7
        assert store.lrange("bull:q:wait", 0, -1) == [kept]

    async def test_ends_although_jobs_keep_coming(self, q: Q) -> None:
        await add(q, *names(9))
        more = iter(names(500, "x"))

        class Producer(list[Progress]):
            def append(self, at: Progress) -> None:
                super().append(at)
                waiting.append(asyncio.ensure_future(add(q, *(next(more) for _ in range(5)))))

        producer, waiting = Producer(), list[asyncio.Future[None]]()
        assert await q.broker.bulk.clear(progress=producer.append) == 9
        await asyncio.gather(*waiting)
        assert producer[-1] == Progress("wait", 9, 9)
        assert (await q.broker.counts())["wait"] == 15


@pytest.mark.usefixtures("small_steps")
class TestObliterate:
    async def test_leaves_nothing(self, q: Q, store: redis.Redis) -> None:
        await TestDrain().fill(q)
        scheduled(store, "delayed", q.clock.now)
        store.hset("bull:q:repeat:daily", "name", "n")
        store.zadd("bull:q:waiting-children", {"w1": 1})
        store.hset("bull:q:w1", "name", "n")
        store.rpush("bull:q:metrics:completed:data", 1)
        store.set("bull:q:limiter", 1)
        assert await q.broker.bulk.obliterate(force=True) == 21
        assert list(store.scan_iter()) == []

    async def test_refuses_while_a_worker_holds_a_job(self, q: Q, store: redis.Redis) -> None:
        await q.active("busy")
        await add(q, *names(3))
        before = events_of(store)
        with pytest.raises(QueueBusy, match="workers run a job of queue q"):
            await q.broker.bulk.obliterate()
        assert not await q.broker.is_paused()
        assert events_of(store) == before

    async def test_a_job_taken_just_before_the_pause(self, q: Q, monkeypatch: pytest.MonkeyPatch) -> None:
        await add(q, "a1")
        pause = q.broker.pause

        async def too_late() -> None:
            await q.claim()
            await pause()

        monkeypatch.setattr(q.broker, "pause", too_late)
        with pytest.raises(QueueBusy):
            await q.broker.bulk.obliterate()
        assert not await q.broker.is_paused()
        assert await q.state("a1") == "active"

    async def test_a_held_job_that_is_removed_by_force_ends_in_a_refusal(self, q: Q) -> None:
        job = await q.active("busy")
        assert await q.broker.bulk.obliterate(force=True) == 1
        assert await q.end(job) == -1

    async def test_obliterate_removes_jobs_added_meanwhile(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5))
        coming = [asyncio.ensure_future(add(q, "z1"))]
        first = True

        def on_progress(at: Progress) -> None:
            nonlocal first
            if first:
                first = False
                coming.append(asyncio.ensure_future(add(q, "z2", priority=1)))

        await q.broker.bulk.obliterate(progress=on_progress)
        await asyncio.gather(*coming)
        assert lost(store) <= {"z2"}

    async def test_a_queue_resumed_meanwhile_is_paused_again(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5))
        resumed = iter([True])

        def on_progress(_: Progress) -> None:
            if next(resumed, False):
                store.hdel("bull:q:meta", "paused")

        await q.broker.bulk.obliterate(progress=on_progress)
        assert not store.exists("bull:q:meta", "bull:q:wait", "bull:q:paused")

    async def test_obliterate_removes_entries_that_are_no_jobs(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5))
        store.rpush("bull:q:wait", "strange", "j001")
        store.set("bull:q:strange", "text")
        store.zadd("bull:q:failed", {"strange": 1, "ghost": 2})
        async with asyncio.timeout(20):
            await q.broker.bulk.obliterate()
        assert list(store.scan_iter()) == []

    async def test_can_be_used_again(self, q: Q) -> None:
        await add(q, "a1")
        await q.broker.bulk.obliterate()
        await add(q, "a1")
        assert [job.id for job in await q.claim()] == ["a1"]


@pytest.mark.usefixtures("small_steps")
class TestRetryAll:
    @pytest.mark.parametrize(("state", "kind"), [("completed", "c"), ("failed", "f")])
    async def test_all_in_the_order_of_their_ends(
        self, q: Q, store: redis.Redis, state: Any, kind: str
    ) -> None:
        await finish(q, *names(8), kind=kind)
        store.delete("bull:q:marker")
        assert await q.broker.bulk.retry_all(state) == 8
        assert store.zrange("bull:q:marker", 0, -1) == ["0"]
        jobs = await q.claim(20)
        assert [job.id for job in jobs] == names(8)
        gone = (b"finishedOn", b"processedOn", b"returnvalue", b"failedReason")
        assert not [name for job in jobs for name in gone if name in hash_of(job)]
        assert events_of(store).count("waiting") == 16

    async def test_by_time(self, q: Q, store: redis.Redis) -> None:
        begin = q.clock.now
        await finish(q, *names(8), kind="f")
        moved = await q.broker.bulk.retry_all("failed", since_ms=begin + 3, until_ms=begin + 6)
        assert moved == 4
        assert store.zrange("bull:q:failed", 0, -1) == names(8)[:2] + names(8)[6:]

    async def test_a_limit(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(8), kind="f")
        assert await q.broker.bulk.retry_all("failed", limit=5) == 5
        assert store.zrange("bull:q:failed", 0, -1) == names(8)[5:]

    async def test_from_the_beginning(self, q: Q) -> None:
        await finish(q, *names(4), kind="f")
        await q.broker.bulk.retry_all("failed", reset=True)
        jobs = await q.claim(9)
        assert {(hash_of(job).get(b"atm"), job.starts) for job in jobs} == {(None, 2)}

    async def test_an_id_without_a_job_is_dropped(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(4), kind="f")
        store.delete("bull:q:j001")
        assert await q.broker.bulk.retry_all("failed") == 3
        assert not store.exists("bull:q:failed")

    async def test_the_same_state_as_single_retries(self, q: Q, store: redis.Redis) -> None:
        dumps, begun = [], q.clock.now
        for at_once in (True, False):
            store.flushall()
            q.clock.now = begun
            await finish(q, *names(7), kind="f")
            store.delete("bull:q:events")
            if at_once:
                await q.broker.bulk.retry_all("failed", reset=True)
            else:
                for job_id in names(7):
                    await q.broker.retry_job(job_id, "failed", reset=True)
            entries: Any = store.xrange("bull:q:events")
            hashes = [store.hgetall(f"bull:q:{job_id}") for job_id in names(7)]
            for one in hashes:
                one.pop("timestamp")
            dumps.append((store.lrange("bull:q:wait", 0, -1), hashes, [fields for _, fields in entries]))
        assert dumps[0] == dumps[1]

    async def test_a_job_that_fails_again_meanwhile_stays_failed(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(4), kind="f")

        def on_progress(_: Progress) -> None:
            if store.lrem("bull:q:wait", 1, "j000"):
                store.zadd("bull:q:failed", {"j000": q.clock.now + 1})

        assert await q.broker.bulk.retry_all("failed", progress=on_progress) == 4
        assert store.zrange("bull:q:failed", 0, -1) == ["j000"]


@pytest.mark.usefixtures("small_steps")
class TestPromoteAll:
    async def test_promote_all_respects_priorities(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5), delay=60)
        await add(q, *names(4, "p"), delay=30, priority=2)
        assert await q.broker.bulk.promote_all() == 9
        assert [job.id for job in await q.claim(9)] == names(5) + names(4, "p")
        assert store.hget("bull:q:j000", "delay") == "0"

    async def test_promote_all_may_take_only_jobs_due_soon(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5), delay=60)
        await add(q, *names(4, "p"), delay=30)
        assert await q.broker.bulk.promote_all(until_ms=q.clock.now + 30_000) == 4
        assert store.zrange("bull:q:delayed", 0, -1) == names(5)

    async def test_a_limit(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(8), delay=60)
        assert await q.broker.bulk.promote_all(limit=5) == 5
        assert store.zrange("bull:q:delayed", 0, -1) == names(8)[5:]

    async def test_nothing_to_do(self, q: Q) -> None:
        assert await q.broker.bulk.promote_all() == 0


class TestOrphans:
    async def lose(self, q: Q, store: redis.Redis) -> None:
        await finish(q, "e1")
        await add(q, "a1", "a2", "a3")
        await q.broker.logs.append("a2", ["x"], None)
        store.lrem("bull:q:wait", 0, "a2")
        store.zrem("bull:q:completed", "e1")

    async def test_orphans_are_removed_with_their_keys(self, q: Q, store: redis.Redis) -> None:
        await self.lose(q, store)
        assert sorted(await q.broker.rescue.remove_orphans(dry_run=True)) == ["a2", "e1"]
        assert lost(store) == {"a1", "a2", "a3", "e1"}
        assert sorted(await q.broker.rescue.remove_orphans()) == ["a2", "e1"]
        assert lost(store) == {"a1", "a3"}
        assert not store.exists("bull:q:a2:logs")
        assert await q.broker.rescue.remove_orphans() == []

    async def test_an_orphan_with_a_lease_stays(self, q: Q, store: redis.Redis) -> None:
        await self.lose(q, store)
        store.set("bull:q:a2:lock", "token")
        assert await q.broker.rescue.remove_orphans() == ["e1"]


class TestRepeats:
    """A call is repeated after its reply was lost: it must change nothing and reply the same."""

    CALLS = (
        ("sweep", ("completed", "", 10, 0, "", 0, "")),
        ("sweep", ("wait", "", 2, 1, "", "", "")),
        ("retry_jobs", ("failed", 0, "+inf", 10, 0, "1")),
        ("publish", ("", "deployed", "by", "ada")),
        ("remove_orphans", ("", "orphan")),
        ("obliterate", (10,)),
    )

    @pytest.mark.parametrize(("verb", "args"), CALLS, ids=[f"{verb}-{args[0]}" for verb, args in CALLS])
    async def test_repeated_call_changes_nothing_more(
        self, q: Q, store: redis.Redis, whole: Callable[[], Any], verb: str, args: tuple[Any, ...]
    ) -> None:
        if verb == "obliterate":
            await q.broker.pause()
        else:
            await finish(q, "e1")
            await finish(q, "e2", kind="f")
            await add(q, "a1", "a2", "a3", "a4", "orphan")
            store.lrem("bull:q:wait", 1, "orphan")
        before = whole()
        first = self.call(store, verb, 1, args)
        after = whole()
        assert after != before
        assert self.call(store, verb, 1, args) == first
        assert whole() == after
        with pytest.raises(redis.ResponseError, match="OXSTALE"):
            self.call(store, verb, 0, args)

    def call(self, store: redis.Redis, verb: str, number: int, args: tuple[Any, ...]) -> Any:
        return store.eval(load(verb).text.decode(), 1, "bull:q:meta", "s", number, *args)


class TestBounds:
    """No call handles more than one step, so none blocks the server for longer than that.

    A clean that pinned the server for hours is a pain of BullMQ's users (its pull request 2357).
    """

    COUNT = 1_100

    async def prepare(self, q: Q, store: redis.Redis, state: str) -> None:
        ids = [f"j{number:04}" for number in range(self.COUNT)]
        await add(q, *ids, **({"delay": 60} if state == "delayed" else {}))
        if state in ("completed", "failed"):
            store.delete("bull:q:wait")
            store.zadd(f"bull:q:{state}", {job_id: place + 1 for place, job_id in enumerate(ids)})

    @pytest.mark.parametrize(
        ("state", "verb", "operate"),
        [
            ("completed", "sweep", lambda b: b.bulk.clean(["completed"], 2**53)),
            ("failed", "sweep", lambda b: b.bulk.clean(["failed"], 2**53)),
            ("wait", "sweep", lambda b: b.bulk.clean(["wait"], 2**53)),
            ("wait", "sweep", lambda b: b.bulk.clear()),
            ("wait", "sweep", lambda b: b.bulk.obliterate()),
            ("failed", "retry_jobs", lambda b: b.bulk.retry_all("failed")),
            ("delayed", "promote", lambda b: b.bulk.promote_all()),
        ],
        ids=["clean-completed", "clean-failed", "clean-wait", "drain", "obliterate", "retry", "promote"],
    )
    async def test_pain_a_clean_that_blocks_the_server(
        self, q: Q, store: redis.Redis, state: str, verb: str, operate: Any
    ) -> None:
        await self.prepare(q, store, state)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)
        assert await operate(q.broker) == self.COUNT
        assert calls.count(verb) >= self.COUNT / bulk.MOST

    @pytest.mark.parametrize("state", ["wait", "delayed", "prioritized"])
    async def test_clean_passes_jobs_that_stay_in_few_calls(
        self, q: Q, store: redis.Redis, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "MOST", bulk.STEP)
        many = 6_000
        options: dict[str, Any] = {"wait": {}, "delayed": {"delay": 60}, "prioritized": {"priority": 1}}[
            state
        ]
        await add(q, *(f"j{number:04}" for number in range(many)), **options)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)
        assert await q.broker.bulk.clean([state], 1) == 0
        assert calls.count("sweep") < many / bulk.STEP / 4, "sized by the time they take"
        store.hset("bull:q:j3000", "timestamp", 1)  # one old job behind a run of young ones
        assert await q.broker.bulk.clean([state], 1) == 1
        assert not store.exists("bull:q:j3000")
        assert (await q.broker.counts())[state] == many - 1

    async def test_a_long_page_is_not_read_in_one_call(self, q: Q, store: redis.Redis) -> None:
        await self.prepare(q, store, "wait")
        answer = await q.broker.caller.again(load("page"), "bull:q:meta", "wait", 0, self.COUNT, "")
        assert len(answer) == 2 * self.COUNT
        assert sum(fields != 0 for fields in answer[1::2]) == 100

    @pytest.mark.parametrize("verb", ["cancel_jobs", "dead_jobs"])
    async def test_jobs_that_a_filter_leaves_out_take_few_calls(
        self, q: Q, store: redis.Redis, verb: str
    ) -> None:
        many = 6_000
        ids = [f"j{number:04}" for number in range(many)]
        await add(q, *ids)
        if verb == "dead_jobs":
            store.delete("bull:q:wait")
            store.zadd("bull:q:failed", {job_id: place + 1 for place, job_id in enumerate(ids)})
            for job_id in ids:
                store.hset(f"bull:q:{job_id}", "atm", 3)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)

        async def chosen() -> list[str]:
            chosen = JobFilter(names=("other",))
            if verb == "cancel_jobs":
                return (await q.broker.cancelling.cancel_all(chosen, ["wait"], "no")).ids
            return (await q.broker.dead_letters.run(DeadWork("purge", chosen))).ids

        assert await chosen() == []
        assert calls.count(verb) < many / bulk.STEP / 2, "sized by the time they take"
        store.hset("bull:q:j3000", "name", "other")  # between jobs that are left out
        store.hset("bull:q:j3001", "name", "other")
        assert set(await chosen()) == {"j3000", "j3001"}
        counts = await q.broker.counts()
        assert counts["wait" if verb == "cancel_jobs" else "failed"] == many - 2
