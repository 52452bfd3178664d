"""Attempts that end from outside: orderly shutdown, and timeouts of every kind of handler."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue, RunningJob, SyncRunningJob, Worker
from oxcart.model.errors import JobFailed
from tests.chaos import handlers
from tests.chaos.fleet import Fleet, Store, eventually
from tests.chaos.lengths import LEASE, LIMIT
from tests.chaos.proxy import Proxy
from tests.servers import ValkeyServer


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


# -- shutdown


async def test_running_jobs_end_and_the_rest_is_returned(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)
    started, go = [], asyncio.Event()

    @queue.fallback
    async def work(job: RunningJob) -> str:
        started.append(job.id)
        await go.wait()
        return "done"

    handles = await queue.add_many([("job", n) for n in range(20)])
    worker = Worker(queue, concurrency=4)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: len(started) == 4, "four jobs run")
    worker.stop()
    await asyncio.sleep(0.1)
    assert not running.done(), "it waits for the running job"
    go.set()
    await asyncio.wait_for(running, LIMIT)
    assert store.lengths() == {"completed": 4, "wait": 16}
    for handle in handles:
        job = await handle.get()
        assert job.attempts_made == (1 if handle.id in started else 0)
        assert store.lock_ms(handle.id) < 0
    await queue.close()


@pytest.mark.parametrize("kind", ["async", "deaf", "thread", "process"])
async def test_jobs_that_do_not_end_in_time_are_returned_without_using_an_attempt(
    server: ValkeyServer, store: Store, kind: str, tmp_path: Path
) -> None:
    queue = Queue("chaos", url=server.url)
    begun = threading.Event()
    end = threading.Event()

    async def patient() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def deaf() -> None:
        begun.set()
        while not end.is_set():
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    def thread() -> None:
        begun.set()
        end.wait(2 * LIMIT)

    if kind == "process":
        queue.job(handlers.with_a_child, name="job", run="process")  # type: ignore[call-overload]
    else:
        queue.job(name="job")({"async": patient, "deaf": deaf, "thread": thread}[kind])
    worker = Worker(queue, shutdown_timeout=0.2)
    running = asyncio.create_task(worker.run())
    handle = await queue.add("job", {"folder": str(tmp_path)} if kind == "process" else {})
    pids = tmp_path / "pids"
    await eventually(lambda: begun.is_set() or (pids.exists() and pids.read_text()), "the handler runs")
    worker.stop()
    await asyncio.wait_for(running, LIMIT)
    end.set()
    assert store.lengths() == {"wait": 1}
    job = await handle.get()
    assert (job.attempts_made, job.attempts_started, job.stalled_count) == (0, 1, 0)
    assert store.lock_ms(handle.id) < 0
    if kind == "process":
        for pid in pids.read_text().split():
            await eventually(lambda pid=pid: _gone(int(pid)), "process and child are gone")  # type: ignore[misc]
    await queue.close()


async def test_jobs_claimed_while_the_worker_stops_are_returned(server: ValkeyServer, store: Store) -> None:
    """The reply to a claim is on its way when the worker stops: the worker returns its jobs at once."""
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url), Queue("chaos", url=server.url)
        ran: list[str] = []

        @queue.fallback
        async def work(job: RunningJob) -> None:
            ran.append(job.id)
            await asyncio.sleep(0.2)

        worker = Worker(queue, concurrency=4, lock_duration=30, shutdown_timeout=1)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.started.wait(), LIMIT)
        await eventually(lambda: proxy.calls["bzpopmin"] > 0, "the worker waits")
        proxy.delay = 0.5
        handles = await direct.add_many([("job", n) for n in range(4)])
        await eventually(lambda: store.lengths_of("active") == 4, "claimed")
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        proxy.delay = 0.0
        assert store.lengths_of("active") == 0, store.lengths()
        for handle in handles:
            job = await handle.get()
            assert store.lock_ms(handle.id) < 0
            assert job.attempts_made == (1 if handle.id in ran else 0)
        await queue.close()
        await direct.close()


async def test_sigterm_to_a_worker_process(server: ValkeyServer, store: Store, fleet: Fleet) -> None:
    """As in a deploy: stop, and the next worker continues. No attempt is used, and no job stalls."""
    async with Queue("chaos", url=server.url) as queue:
        first = await fleet.start(concurrency=2, shutdown_timeout=0.3)
        handles = await queue.add_many([("nap", {"seconds": 3600})] * 2 + [("nap", {"seconds": 0})] * 6)
        await eventually(lambda: len(fleet.starts()) == 2, "two run")
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0, first.log
        await eventually(lambda: _gone(fleet.renewer_of(first)), "its renewer is gone")
        assert store.lengths() == {"wait": 8}
        for handle in handles:
            await handle.update_data({"seconds": 0})
        await fleet.start(concurrency=2)
        for handle in handles:
            await handle.result(LIMIT)
            assert (await handle.get()).attempts_made == 1
        assert not store.count_events("stalled")


#: Seconds that the end of a worker may take on a busy machine, beyond the tested time.
BUSY = 3.0


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_worker_stopped_while_the_server_is_down_ends_in_time(
    server: ValkeyServer, store: Store, protocol: str
) -> None:
    """It tries to commit its outcomes for its shutdown timeout and one second."""
    options: dict[str, Any] = {} if protocol == "bullmq" else {"protocol": "bridge", "namespace": "ends"}
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url, **options), Queue("chaos", url=server.url, **options)
        begun = asyncio.Event()

        @queue.fallback
        async def work() -> None:
            begun.set()
            await asyncio.sleep(0.3)

        worker = Worker(queue, shutdown_timeout=1)
        running = asyncio.create_task(worker.run())
        handle = await direct.add("job")
        await asyncio.wait_for(begun.wait(), LIMIT)
        await proxy.down()
        started = time.monotonic()
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert time.monotonic() - started < 1 + 1 + BUSY
        # The lease expires, and the job is recovered like that of a lost worker.
        assert await direct.jobs.state(handle.id) == "active"
        await queue.close()
        await direct.close()


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
@pytest.mark.parametrize("when", ["from the start", "later"])
async def test_an_idle_worker_stopped_while_the_server_is_down_ends_at_once(
    server: ValkeyServer, protocol: str, when: str
) -> None:
    options: dict[str, Any] = {} if protocol == "bullmq" else {"protocol": "bridge", "namespace": "ends"}
    async with Proxy(server.port) as proxy:
        queue = Queue("chaos", url=proxy.url, **options)
        queue.fallback(lambda: None)
        if when == "from the start":
            await proxy.down()
        worker = Worker(queue)
        running = asyncio.create_task(worker.run())
        if when == "later":
            await eventually(lambda: proxy.calls["bzpopmin"] > 0, "the worker waits")
            await proxy.down()
        await asyncio.sleep(0.2)
        started = time.monotonic()
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert time.monotonic() - started < 1 + BUSY
        await queue.close()


async def test_outcomes_are_committed_if_the_server_returns_in_time(server: ValkeyServer) -> None:
    """A stopped worker waits for it as long as for running jobs."""
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url), Queue("chaos", url=server.url)
        begun, ended = asyncio.Event(), asyncio.Event()

        @queue.fallback
        async def work() -> str:
            begun.set()
            await ended.wait()
            return "done"

        worker = Worker(queue, shutdown_timeout=LIMIT)
        running = asyncio.create_task(worker.run())
        handle = await direct.add("job")
        await asyncio.wait_for(begun.wait(), LIMIT)
        await proxy.down()
        ended.set()
        worker.stop()
        await asyncio.sleep(2.0)
        assert not running.done()
        await proxy.up()
        await asyncio.wait_for(running, LIMIT)
        assert await handle.result(LIMIT) == "done"
        await queue.close()
        await direct.close()


# -- timeouts


async def test_an_async_handler_is_cancelled_at_its_timeout(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)
    reasons: list[str | None] = []

    @queue.job(attempts=2, backoff=0.01, timeout=0.2)
    async def work(job: RunningJob) -> str:
        if job.attempt == 2:
            return "second"
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            reasons.append(job.cancel_reason)
            raise
        return "first"

    async with Worker(queue).running():
        handle = await queue.add("work", {}, attempts=2, backoff=0.01)
        assert await handle.result(LIMIT) == "second"
    job = await handle.get()
    assert reasons == ["timeout"]
    assert job.attempts_made == 2
    assert "longer than 0.2 s" in job.stacktrace[0]
    await queue.close()


async def test_a_thread_sees_its_timeout_and_its_late_result_is_dropped(
    server: ValkeyServer, store: Store
) -> None:
    queue = Queue("chaos", url=server.url)
    late = threading.Event()
    seen: list[Any] = []

    @queue.job(timeout=0.2)
    def work(job: SyncRunningJob) -> str:
        if job.attempt > 1:
            return "second"
        seen.append(job.wait_cancelled(LIMIT))
        seen.append(job.cancel_reason)
        late.wait(LIMIT)
        seen.append("returned")
        return "first, late"

    async with Worker(queue, concurrency=2).running():
        # If the machine pauses for a moment, the second is late too.
        handle = await queue.add("work", {}, attempts=20, backoff=0.01)
        assert await handle.result(LIMIT) == "second"
        late.set()
        await eventually(lambda: seen == [True, "timeout", "returned"], "the thread ends")
        await asyncio.sleep(0.1)
        assert (await handle.get()).return_value == "second"
    assert store.count_events("completed") == {handle.id: 1}
    await queue.close()


async def test_a_process_is_killed_with_its_children(
    server: ValkeyServer, store: Store, tmp_path: Path
) -> None:
    queue = Queue("chaos", url=server.url)
    queue.job(handlers.with_a_child, name="work", run="process")  # type: ignore[call-overload]
    queue.job(handlers.pid, name="pid", run="process")  # type: ignore[call-overload]
    async with Worker(queue).running():
        await (await queue.add("pid", {})).result(LIMIT)  # a process exists and starts at once
        handle = await queue.add("work", {"folder": str(tmp_path)}, attempts=1, timeout=4)
        pids = tmp_path / "pids"
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the child")
        with pytest.raises(JobFailed, match="longer than 4 s") as failed:
            await handle.result(LIMIT)
        assert failed.value.category == "timeout"
        for pid in pids.read_text().split():
            await eventually(lambda pid=pid: _gone(int(pid)), "process and child are gone")  # type: ignore[misc]
        # The pool replaces it.
        assert await (await queue.add("pid", {})).result(LIMIT) != os.getpid()
    await queue.close()


async def test_a_process_that_crashes_fails_its_attempt_alone(server: ValkeyServer, store: Store) -> None:
    queue = Queue("chaos", url=server.url)
    queue.job(handlers.crash, name="crash", run="process")  # type: ignore[call-overload]
    queue.job(handlers.pid, name="pid", run="process")  # type: ignore[call-overload]
    async with Worker(queue, concurrency=2).running():
        bad = await queue.add("crash", {}, attempts=1)
        good = await queue.add("pid", {})
        with pytest.raises(JobFailed, match="SIGABRT") as failed:
            await bad.result(LIMIT)
        assert failed.value.category == "system"
        assert await good.result(LIMIT)
    await queue.close()


async def test_a_lost_lease_sets_the_cancel_signal(server: ValkeyServer, store: Store) -> None:
    """Another worker has the job: the handler is cancelled, and its result is refused."""
    queue = Queue("chaos", url=server.url)
    reasons: list[str] = []

    @queue.fallback
    async def work(job: RunningJob) -> str:
        reasons.append(await job.cancelled())
        return "late"

    async with Worker(queue, lock_duration=LEASE, recover=False).running():
        handle = await queue.add("job")
        await eventually(lambda: store.lock_ms(handle.id) > 0, "claimed")
        store.client.set(f"{store.prefix}{handle.id}:lock", "somebody else")
        await eventually(lambda: reasons == ["lease lost"], "the handler is cancelled", 2 * LEASE + LIMIT)
        await asyncio.sleep(0.2)
        assert "returnvalue" not in store.job(handle.id)
        assert store.holder(handle.id) == "somebody else"
    await queue.close()
