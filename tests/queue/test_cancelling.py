"""Cancelling: waiting jobs end at once, running jobs on request or by force, a peer's only by force."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from oxcart import Cancel, Flow, Queue, Retry, RunningJob, Snooze, SyncRunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.jobs import Cancellation
from oxcart.model import JobCancelled
from oxcart.model.errors import (
    CannotCancel,
    JobFailed,
    JobNotFound,
    SchedulerOwned,
    ValidationError,
    WrongState,
)
from oxcart.model.state import State
from tests.conftest import MakeQueue
from tests.engine import process_handlers
from tests.signals import eventually, waits_for_marker

#: Leases so long that no renewal reports a cancellation while a test waits.
LONG = 300


async def failed_events(queue: Queue) -> list[dict[str, str]]:
    raw = await queue._core.broker.caller.command("XRANGE", queue._core.broker.keys.events(), "-", "+")
    entries = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in raw]
    return [
        {name.decode(): value.decode() for name, value in entry.items()}
        for entry in entries
        if entry[b"event"] == b"failed"
    ]


async def check_cancelled(queue: Queue, job_id: str, reason: str, prev: str) -> None:
    """Checks that the job is failed on the wire, is in one place, and has its reason."""
    job = await queue.jobs.get(job_id)
    assert job is not None
    assert await queue.jobs.state(job_id) == "failed"
    assert (job.failed_reason, job.category) == (reason, "cancelled")
    assert job.finished_on is not None
    assert await failed_events(queue) == [
        {"event": "failed", "jobId": job_id, "failedReason": reason, "prev": prev}
    ]
    assert sum((await queue.counts()).values()) == 1


class TestPending:
    async def test_waiting(self, queue: Queue) -> None:
        job = await queue.add("a")
        assert await job.cancel("withdrawn") is Cancellation.CANCELLED
        await check_cancelled(queue, job.id, "withdrawn", "waiting")

    async def test_in_a_paused_queue(self, queue: Queue) -> None:
        await queue.pause()
        job = await queue.add("a")
        assert await job.cancel() is Cancellation.CANCELLED
        await check_cancelled(queue, job.id, "cancelled", "waiting")

    @pytest.mark.parametrize(
        ("options", "prev"), [({"delay": "1h"}, "delayed"), ({"priority": 3}, "prioritized")]
    )
    async def test_delayed_and_prioritized(self, queue: Queue, options: Any, prev: str) -> None:
        job = await queue.add("a", **options)
        assert await job.cancel("no") is Cancellation.CANCELLED
        await check_cancelled(queue, job.id, "no", prev)

    async def test_between_two_attempts(self, queue: Queue) -> None:
        job = await queue.add("a")
        (claimed,) = (await queue._core.broker.claim(Ask(1))).jobs
        retry = Outcome(
            OutcomeKind.DELAY, job.id, claimed.token, claimed.starts, 0, b"x", b"[]", delay_ms=10**9
        )
        assert (await queue._core.broker.finish([retry]))[0] == [1]
        assert await job.cancel("enough") is Cancellation.CANCELLED
        await check_cancelled(queue, job.id, "enough", "delayed")
        assert (await job.get()).attempts_made == 1

    async def test_a_job_that_waits_for_children(self, queue: Queue) -> None:
        tree = await Flow(queue, "parent", children=[Flow(queue, "child")]).add()
        assert await queue.jobs.cancel(tree.id, "no") is Cancellation.CANCELLED
        assert await queue.jobs.state(tree.id) == "failed"
        (child,) = await queue.jobs.list("waiting")
        (claimed,) = (await queue._core.broker.claim(Ask(1))).jobs
        done = Outcome(OutcomeKind.COMPLETED, child.id, claimed.token, claimed.starts, 0, b"1")
        assert (await queue._core.broker.finish([done]))[0] == [1]
        assert await queue.jobs.state(tree.id) == "failed"  # the end of its child does not release it

    async def test_a_parent_is_treated_by_its_policy(self, queue: Queue) -> None:
        fails = await Flow(queue, "p", children=[Flow(queue, "c", job_id="c1")]).add()
        ignored = Flow(queue, "c", job_id="c2", on_failure="ignore")
        goes_on = await Flow(queue, "p", children=[ignored]).add()
        await queue.jobs.cancel("c1")
        await queue.jobs.cancel("c2")
        doomed = await queue.jobs.get(fails.id)
        assert doomed is not None
        assert doomed.deferred_failure == "child bull:q:c1 failed"
        assert await queue.jobs.state(goes_on.id) == "waiting"

    async def test_a_deduplication_window_is_closed(self, queue: Queue) -> None:
        job = await queue.add("a", deduplication="x")
        await job.cancel()
        assert (await queue.add("a", deduplication="x")).created

    async def test_a_job_without_retention(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("a", remove_on_fail=True)
        assert await job.cancel() is Cancellation.CANCELLED
        assert await queue.jobs.get(job.id) is None
        assert [event["jobId"] for event in await failed_events(queue)] == [job.id]
        assert not store.zcard("bull:q:failed")

    async def test_result_of_a_cancelled_job_raises(self, queue: Queue) -> None:
        job = await queue.add("a")
        await job.cancel("withdrawn")
        with pytest.raises(JobFailed, match=r"failed \(cancelled\): withdrawn"):
            await job.result(5)

    async def test_missing_ended_and_scheduled_jobs_are_refused(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            await queue.jobs.cancel("none")
        job = await queue.add("a")
        await job.cancel()
        with pytest.raises(WrongState, match=f"cannot cancel job {job.id}: it is failed"):
            await job.cancel()
        with pytest.raises(WrongState, match="it is failed"):
            await job.promote()
        await queue.schedules.upsert("s", every=10)
        (run,) = await queue.jobs.list("delayed") or await queue.jobs.list("waiting")
        with pytest.raises(SchedulerOwned):
            await queue.jobs.cancel(run.id)
        with pytest.raises(ValidationError, match="reason must be text"):
            await queue.jobs.cancel(job.id, 5)  # type: ignore[arg-type]

    async def test_again_after_a_replay(self, queue: Queue) -> None:
        job = await queue.add("a")
        await job.cancel("no")
        await job.retry()
        assert (await job.get()).category is None

        @queue.job
        async def a() -> int:
            return 5

        async with Worker(queue).running():
            assert await job.result(5) == 5


class TestHistory:
    @pytest.mark.parametrize(
        ("options", "source"),
        [({}, "scheduled"), ({"priority": 2}, "scheduled"), ({"delay": "1h"}, "delayed")],
    )
    async def test_the_end_of_a_waiting_job(self, queue: Queue, options: Any, source: str) -> None:
        job = await queue.add("a", history=True, **options)
        await job.cancel("no")
        (found,) = await queue._core.broker.look([job.id])
        assert found is not None
        assert found.state is State.CANCELLED
        last = found.transitions[-1]
        assert (last.source, last.target, last.why) == (source, "cancelled", "the job was cancelled")

    async def test_the_end_of_a_running_job(self, queue: Queue) -> None:
        job = await queue.add("a", history=True)
        await queue._core.broker.claim(Ask(1, worker="w"))
        await job.cancel("no", force=True)
        (found,) = await queue._core.broker.look([job.id])
        assert found is not None
        last = found.transitions[-1]
        assert (last.source, last.target, last.worker) == ("running", "cancelled", "w")
        (attempt,) = found.past_attempts
        assert (attempt.category, attempt.message) == ("cancelled", "no")


class Run:
    """A job whose handler has begun."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.reasons: list[str] = []


