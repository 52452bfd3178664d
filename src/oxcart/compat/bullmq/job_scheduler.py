"""Schedulers as in PyPI's package: rules that make jobs again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.bullmq.runs import repeat_of
from oxcart.compat.bullmq.job import Job
from oxcart.compat.bullmq.options import backoff_of, read_options, shown, stored
from oxcart.compat.bullmq.record import dumps, name_of
from oxcart.compat.bullmq.refusals import bad_cron, translate_refusal
from oxcart.compat.bullmq.store import HasQueue, store_of
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.schedule import Schedule, Scheduler, check_scheduler_id

#: Computes when a pattern fires next: (ms now, the repeat options) -> ms, or None for never.
RepeatStrategy = Callable[[int, Mapping[str, Any]], int | None]


class JobScheduler:
    """The schedulers of a queue.

    Args:
        queue: A queue or a worker.
        repeat_strategy: Computes the first run of a ``pattern`` that is no cron expression. The worker that
            claims a run makes the next one, and must know the pattern too; as in PyPI's package.
    """

    def __init__(self, queue: HasQueue, repeat_strategy: RepeatStrategy | None = None) -> None:
        self.queue = queue
        self.repeat_strategy = repeat_strategy

    async def upsertJobScheduler(
        self,
        job_scheduler_id: str,
        repeat_opts: Mapping[str, Any],
        job_name: str,
        job_data: Any = None,
        opts: Mapping[str, Any] | None = None,
        override: bool = True,
        producer_id: str | None = None,
    ) -> Job | None:
        """Makes or changes a scheduler.

        Args:
            job_scheduler_id: Its id.
            repeat_opts: ``every`` (ms) or ``pattern`` (cron, in ``tz``, by default UTC), and ``limit``,
                ``startDate``, ``endDate``, ``offset``, ``immediately``.
            job_name: The name of its jobs.
            job_data: Their payload.
            opts: Their options.
            override: False only makes the run after that of ``producer_id``, as workers do.
            producer_id: A run of it.

        Returns:
            Its next job; None if there is no further one.

        Raises:
            ValueError: The repeat options contradict each other; nothing was written.
        """
        given, repeat = dict(opts or {}), dict(repeat_opts or {})
        _check(repeat)
        check_scheduler_id(job_scheduler_id)
        now = await store_of(self.queue).now()
        start, end = (to_millis(repeat.get(name)) for name in ("startDate", "endDate"))
        limit, count = repeat.get("limit"), (repeat.get("count") or 0) + 1
        if (limit is not None and count > limit) or (end is not None and now > end):
            return None
        read_options(given)
        if not override:
            made = await self._advance(job_scheduler_id, producer_id)
            return None if made is None else await Job.fromId(self.queue, made)
        every, pattern = repeat.get("every"), repeat.get("pattern")
        at_ms = None
        if pattern and self.repeat_strategy is not None:
            at_ms = self.repeat_strategy(now, repeat)
            if at_ms is None:
                return None
            at_ms = max(now, int(at_ms))
            schedule = Schedule(cron=pattern, tz=repeat.get("tz"), start=start, end=end, limit=limit)
        else:
            try:
                schedule = Schedule.build(
                    every=None if not every else f"{every}ms",
                    cron=pattern or None,
                    # Sent on the wire: a Node worker that makes the next run would use its own zone.
                    tz=repeat.get("tz") or "UTC",
                    offset=f"{repeat['offset']}ms" if every and repeat.get("offset") else None,
                    start=start,
                    end=end,
                    limit=limit,
                    immediately=bool(pattern and repeat.get("immediately")),
                )
            except ValidationError as error:
                raise (bad_cron(error) if error.field == "cron" else error) from error
        body = bytes(dumps({} if job_data is None else job_data))
        template = stored({**given, "backoff": backoff_of(given.get("backoff"))})
        store = store_of(self.queue).schedules
        upserting = store.write(job_scheduler_id, schedule, name_of(job_name), body, template, at_ms=at_ms)
        made_run = await translate_refusal(upserting, "addJobScheduler", job_scheduler_id)
        if made_run is None:
            return None
        job_id, delay = made_run
        return self._job(
            job_scheduler_id, job_name, job_data, given, repeat_of(schedule, count), job_id, delay
        )

    def _job(
        self,
        scheduler_id: str,
        name: str,
        data: Any,
        opts: dict[str, Any],
        repeat: dict[str, Any],
        job_id: str,
        delay: int,
    ) -> Job:
        own = {
            "jobId": job_id,
            "delay": delay,
            "prevMillis": int(job_id.rpartition(":")[2]),
            "repeatJobKey": scheduler_id,
            "repeat": repeat,
        }
        return Job(self.queue, name, data, {**opts, **own}, job_id)

    async def _advance(self, scheduler_id: str, producer_id: str | None) -> str | None:
        """Makes the run after an existing one; the server makes sure that there is only one."""
        broker = store_of(self.queue)
        if producer_id is None:
            found = await broker.schedules.get(scheduler_id)
            producer_id = None if found is None else found.next_job_id
        if producer_id is None:
            return None
        (fields,) = await broker.records([producer_id])
        if not fields:
            return None
        claim = BullMQClaim(producer_id, "", -1, 0, fields | {b"rjk": scheduler_id.encode()})
        (made,) = await broker.schedules.advance([claim])
        if isinstance(made, OxcartError):
            raise made
        return made or None

    async def removeJobScheduler(self, job_scheduler_id: str) -> int:
        """Removes a scheduler; returns 0 if it existed, 1 if not."""
        return 0 if await self.queue.inner.schedules.remove(job_scheduler_id) else 1

    async def isJobScheduler(self, job_scheduler_id: str) -> bool:
        """Returns whether there is such a scheduler, and not an old repeatable job under its id."""
        found = await self.queue.inner.schedules.get(job_scheduler_id)
        return found is not None and found.runs is not None

    async def getScheduler(self, job_scheduler_id: str) -> dict[str, Any] | None:
        """Returns a scheduler as it is now, or None."""
        found = await self.queue.inner.schedules.get(job_scheduler_id)
        return None if found is None else _shown(found)

    async def getJobSchedulers(
        self, start: int = 0, end: int = -1, asc: bool = False
    ) -> list[dict[str, Any]]:
        """Returns schedulers by the time of their next job, latest first unless ``asc``."""
        found = await store_of(self.queue).schedules.page(start, end, latest=not asc)
        return [_shown(one) for one in found]

    async def getSchedulersCount(self) -> int:
        """Returns how many there are."""
        return int(await self.queue.inner.schedules.count())


def _check(repeat: Mapping[str, Any]) -> None:
    tail = "for this repeatable job"
    if repeat.get("pattern") and repeat.get("every"):
        raise ValueError(f"Both .pattern and .every options are defined {tail}")
    if not repeat.get("pattern") and not repeat.get("every"):
        raise ValueError(f"Either .pattern or .every options must be defined {tail}")
    if repeat.get("immediately") and repeat.get("startDate"):
        raise ValueError(f"Both .immediately and .startDate options are defined {tail}")


def to_millis(value: Any) -> int | None:
    """Returns a date in ms from ms or ISO text; None if it is no date."""
    if value is None or value == "" or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        pass
    try:
        return int(datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None


def _shown(found: Scheduler) -> dict[str, Any]:
    schedule = found.schedule
    known: dict[str, Any] = {
        "iterationCount": found.runs,
        "limit": schedule.limit,
        "startDate": schedule.start,
        "endDate": schedule.end,
        "tz": schedule.tz or None,
        "pattern": schedule.cron or None,
        "every": schedule.every,
        "offset": schedule.offset,
    }
    shown_one = {"key": found.id, "name": found.name, "next": found.next_ms}
    shown_one |= {name: value for name, value in known.items() if value is not None}
    template: dict[str, Any] = {}
    if found.data not in (None, {}):
        template["data"] = found.data
    if found.options:
        template["opts"] = shown(found.options)
    if template:
        shown_one["template"] = msgspec.to_builtins(template)
    return shown_one
