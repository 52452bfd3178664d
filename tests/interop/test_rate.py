"""A limit of one job per 500 ms: our worker beside PyPI bullmq.

PyPI bullmq stores the end of its limit but never uses it: it claims again when its blocking read ends, after
five seconds.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.systems import pypi_environment

from oxcart import Queue, Worker
from tests.interop import wire
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

JOBS = 8
WINDOW = 500


def starts(server: ValkeyServer, queue: str) -> list[int]:
    """When jobs became active, in ms by the server's clock."""
    entries: Any = server.client().xrange(f"bull:{queue}:events")
    return [int(entry_id.partition("-")[0]) for entry_id, fields in entries if fields["event"] == "active"]


def shown(times: list[int]) -> str:
    gaps = [later - sooner for sooner, later in pairwise(times)]
    return f"{len(times)} jobs, gaps in ms: {gaps}"


@pytest.mark.timeout(120)
async def test_a_limit_of_one_per_500_ms_is_one_per_500_ms(server: ValkeyServer, queue: Queue) -> None:
    python = await asyncio.to_thread(lambda: pypi_environment() / "bin" / "python")
    theirs = Queue(f"{queue.name}-pypi", url=server.url)
    done: list[str] = []

    async def note(job: object) -> None:
        done.append("one")

    queue.fallback(note)
    for one in (queue, theirs):
        await one.add_many([("limited", {})] * JOBS)
    peer = await asyncio.create_subprocess_exec(
        str(python),
        str(Path(__file__).with_name("pypi_limited.py")),
        *(str(server.port), theirs.name, "1", str(WINDOW)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert (await peer.stdout.readline()).strip() == b"ready"
            await peer.stdout.readline()  # its first job
        async with Worker(queue, limiter=(1, f"{WINDOW}ms")).running():
            await eventually(lambda: len(done) == JOBS, "all of our jobs", 60)
        ours, others = starts(server, queue.name), starts(server, theirs.name)
    finally:
        peer.stdin.close()
        await peer.wait()
        await theirs.close()
    print(f"\noxcart       {shown(ours)}\nPyPI bullmq  {shown(others)}", file=sys.stderr)
    # Never more than the limit: a window ends by the clock that wrote these times.
    assert all(later - sooner >= WINDOW for sooner, later in pairwise(ours))
    # And no less: all our jobs had ended when PyPI bullmq, which began earlier, had started two.
    assert len(ours) == JOBS
    assert len(others) <= 2
    assert wire.wrong_types(server.client(), f"bull:{queue.name}") == {}
