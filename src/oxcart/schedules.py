"""``queue.schedules``: rules that make jobs at intervals or by a cron expression.

    await emails.schedules.upsert("digest", cron="0 7 * * MON-FRI", tz="Europe/Berlin")
    await emails.schedules.upsert("poll", every="30s", name="poll_inbox", attempts=1)

No other process is needed: the worker that claims a run, Node's or ours, makes the next one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from oxcart.broker.port.schedules import Schedules as Store
from oxcart.engine.tracing import AddSpan, traced_options
from oxcart.handle import JobHandle
from oxcart.model import payload
from oxcart.model.duration import Duration
from oxcart.model.errors import DecryptionError, PayloadError, ValidationError
from oxcart.model.names import check_job_name
from oxcart.model.options import OptionKwargs
from oxcart.model.schedule import Instant, Missed, Overlap, Schedule, Scheduler, check_scheduler_id
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.queue import Queue

#: Options that are a single job's own.
_NOT_FOR_RUNS = ("delay", "job_id", "timestamp")


class Schedules:
    """The schedules of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def upsert(
        self,
        schedule_id: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = "UTC",
        offset: Duration | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
        immediately: bool = False,
        name: str | None = None,
        data: Any = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        **options: Unpack[OptionKwargs],
    ) -> JobHandle[Any]:
        """Makes a schedule, or changes the one of this id.

        The same call again, for example at every start of a service, changes nothing: the next run
        keeps its time. Payload and options of that run are those of the last call.

        Args:
            schedule_id: The schedule's name; every run is a job ``repeat:<id>:<ms>``.
            every: The interval. The first run is now, unless ``offset`` or ``start`` change that.
            cron: Or a cron expression, of five fields or of six with seconds first.
            tz: The time zone of the expression; None for that of the machine that computes a run.
            offset: By how much runs follow a full multiple of the interval: ``every="1h", offset="5m"`` is
                five minutes past each hour (UTC).
            start: No run before this.
            end: No run after this.
            limit: Most runs that the schedule makes.
            immediately: Whether the first run of a cron expression is now.
            name: The name of the jobs; the schedule's id by default.
            data: Their payload; an empty object by default.
            missed: With Bridge, what to do about firings that no worker made in time: ``skip`` them, make one
                for all of them (``once``, the default), or make ``all``.
            overlap: With Bridge, what to do about a firing while the last one still runs: it runs ``beside``
                it (the default), is left out (``skip``), or one waits for its end (``queue``).
            **options: Their options, as for ``Queue.add``; not delay, job_id and timestamp.

        Returns:
            A handle on the next run; with Bridge, whose runs get their ids when they are made, on the
            schedule's own record.

        Raises:
            ValidationError: An argument is wrong, or the schedule would never fire; nothing was written.
            JobError: A run of that time exists already.
        """
        check_scheduler_id(schedule_id)
        called = check_job_name(schedule_id if name is None else name)
        for option in _NOT_FOR_RUNS:
            if option in options:
                raise ValidationError(option, "left out: a schedule decides it", options.get(option))
        schedule = Schedule.build(
            every=every,
            cron=cron,
            tz=tz,
            offset=offset,
            start=start,
            end=end,
            limit=limit,
            immediately=immediately,
        )
        data = {} if data is None else data
        own = self._queue._core.prepare(called, data, options)
        own = msgspec.structs.replace(own, delay=0, job_id=None, timestamp=None)  # perhaps the handler's
        body = payload.encode(data)
        store = self._store
        if (sealer := self._queue._core.sealer) is not None:
            body = sealer.seal("schedule", store.bound_id(schedule_id), body)
        with self._span(called) as span:
            if span is not None:
                own = traced_options(own, span.context)
            run = await store.upsert(schedule_id, schedule, called, body, own, missed=missed, overlap=overlap)
        if run is None:
            raise ValidationError("schedule", "one that fires before its end", cron or every)
        return JobHandle(self._queue, run, called, True)

    async def get(self, schedule_id: str) -> Scheduler | None:
        """Returns a schedule as it is now, or None.

        Raises:
            DecryptionError: The queue has keys, and the schedule's payload does not open with them.
        """
        found = await self._store.get(schedule_id)
        return None if found is None else self._opened(found, lenient=False)

    async def list(self, *, first: int = 0, limit: int = 100, latest: bool = False) -> Sequence[Scheduler]:
        """Returns a page of schedules, soonest next run first unless ``latest``.

        Repeatable jobs of BullMQ's older versions are among them, marked ``legacy``.
        """
        if limit < 1:
            return []
        found = await self._store.page(first, first + limit - 1, latest=latest)
        return [self._opened(one, lenient=True) for one in found]

    async def count(self) -> int:
        """Returns how many schedules there are."""
        return await self._store.count()

    async def remove(self, schedule_id: str) -> bool:
        """Removes a schedule and its delayed run; returns False if there is none.

        A run that is already due, or running, is not removed and is the last.
        """
        return await self._store.remove(schedule_id)

    async def pause(self, schedule_id: str) -> bool:
        """Lets a schedule make no run until it is resumed; returns False if there is none.

        Its delayed run is removed. A run that is already due, or running, is the last until then. A paused
        schedule that is set again, as a service does when it starts, stays paused.

        Raises:
            ValidationError: It is a repeatable job of BullMQ's older versions.
        """
        return await self._store.pause(schedule_id)

    async def resume(self, schedule_id: str) -> bool:
        """Lets a paused schedule run again, from its next time on; returns False if there is none.

        Times that passed meanwhile are skipped.

        Raises:
            ValidationError: It would never fire again.
            JobError: A run of that time exists already.
        """
        return await self._store.resume(schedule_id)

    def _span(self, name: str) -> AbstractContextManager[AddSpan | None]:
        core = self._queue._core
        if core.tracing is None:
            return nullcontext()
        protocol, queue = core.capabilities.protocol, base_of(core.name)
        return core.tracing.add(protocol, queue, [name], operation="schedule")

    def _opened(self, found: Scheduler, *, lenient: bool) -> Scheduler:
        """Returns a schedule with its payload opened, if the queue has keys."""
        sealer = self._queue._core.sealer
        if sealer is None:
            return found
        try:
            body = sealer.open("schedule", self._store.bound_id(found.id), payload.encode(found.data))
        except (DecryptionError, PayloadError):  # a payload that we cannot write was not sealed by us
            if not lenient:
                raise
            return found
        return msgspec.structs.replace(found, data=payload.decode(body))

    @property
    def _store(self) -> Store:
        broker = self._queue._core.broker
        return broker.capabilities.part(broker.schedules, "schedules")
