"""Who keeps the house of a worker's queues: takes back jobs of lost workers, and settles gates.

May touch: the server, through the parts it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oxcart.broker.bullmq.graphs import GateKeeper
from oxcart.broker.connection import Reconnect
from oxcart.broker.factory import is_native
from oxcart.broker.port import Outage, ServedBroker
from oxcart.engine.gates import Gates
from oxcart.engine.observer import Observer
from oxcart.engine.recovery import Recovery, check_interval
from oxcart.engine.skew import SkewWatch
from oxcart.engine.unroutable import Unroutable
from oxcart.engine.waiter import by_slot


def keep_house(
    brokers: Sequence[ServedBroker],
    *,
    interval: float | None,
    max_stalled: int,
    outage: Outage,
    observer: Observer | None,
    reconnect: Reconnect,
    worker_id: str,
) -> list[asyncio.Task[None]]:
    """Starts what goes on until the worker ends.

    Args:
        brokers: The worker's queues.
        interval: Seconds between looks for jobs of lost workers; None where this worker does not look.
        max_stalled: How often a job may stall before it is failed.
        outage: When the server counts as having been away.
        observer: Told what came back.
        reconnect: Pauses and limit of attempts to reach a lost server.
        worker_id: The worker's id.
    """
    keepers = [GateKeeper(broker) if is_native(broker) else None for broker in brokers]
    loops: list[asyncio.Task[None]] = []
    for indexes in by_slot(brokers):
        first = brokers[indexes[0]]
        kept = [keeper for index in indexes if (keeper := keepers[index]) is not None]
        if kept:
            gates = Gates(first.server, first.slot, kept, reconnect=reconnect)
            loops.append(asyncio.create_task(gates.run(), name="oxcart-gates"))
    watch = Unroutable(brokers, worker_id)
    loops.append(asyncio.create_task(watch.run(), name="oxcart-unroutable"))
    loops.append(asyncio.create_task(SkewWatch(brokers).run(), name="oxcart-skew"))
    if interval is not None:
        for broker, keeper in zip(brokers, keepers, strict=True):
            recovery = _recovery(broker, keeper, interval, max_stalled, outage, observer)
            loops.append(asyncio.create_task(recovery.run(), name="oxcart-recovery"))
    return loops


def _recovery(
    broker: ServedBroker,
    gates: GateKeeper | None,
    interval: float,
    max_stalled: int,
    outage: Outage,
    observer: Observer | None,
) -> Recovery:
    return Recovery(
        broker,
        interval=check_interval(broker, interval),
        max_stalled=max_stalled,
        recovered=lambda ids: observer.stalled(broker.base, ids) if observer else None,
        skipped=lambda: observer.check_skipped(broker.base) if observer else None,
        gates=gates,
        outage=outage,
    )
