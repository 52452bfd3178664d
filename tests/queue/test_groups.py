"""Fair groups on a real server: whose turn it is, their limits and settings, and what peers see."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.broker.port.results import GroupSettings, GroupSummary
from oxcart.groups import GroupUsage
from oxcart.model.errors import ValidationError
from oxcart.model.state import State
from oxcart.sync import Queue as SyncQueue
from tests.formal.test_history import check

#: How many jobs that are let through stay ready for peers.
WINDOW = 20
DAY = 86_400_000


async def claim(queue: Queue, count: int = 1) -> list[ClaimedJob]:
    return (await queue._core.broker.claim(Ask(count, lock_ms=30_000))).jobs


async def end(
    queue: Queue, *jobs: ClaimedJob, kind: str = "c", take: int = 0, **more: Any
) -> list[ClaimedJob]:
    now = queue._core.broker.clock()
    outcomes = [
        Outcome(OutcomeKind(kind), job.id, job.token, job.starts, now, b"1", b"[]", **more) for job in jobs
    ]
    codes, claimed = await queue._core.broker.finish(outcomes, Ask(take))
    assert codes == [1] * len(jobs)
    return claimed.jobs


def group_of(job: ClaimedJob) -> str:
    return job.options.group or ""


async def drain_in_order(queue: Queue, count: int = 5) -> list[ClaimedJob]:
    """Claims and completes all ready jobs; returns them in the order of their claims."""
    done: list[ClaimedJob] = []
    while jobs := await claim(queue, count):
        done += jobs
        await end(queue, *jobs)
    return done


def rows(group: str, many: int, **options: Any) -> list[Any]:
    return [("n", i, {"group": group, **options}) for i in range(many)]


class TestTurns:
    async def test_groups_take_turns(self, queue: Queue) -> None:
        await queue.add_many(rows("hog", 300))
        await queue.add_many([row for n in range(9) for row in rows(f"small-{n}", 10)])
        done = await drain_in_order(queue)
        assert len(done) == 390
        last = max(place for place, job in enumerate(done) if group_of(job) != "hog")
        assert last < WINDOW + 10 * 10 + 5, "the others wait for one round per job, not for the hog"

    async def test_a_group_keeps_the_order_of_its_adds(self, queue: Queue) -> None:
        handles = await queue.add_many(rows("a", 60))
        assert [job.id for job in await drain_in_order(queue, 7)] == [handle.id for handle in handles]

    async def test_jobs_without_a_group_are_one(self, queue: Queue) -> None:
        await queue.groups.set_all(concurrent=None)
        await queue.add_many([("n", n) for n in range(100)])
        await queue.add_many(rows("a", 40))
        done = [group_of(job) for job in await drain_in_order(queue)]
        assert done[WINDOW : WINDOW + 80].count("a") >= 38, "they take turns with the others one by one"

    async def test_a_weight_gives_more_jobs_per_round(self, queue: Queue) -> None:
        await queue.groups.set("heavy", weight=3)
        await queue.add_many([row for name in ("heavy", "light") for row in rows(name, 200)])
        done = Counter(group_of(job) for job in (await drain_in_order(queue))[WINDOW : WINDOW + 200])
        assert 148 <= done["heavy"] <= 152

    async def test_a_group_that_adds_one_by_one_gets_no_more_than_its_turn(self, queue: Queue) -> None:
        """A group that was empty joins at the end of the round."""
        await queue.add_many([row for n in range(10) for row in rows(f"g{n}", 30)])
        await queue.add("n", group="late")
        order = []
        for _ in range(150):
            [job] = await claim(queue)
            order.append(group_of(job))
            if group_of(job) == "late":
                await queue.add("n", group="late")
            await end(queue, job)
        assert order.count("late") <= 15

    async def test_priorities_hold_within_a_group(self, queue: Queue) -> None:
        await queue.add_many(rows("other", WINDOW))  # fills the window
        for priority in (7, 3, 0, 4):
            await queue.add("n", group="a", priority=priority, job_id=f"p{priority}")
        await queue.add("n", group="a", lifo=True, job_id="first")
        done = [job.id for job in await drain_in_order(queue, 1) if group_of(job) == "a"]
        assert done == ["first", "p0", "p3", "p4", "p7"]

    async def test_a_delayed_job_joins_its_group_when_it_is_due(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.add_many(rows("hog", 100))
        later = await queue.add("n", group="a", delay="1h")
        assert await later.state() == "delayed"
        store.zadd("bull:q:delayed", {later.id: 1})
        place = [job.id for job in await drain_in_order(queue, 1)].index(later.id)
        assert place <= WINDOW + 2, "it takes its group's turn behind the window"

    async def test_added_jobs_of_every_kind_join_their_group(self, queue: Queue) -> None:
        await queue.add_many(rows("hog", 100))
        ids = {
            (await queue.add("n", group="a", deduplication="x")).id,
            (await queue.add("n", group="a", idempotency_key="x")).id,
            (await Flow(queue, "parent", {}, group="a").add()).id,
        }
        places = [n for n, job in enumerate(await drain_in_order(queue, 1)) if job.id in ids]
        assert len(places) == 3
        assert max(places) <= 2 * WINDOW + 10


class TestReturns:
    @pytest.mark.parametrize("kind", ["r", "w", "d"])
    async def test_a_job_that_runs_again_waits_for_its_group(
        self, queue: Queue, store: redis.Redis, kind: str
    ) -> None:
        again = await queue.add("n", group="a")
        [job] = await claim(queue)
        await queue.groups.pause("a")
        await end(queue, job, kind=kind, **({"delay_ms": 60_000} if kind == "d" else {}))
        if kind == "d":
            store.zadd("bull:q:delayed", {job.id: 1})
        assert await claim(queue) == []
        assert (await queue.groups.usage("a")).waiting == 1
        assert (await again.get()).state is State.SCHEDULED
        await queue.groups.resume("a")
        assert [job.id for job in await claim(queue)] == [again.id]

    async def test_a_stalled_job_returns_to_the_front_of_its_group(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.groups.set("a", concurrent=1)
        handles = await queue.add_many(rows("a", 3))
        [lost] = await claim(queue, 5)
        store.delete(f"bull:q:{lost.id}:lock")
        store.sadd("bull:q:stalled", lost.id)
        found = await queue._core.broker.recover(interval_ms=1)
        assert found.ids == [lost.id]
        order = []
        for _ in range(10):
            for job in await claim(queue, 5):
                order.append(job.id)
                await end(queue, job)
        assert order == [handle.id for handle in handles]

    async def test_after_a_day_a_job_still_waits_in_its_order(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.pause("a")
        handles = await queue.add_many(rows("a", 5))
        now = queue._core.broker.clock() + DAY + 1000
        tomorrow = BullMQBroker(queue._core.server, queue.name, clock=lambda: now)
        seen = store.xlen("bull:q:events")
        await tomorrow.promote()
        assert store.xlen("bull:q:events") == seen, "it became ready a day ago"
        assert (await tomorrow.claim(Ask(9, lock_ms=30_000))).jobs == []
        assert (await queue.groups.usage("a")).waiting == 5
        assert (await queue.counts())["delayed"] == 5
        await queue.groups.resume("a")
        assert [job.id for job in await claim(queue, 9)] == [handle.id for handle in handles]

    async def test_promote_all_passes_jobs_by_that_wait_for_their_turn(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.groups.set_all(concurrent=1)
        waiting = [(await queue.add("n", group="a")).id for _ in range(120)]
        for number in range(3):
            await queue.add("n", job_id=f"far-{number}", delay="48h", group="b")
        seen = store.xlen("bull:q:events")
        before = [store.hget(f"bull:q:{one}", "ox:ready") for one in waiting]
        assert await queue.jobs.promote_all() == 3
        assert [store.hget(f"bull:q:far-{number}", "delay") for number in range(3)] == ["0"] * 3
        assert store.xlen("bull:q:events") == seen + 3
        assert [store.hget(f"bull:q:{one}", "ox:ready") for one in waiting] == before
        assert await queue.jobs.promote_all() == 0


class TestLimits:
    async def test_each_group_has_the_limit_of_all(self, queue: Queue) -> None:
        await queue.groups.set_all(concurrent=2)
        await queue.groups.set("b", concurrent=1)
        await queue.groups.set("c", concurrent=0)
        await queue.add_many([row for name in ("a", "b", "c") for row in rows(name, 5)])
        jobs = await claim(queue, 50)
        assert Counter(map(group_of, jobs)) == {"a": 2, "b": 1, "c": 5}
        assert await claim(queue, 50) == []
        [first, *_] = [job for job in jobs if group_of(job) == "b"]
        assert list(map(group_of, await end(queue, first, take=9))) == ["b"]

    async def test_a_limit_counts_jobs_that_run_already(self, queue: Queue) -> None:
        await queue.add_many(rows("a", 60))
        running = await claim(queue, 3)
        await queue.groups.set("a", concurrent=WINDOW + 4)
        running += await claim(queue, 50)
        assert len(running) == WINDOW + 4, "also those that were let through"
        await queue.groups.set("a", concurrent=None)
        assert len(await claim(queue, 50)) == 60 - len(running)

    async def test_starts_per_minute_are_bounded(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.set_all(per_minute=3)
        await queue.add_many([*rows("a", 5), *rows("b", 2)])
        jobs = await claim(queue, 50)
        assert Counter(map(group_of, jobs)) == {"a": 3, "b": 2}
        assert await end(queue, *jobs, take=9) == []
        assert await queue.groups.usage("a") == GroupUsage(2, 0, 3)
        store.delete("bull:q:ox:rate:g:a")  # the minute is over
        store.zadd("bull:q:ox:opening", {"g:a": 0})
        await queue._core.broker.promote()
        assert len(await claim(queue, 50)) == 2

    async def test_limits_per_type_and_key_hold_as_well(self, queue: Queue) -> None:
        await queue.limits.set_type_limit("n", concurrent=2)
        await queue.limits.set_key_limit(concurrent=1)
        await queue.groups.set_all(concurrent=2)
        await queue.add_many([row for name in ("a", "b", "c") for row in rows(name, 4, limit_key="k" + name)])
        done: Counter[str] = Counter()
        running: list[ClaimedJob] = []
        for _ in range(200):
            running += await claim(queue, 5)
            assert len(running) <= 2
            assert len({job.options.limit_key for job in running}) == len(running)
            if running:
                job = running.pop(0)
                done[group_of(job)] += 1
                await end(queue, job)
        assert done == {"a": 4, "b": 4, "c": 4}
        assert not (await queue.counts())["delayed"]

    async def test_a_lost_place_is_noticed(self, queue: Queue, store: redis.Redis) -> None:
        """A peer ended a job that was let through, and freed no place."""
        await queue.groups.set("a", concurrent=2)
        await queue.add_many(rows("a", 5))
        gone, _ = await claim(queue, 9)
        store.delete(f"bull:q:{gone.id}", f"bull:q:{gone.id}:lock")
        store.lrem("bull:q:active", 0, gone.id)
        assert await claim(queue, 9) == []
        store.zadd("bull:q:ox:opening", {"g:a": 0})  # five seconds later
        await queue._core.broker.promote()
        assert len(await claim(queue, 9)) == 1

    async def test_places_of_idle_groups_that_were_lost_are_swept(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        """Acts as Node's workers, which end jobs of groups that are far from their limits."""
        await queue.groups.set_all(concurrent=9)
        handles = await queue.add_many([row for n in range(70) for row in rows(f"g{n}", 1)])
        jobs = await claim(queue, 100)
        while len(jobs) < len(handles):
            jobs += await claim(queue, 100)
        kept = jobs[0]
        for job in jobs[1:]:
            store.delete(f"bull:q:{job.id}", f"bull:q:{job.id}:lock")
            store.lrem("bull:q:active", 0, job.id)
        assert store.zcard("bull:q:ox:held") == 70
        for _ in range(5):
            await queue._core.broker.promote()
        assert store.zrange("bull:q:ox:held", 0, -1) == [f"g:{group_of(kept)}\n{kept.id}"]
        assert not store.exists("bull:q:ox:swept")


