"""Workers killed, stopped or blocked, and dead renewers: jobs run again only if their worker was lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue
from tests.chaos.fleet import Fleet, Store, WorkerProcess, eventually
from tests.chaos.lengths import FULL, GRACE, LEASE, LIMIT
from tests.servers import ValkeyServer


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def _started(fleet: Fleet, count: int = 1) -> None:
    await eventually(lambda: len(fleet.starts()) >= count, f"{count} jobs started")


@pytest.mark.parametrize("turn", range(5 if FULL else 2))
async def test_jobs_of_a_killed_worker_run_again_within_two_leases(
    server: ValkeyServer, store: Store, fleet: Fleet, turn: int
) -> None:
    """`kill -9` in mid-batch, beside a worker whose checks are out of step with those of the dead one."""
    async with Queue("chaos", url=server.url) as queue:
        victim = await fleet.start(concurrency=8)
        handles = await queue.add_many([("nap", {"seconds": 3600 if n < 8 else 0}) for n in range(8)])
        await _started(fleet, 8)
        await asyncio.sleep(LEASE * (0.3 + 0.5 * turn % 1))
        await fleet.start(concurrency=8)
        # From now on the naps are short: the second run ends at once.
        for handle in handles:
            await handle.update_data({"seconds": 0})
        more = await queue.add_many([("nap", {"seconds": 0}) for _ in range(20)])
        victim.signal(signal.SIGKILL)
        killed = time.time()
        await eventually(
            lambda: store.lengths() == {"completed": 28}, "all jobs ended", 2 * LEASE + GRACE + LIMIT
        )
        again = [line for line in fleet.facts("start") if line["at"] > killed and line["fencing"] == 2]
        assert {line["id"] for line in again} == {handle.id for handle in handles}
        late = max(line["at"] for line in again) - killed
        assert late <= 2 * LEASE + GRACE, f"the last ran again after {late:.2f} s"
        assert store.count_events("stalled") == dict.fromkeys((handle.id for handle in handles), 1)
        assert all(fleet.starts()[handle.id] == 2 for handle in handles)
        assert all(fleet.starts()[handle.id] == 1 for handle in more)


async def test_a_lone_worker_recovers_the_jobs_of_its_predecessor(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """One worker at a time: killed, and restarted by its supervisor."""
    async with Queue("chaos", url=server.url) as queue:
        victim = await fleet.start()
        handle = await queue.add("nap", {"seconds": 3600})
        await _started(fleet)
        await handle.update_data({"seconds": 0})
        victim.signal(signal.SIGKILL)
        killed = time.time()
        await fleet.start()
        assert (await handle.result(2 * LEASE + GRACE + LIMIT))["fencing"] == 2
        late = fleet.facts("start")[-1]["at"] - killed
        assert late <= 2 * LEASE + GRACE


async def test_stalled_checks_come_every_interval(server: ValkeyServer, store: Store, fleet: Fleet) -> None:
    """A check just before the end of the last guard must not wait for a whole interval."""
    interval = LEASE if FULL else 1.0  # no job runs: nothing is lost with so short a lease
    await fleet.start(lease=interval)
    guard = store.prefix + "stalled-check"
    seen: list[float] = []
    last: str | None = None
    end = time.monotonic() + 6 * interval + LIMIT / 2
    while time.monotonic() < end and len(seen) < 5:
        now: str | None = store.client.get(guard)
        if now is not None and now != last:
            last = now
            seen.append(int(now) / 1000)
        await asyncio.sleep(interval / 50)
    gaps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert len(gaps) >= 4, seen
    # All but the longest, in which the machine may have paused.
    assert sorted(gaps)[-2] < 1.5 * interval, gaps


@pytest.mark.parametrize("kind", ["hold_gil", "thread"])
async def test_a_handler_that_keeps_the_interpreter_keeps_its_lease(
    server: ValkeyServer, store: Store, fleet: Fleet, kind: str
) -> None:
    """Three leases in C code with the GIL held: the worker process cannot renew, and need not."""
    async with Queue("chaos", url=server.url) as queue:
        holder = await fleet.start()
        handle = await queue.add(kind, {"seconds": 3 * LEASE})
        await _started(fleet)
        await fleet.start()  # a worker that could recover the job
        result = await handle.result(3 * LEASE + LIMIT)
        assert result == {"pid": holder.pid, "fencing": 1}
        assert fleet.starts() == {handle.id: 1}
        assert not store.count_events("stalled")
        assert store.lengths() == {"completed": 1}


async def test_the_result_of_a_worker_that_was_stopped_is_refused(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """SIGSTOP past the lease: the renewer must not renew, and a result after SIGCONT is refused."""
    async with Queue("chaos", url=server.url) as queue:
        sleeper = await fleet.start()
        handle = await queue.add("nap", {"seconds": 2 * LEASE})
        await _started(fleet)
        sleeper.signal(signal.SIGSTOP)
        await handle.update_data({"seconds": 0})  # the second run ends at once
        other = await fleet.start()
        result = await handle.result(4 * LEASE + LIMIT)
        assert result == {"pid": other.pid, "fencing": 2}
        sleeper.signal(signal.SIGCONT)
        await eventually(lambda: fleet.of(sleeper, "end"), "the first run ends too")
        await eventually(lambda: "was refused" in sleeper.log, "its result is refused")
        assert fleet.starts() == {handle.id: 2}
        assert store.count_events("completed") == {handle.id: 1}
        assert store.count_events("stalled") == {handle.id: 1}
        job = await handle.get()
        assert job.return_value == {"pid": other.pid, "fencing": 2}
        assert (job.attempts_made, job.attempts_started, job.stalled_count) == (1, 2, 1)
        # The worker works normally again.
        other.kill()
        assert (await (await queue.add("nap", {})).result(LIMIT))["pid"] == sleeper.pid


async def test_a_stopped_worker_may_finish_a_job_that_no_other_claimed(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """A result under an expired lease counts as long as no other worker has started the job."""
    async with Queue("chaos", url=server.url) as queue:
        sleeper = await fleet.start(recover=False)
        handle = await queue.add("nap", {"seconds": 1.5 * LEASE})
        await _started(fleet)
        sleeper.signal(signal.SIGSTOP)
        await eventually(lambda: store.lock_ms(handle.id) < 0, "the lease runs out", 3 * LEASE + GRACE)
        sleeper.signal(signal.SIGCONT)
        assert (await handle.result(LIMIT))["fencing"] == 1
        assert fleet.starts() == {handle.id: 1}


async def test_a_killed_renewer_is_replaced_and_leases_survive(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    async with Queue("chaos", url=server.url) as queue:
        worker = await fleet.start(concurrency=4)
        handles = await queue.add_many([("nap", {"seconds": 2 * LEASE})] * 4)
        await _started(fleet, 4)
        os.kill(fleet.renewer_of(worker), signal.SIGKILL)
        await fleet.start()
        results = [await handle.result(3 * LEASE + LIMIT) for handle in handles]
        assert all(result["fencing"] == 1 for result in results)
        assert not store.count_events("stalled")
        assert "starting another" in worker.log


async def test_no_lease_lapses_while_a_renewer_is_replaced(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """Killed just before a renewal: its successor renews at once, not after another half lease."""
    lease = max(LEASE, 4.0)
    async with Queue("chaos", url=server.url) as queue:
        worker = await fleet.start(lease=lease, renew=None)
        handle = await queue.add("nap", {"seconds": 3 * lease})
        await _started(fleet)
        await eventually(lambda: 0 < store.lock_ms(handle.id) < 550 * lease, "half of the lease is over")
        await eventually(lambda: store.lock_ms(handle.id) > 900 * lease, "renewed")
        await asyncio.sleep(0.45 * lease)
        os.kill(fleet.renewer_of(worker), signal.SIGKILL)
        end = time.monotonic() + 0.9 * lease
        while time.monotonic() < end:
            assert store.lock_ms(handle.id) > 0
            await asyncio.sleep(0.02)
        worker.kill()


async def _holds_no_longer(store: Store, job_id: str) -> None:
    """Waits until the lease expired and was not renewed for a lease and a half."""
    end = time.monotonic() + 6 * LEASE + GRACE
    since = time.monotonic()
    while time.monotonic() - since < 1.5 * LEASE:
        if store.lock_ms(job_id) >= 0:
            since = time.monotonic()
            assert since < end, "the lease is still renewed"
        await asyncio.sleep(LEASE / 20)


async def test_the_renewer_ends_with_its_worker_even_if_a_fork_continues(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """A forked child of a handler keeps the worker's pipe open, so the pipe does not show its end."""
    async with Queue("chaos", url=server.url) as queue:
        victim = await fleet.start()
        handle = await queue.add("fork", {"seconds": 3600.0})
        await eventually(lambda: fleet.facts("forked"), "the fork")
        renewer = fleet.renewer_of(victim)
        child = fleet.facts("forked")[0]["child"]
        try:
            victim.kill()
            await _holds_no_longer(store, handle.id)
            assert _alive(child), "otherwise the test shows nothing"
            await eventually(lambda: not _alive(renewer), "the renewer ends", 2 * LEASE + GRACE)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("with_new_renewer", [False, True])
