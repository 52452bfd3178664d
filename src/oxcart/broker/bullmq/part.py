"""The base of the parts of a broker on BullMQ's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker


class QueuePart:
    """A part of one queue's broker."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
