"""The parts of a broker for single jobs: logs, updates and deduplication windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.parts import Deduplication, Logs, Updates


class QueueLogs(QueuePart, Logs):
    """The logs of a queue's jobs, a list each."""

    async def append(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        return await self._broker.change("add_log", job_id, "" if keep is None else keep, *lines)

    async def read(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        broker = self._broker
        lines = await broker.caller.command("LRANGE", broker.keys.logs(job_id), first, last)
        if not lines and (lane := await broker.lanes.holder(job_id)) is not None:
            return await lane.logs.read(job_id, first, last)
        return [line.decode("utf-8", "replace") for line in lines]

    async def clear(self, job_id: str, keep: int = 0) -> None:
        await self._broker.change("clear_logs", job_id, keep, harmless=True)


class QueueUpdates(QueuePart, Updates):
    """Changes to the hashes of a queue's jobs."""

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        await self._broker.change("change_priority", job_id, priority, "L" if lifo else "")

    async def update(self, job_id: str, metadata: Mapping[str, Any], priority: int | None) -> None:
        flat = [part for name, value in metadata.items() for part in codec.metadata_field(name, value)]
        await self._broker.change("update_job", job_id, "" if priority is None else priority, *flat)


class QueueDeduplication(QueuePart, Deduplication):
    """The deduplication windows of a queue, a key each that holds its owner's id."""

    async def owner(self, name: str) -> str | None:
        raw = await self._broker.caller.command("GET", self._broker.keys.deduplication(name))
        return None if raw is None else str(raw, "utf-8", "surrogateescape")

    async def release(self, name: str, owner: str = "") -> bool:
        meta = self._broker.keys.meta()
        return bool(await self._broker.caller.once(load("release_window"), meta, name, owner))
