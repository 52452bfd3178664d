"""Periodic maintenance: recovers stalled jobs, releases dependents and watches a worker's queues."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.duty import FEW, Duty, Start
from oxcart.engine.gates import GateRelease
from oxcart.engine.keeping import KeepingNote
from oxcart.engine.looper import Looper
from oxcart.engine.recovery import Promotion, SignsOfLife, StalledCheck
from oxcart.engine.skew import SkewWatch
from oxcart.engine.unroutable import Unroutable
from oxcart.engine.waiter import by_slot
from oxcart.model.partitions import split_partition


def maintenance_of(
    brokers: Sequence[ServedBroker],
    check: Callable[[ServedBroker], StalledCheck] | None,
    outage: Outage,
    reconnect: Reconnect,
    worker_id: str,
    settings: str,
    start: Start,
) -> list[Looper]:
    """Returns the maintenance loops of a worker.

    With more than `FEW` queues on a server the worker takes part in an election for that server instead, and
    the loops of a queue run in the worker on duty, while the queue has jobs. More than `FEW` partitions of a
    queue on a cluster have an election together, though each is in a slot of its own.

    Args:
        brokers: The worker's queues.
        check: Makes the stalled check of a queue; None if this worker does not check.
        outage: When the server counts as having been away.
        reconnect: Pauses and limit of attempts to reach a lost server.
        worker_id: The worker's id.
        settings: The settings of the loops; only workers with the same ones stand in for each other.
        start: Starts loops of a queue.
    """
    loops: list[Looper] = []

    def loops_of(broker: ServedBroker, is_first: bool) -> list[Looper]:
        return _upkeep([broker], check, outage, reconnect, worker_id, notes=is_first)

    spread = partitions_of(brokers)
    loops += [Duty(parts, settings, worker_id, outage, loops_of, start) for parts in spread]
    elected = {broker for parts in spread for broker in parts}
    for indexes in by_slot(brokers):
        loops.append(SkewWatch(brokers[indexes[0]]))
        here = [brokers[index] for index in indexes if brokers[index] not in elected]
        if not here:
            continue
        if len(here) <= FEW or here[0].namespace is not None:
            loops += _upkeep(here, check, outage, reconnect, worker_id)
        else:
            loops.append(Duty(here, settings, worker_id, outage, loops_of, start))
    return loops


def partitions_of(brokers: Sequence[ServedBroker]) -> list[list[ServedBroker]]:
    """Groups the partitions of each queue on a cluster that has more than `FEW` of them."""
    found: dict[Hashable, list[ServedBroker]] = {}
    for broker in brokers:
        part = None if broker.slot is None else split_partition(broker.queue)
        if part is not None:
            found.setdefault((broker.server, part[0]), []).append(broker)
    return [parts for parts in found.values() if len(parts) > FEW]


def _upkeep(
    brokers: Sequence[ServedBroker],
    check: Callable[[ServedBroker], StalledCheck] | None,
    outage: Outage,
    reconnect: Reconnect,
    worker_id: str,
    *,
    notes: bool = True,
) -> list[Looper]:
    """Returns the loops of queues on one server."""
    loops: list[Looper] = []
    gates = [one for broker in brokers if (one := broker.gates) is not None]
    if gates:
        loops.append(GateRelease(gates[0].open_listener(gates), reconnect=reconnect))
    if notes:
        loops += [KeepingNote(broker) for broker in brokers if broker.lane is None]
    loops += [Unroutable(broker, worker_id) for broker in brokers if broker.lane is None]
    if check is not None:
        for broker in brokers:
            checking = check(broker)
            loops += [checking, Promotion(broker), SignsOfLife(broker, outage, checking)]
    return loops
