"""The broker behind this package's queues, for calls that the public queue does not offer."""

from __future__ import annotations

from typing import Protocol, cast

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.queue import Queue


class HasQueue(Protocol):
    """The owner of a job: a queue, a worker, or a queue of a flow.

    Attributes:
        inner: Oxcart's queue behind it.
        qualifiedName: The common beginning of its keys.
    """

    inner: Queue
    qualifiedName: str


def store_of(owner: HasQueue) -> BullMQBroker:
    """Returns the broker of an owner's queue, which is always one of BullMQ's protocol."""
    return cast(BullMQBroker, owner.inner._core.broker)
