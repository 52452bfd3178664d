"""Schedules that handlers declare: ``@queue.job(cron="0 7 * * 1-5", tz="Europe/Zurich")``.

A starting worker stores the schedules of its handlers, each under the name of its handler and with the module
that declares it. It removes the schedules that one of these modules declared before and no longer declares.
Schedules without a module were made by hand or by a peer; the worker never changes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from oxcart.broker.port import ServedBroker
from oxcart.broker.port.schedules import Schedules
from oxcart.engine.handler import Handler, Handlers
from oxcart.engine.looper import Looper
from oxcart.engine.partitions import Fleet, Partition
from oxcart.engine.source import Source
from oxcart.model.errors import BrokerError, OxcartError
from oxcart.model.schedule import Schedule, Scheduler

log = logging.getLogger("oxcart.worker")

#: Schedules per read.
PAGE = 500


class Declarations(Looper):
    """Brings the schedules of a queue in line with its handlers, once per start of a worker.

    Args:
        broker: The queue's broker.
        handlers: The queue's handlers.
    """

    name = "declaration of schedules"
    interval = 5.0

    def __init__(self, broker: ServedBroker, handlers: Handlers) -> None:
        super().__init__(broker.queue)
        self._broker = broker
        self._handlers = handlers

    async def run(self) -> None:
        """Declares the schedules; after an error of the server again, until it succeeds."""
        while True:
            await self.step()
            if not self._failures:
                return
            await self._wait(self.interval)

    async def tick(self) -> None:
        """Stores declared schedules and removes those whose declaration is gone."""
        store = self._broker.schedules
        declared = {one.name: one for one in self._handlers.all if one.schedule is not None}
        if store is None:
            if declared:
                log.warning("queue %s: its protocol has no schedules: %s", self.queue, ", ".join(declared))
            return
        stored = {one.id: one for one in await self._stored(store)}
        for schedule_id, handler in declared.items():
            try:
                await self._declare(store, schedule_id, handler, stored.get(schedule_id))
            except BrokerError:
                raise
            except OxcartError as error:  # of this schedule alone
                log.error("queue %s: could not declare schedule %s: %s", self.queue, schedule_id, error)
        modules = {one.module for one in self._handlers.all}
        for schedule_id, known in stored.items():
            is_gone = known.declared_by in modules and schedule_id not in declared
            if is_gone and await store.remove(schedule_id):
                text = "queue %s: removed schedule %s, which module %s no longer declares"
                log.info(text, self.queue, schedule_id, known.declared_by)

    async def _declare(
        self, store: Schedules, schedule_id: str, handler: Handler, known: Scheduler | None
    ) -> None:
        schedule = handler.schedule
        assert schedule is not None
        if known is not None and known.declared_by != handler.module:
            owner = "by hand" if known.declared_by is None else f"by module {known.declared_by}"
            log.warning(
                "queue %s: schedule %s was made %s and is left as it is; module %s declares it too",
                self.queue,
                schedule_id,
                owner,
                handler.module,
            )
            return
        body = b"{}"
        if (sealer := self._broker.sealer) is not None:
            body = sealer.seal("schedule", store.bound_id(schedule_id), body)
        options = msgspec.structs.replace(handler.options, delay=0, job_id=None, timestamp=None)
        await store.upsert(schedule_id, schedule, handler.name, body, options, declared_by=handler.module)
        if known is None or _rule(known.schedule) != _rule(schedule):
            log.info("queue %s: schedule %s runs %s", self.queue, schedule_id, schedule.text)

    async def _stored(self, store: Schedules) -> list[Scheduler]:
        found: list[Scheduler] = []
        while True:
            page = await store.page(len(found), len(found) + PAGE - 1)
            found += page
            if len(page) < PAGE:
                return found


def _rule(schedule: Schedule) -> tuple[int | None, str | None, str | None]:
    return schedule.every, schedule.cron, schedule.tz


def declarations_of(
    queues: Sequence[Source], brokers: Sequence[ServedBroker], fleet: Fleet
) -> list[Declarations]:
    """Returns the declarations of a worker: one per queue with handlers, however many partitions it has."""
    pairs = [*zip(queues, brokers, strict=True), *fleet.whole]
    return [
        Declarations(broker, queue.handlers)
        for queue, broker in pairs
        if queue.handlers and not isinstance(queue, Partition)
    ]
