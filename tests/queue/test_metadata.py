"""Metadata of a job: tags, correlation id, callback URL, priority; and its times."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, SyncRunningJob, Worker, sync
from oxcart.broker.port import Ask
from oxcart.model.errors import JobFailed, JobNotFound, ValidationError, WrongState
from oxcart.model.options import JobOptions
from oxcart.observe import logs
from tests.conftest import MakeQueue
from tests.signals import eventually


class TestTags:
    async def test_on_the_wire_and_back(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a", tags={"tenant": "acme", "städte": "Köln"}, correlation_id="c-1")
        fields: Any = store.hgetall(f"bull:q:{job.id}")
        assert json.loads(fields["ox:tags"]) == {"tenant": "acme", "städte": "Köln"}
        assert fields["ox:corr"] == "c-1"
        found = await job.get()
        assert (found.tags, found.correlation_id) == ({"tenant": "acme", "städte": "Köln"}, "c-1")
        assert found.type == "a"

    async def test_a_plain_job_has_no_such_fields(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a")
        assert not [name for name in store.hkeys(f"bull:q:{job.id}") if str(name).startswith("ox:")]

    async def test_jobs_are_chosen_by_them(self, queue: Queue) -> None:
        await queue.add("a", job_id="a1", tags={"tenant": "acme", "plan": "pro"})
        await queue.add("a", job_id="a2", tags={"tenant": "acme"})
        await queue.add("a", job_id="a3", tags={"tenant": "other"}, correlation_id="x")
        await queue.add("a", job_id="a4")
        both = await queue.jobs.cancel_all(tags={"tenant": "acme"}, dry_run=True)
        assert sorted(both.ids) == ["a1", "a2"]
        assert (await queue.jobs.cancel_all(tags={"tenant": "acme", "plan": "pro"}, dry_run=True)).ids == [
            "a1"
        ]
        assert (await queue.jobs.cancel_all(correlation_id="x", dry_run=True)).ids == ["a3"]

    async def test_fields_that_a_peer_spoilt(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a")
        for junk in ("[]", "{", '{"a":1}', "\x00"):
            store.hset(f"bull:q:{job.id}", "ox:tags", junk)
            assert (await job.get()).tags == {}
            assert (await queue.jobs.cancel_all(tags={"a": "1"}, dry_run=True)).matched == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tags": ["a"]}, "tags must be a mapping"),
            ({"tags": {"": "x"}}, "names have 1 to 64"),
            ({"tags": {"n" * 65: "x"}}, "names have 1 to 64"),
            ({"tags": {"a": "x" * 257}}, r"tags\['a'\] must be"),
            ({"tags": {"a": 5}}, r"tags\['a'\] must be"),
            ({"tags": {"a": "\ud800"}}, r"tags\['a'\] must be"),
            ({"tags": {str(n): "" for n in range(33)}}, "tags must be at most 32 tags, got 33"),
            ({"correlation_id": "x" * 257}, "correlation_id must be text of 1 to 256"),
            ({"correlation_id": ""}, "correlation_id must be"),
            ({"correlation_id": "a\nb"}, "correlation_id must be"),
            ({"correlation_id": 5}, "correlation_id must be"),
            ({"callback_url": "ftp://example.com"}, "callback_url must be an http or https URL"),
            ({"callback_url": "example.com"}, "callback_url must be"),
            ({"callback_url": "https://"}, "callback_url must be"),
            ({"callback_url": "https://u:p@example.com"}, "without user and password"),
            ({"callback_url": "https://example.com:99999/"}, "callback_url must be"),
            ({"callback_url": "https://example.com/" + "x" * 2048}, "callback_url must be"),
            ({"callback_url": "https://[::1"}, "callback_url must be"),
        ],
    )
    async def test_bad_input(self, queue: Queue, store: redis.Redis, options: Any, message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            await queue.add("a", **options)
        assert store.keys("*") == []


class TestCorrelation:
    async def test_jobs_that_a_handler_adds_have_it(self, queue: Queue, url: str) -> None:
        second = sync.Queue("q", url=url)

        @queue.job
        async def parent(job: RunningJob) -> list[str]:
            one = await queue.add("other")
            (two,) = await queue.add_many([("other", None)])
            three = await queue.add("other", correlation_id="own")
            four = await Flow(queue, "other", children=[Flow(queue, "other", job_id="leaf")]).add()
            return [one.id, two.id, three.id, four.id]

        @queue.job
        def in_thread(job: SyncRunningJob) -> str:
            return second.add("other").id

        async with Worker(queue).running():
            made = await (await parent.using(correlation_id="c-1").enqueue()).result(10)
            late = await (await in_thread.using(correlation_id="c-2").enqueue()).result(10)
        found = await queue.jobs.get_many([*made, "leaf", late])
        assert [job.correlation_id for job in found if job] == ["c-1", "c-1", "own", "c-1", "c-1", "c-2"]
        assert (await (await queue.add("other")).get()).correlation_id is None
        second.close()

    async def test_it_stands_in_logs(self, queue: Queue) -> None:
        text, lines = io.StringIO(), io.StringIO()
        logger = logging.getLogger("tests.metadata")
        logger.propagate = False
        for stream, form in ((text, logs.TextFormatter()), (lines, logs.JsonFormatter())):
            handler = logging.StreamHandler(stream)
            handler.addFilter(logs.JobContext())
            handler.setFormatter(form)
            logger.addHandler(handler)

        @queue.job
        async def speak() -> None:
            logger.warning("hello")

        try:
            async with Worker(queue).running():
                await (await speak.using(correlation_id="c-1").enqueue()).result(10)
                await (await speak.enqueue()).result(10)
        finally:
            logger.handlers.clear()
        first, second = (json.loads(line) for line in lines.getvalue().splitlines())
        assert first.get("correlation_id") == "c-1"
        assert "correlation_id" not in second
        assert "speak #1 c-1] hello" in text.getvalue()
        assert "speak #1] hello" in text.getvalue()

    async def test_it_stands_in_the_workers_own_lines(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A retry, a failure for good, and a failure of a job without one."""
        caplog.set_level(logging.INFO, "oxcart.worker")

        @queue.job(attempts=2, backoff="1ms")
        async def breaks() -> None:
            raise OSError("broke")

        async with Worker(queue).running():
            for task in (breaks.using(correlation_id="c-1"), breaks):
                with pytest.raises(JobFailed):
                    await (await task.enqueue()).result(10)
        lines = [record for record in caplog.records if "failed" in record.getMessage()]
        assert [getattr(line, "correlation_id", None) for line in lines] == ["c-1", "c-1", None, None]
        assert [line.levelname for line in lines] == ["INFO", "WARNING"] * 2
        text = logs.TextFormatter().format(lines[0])
        assert "breaks #1 c-1] queue q: job" in text


