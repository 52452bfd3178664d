"""Periodic maintenance: recovers stalled jobs, releases dependents and watches a worker's queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.gates import GateRelease
from oxcart.engine.keeping import KeepingNote
from oxcart.engine.looper import Looper
from oxcart.engine.recovery import Promotion, SignsOfLife, StalledCheck
from oxcart.engine.skew import SkewWatch
from oxcart.engine.unroutable import Unroutable
from oxcart.engine.waiter import by_slot


def maintenance_of(
    brokers: Sequence[ServedBroker],
    check: Callable[[ServedBroker], StalledCheck] | None,
    outage: Outage,
    reconnect: Reconnect,
    worker_id: str,
) -> list[Looper]:
    """Returns the maintenance loops of a worker.

    Args:
        brokers: The worker's queues.
        check: Makes the stalled check of a queue; None if this worker does not check.
        outage: When the server counts as having been away.
        reconnect: Pauses and limit of attempts to reach a lost server.
        worker_id: The worker's id.
    """
    loops: list[Looper] = []
    for indexes in by_slot(brokers):
        first = brokers[indexes[0]]
        loops.append(SkewWatch(first))
        gates = [one for index in indexes if (one := brokers[index].gates) is not None]
        if gates:
            loops.append(GateRelease(gates[0].open_listener(gates), reconnect=reconnect))
    loops += [KeepingNote(broker) for broker in brokers if broker.lane is None]
    loops += [Unroutable(broker, worker_id) for broker in brokers if broker.lane is None]
    if check is not None:
        for broker in brokers:
            checking = check(broker)
            loops += [checking, Promotion(broker), SignsOfLife(broker, outage, checking)]
    return loops
