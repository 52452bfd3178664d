"""Makes the next run of a schedule before the present one is run.

A run is a job like any other, but whoever claims it first makes the one that follows: then a schedule needs
no process of its own, and does not depend on how the run ends. Only the present run may make the next, so it
is made exactly once, whichever client claims, and however often a run is tried again.

A run whose next one cannot be made is not run but put off, longer each time: a schedule that stops in
silence would be worse than one that is late and says why.

May touch: the server, through the queue's broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from oxcart.broker.bullmq.schedulers import Claim
from oxcart.broker.factory import native
from oxcart.engine.claims import Station
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerError, OxcartError, ScriptError
from oxcart.model.schedule import is_legacy_id

log = logging.getLogger("oxcart.worker")

#: How long a run is put off whose next one could not be made, in ms: doubled with each start, up to the last.
PUT_OFF = (2_000, 300_000)


class Scheduler:
    """The runs of schedules that a worker has claimed and not yet begun.

    Args:
        ready: Takes runs whose next ones are made.
        put_off: Takes a run whose next one could not be made, and for how many ms it is to be put off.
    """

    def __init__(
        self,
        *,
        ready: Callable[[Station, list[RunningJob]], None],
        put_off: Callable[[Station, RunningJob, int], None],
    ) -> None:
        self._ready = ready
        self._put_off = put_off
        self._held: dict[asyncio.Task[None], list[RunningJob]] = {}
        self._told: set[str] = set()

    @property
    def load(self) -> int:
        """How many jobs it holds."""
        return sum(len(jobs) for jobs in self._held.values())

    def take(self, station: Station, jobs: list[RunningJob]) -> None:
        """Takes claimed runs."""
        task = asyncio.get_running_loop().create_task(self._advance(station, jobs), name="oxcart-schedule")
        self._held[task] = jobs
        task.add_done_callback(lambda done: self._held.pop(done, None))

    def take_back(self) -> list[RunningJob]:
        """The jobs that have not begun; they will not. What was made of their schedules stays."""
        held = [job for jobs in self._held.values() for job in jobs]
        for task in self._held:
            task.cancel()
        self._held.clear()
        return held

    async def _advance(self, station: Station, jobs: list[RunningJob]) -> None:
        claims = [Claim(job.id, scheduler_of(job), job.claim.fields) for job in jobs]
        made: list[Any]
        try:
            made = await native(station.broker, "intervals").schedulers.advance(claims)
        except BrokerError as error:
            made = [error] * len(jobs)
        except Exception as error:  # jobs without an answer would keep their leases and never run
            log.exception("queue %s: could not make the next runs", station.broker.queue)
            made = [ScriptError(f"advance: {type(error).__name__}: {error}")] * len(jobs)
        self._held.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        ready = []
        for job, claim, run in zip(jobs, claims, made, strict=True):
            if is_legacy_id(claim.scheduler):
                self._tell(station, claim.scheduler)
            if isinstance(run, OxcartError) and not job.fault:
                delay = min(PUT_OFF[0] * 2 ** min(job.fencing - 1, 30), PUT_OFF[1])
                log.error(
                    "queue %s: the next run of schedule %s could not be made, job %s is put off for %d s: %s",
                    station.broker.queue,
                    claim.scheduler,
                    job.id,
                    delay // 1000,
                    run,
                    extra=job.log_fields(),
                )
                self._put_off(station, job, delay)
            else:
                ready.append(job)
        if ready:
            self._ready(station, ready)

    def _tell(self, station: Station, key: str) -> None:
        if key not in self._told:
            self._told.add(key)
            log.warning(
                "queue %s: %s is a repeatable job from before BullMQ had schedulers; BullMQ 6 would stop it. "
                "Make it anew with queue.schedulers.upsert",
                station.broker.queue,
                key,
            )


def scheduler_of(job: RunningJob) -> str:
    """The id of the schedule that a job is a run of; empty for none."""
    return job.claim.fields.get(b"rjk", b"").decode("utf-8", "surrogateescape")
