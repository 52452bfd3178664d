"""The connections of a worker: queues of one server share one, if there are many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oxcart.broker.port import ServedBroker
from oxcart.engine.waiter import by_slot

#: Queues on one server up to which each has a connection of its own: a large job of one then delays no other.
OWN = 32


def share_connections(brokers: Sequence[ServedBroker]) -> None:
    """Lets the queues of a server with many queues use the connection and the clock of the first."""
    for indexes in by_slot(brokers):
        if len(indexes) > OWN:
            for index in indexes[1:]:
                brokers[index].share_connection(brokers[indexes[0]])


async def close_connections(brokers: Sequence[ServedBroker]) -> None:
    """Closes all connections, those that others use at last."""
    firsts = {indexes[0] for indexes in by_slot(brokers) if len(indexes) > OWN}
    await asyncio.gather(*(one.close() for index, one in enumerate(brokers) if index not in firsts))
    await asyncio.gather(*(brokers[index].close() for index in firsts))
