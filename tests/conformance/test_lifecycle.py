"""Jobs from add to end, over queue and worker, on every broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Queue, Retry, Snooze, Target, Worker
from oxcart.broker.port import Ask
from oxcart.engine.running import RunningJob
from oxcart.model.errors import (
    JobFailed,
    JobLocked,
    JobNotFound,
    PayloadTooLarge,
    ValidationError,
    WrongState,
)
from oxcart.model.failure import PermanentError
from oxcart.model.state import State
from tests.conformance.conftest import Venue
from tests.signals import eventually

LIMIT = 20


async def test_a_job_runs_and_gives_its_result(venue: Venue) -> None:
    queue = venue.queue()

    @queue.job
    async def greet(name: str) -> dict[str, Any]:
        return {"hello": name, "list": [], "big": 2**60}

    @queue.job
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    async with Worker(queue, concurrency=4).running():
        first = await greet.enqueue(name="Ada")
        second = await add_up.enqueue(numbers=[1, 2, 3])
        assert await first.result(LIMIT) == {"hello": "Ada", "list": [], "big": 2**60}
        assert await second.result(LIMIT) == 6
    read = await first.get()
    assert (read.state, read.name, read.attempts_made, read.failed_reason) == (
        State.COMPLETED,
        "greet",
        1,
        None,
    )


async def test_many_jobs_each_run_once(venue: Venue) -> None:
    queue = venue.queue()
    ran: list[str] = []

    async def note(job: RunningJob) -> None:
        ran.append(job.id)

    queue.fallback(note)
    jobs = await queue.add_many([("n", {"i": i}) for i in range(300)])
    async with Worker(queue, concurrency=40).running(), Worker(queue, concurrency=40).running():
        await asyncio.gather(*(job.result(LIMIT) for job in jobs))
    assert sorted(ran) == sorted(job.id for job in jobs)
    counts = await queue.counts()
    assert {state: many for state, many in counts.items() if many} == {"completed": 300}


async def test_failed_attempt_is_retried(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> int:
        if job.attempt < 3:
            raise ConnectionError(f"attempt {job.attempt}")
        return job.attempt

    queue.fallback(handle)
    job = await queue.add("n", {}, attempts=3, backoff={"type": "fixed", "delay": 5})
    async with Worker(queue).running():
        assert await job.result(LIMIT) == 3
    assert (await job.get()).attempts_started == 3


async def test_job_without_attempts_left_is_a_dead_letter(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> None:
        raise ConnectionError(f"attempt {job.attempt}")

    queue.fallback(handle)
    job = await queue.add("n", {}, attempts=2, backoff={"type": "fixed", "delay": 5})
    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="attempt 2"):
            await job.result(LIMIT)
    read = await job.get()
    assert (read.state, len(read.stacktrace)) == (State.DEAD_LETTER, 2)
    assert await job.state() == "failed"


async def test_permanent_failure_is_not_retried(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> None:
        raise PermanentError("never")

    queue.fallback(handle)
    job = await queue.add("n", {}, attempts=5)
    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="never"):
            await job.result(LIMIT)
    read = await job.get()
    assert (read.state, read.attempts_made, read.category) == (State.FAILED, 1, "permanent")


async def test_an_attempt_ends_at_its_timeout(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> None:
        await asyncio.sleep(60)

    queue.fallback(handle)
    job = await queue.add("n", {}, attempts=1, timeout="50ms")
    async with Worker(queue).running():
        with pytest.raises(JobFailed) as failed:
            await job.result(LIMIT)
    assert failed.value.category == "timeout"


async def test_job_waits_for_its_delay(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: job.started_ms)
    job = await queue.add("n", {}, delay="300ms")
    assert (await job.get()).state is State.DELAYED
    assert await job.state() == "delayed"
    async with Worker(queue).running():
        started = await job.result(LIMIT)
    assert started >= (await job.get()).timestamp + 300


async def test_delayed_job_can_be_promoted(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: "ran")
    job = await queue.add("n", {}, delay="1h")
    await job.change_delay("2h")
    await job.promote()
    async with Worker(queue).running():
        assert await job.result(LIMIT) == "ran"


async def test_priorities_and_turns(venue: Venue) -> None:
    queue = venue.queue(priorities="formal", partition_key="one")
    ran: list[str] = []

    async def note(job: RunningJob) -> None:
        ran.append(job.data)

    queue.fallback(note)
    for priority in ("low", "normal", "critical", "bulk", "high"):
        for turn in (1, 2):
            await queue.add("n", f"{priority}-{turn}", priority=priority)
    async with Worker(queue).running():
        await eventually(lambda: len(ran) == 10, "all have run")
    order = ("critical", "high", "normal", "low", "bulk")
    assert ran == [f"{priority}-{turn}" for priority in order for turn in (1, 2)]


async def test_a_paused_queue_hands_out_nothing(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: "ran")
    await queue.pause()
    assert await queue.is_paused()
    job = await queue.add("n", {})
    async with Worker(queue).running():
        probe = venue.queue("other")
        probe.fallback(lambda job: "ran")
        async with Worker(probe).running():
            await (await probe.add("n", {})).result(LIMIT)
        assert await job.state() == "waiting" or await job.state() == "paused"
        await queue.resume()
        assert await job.result(LIMIT) == "ran"


async def test_snoozes_and_retries_by_return_value(venue: Venue) -> None:
    queue = venue.queue()
    seen: list[tuple[int, int]] = []

    async def handle(job: RunningJob) -> Any:
        seen.append((job.attempt, job.fencing))
        if len(seen) == 1:
            return Snooze("1ms")
        return Retry(after="1ms") if len(seen) == 2 else "done"

    queue.fallback(handle)
    job = await queue.add("n", {})
    async with Worker(queue).running():
        assert await job.result(LIMIT) == "done"
    assert seen == [(1, 1), (1, 2), (2, 3)], "a snooze is no attempt; every start has its number"


async def test_progress_checkpoint_and_data(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> Any:
        await job.update_progress(40, message="reading")
        if job.attempt == 1:
            await job.checkpoint({"row": 7})
            await job.update_data({"n": 2})
            raise ConnectionError("again")
        return [job.checkpointed, job.data]

    queue.fallback(handle)
    job = await queue.add("n", {"n": 1}, backoff={"type": "fixed", "delay": 1})
    async with Worker(queue).running():
        assert await job.result(LIMIT) == [{"row": 7}, {"n": 2}]
    stored = (await job.get()).progress  # Bridge's record also has the time of the change
    assert (stored["percent"], stored["message"]) == (40, "reading")
    await job.update_progress(41, message="by hand")
    stored = (await job.get()).progress
    assert (stored["percent"], stored["message"]) == (41, "by hand")


async def test_job_running_at_shutdown_returns_without_an_attempt(venue: Venue) -> None:
    queue = venue.queue()
    begun = asyncio.Event()

    async def handle(job: RunningJob) -> int:
        begun.set()
        await asyncio.sleep(0 if job.fencing > 1 else 60)
        return job.attempt

    queue.fallback(handle)
    job = await queue.add("n", {}, attempts=1)
    async with Worker(queue, shutdown_timeout=0).running():
        async with asyncio.timeout(LIMIT):
            await begun.wait()
    assert await job.state() == "waiting"
    async with Worker(queue).running():
        assert await job.result(LIMIT) == 1


async def test_job_of_a_lost_worker_is_recovered(venue: Venue) -> None:
    queue = venue.queue()
    broker = queue._core.open_broker()
    queue.fallback(lambda job: job.fencing)
    job = await queue.add("n", {})
    (held,) = (await broker.claim(Ask(1, lock_ms=100, worker="lost"))).jobs
    assert held.id == job.id
    async with Worker(queue, stalled_interval="100ms").running():
        assert await job.result(LIMIT) == 2
    await broker.close()


async def test_a_failed_job_can_run_again_and_be_removed(venue: Venue) -> None:
    queue = venue.queue()
    fail = [True]

    async def handle(job: RunningJob) -> str:
        if fail[0]:
            raise PermanentError("not now")
        return "now"

    queue.fallback(handle)
    job = await queue.add("n", {})
    async with Worker(queue).running():
        with pytest.raises(JobFailed):
            await job.result(LIMIT)
        assert [one.id for one in await queue.jobs.list("failed")] == [job.id]
        fail[0] = False
        await job.retry(reset=True)
        assert await job.result(LIMIT) == "now"
    await job.remove()
    assert await queue.jobs.get(job.id) is None
    with pytest.raises(JobNotFound):
        await job.remove()


async def test_reset_restores_attempts_and_the_fencing_number_grows(venue: Venue) -> None:
    queue = venue.queue()
    seen: list[tuple[int, int]] = []

    @queue.job(attempts=2, backoff="1ms")
    async def fails(job: RunningJob) -> None:
        seen.append((job.attempt, job.fencing))
        raise ValueError("as asked")

    async with Worker(queue).running():
        job = await fails.enqueue()
        with pytest.raises(JobFailed):
            await job.result(LIMIT)
        await queue.jobs.retry(job.id, reset=True)
        await eventually(lambda: len(seen) == 4, "two more attempts", LIMIT)
    assert [attempt for attempt, _ in seen] == [1, 2, 1, 2]
    numbers = [number for _, number in seen]
    assert numbers == sorted(set(numbers))


async def test_a_job_that_runs_is_not_removed(venue: Venue) -> None:
    queue = venue.queue()
    begun, enough = asyncio.Event(), asyncio.Event()

    async def handle(job: RunningJob) -> None:
        begun.set()
        await enough.wait()

    queue.fallback(handle)
    job = await queue.add("n", {})
    async with Worker(queue).running():
        async with asyncio.timeout(LIMIT):
            await begun.wait()
        assert (await job.get()).state is State.RUNNING
        with pytest.raises(JobLocked):
            await job.remove()
        enough.set()
        await job.result(LIMIT)


async def test_job_removed_at_its_end_still_returns_its_result(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: "ran")
    async with Worker(queue).running():
        job = await queue.add("n", {}, remove_on_complete=True, delay="50ms")
        assert await job.result(LIMIT) == "ran"
    assert await queue.jobs.get(job.id) is None
    assert [key for key in venue.all_keys() if job.id in key] == []


async def test_tags_and_correlation(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: [job.tags, job.correlation_id])
    job = await queue.add("n", {}, tags={"tenant": "acme"}, correlation_id="c1")
    async with Worker(queue).running():
        assert await job.result(LIMIT) == [{"tenant": "acme"}, "c1"]
    read = await job.get()
    assert (read.tags, read.correlation_id) == ({"tenant": "acme"}, "c1")


async def test_events_report_each_transition(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda job: "ran")
    seen: list[str] = []
    async with queue.events() as events:
        async with Worker(queue).running():
            job = await queue.add("n", {})
            await job.result(LIMIT)
        while "completed" not in seen:
            seen += [event.name for event in await events.read(5) if event.job_id == job.id]
    assert [name for name in seen if name in ("added", "active", "completed")] == [
        "added",
        "active",
        "completed",
    ]


async def test_bad_input_writes_nothing(venue: Venue) -> None:
    queue: Queue = venue.queue()
    calls: list[tuple[Any, dict[str, Any]]] = [
        ({"x": float("nan")}, {}),
        ({}, {"attempts": 0}),
        ({}, {"priority": -1}),
        ("x" * 3000, {"size_limit": 1000}),
        ({}, {"delay": "soon"}),
    ]
    for data, options in calls:
        with pytest.raises((ValidationError, PayloadTooLarge)):
            await queue.add("n", data, **options)
    with pytest.raises(ValidationError):
        await queue.add("", {})
    assert venue.all_keys() == []


async def test_an_id_is_added_once(venue: Venue) -> None:
    queue = venue.queue()
    one = "6f2c7a52-7d2a-4c5e-8f7b-0a5f4a8d9c11"
    first = await queue.add("n", {"n": 1}, job_id=one)
    second = await queue.add("n", {"n": 2}, job_id=one)
    assert (first.created, second.created) == (True, False)
    assert (await second.get()).data == {"n": 1}
    assert (await queue.counts())["waiting"] == 1


async def test_dead_letters_are_found_replayed_and_purged(venue: Venue) -> None:
    queue = venue.queue()
    fail = [True]

    async def handle(job: RunningJob) -> str:
        if fail[0]:
            raise ConnectionError(f"no {job.data}")
        return "now"

    queue.fallback(handle)
    jobs = [
        await queue.add("n", tenant, attempts=1, tags={"tenant": tenant}) for tenant in ("a", "b", "b", "c")
    ]
    async with Worker(queue, concurrency=4).running():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(LIMIT)
        assert await queue.dead_letters.count() == 4
        found = await queue.dead_letters.list(tags={"tenant": "b"})
        assert {job.id for job in found} == {jobs[1].id, jobs[2].id}
        assert (await queue.dead_letters.get(jobs[0].id)).failed_reason == "no a"
        for text, count in (("NO B", 2), ("o c", 1), ("no d", 0), ("%a", 0), ("", 4)):
            assert await queue.dead_letters.count(reason=text) == count, text
        dry = await queue.dead_letters.replay_all(tags={"tenant": "b"}, dry_run=True)
        assert (dry.matched, dry.done) == (2, 0)
        fail[0] = False
        done = await queue.dead_letters.replay_all(tags={"tenant": "b"})
        assert (done.matched, done.done) == (2, 2)
        assert await jobs[1].result(LIMIT) == "now"
        assert await jobs[2].result(LIMIT) == "now"
        await queue.dead_letters.replay(jobs[0].id)
        assert await jobs[0].result(LIMIT) == "now"
    assert (await queue.dead_letters.purge_all()).done == 1
    assert await queue.jobs.get(jobs[3].id) is None
    with pytest.raises(WrongState):
        await queue.dead_letters.replay(jobs[0].id)
    with pytest.raises(JobNotFound):
        await queue.dead_letters.purge(jobs[3].id)


async def test_close_leaves_no_key_of_callers_and_workers(venue: Venue) -> None:
    venue.needs_server()
    queue = venue.queue()

    @queue.job
    async def greet(name: str) -> str:
        return name

    async with Worker(queue).running():
        jobs = await asyncio.gather(*(greet.enqueue(name=str(i)) for i in range(10)))
        assert [await job.result(LIMIT) for job in jobs] == [str(i) for i in range(10)]
        assert any(":ox:call:" in key for key in venue.all_keys())
    await queue.close()
    marks = (":ox:call", ":ox:worker", ":ox:listeners", ":ox:crowded", ":ox:wake", ":ox:cancel:", ":servers:")
    assert [key for key in venue.all_keys() if any(mark in key for mark in marks)] == []


async def test_jobs_that_no_worker_fits_are_unroutable(venue: Venue) -> None:
    venue.needs("target")
    queue = venue.queue()
    await queue.add("task", target=Target(capabilities="gpu"))
    assert await queue.workers.unroutable() == {"all;c=gpu": 1}


async def test_a_failed_job_shows_the_same_facts_on_every_broker(venue: Venue) -> None:
    queue = venue.queue()

    @queue.fallback
    async def work(job: RunningJob) -> None:
        await job.checkpoint({"at": 3})
        raise PermanentError("no such user", code="E404")

    job = await queue.add("email", attempts=3)
    async with Worker(queue, name="w1").running():
        with pytest.raises(JobFailed, match="no such user"):
            await job.result(LIMIT)
    found = await job.get()
    assert (found.state, found.category, found.code) == (State.FAILED, "permanent", "E404")
    assert (found.dead_reason, found.put_off, found.cancel_reason, found.unreported) == (None,) * 4
    assert found.checkpointed == {"at": 3}
    assert (found.steps, found.signals, found.worker_id) == ([], [], "w1")