async def test_the_renewer_does_not_renew_past_a_deadline(
    server: ValkeyServer, store: Store, fleet: Fleet, with_new_renewer: bool
) -> None:
    """A handler that never releases the GIL cannot be cancelled at its timeout."""
    async with Queue("chaos", url=server.url) as queue:
        stuck = await fleet.start(timeout=0.5 * LEASE)
        handle = await queue.add("hold_gil", {"seconds": 3600.0})
        await _started(fleet)
        if with_new_renewer:
            # A renewer that starts later must know the deadline too; a blocked worker cannot start one.
            stuck = await _restart_renewer(server, store, fleet)
            [handle_id] = [line["id"] for line in fleet.facts("start") if line["pid"] == stuck.pid]
        else:
            handle_id = handle.id
        await _holds_no_longer(store, handle_id)
        stuck.kill()


async def _restart_renewer(server: ValkeyServer, store: Store, fleet: Fleet) -> WorkerProcess:
    for line in fleet.facts("ready"):
        os.kill(line["pid"], signal.SIGKILL)
    await eventually(lambda: all(not _alive(line["pid"]) for line in fleet.facts("ready")), "the end")
    # `deaf` ignores its timeout but leaves the loop free, so that the worker can start a renewer.
    async with Queue("chaos", url=server.url) as queue:
        worker = await fleet.start(timeout=0.5 * LEASE, recover=False)
        await queue.add("deaf", {})
        await eventually(lambda: fleet.of(worker, "start"), "the deaf handler started")
        os.kill(fleet.renewer_of(worker), signal.SIGKILL)
        await eventually(lambda: "starting another" in worker.log, "another renewer")
    return worker


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_first_job_that_blocks_the_loop_at_once_runs_once(
    server: ValkeyServer, tmp_path: Path, protocol: str
) -> None:
    """Both workers start on a backlog: the first claim comes before the renewer process has started."""
    options: dict[str, Any] = {} if protocol == "bullmq" else {"protocol": "bridge", "namespace": "first"}
    lease = max(LEASE, 3.0)
    for turn in range(5 if FULL else 2):
        (folder := tmp_path / str(turn)).mkdir()
        with Fleet(server.url, f"chaos{turn}", folder) as fleet:
            async with Queue(fleet.queue, url=server.url, **options) as queue:
                handle = await queue.add("hold_gil", {"seconds": 2.5 * lease})
                for _ in range(2):
                    fleet.launch(lease=lease, renew=None, stalled_interval=lease / 2, options=options)
                assert (await handle.result(3 * lease + LIMIT))["fencing"] == 1
                assert fleet.starts() == {handle.id: 1}