class TestRunning:
    async def test_an_async_handler_is_cancelled(self, queue: Queue) -> None:
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> None:
            run.began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                run.reasons.append(await job.cancelled())
                run.reasons.append(job.cancel_text)
                raise

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await run.began.wait()
            assert await job.cancel("stop it") is Cancellation.REQUESTED
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(10)
        assert run.reasons == ["cancelled", "stop it"]
        ended = await job.get()
        assert (ended.category, ended.attempts_made) == ("cancelled", 1)

    async def test_a_thread_sees_the_request_and_ends_by_itself(self, queue: Queue) -> None:
        began = threading.Event()

        @queue.job
        def wait(job: SyncRunningJob) -> None:
            began.set()
            assert job.wait_cancelled(20)
            job.raise_if_cancelled()

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await asyncio.to_thread(began.wait, 10)
            assert await job.cancel("stop it") is Cancellation.REQUESTED
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(10)

    async def test_a_thread_that_ends_its_work_all_the_same(self, queue: Queue) -> None:
        began = threading.Event()

        @queue.job
        def wait(job: SyncRunningJob) -> str:
            began.set()
            assert job.wait_cancelled(20)
            return "done"

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await asyncio.to_thread(began.wait, 10)
            assert await job.cancel() is Cancellation.REQUESTED
            assert await job.result(10) == "done"

    async def test_a_thread_is_abandoned_by_force(self, queue: Queue) -> None:
        began, release, noticed = threading.Event(), threading.Event(), threading.Event()

        @queue.job
        def wait(job: SyncRunningJob) -> str:
            began.set()
            if job.wait_cancelled(20):
                noticed.set()
            release.wait(20)
            return "late"

        @queue.job
        def other() -> int:
            return 1

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await asyncio.to_thread(began.wait, 10)
            assert await job.cancel("now", force=True) is Cancellation.CANCELLED
            assert await queue.jobs.state(job.id) == "failed"
            # its slot is free although the thread is not
            assert await (await other.enqueue()).result(10) == 1
            assert await asyncio.to_thread(noticed.wait, 10)
            release.set()
        ended = await job.get()
        assert (ended.return_value, ended.failed_reason) == (None, "now")
        assert await queue.jobs.state(job.id) == "failed"

    async def test_a_process_is_killed_with_its_children(self, queue: Queue, tmp_path: Path) -> None:
        queue.job(run="process")(process_handlers.hang)
        file = tmp_path / "pids"
        async with Worker(queue, lock_duration=LONG).running():
            job = await queue.add("hang", {"file": str(file)})
            await eventually(lambda: file.exists() and len(file.read_text().split()) == 2, "its pids")
            pids = [int(pid) for pid in file.read_text().split()]
            assert await job.cancel("stop it") is Cancellation.REQUESTED
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(10)
            await eventually(lambda: not any(_is_alive(pid) for pid in pids), "they are gone")

    async def test_by_force_an_async_handler_ends_too(self, queue: Queue) -> None:
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> None:
            run.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                run.ended.set()

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await run.began.wait()
            assert await job.cancel("now", force=True) is Cancellation.CANCELLED
            await check_cancelled(queue, job.id, "now", "active")
            async with asyncio.timeout(10):
                await run.ended.wait()
        await check_cancelled(queue, job.id, "now", "active")

    @pytest.mark.parametrize("force", [False, True], ids=["asked", "forced"])
    async def test_from_another_process(self, queue: Queue, url: str, force: bool) -> None:
        """The request comes from a process that shares only the server with the worker."""
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> None:
            run.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                run.ended.set()

        async with Worker(queue, lock_duration=LONG, shutdown_timeout=1).running(), asyncio.timeout(60):
            job = await wait.enqueue()
            await run.began.wait()
            command = [sys.executable, "-m", "oxcart.cli", "--url", url, "cancel", "q", job.id]
            command += ["--reason", "stop it", *(["--force"] if force else [])]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            assert output.decode() == f"{job.id}: {'cancelled' if force else 'asked to end'}\n"
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(20)
            async with asyncio.timeout(20):
                await run.ended.wait()  # the handler itself was stopped
        await check_cancelled(queue, job.id, "stop it", "active")

    @pytest.mark.parametrize("answer", [Retry(), Snooze(1), ValueError("broke"), Cancel("mine")])
    async def test_it_is_not_tried_again(self, queue: Queue, answer: Any) -> None:
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> Any:
            run.began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if isinstance(answer, Exception):
                    raise answer from None
                return answer

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await run.began.wait()
            await job.cancel("stop it")
            with pytest.raises(JobFailed) as caught:
                await job.result(10)
        assert caught.value.category == "cancelled"
        assert caught.value.reason == ("mine" if isinstance(answer, Cancel) else "stop it")
        assert (await job.get()).attempts_made == 1

    async def test_a_handler_may_cancel_its_own_job(self, queue: Queue) -> None:
        @queue.job
        async def give_up() -> None:
            raise JobCancelled("nobody wants it")

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match=r"\(cancelled\): nobody wants it"):
                await (await give_up.enqueue()).result(10)

    async def test_a_request_survives_its_worker(self, queue: Queue) -> None:
        """The worker that received the request is lost: the next worker to claim the job ends it."""
        job = await queue.add("a")
        await queue._core.broker.claim(Ask(1))
        assert await job.cancel("stop it") is Cancellation.REQUESTED
        await queue._core.broker.caller.command(
            "DEL", f"{queue._core.broker.keys.job(job.id)}:lock"
        )  # the lease is over
        await queue._core.broker.recover(interval_ms=1)
        await asyncio.sleep(0.01)
        await queue._core.broker.recover(interval_ms=1)
        assert (await job.get()).deferred_failure == "stop it"  # a worker of a peer fails it, too
        ran = []

        @queue.job
        async def a() -> None:
            ran.append(1)

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(10)
        assert not ran

    async def test_requests_are_heard_after_the_link_was_lost(self, queue: Queue, store: redis.Redis) -> None:
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> None:
            run.began.set()
            await asyncio.Event().wait()

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await run.began.wait()
            # The wait for work is not blocked: there is no room.
            await eventually(lambda: waits_for_marker(store), "it listens")
            # No worker has read the request: only the job has it.
            store.hset(f"bull:q:{job.id}", "ox:cancel", "stop it")
            for client in store.client_list():
                if client["cmd"] == "bzpopmin":
                    store.client_kill_filter(_id=client["id"])
            with pytest.raises(JobFailed, match=r"\(cancelled\): stop it"):
                await job.result(20)

    async def test_an_invalid_request_is_skipped(self, queue: Queue, store: redis.Redis) -> None:
        run = Run()

        @queue.job
        async def wait(job: RunningJob) -> None:
            run.began.set()
            await asyncio.Event().wait()

        async with Worker(queue, lock_duration=LONG).running():
            job = await wait.enqueue()
            await run.began.wait()
            holder = str(store.get(f"bull:q:{job.id}:lock")).rpartition(":")[0]
            store.zadd(
                f"bull:q:ox:cancel:{holder}", {"nonsense": 0, '{"id":"other","starts":1,"reason":""}': 0}
            )
            await job.cancel()
            with pytest.raises(JobFailed):
                await job.result(10)


