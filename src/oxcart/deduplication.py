"""``queue.deduplication``: the windows that keep duplicates out.

await search.add("rebuild", deduplication="rebuild")
print(await search.deduplication.owner("rebuild"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.broker.port.parts import Deduplication as Windows

if TYPE_CHECKING:
    from oxcart.queue import Queue


class Deduplication:
    """The deduplication windows of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def owner(self, dedup_id: str) -> str | None:
        """Returns the id of the job that owns the window of a deduplication id, or None."""
        return await self._windows.owner(dedup_id)

    async def release(self, dedup_id: str) -> bool:
        """Closes the window, so that the next add is a job again; returns whether it was open."""
        return await self._windows.release(dedup_id)

    @property
    def _windows(self) -> Windows:
        core = self._queue._core
        return core.part(core.broker.deduplication, "deduplication")