class TestUpdate:
    async def test_options_that_are_not_passed_stay(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a", tags={"a": "1"}, correlation_id="c", callback_url="https://example.com/x")
        await job.update(correlation_id="d")
        found = await job.get()
        assert (found.tags, found.correlation_id, found.callback_url) == (
            {"a": "1"},
            "d",
            "https://example.com/x",
        )
        await job.update(tags=None, callback_url=None)
        found = await job.get()
        assert (found.tags, found.correlation_id, found.callback_url) == ({}, "d", None)
        assert not store.hexists(f"bull:q:{job.id}", "ox:tags")

    async def test_the_priority_of_a_waiting_job(self, queue: Queue) -> None:
        for number in range(3):
            await queue.add("a", job_id=f"j{number}", priority=5)
        await queue.jobs.handle("j2").update(priority=1, tags={"x": "y"})
        claimed = (await queue._core.broker.claim(Ask(3))).jobs
        assert [job.id for job in claimed] == ["j2", "j0", "j1"]

    async def test_a_running_job_may_be_changed_and_an_ended_one_not(self, queue: Queue) -> None:
        job = await queue.add("a")
        await queue._core.broker.claim(Ask(1))
        await job.update(tags={"a": "b"})
        assert (await job.get()).tags == {"a": "b"}
        await job.cancel(force=True)
        with pytest.raises(WrongState):
            await job.update(tags={"a": "c"})
        assert (await job.get()).tags == {"a": "b"}
        with pytest.raises(JobNotFound):
            await queue.jobs.handle("none").update(tags={})

    async def test_bad_input_changes_nothing(self, queue: Queue) -> None:
        job = await queue.add("a", tags={"a": "b"})
        wrong: list[dict[str, Any]] = [{"tags": {"a": 1}}, {"priority": -1}, {"priority": "high"}]
        for values in wrong:
            with pytest.raises(ValidationError):
                await job.update(correlation_id="new", **values)
        assert (await job.get()).correlation_id is None
        with pytest.raises(TypeError):
            await job.update(data={})  # type: ignore[call-arg]


class TestFormalPriorities:
    async def test_they_decide_the_order(self, make_queue: MakeQueue) -> None:
        queue = make_queue(priorities="formal")
        for name in ("bulk", "low", "normal", "high", "critical"):
            await queue.add("a", job_id=f"{name}-1", priority=name)
        await queue.add_many(
            [("a", None, {"job_id": f"{name}-2", "priority": name}) for name in ("LOW", "high")]
        )
        await queue.add("a", job_id="unsaid")
        claimed = (await queue._core.broker.claim(Ask(20))).jobs
        assert [job.id for job in claimed] == [
            "critical-1",
            "high-1",
            "high-2",
            "normal-1",
            "unsaid",
            "low-1",
            "LOW-2",
            "bulk-1",
        ]

    async def test_on_the_wire_they_are_numbers(self, make_queue: MakeQueue) -> None:
        queue = make_queue(priorities="formal")

        @queue.job(priority="bulk")
        async def work() -> None: ...

        assert (await (await work.enqueue()).get()).priority == 4
        assert (await (await work.using(priority="high").enqueue()).get()).priority == 1
        job = await queue.add("a", priority=3)
        await job.change_priority("critical")
        assert (await job.get()).priority == 0
        await job.update(priority="low")
        assert (await job.get()).priority == 3
        flow = await Flow(queue, "a", priority="high").add()
        assert (await flow.get()).priority == 1

    @pytest.mark.parametrize("wrong", ["urgent", 5, -1, True, None, ""])
    async def test_others_are_refused(self, make_queue: MakeQueue, store: redis.Redis, wrong: Any) -> None:
        queue = make_queue(priorities="formal")
        with pytest.raises(
            ValidationError, match="priority must be one of critical, high, normal, low, bulk"
        ):
            await queue.add("a", priority=wrong)
        assert store.keys("*") == []

    async def test_names_are_for_formal_queues(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="names need a queue with formal priorities"):
            await queue.add("a", priority="high")
        with pytest.raises(ValidationError, match="priorities must be 'formal' or None"):
            Queue("q", priorities="loud")  # type: ignore[arg-type]


class TestTimes:
    async def test_times_of_a_job(self, queue: Queue) -> None:
        job = await queue.add("a", delay="1h", timestamp=1_700_000_000_000)
        found = await job.get()
        assert found.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert (found.scheduled_at, found.started_at, found.completed_at) == (None, None, None)
        assert found.updated_at == found.created_at
        await job.promote()
        await queue._core.broker.claim(Ask(1))
        running = await job.get()
        assert running.started_at is not None
        assert running.updated_at == running.started_at
        assert running.completed_at is None
        await job.cancel(force=True)
        ended = await job.get()
        assert ended.completed_at is not None
        assert ended.updated_at == ended.completed_at >= running.started_at

    async def test_each_time_is_that_of_its_event(self, queue: Queue, store: redis.Redis) -> None:
        times: list[datetime | None] = []

        def now() -> float:
            """The server's time in seconds."""
            seconds, micro = store.time()
            return seconds + micro / 1_000_000

        async def between() -> None:
            """Records a time 30 ms away from all events: a client knows the server's time only roughly."""
            begun = now()
            times.append(datetime.fromtimestamp(begun + 0.03, UTC))
            await eventually(lambda: now() >= begun + 0.06, "some milliseconds have passed")

        await between()
        job = await queue.add("a")
        times.append((await job.get()).created_at)
        await between()
        await queue._core.broker.claim(Ask(1))
        times.append((await job.get()).started_at)
        await between()
        await job.cancel(force=True)
        ended = await job.get()
        times.append(ended.completed_at)
        await between()
        assert [ended.created_at, ended.started_at] == times[1:4:2]
        known = [one for one in times if one is not None]
        assert known == times == sorted(known)

    async def test_time_out_of_range_is_1970(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a")
        store.hset(f"bull:q:{job.id}", "timestamp", 10**30)
        assert (await job.get()).created_at.year == 1970


def test_options_with_tags_are_not_remembered() -> None:
    options = JobOptions.build(tags={"a": "b"})
    assert not options.is_shared
    assert JobOptions.build(attempts=2).is_shared
    assert JobOptions.build(tags={}).is_shared
