"""The index of jobs that have a ``callback_url`` and whose webhook is not enqueued yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.clock import time_left
from oxcart.broker.replies import texts

#: Entries that one step of a scan reads.
STEP = 100


class WebhookIndex(QueuePart):
    """The index of one queue. A job is entered before it is added, so that a webhook is never missed."""

    async def enter(self, job_ids: Sequence[str], timeout: float | None = None) -> None:
        """Enters jobs; may be repeated."""
        if job_ids:
            broker, left = self._broker, time_left(timeout)
            now = broker.clock() if broker.clock.is_known else await broker.now(left())
            pairs = [part for job_id in job_ids for part in (now, job_id)]
            await broker.caller.write("ZADD", broker.keys.callbacks(), "NX", *pairs, timeout=left())

    async def scan(self) -> AsyncIterator[list[tuple[str, float]]]:
        """Yields all entries in steps, each with the time in ms at which it was entered."""
        broker, cursor = self._broker, "0"
        while True:
            raw, flat = await broker.caller.command("ZSCAN", broker.keys.callbacks(), cursor, "COUNT", STEP)
            cursor = raw.decode()
            ids = texts(flat[::2])
            if ids:
                yield list(zip(ids, map(float, flat[1::2]), strict=True))
            if cursor == "0":
                return

    async def drop(self, job_id: str) -> None:
        """Drops a job whose webhook is enqueued, or that is gone."""
        await self._broker.caller.write("ZREM", self._broker.keys.callbacks(), job_id)
