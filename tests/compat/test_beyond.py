"""Features of the drop-in that Node has and PyPI's package lacks, and its refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart.compat.bullmq import (
    FlowProducer,
    Job,
    JobScheduler,
    Queue,
    QueueEvents,
    QueueEventsProducer,
    Worker,
)
from oxcart.model.errors import JobFailed, ResultTimeout, ValidationError
from tests.compat.conftest import Make, reaches, soon


async def process(job: Job, token: str) -> Any:
    if job.name == "fails":
        raise ValueError("no luck")
    return {"of": job.name}


class TestWaitUntilFinished:
    async def test_the_result_of_a_job_that_ends_later_or_has_ended(self, make: Make) -> None:
        queue = make(Queue, "q")
        job = await queue.add("a", {})
        waiting = asyncio.ensure_future(job.waitUntilFinished())
        make(Worker, "q", process)
        assert await waiting == {"of": "a"}
        assert await job.waitUntilFinished(None, 20_000) == {"of": "a"}

    async def test_result_of_a_job_removed_at_its_end(self, make: Make) -> None:
        """In PyPI's package (bullmq #85) such a wait hangs."""
        queue = make(Queue, "q")
        make(Worker, "q", process)
        job = await queue.add("a", {}, {"removeOnComplete": True})
        assert await job.waitUntilFinished(make(QueueEvents, "q"), 10_000) == {"of": "a"}

    async def test_a_failure_is_raised(self, make: Make) -> None:
        queue = make(Queue, "q")
        make(Worker, "q", process)
        job = await queue.add("fails", {})
        with pytest.raises(JobFailed, match="no luck"):
            await job.waitUntilFinished(None, 10_000)

    async def test_wait_times_out(self, make: Make) -> None:
        job = await make(Queue, "q").add("a", {})
        with pytest.raises(ResultTimeout):
            await job.waitUntilFinished(None, 10)


class TestDependencies:
    async def test_all_or_a_page_of_each_kind(self, make: Make) -> None:
        producer, queue, kids = make(FlowProducer), make(Queue, "q"), make(Queue, "kids")
        children = [
            {"name": "good", "queueName": "kids", "opts": {"jobId": "good"}},
            {
                "name": "fails",
                "queueName": "kids",
                "opts": {"jobId": "bad", "ignoreDependencyOnFailure": True},
            },
            {"name": "late", "queueName": "kids", "opts": {"jobId": "late", "delay": 3_600_000}},
        ]
        tree = await producer.add({"name": "p", "queueName": "q", "children": children})
        make(Worker, "kids", process)
        await reaches(await kids.getJob("good"), "completed")
        await reaches(await kids.getJob("bad"), "failed")
        parent = await queue.getJob(tree["job"].id)
        assert await parent.getDependencies() == {
            "processed": {"bull:kids:good": {"of": "good"}},
            "unprocessed": ["bull:kids:late"],
            "ignored": {"bull:kids:bad": "no luck"},
            "failed": [],
        }
        page = await parent.getDependencies({"processed": {"count": 5}, "failed": {"cursor": 0, "count": 5}})
        assert page == {
            "processed": {"bull:kids:good": {"of": "good"}},
            "nextProcessedCursor": 0,
            "failed": [],
            "nextFailedCursor": 0,
        }
        counts = {"processed": 1, "unprocessed": 1, "ignored": 1, "failed": 0}
        assert await parent.getDependenciesCount() == counts
        assert await parent.getDependenciesCount({"ignored": True}) == {"ignored": 1}
        assert await parent.getIgnoredChildrenFailures() == {"bull:kids:bad": "no luck"}
        flow = await producer.getFlow({"id": tree["job"].id, "queueName": "q"})
        assert flow["job"].name == "p"
        assert sorted(child["job"].name for child in flow["children"]) == ["fails", "good", "late"]
        assert await producer.getFlow({"id": "nobody", "queueName": "q"}) is None


