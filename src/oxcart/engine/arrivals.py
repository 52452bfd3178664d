"""Claimed jobs until a handler runs them: decoding, refusals, and the next runs of their schedules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from oxcart.broker.port import Claimed
from oxcart.engine.claims import Claims
from oxcart.engine.executor import Executor
from oxcart.engine.leases import Leases
from oxcart.engine.listeners import Listeners
from oxcart.engine.observer import Observer
from oxcart.engine.running import RunningJob
from oxcart.engine.runs import ClaimedRuns
from oxcart.engine.source import Source
from oxcart.engine.spans import WorkerSpans
from oxcart.engine.station import Station
from oxcart.engine.suspects import Suspects
from oxcart.engine.unknown import UnknownNames
from oxcart.engine.verdict import Verdict

log = logging.getLogger("oxcart.worker")


class Arrivals:
    """The claimed jobs of one worker that no handler runs yet.

    Args:
        worker_id: The worker's id.
        state: The value of its lifespan.
        sources: Its queues with their handlers, by their numbers.
        concurrency: How many jobs it may have at once.
        lock_ms: How long a lease lasts.
        executor: Receives the jobs that a handler can run.
        claims: Receives the outcomes of the others.
        leases: Renews the leases of all of them.
        verdict: Makes outcomes.
        listeners: Listen for requests to cancel them.
        spans: Traces them; None without tracing.
        observer: Is notified of starts.
        stopping: Set once the worker begins no more jobs.
        eased: Called when the worker has a job less without an outcome.
        broken: Receives a task that has ended; its error ends the worker.
    """

    def __init__(
        self,
        worker_id: str,
        state: Any,
        sources: Mapping[int, Source],
        *,
        concurrency: int,
        lock_ms: int,
        executor: Executor,
        claims: Claims,
        leases: Leases,
        verdict: Verdict,
        listeners: Listeners,
        spans: WorkerSpans | None,
        observer: Observer | None,
        stopping: asyncio.Event,
        eased: Callable[[], None],
        broken: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._worker_id = worker_id
        self._state = state
        self._sources = sources
        self._executor = executor
        self._claims = claims
        self._leases = leases
        self._verdict = verdict
        self._listeners = listeners
        self._spans = spans
        self._observer = observer
        self._stopping = stopping
        self._eased = eased
        self._unknown = UnknownNames(verdict)
        self._runs = ClaimedRuns(
            ready=self._dispatch,
            delay=self._delay_run,
        )
        self.suspects = Suspects(
            concurrency,
            lock_ms / 1000,
            busy=lambda: executor.load + self._runs.load + claims.asked_for,
            drained=claims.drained,
            start=self._start_suspect,
            give_back=self._give_back,
            gone=self._suspect_gone,
            ended=broken,
        )

    @property
    def load(self) -> int:
        """How many slots the jobs take that wait for the next runs of their schedules, or to be isolated."""
        return self._runs.load + self.suspects.load

    @property
    def held(self) -> int:
        """How many jobs wait."""
        return self._runs.load + self.suspects.held

    def take(self, station: Station, claimed: Claimed, began: float) -> None:
        """Takes the jobs of a claim.

        Args:
            station: Where they come from.
            claimed: The reply.
            began: When the call began (`time.perf_counter`).
        """
        if (url := station.broker.known_url) is not None:  # by now it may name more nodes than at the start
            self._leases.find_at(station.root.index, url)
        handlers = self._sources[station.root.index].handlers
        jobs, timeouts, runs = [], [], []
        for claim in claimed.jobs:
            job = RunningJob(station.broker, claim, self._worker_id, self._state)
            job.station = station
            try:
                job.fault = claim.fault
                if not job.fault:
                    job.handler = handlers.find(claim.name)
                    job.limit = self._executor.limit_of(job)
                    # A job that its policy ends unrun needs no isolation.
                    if claimed.suspects and job.handler and self._verdict.before_start(job) is None:
                        self.suspects.suspect(job)
            except Exception as error:  # a malformed job must not end this worker, and then the next
                log.exception("queue %s: could not decode job %s", job.queue, job.id, extra=job.facts())
                job.fault = f"{type(error).__name__}: {error}"
            jobs.append(job)
            timeouts.append(None if job in self.suspects.known else job.limit)  # a suspect may wait
            if claim.advances_schedule:
                runs.append(job)
        if self._stopping.is_set() or self.suspects.has_lone:
            # The claim was in flight when the worker was stopped, or hung when a job began to run alone.
            self._give_back(jobs)
            return
        if self._spans is not None:
            self._spans.claimed(station, jobs, began)
        # Before any handler runs: a handler may block this process forever.
        self._leases.hold(station.index, jobs, timeouts)
        self._listeners.jobs_run()
        if runs:
            self._runs.take(station, runs)
            jobs = [job for job in jobs if job not in runs]
        self._dispatch(station, jobs)

    def cancel(self, job: RunningJob, text: str, force: bool) -> None:
        """Ends a job that was cancelled, whether it runs or waits."""
        self._executor.cancel(job, text, force)
        if self.suspects.withdraw(job):
            self._claims.submit(job.station, job, self._verdict.cancelled(job))

    def lose(self, job: RunningJob) -> None:
        """Drops a job that waits and has lost its lease."""
        if self.suspects.withdraw(job):
            self._suspect_gone(job)

    def give_back(self) -> None:
        """Returns the jobs that wait to their queues."""
        self._give_back(self._runs.take_back() + self.suspects.take_back())

    def _give_back(self, jobs: list[RunningJob]) -> None:
        for job in jobs:
            self.suspects.left(job)
            self._claims.submit(job.station, job, self._verdict.given_back(job))

    def _dispatch(self, station: Station, jobs: list[RunningJob]) -> None:
        ready, suspects = [], self.suspects.known
        for job in jobs:
            if job.fault:
                self._claims.submit(station, job, self._verdict.quarantined(job, job.fault))
            elif job.handler is None:
                self._claims.submit(station, job, self._unknown.outcome_of(job, station.broker.queue))
            elif suspects and job in suspects:
                self.suspects.take(job)
            else:
                ready.append(job)
        self._start(ready)

    def _start(self, jobs: list[RunningJob]) -> None:
        if self._spans is not None or self._observer is not None:
            for job in jobs:
                if self._spans is not None:
                    self._spans.start(job.station, job)
                if self._observer is not None:
                    self._observer.job_started(job)
        self._executor.give(jobs)

    def _delay_run(self, station: Station, job: RunningJob, ms: int) -> None:
        self.suspects.left(job)
        self._claims.submit(station, job, self._verdict.snoozed(job, ms))

    def _start_suspect(self, job: RunningJob) -> None:
        job.limit = self._executor.limit_of(job)  # anew: its lifetime went on while it waited
        self._leases.hold(job.station.index, [job], [job.limit])
        self._start([job])

    def _suspect_gone(self, job: RunningJob) -> None:
        log.warning(
            "queue %s: the lease of job %s was lost before it started",
            job.queue,
            job.id,
            extra=job.log_fields(),
        )
        self._leases.let_go(job.station.index, [job.id])
        self._leases.drop(job.station.index, [job.id])
        self._eased()
        self._claims.wake(None)
