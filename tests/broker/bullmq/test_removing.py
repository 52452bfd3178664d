"""Operations that remove many jobs: what goes, and what stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart.broker.bullmq import bulk
from oxcart.broker.progress import Progress
from oxcart.model.errors import QueueBusy
from tests.broker.bullmq.making import LATER, Q, add, events_of, finish, lost, names, scheduled


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
class TestClear:
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
        await TestClear().fill(q)
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