class TestPeers:
    """A lease with a foreign token represents a Node worker."""

    async def claim(self, queue: Queue) -> tuple[str, BullMQBroker]:
        node = BullMQBroker(
            queue._core.server, "q", new_token=lambda: "6a9f1c1e-5f0e-4b8e-9f35-000000000000:1"
        )
        job = await queue.add("a")
        await node.claim(Ask(1))
        return job.id, node

    async def test_a_peer_cannot_receive_a_request(self, queue: Queue) -> None:
        job_id, node = await self.claim(queue)
        with pytest.raises(CannotCancel, match="its worker is a peer's"):
            await queue.jobs.cancel(job_id)
        assert await queue.jobs.state(job_id) == "active"
        assert (await queue.jobs.get(job_id)).cancel_reason is None  # type: ignore[union-attr]
        await node.close()

    async def test_force_ends_a_job_of_a_peer(self, queue: Queue) -> None:
        job_id, node = await self.claim(queue)
        assert await queue.jobs.cancel(job_id, "now", force=True) is Cancellation.CANCELLED
        await check_cancelled(queue, job_id, "now", "active")
        late = Outcome(OutcomeKind.COMPLETED, job_id, "6a9f1c1e-5f0e-4b8e-9f35-000000000000:1", -1, 0, b"1")
        assert (await node.finish([late]))[0] == [-2]
        await check_cancelled(queue, job_id, "now", "active")
        await node.close()