class TestSettings:
    async def test_settings_are_set_read_and_removed(self, queue: Queue, store: redis.Redis) -> None:
        assert await queue.groups.settings() == GroupSettings(0, 0)
        await queue.groups.set_all(concurrent=5, per_minute=60)
        await queue.groups.set_all(concurrent=None)
        assert await queue.groups.settings() == GroupSettings(0, 60)
        await queue.groups.set("a", weight=2.5, concurrent=0)
        await queue.groups.pause("a")
        assert await queue.groups.settings("a") == GroupSettings(0, None, 2.5, True)
        await queue.groups.resume("a")
        await queue.groups.set("a", weight=None, concurrent=None)
        assert await queue.groups.settings("a") == GroupSettings()
        assert not store.exists("bull:q:ox:groups")

    async def test_bad_values_change_nothing(self, queue: Queue, store: redis.Redis) -> None:
        bad: Any
        for bad in (-1, True, 1.5, "1", 10**10):
            with pytest.raises(ValidationError, match="concurrent"):
                await queue.groups.set("a", concurrent=bad)
            with pytest.raises(ValidationError, match="per_minute"):
                await queue.groups.set_all(per_minute=bad)
        for bad in (0, -1, True, float("nan"), float("inf"), "1", 1001):
            with pytest.raises(ValidationError, match="weight"):
                await queue.groups.set("a", weight=bad)
        for bad in ("a\nb", "x" * 257, 5, "\ud800"):
            with pytest.raises(ValidationError, match="group"):
                await queue.groups.pause(bad)
            with pytest.raises(ValidationError, match="group"):
                await queue.add("n", group=bad)
        with pytest.raises(ValidationError, match="without a target"):
            await queue.add("n", group="a", target={"capabilities": "gpu"})
        assert store.keys() == []

    async def test_damaged_settings_count_as_none(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.set("a", weight=2)
        store.hset("bull:q:ox:groups", mapping={"a": "[]", "b": "{", "c": '{"w":"x","c":{},"p":[]}'})
        await queue.add_many([row for name in ("a", "b", "c") for row in rows(name, 2)])
        assert len(await drain_in_order(queue)) == 6
        assert await queue.groups.settings("b") == GroupSettings()

    def test_without_await(self, url: str) -> None:
        with SyncQueue("q", url=url) as queue:
            queue.add("n", group="a")
            queue.groups.pause("a")
            assert queue.groups.usage("a") == GroupUsage(0, 0, 0), "it was let through before"
            queue.add("n", group="a")
            assert queue.groups.list() == {"a": 1}
            assert queue.groups.clear("a") == 1


class TestOperations:
    async def test_groups_are_listed_in_pages(self, queue: Queue) -> None:
        await queue.groups.pause("")
        await queue.add_many([("n", n) for n in range(2)])
        names = [f"g{n:03}" for n in range(150)]
        for name in names:
            await queue.groups.pause(name)
        await queue.add_many([row for name in names for row in rows(name, 2)])
        first = await queue.groups.list()
        assert list(first) == ["", *names[:99]]
        assert set(first.values()) == {2}
        assert list(await queue.groups.list(after=names[98])) == names[99:]
        with pytest.raises(ValidationError, match="limit"):
            await queue.groups.list(limit=0)

    async def test_a_summary_of_few_groups_is_exact(self, queue: Queue) -> None:
        assert await queue.groups.summary() == GroupSummary()
        for name, many in (("a", 3), ("b", 9), ("", 1)):
            await queue.groups.pause(name)
            await queue.add_many(rows(name, many) if name else [("n", 0)])
        found = await queue.groups.summary()
        assert found.exact
        assert (found.groups, found.waiting) == (3, 13)
        assert list(found.largest.items()) == [("b", 9), ("a", 3), ("", 1)]

    async def test_a_summary_tells_how_long_the_next_jobs_have_waited(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        for name, front in (("front", True), ("behind", False)):
            await queue.groups.pause(name)
            await queue.add("n", group=name, lifo=front)
            [found] = store.zrangebylex(f"bull:{queue.name}:ox:parked", f"[g:{name}\n", f"(g:{name}\x0b")
            note = str(found)
            bucket, order, job_id = note.split("\n")
            hour = 3_600_000 * 4096
            place = int(order[11:]) + (hour if front else -hour)
            store.zrem(f"bull:{queue.name}:ox:parked", note)
            earlier = f"{bucket}\n{order[:11]}{place:016}\n{job_id}"
            store.zadd(f"bull:{queue.name}:ox:parked", {earlier: 0})
            assert 3_600_000 <= (await queue.groups.summary()).oldest_ms < 3_660_000
            store.zrem(f"bull:{queue.name}:ox:parked", earlier)
        store.zadd(f"bull:{queue.name}:ox:parked", {"g:strange\nno order\n1": 0})
        assert (await queue.groups.summary()).oldest_ms == 0

    async def test_a_summary_of_many_groups_finds_the_largest_with_few_commands(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        """A group with half of the jobs is missed by 64 draws once in 2 ** 64 times."""
        await queue.add_many([("n", 0, {"group": f"g{n}"}) for n in range(1500)] + rows("hog", 1500))
        store.config_resetstat()
        found = await queue.groups.summary()
        stats = store.info("commandstats")
        assert sum(row["calls"] for row in stats.values()) < 450
        assert not found.exact
        assert found.waiting == 3000 - WINDOW
        assert 1400 <= found.groups <= 1501
        assert next(iter(found.largest)) == "hog"
        assert found.largest["hog"] >= 1480
        assert len(found.largest) <= 20

    async def test_a_group_is_cleared(self, queue: Queue) -> None:
        await queue.groups.set("a", concurrent=1)
        await queue.add_many([*rows("a", 700), *rows("ab", 3)])
        [running] = [job for job in await claim(queue, 9) if group_of(job) == "a"]
        assert await queue.groups.clear("a") == 699
        assert await queue.groups.usage("a") == GroupUsage(699, 1, 0), "no claim has met their notes yet"
        added = await queue.add("n", "new", group="a")
        found = await end(queue, running, take=9)
        while not found:  # at once, or with the next claims
            found = await claim(queue)
        assert [job.id for job in found] == [added.id]
        assert await queue.groups.usage("a") == GroupUsage(0, 1, 0)
        assert await queue.groups.clear("a") == 0

    async def test_a_group_is_cancelled(self, queue: Queue) -> None:
        await queue.groups.set("a", concurrent=2)
        handles = await queue.add_many([*rows("a", 6), *rows("b", 1)])
        await claim(queue, 1)
        assert await queue.groups.cancel("a", "no", force=True) == 6
        assert [(await handle.get()).state for handle in handles] == [State.CANCELLED] * 6 + [State.SCHEDULED]

    async def test_waiting_jobs_are_formally_scheduled(self, queue: Queue) -> None:
        await queue.groups.pause("a")
        handle = await queue.add("n", group="a", history=True)
        job = await handle.get()
        assert (await handle.state(), job.state, job.options.group) == ("delayed", State.SCHEDULED, "a")
        await queue.groups.resume("a")
        [claimed] = await claim(queue)
        await end(queue, claimed)
        check(await handle.get())

    async def test_a_removed_or_expired_job_is_skipped(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.pause("a")
        gone, lost, last = await queue.add_many(rows("a", 3))
        await gone.remove()
        store.delete(f"bull:q:{lost.id}")
        await queue.groups.resume("a")
        assert [job.id for job in await claim(queue, 9)] == [last.id]

    async def test_a_job_that_is_delayed_while_it_waits_keeps_its_delay(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.groups.pause("a")
        first, last = await queue.add_many(rows("a", 2))
        await queue._core.broker.change_delay(first.id, 60_000)
        await queue.groups.resume("a")
        assert [job.id for job in await claim(queue, 9)] == [last.id]
        store.zadd("bull:q:delayed", {first.id: 1})  # the delay has passed
        assert [job.id for job in await claim(queue, 9)] == [first.id]

    async def test_many_notes_of_removed_jobs_do_not_stand_in_the_way(self, queue: Queue) -> None:
        await queue.groups.pause("a")
        await queue.add_many(rows("a", 1500))
        await queue.jobs.clear(delayed=True)
        last = await queue.add("n", group="a")
        await queue.groups.resume("a")
        found: list[ClaimedJob] = []
        for _ in range(10):
            found += await claim(queue, 9)
        assert [job.id for job in found] == [last.id]

    async def test_nothing_is_left_when_all_have_run(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.set_all(concurrent=2)
        await queue.add_many([row for n in range(5) for row in rows(f"g{n}", 9)])
        assert len(await drain_in_order(queue)) == 45
        await claim(queue)
        full: Any = store.zrange("bull:q:ox:opening", 0, -1)
        assert full
        store.zadd("bull:q:ox:opening", dict.fromkeys(map(str, full), 0))
        await queue._core.broker.promote()
        own = {key for key in store.scan_iter() if ":ox:" in key and ":ox:call:" not in key}
        assert own == set()
        await queue.jobs.obliterate()
        assert [key for key in store.scan_iter() if ":ox:call:" not in key] == []

    async def test_obliterate_takes_groups_along(self, queue: Queue, store: redis.Redis) -> None:
        await queue.groups.set("a", concurrent=1, weight=2)
        await queue.add_many(rows("a", 9))
        await claim(queue)
        await queue.jobs.obliterate(force=True)
        assert [key for key in store.scan_iter() if ":ox:call:" not in key] == []

    async def test_a_paused_queue_lets_nothing_through(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add_many(rows("a", 50))
        await queue.pause()
        await queue.add_many(rows("b", 50))
        assert await claim(queue) == []
        assert store.llen("bull:q:paused") == WINDOW
        await queue.resume()
        assert len(await drain_in_order(queue)) == 100


class TestPeers:
    async def test_jobs_that_peers_add_take_turns_too(self, queue: Queue, store: redis.Redis) -> None:
        """Acts as a Node producer, which puts its jobs into the lists of the queue."""
        await queue.groups.set_all(concurrent=None)
        for number in range(60):
            name = f"peer-{number:02}"
            priority = number % 2
            fields: dict[Any, Any] = {
                "name": "n",
                "data": "1",
                "opts": "{}",
                "timestamp": 1,
                "delay": 0,
                "priority": priority,
            }
            store.hset(f"bull:q:{name}", mapping=fields)
            if priority:
                store.zadd("bull:q:prioritized", {name: (1 << 32) + number})
            else:
                store.lpush("bull:q:wait", name)
        await queue.add_many(rows("a", 40))
        order: list[str] = []
        for _ in range(100):
            jobs = await claim(queue, 4)
            order += [group_of(job) for job in jobs]
            if jobs:
                await end(queue, *jobs)
        assert len(order) == 100
        assert order.index("a") <= WINDOW
        assert order[WINDOW * 2 : WINDOW * 2 + 20].count("a") == 10

    async def test_a_group_without_claims_waits_for_a_day_and_is_then_due_for_peers(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.add_many(rows("a", WINDOW + 5))
        now = queue._core.broker.clock()
        found: Any = store.zrange("bull:q:delayed", 0, -1, withscores=True)
        due = [score / 4096 for _, score in found]
        assert store.llen("bull:q:wait") == WINDOW
        assert len(due) == 5
        assert all(now + DAY - 60_000 < at <= now + DAY + 1000 for at in due)


async def test_workers_share_time_between_groups_and_obey_limits(queue: Queue) -> None:
    await queue.groups.set_all(concurrent=2)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @queue.fallback
    async def work(job: RunningJob) -> None:
        group = job.options.group or ""
        running[group] += 1
        most[group] = max(most[group], running[group])
        await asyncio.sleep(0.001)
        running[group] -= 1

    async with Worker(queue, concurrency=9).running(), Worker(queue, concurrency=9).running():
        handles = await queue.add_many([row for n in range(5) for row in rows(f"g{n}", 20)])
        for handle in handles:
            await handle.result(60)
    assert set(most.values()) == {2}


async def test_a_claim_costs_the_same_with_many_groups(queue: Queue, store: redis.Redis) -> None:
    async def cost(groups: int) -> int:
        await queue.jobs.obliterate(force=True)
        await queue.add_many([row for n in range(groups) for row in rows(f"g{n}", max(2, 400 // groups))])
        await end(queue, *await claim(queue, 20))
        store.config_resetstat()
        for _ in range(5):
            await end(queue, *await claim(queue, 20))
        stats: dict[str, dict[str, Any]] = store.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if "info" not in name)

    few, many = await cost(10), await cost(2000)
    assert many <= few * 1.1


async def test_a_queue_without_groups_pays_nothing(queue: Queue, store: redis.Redis) -> None:
    """No command of groups runs in a queue that never had one."""
    await queue.add_many([("n", n) for n in range(20)])
    await end(queue, *await claim(queue, 20))
    stats = store.info("commandstats")
    assert not {"cmdstat_zrangebylex", "cmdstat_zlexcount", "cmdstat_zscore"} & set(stats)
