"""Counts and long reads: priorities, ends per minute, events, logs, pages."""

from __future__ import annotations

import pytest
import redis

from oxcart.broker.bullmq import bulk, reading
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.broker.progress import Progress
from oxcart.model.errors import JobNotFound
from tests.broker.bullmq.making import LATER, Q, add, finish, names


class TestCountsPerPriority:
    async def fill(self, q: Q) -> None:
        await add(q, "a1", "a2")
        for number, priority in enumerate((1, 1, 7, 2_097_151, 7, 7)):
            await add(q, f"p{number}", priority=priority)

    async def test_priorities_of_waiting_jobs(self, q: Q, monkeypatch: pytest.MonkeyPatch) -> None:
        await self.fill(q)
        found = {0: 2, 1: 2, 7: 3, 2_097_151: 1}
        assert await q.broker.bulk.counts_per_priority() == found
        monkeypatch.setattr(bulk, "PRIORITIES", 1)
        assert await q.broker.bulk.counts_per_priority() == found

    async def test_only_requested_priorities_are_counted(self, q: Q) -> None:
        await self.fill(q)
        assert await q.broker.bulk.counts_per_priority([7, 0, 5]) == {7: 3, 0: 2, 5: 0}
        await q.broker.pause()
        assert await q.broker.bulk.counts_per_priority([0]) == {0: 2}

    async def test_an_empty_queue(self, q: Q) -> None:
        assert await q.broker.bulk.counts_per_priority() == {}


class TestMetrics:
    async def test_ends_by_the_minute(self, q: Q, store: redis.Redis) -> None:
        q.clock.now = 60_000 * 1000
        await add(q, *names(9))
        jobs = await q.claim(9)
        ends = [0, 0, 1, 1, 1, 5, 5, 6, 6]
        outcomes = [
            Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, q.clock.now + 60_000 * minute, b"1")
            for job, minute in zip(jobs, ends, strict=True)
        ]
        await q.broker.finish(outcomes[:4], Ask(0, metrics=100))
        await q.broker.finish(outcomes[4:], Ask(0, metrics=100))
        found = await q.broker.metrics.series("completed")
        assert found.count == 9
        assert found.points == [2, 0, 0, 0, 3, 2]
        assert (found.total, found.previous_count) == (6, 7)
        assert found.previous_at == q.clock.now + 6 * 60_000
        assert (await q.broker.metrics.series("completed", 1, 4)).points == [0, 0, 0, 3]
        assert (await q.broker.metrics.series("failed")).points == []

    async def test_no_more_points_than_asked_for(self, q: Q) -> None:
        await add(q, "a1", "a2", "a3")
        one, two, three = await q.claim(3)
        await q.broker.finish([q.outcome(one)], Ask(0, metrics=5))
        q.clock.now += LATER * 24 * 365
        await q.broker.finish([q.outcome(two)], Ask(0, metrics=5))
        q.clock.now += 60_000
        await q.broker.finish([q.outcome(three, "f")], Ask(0, metrics=5))
        assert (await q.broker.metrics.series("completed")).points == [0, 0, 0, 0, 1]
        assert (await q.broker.metrics.series("failed")).count == 1

    async def test_nothing_is_counted_unless_asked_for(self, q: Q, store: redis.Redis) -> None:
        await finish(q, "a1")
        assert list(store.scan_iter("*metrics*")) == []

    async def test_a_refused_end_is_not_counted(self, q: Q) -> None:
        job = await q.active()
        late = Outcome(OutcomeKind.COMPLETED, job.id, "stranger", 7, q.clock.now, b"1")
        await q.broker.finish([late, q.outcome(job)], Ask(0, metrics=5))
        assert (await q.broker.metrics.series("completed")).count == 1

    async def test_metrics_key_of_another_type_costs_no_job(self, q: Q, store: redis.Redis) -> None:
        store.set("bull:q:metrics:completed", "text")
        job = await q.active()
        codes, _ = await q.broker.finish([q.outcome(job)], Ask(0, metrics=5))
        assert codes == [1]
        assert await q.state() == "completed"


class TestEvents:
    async def test_trim(self, q: Q, store: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("oxcart.broker.events.TRIM", 200)
        await add(q, *names(500))
        assert store.xlen("bull:q:events") == 1000
        reported: list[Progress] = []
        dropped = await q.broker.bulk.trim_events(100, progress=reported.append)
        assert dropped >= 800
        assert store.xlen("bull:q:events") == 1000 - dropped
        assert len(reported) >= 4

    async def test_publish(self, q: Q, store: redis.Redis) -> None:
        event_id = await q.broker.bulk.publish("deployed", {"version": "1.2", "by": b"ada"})
        assert store.xrange("bull:q:events") == [
            (event_id, {"event": "deployed", "version": "1.2", "by": "ada"})
        ]
        assert store.hget("bull:q:meta", "opts.maxLenEvents") == "10000"

    async def test_publish_keeps_what_the_queue_keeps(self, q: Q, store: redis.Redis) -> None:
        store.hset("bull:q:meta", "opts.maxLenEvents", 100)
        for _ in range(500):
            await q.broker.bulk.publish("tick", {})
        assert 100 <= int(store.xlen("bull:q:events")) <= 200


class TestLogs:
    async def test_clear(self, q: Q) -> None:
        await q.add("a")
        await q.broker.logs.append("a", ["one", "two", "three"], None)
        await q.broker.logs.clear("a", 2)
        assert await q.broker.logs.read("a") == ["two", "three"]
        await q.broker.logs.clear("a")
        assert await q.broker.logs.read("a") == []

    async def test_clear_of_a_missing_job_raises(self, q: Q) -> None:
        with pytest.raises(JobNotFound):
            await q.broker.logs.clear("none")


class TestPages:
    async def test_a_long_page_is_read_in_parts(self, q: Q, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = [f"j{number:04}" for number in range(600)]
        await add(q, *ids)
        for most in (5000, 130, 600):
            monkeypatch.setattr(reading, "PAGE", most)
            assert [job.id for job in await q.broker.page("wait", 0, 599, oldest=True)] == ids
            assert [job.id for job in await q.broker.page("wait", 100, 450)] == ids[::-1][100:451]
            assert len(await q.broker.page("wait", 0, 10_000)) == 600

    async def test_large_jobs_are_read_one_by_one(self, q: Q) -> None:
        big = "x" * 700_000
        for number in range(4):
            await q.add(f"j{number}", big)
        found = await q.broker.page("wait", 0, 9, oldest=True)
        assert [(job.id, len(job.data)) for job in found] == [(f"j{n}", 700_000) for n in range(4)]

    async def test_pages_skip_entries_that_are_no_jobs(self, q: Q, store: redis.Redis) -> None:
        ids = names(300)
        await add(q, *ids)
        store.set("bull:q:strange", "text")
        for place in ("j010", "j150", "j290"):
            store.linsert("bull:q:wait", "BEFORE", place, "strange")
        assert [job.id for job in await q.broker.page("wait", 0, 500, oldest=True)] == ids
