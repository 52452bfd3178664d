"""The queue in which a queue's webhooks wait to be delivered: ``<queue>.webhooks``.

Its jobs are plain jobs: listed, retried, replayed and purged like any other, and run by the workers of the
queue that they tell about.

May touch: the server, through that queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.engine.running import RunningJob
from oxcart.engine.webhooks import Delivery, Webhooks

if TYPE_CHECKING:
    from oxcart.queue import Queue

#: Behind a queue's name.
SUFFIX = ".webhooks"


class WebhookQueue:
    """The deliveries of a queue, as a worker uses them.

    Attributes:
        queue: The queue in which they wait.
    """

    def __init__(self, source: Queue, webhooks: Webhooks) -> None:
        from oxcart.queue import Queue

        self.queue = Queue(
            source.name + SUFFIX,
            server=source.server,
            prefix=source.prefix,
            key_ring=source.key_ring,
            attempts=webhooks.attempts,
            backoff={"type": "exponential", "delay": 5_000, "cap": 3_600_000, "jitter": 0.1},
            timeout="30s",
            # What was delivered is kept for a while: a second delivery of the same end is then known as one.
            remove_on_complete={"age": 86_400, "count": 10_000},
        )

        @self.queue.job(name="deliver")
        async def deliver(job: RunningJob) -> int:
            return await webhooks.deliver(msgspec.convert(job.data, Delivery))

    async def enqueue(self, delivery: Delivery, correlation_id: str | None) -> None:
        """Enqueues a delivery; one of an id that exists is the same."""
        data = msgspec.to_builtins(delivery)
        await self.queue.add("deliver", data, job_id=delivery.delivery_id, correlation_id=correlation_id)
