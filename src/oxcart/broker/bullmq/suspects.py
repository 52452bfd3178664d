"""Notes on the jobs of a queue how they run after they were lost."""

from __future__ import annotations

from collections.abc import Sequence

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port import Lease
from oxcart.broker.port.parts import Suspects
from oxcart.broker.replies import text


class QueueSuspects(QueuePart, Suspects):
    """The notes of one queue."""

    async def start(self, leases: Sequence[Lease], *, alone: bool) -> list[str]:
        broker = self._broker
        args: list[bytes | str | int] = ["a" if alone else "g"]
        for lease in leases:
            args += (lease.id, lease.token, lease.starts)
        answer = await broker.caller.again(load("isolate"), broker.keys.meta(), *args, patient=True)
        return [text(one) for one in answer]
