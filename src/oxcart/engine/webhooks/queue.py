"""The queue in which the webhooks of a queue wait: ``<queue>.webhooks``.

Its jobs are plain jobs: listed, retried, replayed and purged like any other. The workers of the queue whose
jobs they report run them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Protocol

import msgspec

from oxcart.engine.running import RunningJob
from oxcart.engine.source import Consumable
from oxcart.engine.webhooks.sender import Delivery, Webhooks

#: The suffix of a queue's name.
SUFFIX = ".webhooks"


class DeliveryQueue(Consumable, Protocol):
    """A queue as this module uses it."""

    @property
    def job(self) -> Callable[..., Any]:
        """The decorator of handlers."""

    @property
    def add(self) -> Callable[..., Awaitable[Any]]:
        """Adds a job."""

    async def close(self) -> None:
        """Closes the queue."""


def queue_options(webhooks: Webhooks) -> dict[str, Any]:
    """Returns the job options of the queue."""
    return {
        "attempts": webhooks.attempts,
        "backoff": {"type": "exponential", "delay": 5_000, "cap": 3_600_000, "jitter": 0.1},
        "timeout": "30s",
        # A webhook that was sent is kept for a while, so that a second one of the same end is recognised.
        "remove_on_complete": {"age": 86_400, "count": 10_000},
    }


class WebhookQueue:
    """The webhooks of a queue that wait to be sent.

    Args:
        queue: The queue in which they wait.
        webhooks: Sends them.
    """

    def __init__(self, queue: DeliveryQueue, webhooks: Webhooks) -> None:
        self.queue = queue

        async def deliver(job: RunningJob) -> int:
            return await webhooks.deliver(msgspec.convert(job.data, Delivery), queue._core.tracing)

        queue.job(name="deliver")(deliver)

    async def enqueue(self, delivery: Delivery, correlation_id: str | None, context: str | None) -> None:
        """Enqueues a webhook; one whose id exists is the same webhook.

        Args:
            delivery: The webhook.
            correlation_id: That of the job that it reports.
            context: The trace context of that job.
        """
        data, tracing = msgspec.to_builtins(delivery), self.queue._core.tracing
        with nullcontext() if tracing is None else tracing.continued(context):
            await self.queue.add("deliver", data, job_id=delivery.delivery_id, correlation_id=correlation_id)
