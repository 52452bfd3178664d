"""The number of partitions changes under load, while workers are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue
from tests.chaos.fleet import Fleet, Store, eventually
from tests.chaos.lengths import LEASE, LIMIT
from tests.servers import ValkeyServer

OPTIONS = {"partitions": 4}
EACH = 150


@pytest.mark.timeout(240)
async def test_every_job_completes_once_through_resizes_while_workers_are_killed(
    server: ValkeyServer, fleet: Fleet
) -> None:
    """4 to 16 to 2 partitions; one producer knows the first layout for ever."""
    added: list[str] = []

    async def produce(one: Queue, name: str) -> None:
        for number in range(EACH):
            options: Any = {"partition_key": f"k{number % 7}"} if number % 2 else {}
            handle = await one.add(
                "nap", {"seconds": 0.1}, attempts=1000, job_id=f"{name}-{number}", **options
            )
            added.append(handle.id)
            await asyncio.sleep(0.005)

    async def start() -> Any:
        return await fleet.start(concurrency=5, max_stalled=1000, options=OPTIONS)

    async with (
        Queue("chaos", url=server.url, **OPTIONS) as queue,  # type: ignore[arg-type]
        Queue("chaos", url=server.url, **OPTIONS) as stale,  # type: ignore[arg-type]
    ):
        spread: Any = stale._core.broker.partitions
        await queue.partitions.layout()
        await stale.partitions.layout()
        spread._read_at = float("inf")
        crew = [await start() for _ in range(3)]
        load = asyncio.gather(produce(queue, "aware"), produce(stale, "stale"))
        for size, from_here in ((16, EACH // 2), (2, EACH)):
            await eventually(lambda many=from_here: len(added) > many, "load")  # type: ignore[misc]
            await queue.partitions.resize(size)
            victim = crew.pop(0)
            await eventually(lambda one=victim: fleet.of(one, "start"), "it has jobs")  # type: ignore[misc]
            victim.signal(signal.SIGKILL)
            await victim.ended()
            crew.append(await start())
        await load
        assert spread.layout.size == 4, "it never read another layout"
        counts: dict[str, int] = {}
        end = asyncio.get_running_loop().time() + LIMIT + 20 * LEASE
        while counts != {"completed": 2 * EACH} and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.1)
            counts = {state: count for state, count in (await queue.counts()).items() if count}
        assert counts == {"completed": 2 * EACH}
        listed = [job.id for job in await queue.jobs.list("completed", limit=3 * EACH)]
        assert sorted(listed) == sorted(added)
    ended: Counter[str] = Counter()
    with server.client() as client:
        for number in range(16):
            ended += Store(client, f"chaos#{number}").count_events("completed")
    assert ended == Counter(added)
    assert max(fleet.starts().values()) > 1, "a job of a killed worker ran again"