class TestChildren:
    async def test_unfinished_children_are_removed(self, make: Make) -> None:
        producer, queue, kids = make(FlowProducer), make(Queue, "q"), make(Queue, "kids")
        names = ("done", "held", "first", "second")
        children = [{"name": name, "queueName": "kids", "opts": {"jobId": name}} for name in names]
        tree = await producer.add({"name": "p", "queueName": "q", "children": children})
        by_hand = make(Worker, "kids", None)
        done, held = await by_hand.getNextJob("a"), await by_hand.getNextJob("b")
        await done.moveToCompleted(1, "a")
        parent = tree["job"]
        await parent.removeUnprocessedChildren()
        assert [await kids.getJobState(name) for name in names] == [
            "completed",
            "active",
            "unknown",
            "unknown",
        ]
        assert await parent.getDependenciesCount() == {
            "failed": 0,
            "ignored": 0,
            "processed": 1,
            "unprocessed": 1,
        }
        await held.moveToCompleted(2, "b")
        assert await parent.getState() == "waiting"
        with pytest.raises(TypeError, match="Missing key for job nobody"):
            await Job(queue, "x", {}, {}, "nobody").removeUnprocessedChildren()

    async def test_a_child_leaves_its_parent(self, make: Make) -> None:
        producer, queue = make(FlowProducer), make(Queue, "q")
        kid = {"name": "k", "queueName": "q", "opts": {"jobId": "k"}}
        tree = await producer.add({"name": "p", "queueName": "q", "children": [kid]})
        child = await queue.getJob("k")
        assert await child.removeChildDependency()
        assert (child.parentKey, (await queue.getJob("k")).parentKey) == (None, None)
        assert await tree["job"].getState() == "waiting"
        assert not await child.removeChildDependency()