class TestMany:
    async def fill(self, queue: Queue) -> None:
        for number in range(130):
            await queue.add("even" if number % 2 == 0 else "odd", job_id=f"w{number}")
        for number in range(5):
            await queue.add("odd", job_id=f"d{number}", delay="1h")
            await queue.add("odd", job_id=f"p{number}", priority=2)

    async def test_a_dry_run_changes_nothing(self, queue: Queue, store: redis.Redis) -> None:
        await self.fill(queue)
        before = {key: store.dump(key) for key in store.keys("*") if "ox:call" not in str(key)}
        found = await queue.jobs.cancel_all(name="odd", dry_run=True)
        assert (found.matched, found.cancelled, found.dry_run) == (75, 0, True)
        assert {job_id[0] for job_id in found.ids} == {"w", "d", "p"}
        assert {key: store.dump(key) for key in store.keys("*") if "ox:call" not in str(key)} == before

    async def test_by_name(self, queue: Queue) -> None:
        await self.fill(queue)
        order = [job.id for job in await queue.jobs.list("waiting", limit=200) if job.name == "even"]
        seen: list[int] = []
        found = await queue.jobs.cancel_all(name="odd", reason="no", progress=lambda at: seen.append(at.done))
        assert (found.matched, found.cancelled, found.asked, found.refused) == (75, 75, 0, 0)
        assert [job.id for job in await queue.jobs.list("waiting", limit=200)] == order
        counts = await queue.counts()
        assert (counts["failed"], counts["delayed"], counts["prioritized"]) == (75, 0, 0)
        assert seen
        assert sorted(seen) == seen

    async def test_everything_of_some_states_and_not_too_many(self, queue: Queue) -> None:
        await self.fill(queue)
        assert (await queue.jobs.cancel_all(state="delayed", limit=2)).cancelled == 2
        assert (await queue.jobs.cancel_all(state=["delayed", "prioritized"])).cancelled == 8
        assert (await queue.jobs.cancel_all()).cancelled == 130
        assert (await queue.counts())["failed"] == 140
        assert (await queue.jobs.cancel_all()).matched == 0

    async def test_by_age(self, queue: Queue) -> None:
        now = queue._core.broker.clock()
        await queue.add("a", job_id="old", timestamp=now - 3_600_000)
        await queue.add("a", job_id="new")
        assert (await queue.jobs.cancel_all(older_than="30m", dry_run=True)).ids == ["old"]
        assert (await queue.jobs.cancel_all(newer_than="30m")).ids == ["new"]

    async def test_running_jobs_are_asked_or_ended_by_force(self, queue: Queue) -> None:
        for number in range(3):
            await queue.add("a", job_id=f"j{number}")
        node = BullMQBroker(queue._core.server, "q", new_token=lambda: "node:1")
        await node.claim(Ask(1))
        await queue._core.broker.claim(Ask(1))
        found = await queue.jobs.cancel_all()
        assert (found.matched, found.cancelled, found.asked, found.refused) == (3, 1, 1, 1)
        assert (await queue.jobs.cancel_all(force=True)).cancelled == 2
        assert (await queue.counts())["failed"] == 3
        await node.close()

    async def test_the_next_run_of_a_schedule_stays(self, queue: Queue) -> None:
        await queue.schedules.upsert("s", every="1h")
        assert (await queue.jobs.cancel_all()).matched == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"state": "completed"}, "state must be one of"),
            ({"older_than": -1}, "older_than must be"),
            ({"limit": 0}, "limit must be an integer, at least 1"),
            ({"tags": {"a": 1}}, r"tags\['a'\] must be"),
            ({"name": 5}, "name must be|not iterable"),
            ({"correlation_id": ""}, "correlation_id must be"),
        ],
    )
    async def test_bad_input(self, queue: Queue, store: redis.Redis, options: Any, message: str) -> None:
        with pytest.raises((ValidationError, TypeError), match=message):
            await queue.jobs.cancel_all(**options)
        assert store.keys("*") == []


class TestCosts:
    async def test_short_jobs_are_not_listened_for(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue()

        @queue.job
        async def quick() -> int:
            return 1

        async with Worker(queue, concurrency=5).running():
            store.config_resetstat()
            jobs = await queue.add_many([("quick", {}) for _ in range(50)])
            for job in jobs:
                await job.result(10)
        assert not [key for key in store.keys("*") if "ox:cancel" in str(key)]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it may end while it is looked at
        return False
