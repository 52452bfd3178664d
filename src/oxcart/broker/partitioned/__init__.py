"""Queues over several partitions, each of which is a queue on BullMQ's layout (docs/decisions/124)."""

from __future__ import annotations

from oxcart.broker.partitioned.broker import PartitionedBroker
from oxcart.broker.partitioned.spread import Spread

__all__ = ["PartitionedBroker", "Spread"]
