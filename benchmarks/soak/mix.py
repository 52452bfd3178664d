"""The kinds of jobs of a soak: how producers add them, and what the handler does with each.

The payload's ``do`` tells the handler what to do. Every kind ends by itself, so that at the end a queue has
only jobs that its retention keeps.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from oxcart import Flow, Graph, PermanentError, Queue, RunningJob, Snooze, TemporaryError

MAIN, PARTS, BRIDGE, NAMESPACE = "soak", "soak-parts", "work", "soak-bridge"
#: Ended jobs that a queue keeps, so that the server's memory can be flat.
KEPT = 1000
PARTITIONS, TENANTS, GROUPS, SCHEDULES = 4, 50, 200, 5
ABILITIES = ("gpu", "ffmpeg", "chrome", "ocr", "solver")

#: Kinds of jobs and their shares in a chunk; a flow has four jobs, a graph three.
SHARES = {
    "plain": 500,
    "prioritized": 60,
    "delayed": 60,
    "retried": 60,
    "bad": 30,
    "exhausted": 20,
    "idempotent": 50,
    "deduplicated": 20,
    "living": 30,
    "limited": 40,
    "grouped": 50,
    "routed": 30,
    "logged": 30,
    "snoozed": 10,
    "stepped": 10,
    "cancelled": 10,
    "flow": 5,
    "graph": 5,
    "partitioned": 50,
    "bridged": 50,
}


@dataclass(frozen=True)
class Queues:
    """The three queues of a soak: plain, partitioned, and a job type of a Bridge namespace."""

    main: Queue
    parts: Queue
    bridge: Queue

    def __iter__(self) -> Iterator[Queue]:
        return iter((self.main, self.parts, self.bridge))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Queues]:
    """Opens the queues and closes them."""
    kept: Any = {"remove_on_complete": KEPT, "remove_on_fail": KEPT}
    fast: Any = {"backoff": {"type": "fixed", "delay": 20}}
    async with (
        Queue(MAIN, url=url, **kept, **fast) as main,
        Queue(PARTS, url=url, partitions=PARTITIONS, **kept, **fast) as parts,
        Queue(
            BRIDGE, url=url, protocol="bridge", namespace=NAMESPACE, remove_on_complete=True, **fast
        ) as bridge,
    ):
        yield Queues(main, parts, bridge)


async def run(job: RunningJob) -> Any:
    """Does what the job's payload says."""
    data: Any = job.data
    match data["do"] if data else "tick":
        case "retry" if job.attempt == 1:
            raise TemporaryError("once more")
        case "bad":
            raise PermanentError("bad", code="E_BAD")
        case "exhaust":
            raise TemporaryError("never")
        case "snooze" if job.fencing == 1:
            return Snooze(0.05)
        case "step":
            await job.step("first", _one)
            if job.attempt == 1:
                raise TemporaryError("after the first step")
            return await job.step("second", _one)
        case "log":
            await job.log("seen")
            await job.update_progress(50)
        case "wait":
            await asyncio.sleep(0.005)
    return 1


async def _one() -> int:
    return 1


class Producer:
    """Adds chunks of jobs of all kinds.

    Attributes:
        added: Jobs that the server acknowledged, without those that a key or a window refused.
    """

    def __init__(self, queues: Queues, seed: int) -> None:
        self._queues = queues
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.added = 0

    async def declare(self) -> None:
        """Stores limits, groups and schedules."""
        main = self._queues.main
        await main.limits.set_key_limit(concurrent=3)
        await main.groups.set_all(concurrent=5)
        for number in range(SCHEDULES):
            name = f"tick-{number}"
            await main.schedules.upsert(name, every="1s", name="tick", attempts=1)

    async def retire(self) -> None:
        """Removes the schedules."""
        for number in range(SCHEDULES):
            await self._queues.main.schedules.remove(f"tick-{number}")

    async def chunk(self) -> None:
        """Adds one chunk: as many jobs of each kind as its share."""
        main = self._queues.main
        rows = [
            self._row(kind)
            for kind, share in SHARES.items()
            if kind not in ("cancelled", "flow", "graph", "partitioned", "bridged")
            for _ in range(share)
        ]
        self._random.shuffle(rows)
        await main.add_many(rows)
        plain = [("job", {"do": "wait"})] * SHARES["partitioned"]
        await self._queues.parts.add_many(plain)
        await self._queues.bridge.add_many([("job", {"do": "wait"})] * SHARES["bridged"])
        self.added += len(rows) + SHARES["partitioned"] + SHARES["bridged"]
        for _ in range(SHARES["flow"]):
            children = [Flow(main, "child", {"do": "wait"}) for _ in range(3)]
            await Flow(main, "parent", {"do": "wait"}).after(*children).add()
            graph = Graph(main)
            first = graph.job("first", {"do": "wait"})
            second = graph.job("second", {"do": "retry"}, after=[first])
            graph.job("third", {"do": "wait"}, after=[first, second])
            await graph.add()
            self.added += 7
        later = [("later", {"do": "wait"}, {"delay": "1h"})] * SHARES["cancelled"]
        for handle in await main.add_many(later):
            await main.jobs.cancel(handle.id, "not needed")
            self.added += 1

    def _row(self, kind: str) -> tuple[str, Any, dict[str, Any]]:
        number, dice = next(self._numbers), self._random
        match kind:
            case "prioritized":
                return "job", {"do": "wait"}, {"priority": dice.randint(1, 10)}
            case "delayed":
                return "job", {"do": "wait"}, {"delay": dice.uniform(0.05, 0.5)}
            case "retried":
                return "job", {"do": "retry"}, {}
            case "bad":
                return "job", {"do": "bad"}, {"tags": {"kind": kind}}
            case "exhausted":
                return "job", {"do": "exhaust"}, {"attempts": 2}
            case "idempotent":
                # Two adds share a key.
                window: Any = {"idempotency_key": f"key-{number // 2}", "idempotency_window": "20s"}
                return "job", {"do": "wait"}, window
            case "deduplicated":
                return "job", {"do": "wait"}, {"deduplication": {"id": f"one-{number % 7}", "ttl": "2s"}}
            case "living":
                return "job", {"do": "wait"}, {"lifetime": "1h", "timeout": "10s", "history": True}
            case "limited":
                return "job", {"do": "wait"}, {"limit_key": f"tenant-{dice.randrange(TENANTS)}"}
            case "grouped":
                return "job", {"do": "wait"}, {"group": f"group-{dice.randrange(GROUPS)}"}
            case "routed":
                return "job", {"do": "wait"}, {"target": {"capabilities": dice.choice(ABILITIES)}}
            case "logged":
                return "job", {"do": "log"}, {"correlation_id": f"c-{number}"}
            case "snoozed":
                return "job", {"do": "snooze"}, {}
            case "stepped":
                return "job", {"do": "step"}, {}
        return "job", {"do": "run", "v": "x" * 80}, {}
