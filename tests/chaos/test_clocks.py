"""Wrong clocks: a worker's that is an hour ahead, and a server's that is set back by ten minutes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue
from oxcart.broker.embedded import binary_path
from oxcart.model.state import State
from tests.chaos.fleet import Fleet, eventually
from tests.chaos.lengths import FULL, GRACE, LEASE, LIMIT
from tests.servers import ValkeyServer

HOUR = 3600
STEP = 600
#: Seconds of a delay, and for how many a schedule is watched.
DELAY, WATCHED = (60, 120) if FULL else (3, 8)
PRELOADED = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def open_queue(url: str, protocol: Any) -> Queue:
    return Queue("chaos", url=url, protocol=protocol)


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_worker_an_hour_ahead_runs_all_on_time(
    server: ValkeyServer, fleet: Fleet, protocol: str
) -> None:
    await fleet.start(options={"protocol": protocol}, skew=HOUR, concurrency=20)
    async with open_queue(server.url, protocol) as queue:
        lives: dict[str, Any] = {} if protocol == "bridge" else {"lifetime": HOUR * 0.9}
        delayed = [await queue.add("nap", {}, delay=DELAY, **lives) for _ in range(10)]
        far = await queue.add("nap", {}, delay=HOUR / 2, **lives)
        ready = await queue.add("nap", {}, **lives)
        await ready.result(LIMIT)
        began = time.monotonic()
        await queue.schedules.upsert("beat", cron="*/2 * * * * *", name="beat")
        for handle in delayed:
            await handle.result(DELAY + LIMIT)
        for job in [await handle.get() for handle in delayed]:
            assert job.state == State.COMPLETED
            assert job.processed_on is not None
            late = (job.processed_on - job.timestamp) / 1000 - DELAY
            assert 0 <= late <= GRACE, f"job {job.id} began {late} s after its time"
        assert (await far.get()).state == State.DELAYED
        await asyncio.sleep(max(0.0, began + WATCHED - time.monotonic()))
        await queue.schedules.remove("beat")
        watched = time.monotonic() - began
    beats = [line for line in fleet.facts("start") if line["name"] == "beat"]
    assert (WATCHED - GRACE) / 2 - 1 <= len(beats) <= watched / 2 + 1, "neither skipped nor hurried"
    assert far.id not in fleet.starts()


async def lost_job_comes_back(fleet: Fleet, queue: Queue, protocol: str) -> None:
    """Waits until a job has begun, kills its worker, and waits until another has run it."""
    settings: dict[str, Any] = {"options": {"protocol": protocol}, "concurrency": 1}
    holder = await fleet.start(**settings)
    handle = await queue.add("nap", {"seconds": 3 * LIMIT})
    await eventually(lambda: fleet.of(holder, "start"), "the job began")
    yield_to = await fleet.start(**settings)
    holder.kill()
    await eventually(
        lambda: [line for line in fleet.of(yield_to, "start") if line["id"] == handle.id],
        "another worker runs the job",
        3 * max(LEASE, 10) + GRACE + LIMIT,
    )


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_a_guard_that_lasts_too_long_does_not_stop_recovery(
    server: ValkeyServer, fleet: Fleet, protocol: str
) -> None:
    """Acts as if the server's clock was set back while the guard of a check was set."""
    with server.client() as client:
        key = "bull:chaos:stalled-check" if protocol == "bullmq" else "bridge:ox:checking"
        client.set(key, int(time.time() * 1000), px=round((STEP + LEASE) * 1000))
    async with open_queue(server.url, protocol) as queue:
        await lost_job_comes_back(fleet, queue, protocol)


class Stepping:
    """A server whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.set(0)
        program = folder / "stepping-server"
        program.write_text(
            "#!/bin/sh\n"
            f"export LD_PRELOAD={PRELOADED[0]} FAKETIME_TIMESTAMP_FILE={self._offset}\n"
            "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
            f'exec {binary_path()} "$@"\n'
        )
        program.chmod(0o755)
        self.server = ValkeyServer(binary=program)

    def set(self, seconds: int) -> None:
        """Sets the clock so many seconds ahead of the true time."""
        written = self._offset.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.rename(self._offset)


@pytest.fixture
def stepping(tmp_path: Path) -> Iterator[Stepping]:
    made = Stepping(tmp_path)
    yield made
    made.server.stop()


@pytest.mark.skipif(not PRELOADED, reason="libfaketime is not installed (package faketime)")
@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_recovery_goes_on_after_the_servers_clock_was_set_back(
    stepping: Stepping, tmp_path: Path, protocol: str
) -> None:
    url = stepping.server.url
    (tmp_path / "fleet").mkdir()
    with Fleet(url, "chaos", tmp_path / "fleet") as fleet, stepping.server.client() as client:
        await fleet.start(options={"protocol": protocol})
        key = "bull:chaos:stalled-check" if protocol == "bullmq" else "bridge:ox:checking"
        async with open_queue(url, protocol) as queue:
            await (await queue.add("nap", {})).result(LIMIT)
            await eventually(lambda: client.exists(key), "a check was made", 2 * LEASE + LIMIT)
            stepping.set(-STEP)
            await eventually(lambda: client.time()[0] < time.time() - STEP / 2, "the clock was set back")
            await (await queue.add("nap", {})).result(LIMIT)
            for worker in list(fleet._workers):
                worker.kill()
            await lost_job_comes_back(fleet, queue, protocol)
    shutil.rmtree(tmp_path / "fleet", ignore_errors=True)