class TestJobs:
    async def test_a_delay_is_changed(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        job = await queue.add("a", {}, {"delay": 60_000})
        before: Any = store.zscore("bull:q:delayed", str(job.id))
        await job.changeDelay(3_600_000)
        after: Any = store.zscore("bull:q:delayed", str(job.id))
        assert after > before
        assert (await queue.getJob(job.id)).delay == job.delay == 3_600_000
        ready = await queue.add("b", {})
        with pytest.raises(TypeError, match=f"Job {ready.id} is not in the delayed state. changeDelay"):
            await ready.changeDelay(5)

    async def test_a_log_is_cleared(self, make: Make) -> None:
        queue = make(Queue, "q")
        job = await queue.add("a", {})
        for row in "abc":
            await job.log(row)
        await job.clearLogs(1)
        assert await queue.getJobLogs(job.id) == {"logs": ["c"], "count": 1}
        await job.clearLogs()
        assert (await queue.getJobLogs(job.id))["count"] == 0

    async def test_a_window_is_closed_by_its_owner_alone(self, make: Make) -> None:
        queue = make(Queue, "q")
        window = {"deduplication": {"id": "w"}}
        job = await queue.add("a", {}, window)
        other = Job(queue, "b", {}, window, "other")
        assert not await other.removeDeduplicationKey()
        assert await (await queue.getJob(job.id)).removeDeduplicationKey()
        assert await queue.getDeduplicationJobId("w") is None
        await queue.add("a", {}, window)
        assert [await queue.removeDeduplicationKey("w"), await queue.removeDeduplicationKey("w")] == [1, 0]

    async def test_an_undecodable_job_is_still_shown(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        store.hset(
            "bull:q:odd", mapping={"name": "n", "data": "{nonsense", "opts": "[]", "delay": "x", "atm": "1.0"}
        )
        job = await queue.getJob("odd")
        assert (job.data, job.delay, job.attemptsMade) == ("{nonsense", 0, 1)
        both = '{"fpof":true,"idof":true,"attempts":2}'
        store.hset("bull:q:both", mapping={"name": "n", "data": "1", "opts": both})
        assert (await queue.getJob("both")).opts["attempts"] == 2


class TestQueues:
    async def test_counts_by_the_names_that_node_has(self, make: Make) -> None:
        queue, producer = make(Queue, "q"), make(FlowProducer)
        await queue.addBulk([{"name": "a", "data": {}, "opts": {"priority": i}} for i in range(3)])
        await producer.add({"name": "p", "queueName": "q", "children": [{"name": "k", "queueName": "kids"}]})
        assert await queue.getActiveCount() == 0
        assert await queue.getPrioritizedCount() == 2
        assert await queue.getWaitingChildrenCount() == 1
        assert await queue.count() == 4
        worker = make(Worker, "other", process)
        await soon(make(Queue, "other").getWorkersCount)
        assert [one["name"] for one in await make(Queue, "other").getWorkers()] == ["other"]
        assert (worker.isRunning(), worker.isPaused()) == (True, False)

    async def test_orphans_are_removed(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        job = await queue.add("a", {})
        store.delete("bull:q:wait")
        assert await queue.removeOrphanedJobs() == 1
        assert await queue.getJob(job.id) is None

    async def test_a_page_from_behind(self, make: Make) -> None:
        queue = make(Queue, "q")
        await queue.addBulk([{"name": "a", "data": i} for i in range(5)])
        assert [job.data for job in await queue.getWaiting(-2, -1)] == [3, 4]
        assert [job.data for job in await queue.getWaiting(0, -2)] == [0, 1, 2, 3]
        assert [job.data for job in await queue.getJobs("waiting", 3, 1)] == []
        assert [job.data for job in await queue.getJobs(["completed", "waiting"], 0, 1, True)] == [0, 1]

    async def test_the_counter_skips_chosen_ids(self, make: Make, store: redis.Redis) -> None:
        """A counted id is never already taken: PyPI's scripts overwrite such a job."""
        queue = make(Queue, "q")
        await queue.add("a", 1)
        store.hset("bull:q:2", mapping={"name": "theirs", "data": "5", "opts": "{}"})
        assert (await queue.add("b", 2)).id == "3"
        store.hset("bull:q:5", mapping={"name": "theirs", "data": "5", "opts": "{}"})
        bulk = await queue.addBulk([{"name": "c", "data": i} for i in range(3)])
        assert len({job.id for job in bulk}) == 3
        assert "5" not in {job.id for job in bulk}
        assert store.hget("bull:q:2", "name") == store.hget("bull:q:5", "name") == "theirs"

    async def test_children_and_windows_among_many(self, make: Make) -> None:
        queue = make(Queue, "q")
        await queue.add("p", {}, {"jobId": "p"})
        jobs = await queue.addBulk(
            [
                {"name": "a", "data": {}, "opts": {"deduplication": {"id": "w"}}},
                {"name": "b", "data": {}, "opts": {"deduplication": {"id": "w"}}},
                {"name": "c", "data": {}, "opts": {"parent": {"id": "p", "queue": "bull:q"}, "jobId": "c"}},
                {"name": "d", "data": {}},
            ]
        )
        assert jobs[0].id == jobs[1].id
        assert jobs[2].id == "c"
        assert (await queue.getJob("c")).parentKey == "bull:q:p"
        assert await (await queue.getJob("p")).getDependenciesCount({"unprocessed": 1}) == {"unprocessed": 1}

    @pytest.mark.parametrize(
        ("opts", "field"),
        [
            ({"attempts": -1}, "attempts"),
            ({"attempts": "3"}, "attempts"),
            ({"delay": -5}, "delay"),
            ({"delay": 1.5}, "delay"),
            ({"priority": -1}, "priority"),
            ({"priority": 2_097_153}, "priority"),
            ({"jobId": "5"}, "job_id"),
            ({"jobId": "a:b"}, "job_id"),
            ({"jobId": "meta"}, "job_id"),
            ({"backoff": {"delay": 5}}, "backoff"),
            ({"backoff": {"type": "fixed", "delay": -1}}, "backoff.delay"),
            ({"backoff": {"type": "fixed", "delay": 1, "jitter": 2}}, "backoff.jitter"),
            ({"deduplication": {}}, "deduplication"),
            ({"removeOnComplete": "yes"}, "remove_on_complete"),
            ({"x": object()}, "opts"),
        ],
    )
    async def test_invalid_options_are_refused_before_any_write(
        self, make: Make, store: redis.Redis, opts: Any, field: str
    ) -> None:
        queue, producer = make(Queue, "q"), make(FlowProducer)
        with pytest.raises(ValidationError, match=field):
            await queue.add("a", {}, opts)
        with pytest.raises(ValidationError, match=field):
            await queue.addBulk([{"name": "fine", "data": {}}, {"name": "a", "data": {}, "opts": opts}])
        with pytest.raises(ValidationError, match=field):
            await producer.add({"name": "a", "queueName": "q", "opts": opts})
        assert store.keys() == []

    async def test_limits_are_numbers_of_jobs(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        for call in (
            queue.setGlobalConcurrency(0),
            queue.setGlobalRateLimit(0, 5),
            queue.setGlobalRateLimit(5, 0),
        ):
            with pytest.raises(ValidationError):
                await call
        assert store.keys() == []


class TestFlows:
    async def test_one_of_many_that_is_refused_stops_no_other(self, make: Make) -> None:
        producer, queue = make(FlowProducer), make(Queue, "q")
        taken = {
            "name": "p",
            "queueName": "q",
            "children": [{"name": "k", "queueName": "q", "opts": {"jobId": "k"}}],
        }
        await producer.add(taken)
        trees = await producer.addBulk([taken, {"name": "fine", "queueName": "q", "opts": {"jobId": "fine"}}])
        assert await queue.getJob("fine") is not None
        assert await queue.getJob(trees[0]["job"].id) is None
        with pytest.raises(Exception, match="cannot be replaced") as caught:
            await producer.add(taken)
        assert caught.value.code == -7  # type: ignore[attr-defined]

    async def test_a_window_keeps_a_second_flow_out(self, make: Make) -> None:
        producer, queue = make(FlowProducer), make(Queue, "q")
        flow = {
            "name": "p",
            "queueName": "q",
            "opts": {"deduplication": {"id": "w"}},
            "children": [{"name": "k", "queueName": "q"}],
        }
        first, (second,) = await producer.add(flow), await producer.addBulk([flow])
        assert first["job"].id == second["job"].id
        assert await queue.getJobCounts("waiting", "waiting-children") == {
            "waiting": 1,
            "waiting-children": 1,
        }


class TestSchedulers:
    async def test_the_zone_is_written_down(self, make: Make, store: redis.Redis) -> None:
        queue = make(Queue, "q")
        await queue.upsertJobScheduler("s", {"pattern": "0 12 * * *"})
        assert store.hget("bull:q:repeat:s", "tz") == "UTC"

    async def test_a_strategy_may_say_never(self, make: Make) -> None:
        queue = make(Queue, "q")
        scheduler = JobScheduler(queue, lambda millis, opts: None)
        assert await scheduler.upsertJobScheduler("s", {"pattern": "never"}, "n") is None
        assert await queue.getJobSchedulersCount() == 0

    async def test_dates_as_text(self, make: Make) -> None:
        queue = make(Queue, "q")
        await queue.upsertJobScheduler(
            "s", {"every": 1000, "startDate": "2099-01-01T00:00:00Z", "endDate": "4133980800000"}
        )
        found = await queue.getJobScheduler("s")
        assert (found["startDate"], found["endDate"], found["next"]) == (
            4070908800000,
            4133980800000,
            4070908800000,
        )

    async def test_a_job_claimed_by_hand_adds_the_next_run(self, make: Make) -> None:
        queue, worker = make(Queue, "q"), make(Worker, "q", None)
        first = await queue.upsertJobScheduler("s", {"every": 3_600_000})
        job = await worker.getNextJob("t")
        assert job.id == first.id
        assert (await queue.getJobScheduler("s"))["iterationCount"] == 2
        assert await queue.getDelayedCount() == 1
        assert await queue.jobScheduler.upsertJobScheduler("none", {"every": 5}, "n", override=False) is None


class TestEvents:
    async def test_only_new_events_by_default(self, make: Make, url: str) -> None:
        queue = make(Queue, "q")
        await queue.add("before", {})
        events = make(QueueEvents, "q")
        heard: list[Any] = []
        events.on("added", lambda fields, event_id: heard.append(fields["name"]))
        await soon(lambda: events._position != "$")
        await queue.add("after", {})
        await soon(lambda: heard == ["after"])
        await queue.close()

    async def test_a_listener_that_raises_stops_no_other(self, make: Make, url: str) -> None:
        events = make(QueueEvents, "q", lastEventId="0-0")
        heard: list[Any] = []

        def breaks(*args: Any) -> None:
            raise RuntimeError("mine")

        events.on("hello", breaks)
        events.on("hello", lambda fields, event_id: heard.append(fields))
        events.on("error", lambda error: heard.append(str(error)))
        producer = QueueEventsProducer("q", {"connection": url})
        await producer.publishEvent({"eventName": "hello", "a": "1"})
        await soon(lambda: len(heard) == 2)
        assert heard == ["mine", {"a": "1"}]
        with pytest.raises(ValidationError):
            await producer.publishEvent({"eventName": "completed", "jobId": "1"})
        await producer.close()
        await producer.close()
