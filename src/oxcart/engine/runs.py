"""Makes the next run of a schedule before the claimed run is run.

A run is a job like any other, but the first worker that claims it makes the next run. So a schedule
needs no process of its own and does not depend on how the run ends. Only the current run may make the next
one, so it is made exactly once, whichever client claims and however often a run is retried.

A run whose next one cannot be made is delayed, longer each time. A schedule that stops silently would be
worse than a late run with a log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from oxcart.engine.running import RunningJob
from oxcart.engine.station import Station
from oxcart.model.errors import BrokerError, OxcartError, ScriptError
from oxcart.model.schedule import is_legacy_id

log = logging.getLogger("oxcart.worker")

#: Ms by which a run is delayed if its next one could not be made: doubled with each start, up to the second.
DELAYS = (2_000, 300_000)


class ClaimedRuns:
    """The runs of schedules that a worker has claimed and not begun.

    Args:
        ready: Receives runs whose next ones are made.
        delay: Receives a run whose next one could not be made, and the ms by which to delay it.
    """

    def __init__(
        self,
        *,
        ready: Callable[[Station, list[RunningJob]], None],
        delay: Callable[[Station, RunningJob, int], None],
    ) -> None:
        self._ready = ready
        self._delay = delay
        self._held: dict[asyncio.Task[None], list[RunningJob]] = {}
        self._warned: set[str] = set()

    @property
    def load(self) -> int:
        """How many runs wait for their next ones."""
        return sum(len(jobs) for jobs in self._held.values())

    def take(self, station: Station, jobs: list[RunningJob]) -> None:
        """Takes claimed runs."""
        task = asyncio.get_running_loop().create_task(self._advance(station, jobs), name="oxcart-schedule")
        self._held[task] = jobs
        task.add_done_callback(lambda done: self._held.pop(done, None))

    def take_back(self) -> list[RunningJob]:
        """Returns the runs that have not begun and will not; the next runs that were made stay."""
        held = [job for jobs in self._held.values() for job in jobs]
        for task in self._held:
            task.cancel()
        self._held.clear()
        return held

    async def _advance(self, station: Station, jobs: list[RunningJob]) -> None:
        claims = [job.claim for job in jobs]
        made: list[Any]
        try:
            schedules = station.broker.capabilities.part(station.broker.schedules, "schedules")
            made = await schedules.advance(claims)
        except BrokerError as error:
            made = [error] * len(jobs)
        except Exception as error:  # jobs without a result would keep their leases and never run
            log.exception("queue %s: could not make the next runs", station.broker.queue)
            made = [ScriptError(f"advance: {type(error).__name__}: {error}")] * len(jobs)
        self._held.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        ready = []
        for job, run in zip(jobs, made, strict=True):
            schedule_id = job.claim.schedule_id or ""
            if is_legacy_id(schedule_id):
                self._warn(station, schedule_id)
            if isinstance(run, OxcartError) and not job.fault:
                delay = min(DELAYS[0] * 2 ** min(job.fencing - 1, 30), DELAYS[1])
                log.error(
                    "queue %s: the next run of schedule %s could not be made, delaying job %s by %d s: %s",
                    station.broker.queue,
                    schedule_id,
                    job.id,
                    delay // 1000,
                    run,
                    extra=job.log_fields(),
                )
                self._delay(station, job, delay)
            else:
                ready.append(job)
        if ready:
            self._ready(station, ready)

    def _warn(self, station: Station, key: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(
                "queue %s: %s is a repeatable job from before BullMQ had schedulers; BullMQ 6 would stop it. "
                "Set it again with queue.schedules.upsert",
                station.broker.queue,
                key,
            )
