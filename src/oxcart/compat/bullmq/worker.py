"""A worker as in PyPI's package: runs ``process(job, token)`` for every job of a queue.

Our engine claims, renews and finishes the jobs; this module translates between its words and theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from msgspec import UNSET

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.clock import now_ms
from oxcart.broker.port import Ask, Code, Outcome, OutcomeKind
from oxcart.broker.stored import count_of
from oxcart.broker.waiting import BlockingPop
from oxcart.compat.bullmq.abort_controller import AbortController
from oxcart.compat.bullmq.custom_errors import (
    DelayedError,
    RateLimitError,
    UnrecoverableError,
    WaitingChildrenError,
    WaitingError,
)
from oxcart.compat.bullmq.job import Job
from oxcart.compat.bullmq.job_scheduler import JobScheduler
from oxcart.compat.bullmq.lock_manager import LockManager
from oxcart.compat.bullmq.queue import QueueBase
from oxcart.compat.bullmq.record import dumps, next_of
from oxcart.compat.bullmq.refusals import refusal
from oxcart.compat.bullmq.retries import OnlyUnrecoverable, Strategies
from oxcart.compat.bullmq.store import store_of
from oxcart.engine.running import RunningJob, current_job
from oxcart.engine.verdict import Verdict
from oxcart.engine.worker import Worker as OxcartWorker
from oxcart.model.errors import BrokerError, BrokerUnavailable, NeverConnected, ReplyCode, ValidationError
from oxcart.model.failure import RateLimited
from oxcart.model.outcome import Snooze
from oxcart.model.retention import KEEP, Retention

Processor = Callable[..., Any]

#: How long a closed worker waits for running jobs: as long as they take.
FOR_EVER = "365d"

_FAILED = (OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.DELAY)

_DEFAULTS = {
    "drainDelay": 5,
    "concurrency": 1,
    "lockDuration": 30000,
    "maxStalledCount": 1,
    "stalledInterval": 30000,
    "runRetryDelay": 15000,
}
# PyPI's package logs nothing about failed jobs. Neither do we if logging is not configured: a logger without
# any handler would write to stderr. Handlers that a program has configured still receive every line.
logging.getLogger("oxcart.worker.failures").addHandler(logging.NullHandler())

#: Errors of processors whose job does not end with their return value or exception.
_MOVED = (DelayedError, WaitingChildrenError, WaitingError)


class Worker(QueueBase):
    """Runs the jobs of a queue.

    Events: ``active`` (job, "waiting"), ``completed`` (job, result), ``failed`` (job, error), ``stalled``
    (job id), ``paused``, ``resumed``, ``closed``, ``locksRenewed``, ``lockRenewalFailed``, ``error``.

    Args:
        name: The queue.
        processor: ``async def process(job, token)``, or with a third parameter that receives an
            ``AbortSignal``. None for a worker from which a program takes jobs itself.
        opts: As in ``types.WorkerOptions``.
    """

    def __init__(
        self, name: str, processor: Processor | None = None, opts: Mapping[str, Any] | None = None
    ) -> None:
        given = dict(opts or {})
        super().__init__(name, given)
        self.processor = processor
        self.opts: dict[str, Any] = {**_DEFAULTS, **given}
        self.opts.setdefault("lockRenewTime", self.opts["lockDuration"] // 2)
        self.id = uuid4().hex
        self.workerName: str | None = given.get("name")
        self.closing = self.forceClosing = self.closed = self.drained = False
        self.blockUntil = self.limitUntil = 0
        self._wants_signal = takes_signal(processor)
        self._current: dict[RunningJob, Job] = {}
        self._ends: dict[RunningJob, asyncio.Future[None]] = {}
        self._task: asyncio.Future[Any] | None = None
        self._held_until = 0
        self._job_scheduler: JobScheduler | None = None
        self.lockManager = LockManager(
            self, self.opts["lockRenewTime"], self.opts["lockDuration"], self.id, self.workerName
        )
        strategies = Strategies(self.opts.get("settings"), self._judged)
        classifier = OnlyUnrecoverable(find=self._judged)
        self.judge = Verdict(
            rand=random.random,
            classifier=classifier,
            strategies=strategies,
            # PyPI's worker keeps every job unless it has a bound; the queue's retention is Oxcart's own.
            remove_on_complete=Retention.parse(self.opts.get("removeOnComplete"), "removeOnComplete") or KEEP,
            remove_on_fail=Retention.parse(self.opts.get("removeOnFail"), "removeOnFail") or KEEP,
        )
        limiter = self.opts.get("limiter")
        self.inner.fallback(self._process)
        self._worker = OxcartWorker(
            self.inner,
            concurrency=self.opts["concurrency"],
            name=self.workerName,
            lock_duration=f"{self.opts['lockDuration']}ms",
            renew_every=f"{max(10, self.opts['lockRenewTime'])}ms",
            stalled_interval=f"{self.opts['stalledInterval']}ms",
            max_stalled=self.opts["maxStalledCount"],
            timeout=None,
            shutdown_timeout=FOR_EVER,
            limiter=None if not limiter else (limiter["max"], f"{limiter['duration']}ms"),
            classifier=classifier,
            strategies=strategies,
            remove_on_complete=_or_all(self.opts.get("removeOnComplete")),
            remove_on_fail=_or_all(self.opts.get("removeOnFail")),
            recover=not self.opts.get("skipStalledCheck"),
            schedules=False,
            max_started=self.opts.get("maxStartedAttempts", UNSET),
            metrics=(self.opts.get("metrics") or {}).get("maxDataPoints", 0),
            observer=_EngineEvents(self),
        )
        if processor is not None and self.opts.get("autorun", True):
            self._task = asyncio.ensure_future(self._run_by_itself())

    # -- start and stop

    @property
    def running(self) -> bool:
        """Whether it claims jobs."""
        return self._task is not None and not self._task.done() and not self.closed

    @property
    def paused(self) -> bool:
        """Whether it claims no jobs until ``resume``."""
        return self._worker.is_paused

    @property
    def jobs(self) -> set[tuple[Job, str]]:
        """The jobs that it runs, with their tokens."""
        return {(job, running.token) for running, job in self._current.items()}

    @property
    def processing(self) -> set[asyncio.Future[None]]:
        """One future per running job, done when the job's attempt has ended."""
        for running in self._current:
            if running not in self._ends:
                self._ends[running] = asyncio.get_running_loop().create_future()
        return set(self._ends.values())

    @property
    def clientName(self) -> str:
        """The name of its connections on the server, by which ``get_workers`` finds it."""
        return self._keys.client_name(f":w:{self.workerName}" if self.workerName else "")

    async def run(self) -> None:
        """Runs until closed.

        Raises:
            Exception: It already runs.
        """
        if self.running and self._task is not asyncio.current_task():
            raise Exception("Worker is already running")
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._worker.run())
            await asyncio.shield(self._task)
        else:
            await self._worker.run()

    async def _run_by_itself(self) -> None:
        try:
            await self._worker.run()
        except Exception as error:
            self._emit_safely("error", error)

    async def close(self, force: bool = False) -> None:
        """Claims no more jobs, waits for running ones, and closes the connections.

        Args:
            force: Do not wait: running jobs are stopped and returned to the queue for another worker. With
                the worker's option ``stallOnForceClose`` they stay active until another worker's stalled
                check.
        """
        self.closing = True
        if force:
            self.forceClosing = True
            self.lockManager.cancel_all_jobs("worker force-closed")
        ending = asyncio.ensure_future(self._end(force))
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                if ending.cancelled():
                    break
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        ending.result()

    async def _end(self, force: bool) -> None:
        task = self._task
        if task is not None and not task.done():
            if not self._worker.started.is_set():  # it was started in this very turn of the loop
                await asyncio.sleep(0)
            self._worker.stop(now=force, abandon=bool(self.opts.get("stallOnForceClose")))
            with contextlib.suppress(Exception):
                await task
        await self.lockManager.close()
        await self._close()
        if not self.closed:
            self.closed = True
            self._emit_safely("closed")

    async def pause(self, do_not_wait_active: bool = False) -> None:
        """Claims no more jobs until ``resume``; returns when running jobs have ended."""
        await self._worker.pause(wait=not do_not_wait_active)
        self._emit_safely("paused")

    def resume(self) -> None:
        """Claims jobs again after ``pause``."""
        if self.paused:
            self._worker.resume()
            self._emit_safely("resumed")

    def isPaused(self) -> bool:
        """Returns whether it claims no jobs until ``resume``; as in Node."""
        return self.paused

    def isRunning(self) -> bool:
        """Returns whether it claims jobs; as in Node."""
        return self.running

    def cancelProcessing(self) -> None:
        """Stops running jobs and returns them to the queue, for this or another worker."""
        for running in list(self._current):
            running.cancel("cancelProcessing")
            if running.stop is not None:
                running.stop()

    def cancelJob(self, job_id: str, reason: str | None = None) -> bool:
        """Asks a job's processor to stop; returns False if it takes no signal."""
        return self.lockManager.cancel_job(job_id, reason)

    def cancelAllJobs(self, reason: str | None = None) -> None:
        """Asks all processors to stop that take a signal."""
        self.lockManager.cancel_all_jobs(reason)

    async def rateLimit(self, expire_time_ms: int) -> None:
        """Blocks all starts for so many ms; a processor raises ``RateLimitError`` next. As in Node."""
        self._held_until = now_ms() + expire_time_ms
        await self.inner.limits.hold(f"{expire_time_ms}ms")

    @property
    def jobScheduler(self) -> JobScheduler:
        """The schedulers of the queue."""
        if self._job_scheduler is None:
            self._job_scheduler = JobScheduler(self)
        return self._job_scheduler

    # -- called by our engine

    async def _process(self, job: RunningJob) -> Any:
        mine = self._current.get(job)
        if mine is None:
            mine = self._started(job)
        assert self.processor is not None
        try:
            if self._wants_signal:
                controller = self.lockManager.hold(job, True)
                assert controller is not None
                result = self.processor(mine, job.token, controller.signal)
            else:
                result = self.processor(mine, job.token)
            if inspect.isawaitable(result):
                result = await result
            stored = None if result is None else dumps(result, "return value")
        except _MOVED:
            # Without a target state: as long as PyPI's package leaves such a job alone.
            return mine._ending or Snooze(f"{self.opts['stalledInterval']}ms")
        except RateLimitError:
            return await self._limited()
        except Exception as error:
            mine._error = error
            raise
        mine.returnvalue = result
        return stored

    async def _limited(self) -> RateLimited:
        left = self._held_until - now_ms()
        if left <= 0:
            left = await store_of(self).limits.ttl_ms()
        return RateLimited(f"{max(1, left)}ms", "RateLimitError")

    def _started(self, running: RunningJob) -> Job:
        job = self._current[running] = Job._claimed(self, running, managed=True)
        return job

    def _judged(self) -> Job | None:
        running = current_job()
        return self._current.get(running) if isinstance(running, RunningJob) else None

    # -- for programs without a processor

    async def getNextJob(self, token: str) -> Job | None:
        """Claims a job, for programs without a processor; returns None if there is none.

        The first call that finds nothing returns at once; later calls wait, for ``drainDelay`` seconds at
        most.
        """
        if self.drained:
            self.blockUntil = await self.waitForJob()
            if self.blockUntil > now_ms():
                return None
        job = await self.moveToActive(token)
        if job is not None:
            self._emit_safely("active", job, "waiting")
        return job

    async def moveToActive(self, token: str) -> Job | None:
        """Claims a job if one is ready, under the caller's own lock."""
        limiter = self.opts.get("limiter") or {}
        claimed = await self.by_hand(token).claim(
            Ask(
                count=1,
                lock_ms=self.opts["lockDuration"],
                worker=self.workerName or "",
                limit_max=limiter.get("max"),
                limit_duration=limiter.get("duration"),
            )
        )
        fields, job_id, limited, due = next_of(claimed)
        return await self.nextJobFromJobData(fields, job_id, limited, due, token)

    async def nextJobFromJobData(
        self,
        job_data: Mapping[str, str] | None = None,
        job_id: str | None = None,
        limit_until: int | None = 0,
        delay_until: int | None = 0,
        token: str | None = None,
    ) -> Job | None:
        """Returns the job of a claim; makes the next run of its scheduler first."""
        self.limitUntil = max(limit_until or 0, 0)
        if not job_data or job_id is None:
            self.drained = True
            self.blockUntil = max(delay_until or 0, 0)
            return None
        self.drained = False
        fields = {name.encode(): value.encode() for name, value in job_data.items()}
        claim = BullMQClaim(job_id, token or "", count_of(fields.get(b"ats")) or -1, now_ms(), fields)
        job = Job._claimed(self, RunningJob(self.inner._core.broker, claim, self.id, None), managed=False)
        if claim.advances_schedule:
            store = store_of(self).schedules
            (made,) = await store.advance([claim])
            if isinstance(made, Exception):
                text = f"Failed to add repeatable job for next iteration: {made}"
                self._emit_safely("error", RuntimeError(text))
        return job

    async def waitForJob(self) -> int:
        """Waits until there may be a job; returns when, in ms, or 0 if that is unknown."""
        seconds = self.getBlockTimeout(self.blockUntil)
        pop = BlockingPop(self.inner._core.server, self.inner._core.broker.slot, self.clientName)
        try:
            popped = await pop.pop([self.keys["marker"]], seconds)
        finally:
            await pop.close()
        return int(float(popped.score)) if popped else 0

    def getBlockTimeout(self, block_until: int) -> float:
        """Returns for how many seconds to wait for a job, if the next delayed one is due at a time."""
        if not block_until:
            return max(float(self.opts["drainDelay"]), self.minimumBlockTimeout)
        left = (block_until - now_ms()) / 1000
        return min(max(left, self.minimumBlockTimeout), self.maximumBlockTimeout)

    @property
    def minimumBlockTimeout(self) -> float:
        """The shortest wait in seconds."""
        return 0.001

    @property
    def maximumBlockTimeout(self) -> float:
        """The longest wait in seconds."""
        return 10

    async def processJob(self, job: Job, token: str) -> None:
        """Runs the processor for a job that a program claimed itself, and finishes it."""
        controller: AbortController | None = None
        try:
            controller = self.lockManager.track_job(job._id, token, now_ms(), self._wants_signal)
            if job.deferredFailure:
                raise UnrecoverableError(job.deferredFailure)
            if self.processor is None:
                raise ValidationError("processor", "given", None)
            arguments = (job, token) if controller is None else (job, token, controller.signal)
            result = self.processor(*arguments)
            if inspect.isawaitable(result):
                result = await result
            await job.moveToCompleted(result, token)
            self._emit_safely("completed", job, result)
        except _MOVED:
            return
        except Exception as error:
            try:
                await job.moveToFailed(error, token)
                self._emit_safely("failed", job, error)
            except Exception as another:
                self._emit_safely("error", another, job)
        finally:
            self.lockManager.untrack_job(job._id)

    async def extendLocks(self) -> None:
        """Renews the locks of all running jobs now; our engine does so by itself."""
        await self.lockManager.extend()

    async def runStalledJobsCheck(self) -> None:
        """Recovers jobs of lost workers, if it is time; our engine does so by itself."""
        try:
            found = await self.inner._core.broker.recover(
                max_stalled=self.opts["maxStalledCount"], interval_ms=self.opts["stalledInterval"]
            )
        except Exception as error:
            self._emit_safely("error", error)
        else:
            for job_id in found.ids:
                self._emit_safely("stalled", job_id)

    async def retryIfFailed(
        self, fn: Callable[[], Awaitable[Any]], opts: Mapping[str, Any] | None = None
    ) -> Any:
        """Repeats a call while the server is away.

        Args:
            fn: The call.
            opts: ``delay_in_ms`` between attempts, ``max_retries``, and ``only_emit_error`` to raise only
                errors of the connection.
        """
        opts = opts or {}
        most, attempt = opts.get("max_retries", float("inf")), 0
        while attempt < most:
            try:
                return await fn()
            except Exception as error:
                if not self.isConnectionError(error):
                    if not (self.paused or self.closing):
                        self._emit_safely("error", error)
                    if opts.get("only_emit_error"):
                        await asyncio.sleep(0 if self.closing else 0.1)
                        return None
                    raise
                attempt += 1
                if attempt >= most:
                    raise
                await asyncio.sleep(0 if self.closing else opts.get("delay_in_ms", 15000) / 1000)
        return None

    def isConnectionError(self, error: Exception) -> bool:
        """Returns whether an error means that the server is away for now."""
        if isinstance(error, BrokerError):
            return isinstance(error, BrokerUnavailable | NeverConnected)
        if isinstance(error, ConnectionError | TimeoutError):
            return True
        kinds = {kind.__name__ for kind in type(error).__mro__}  # redis-py's, if the program uses it
        if kinds & {"ConnectionError", "TimeoutError", "BusyLoadingError"}:
            return True
        words = ("Connect", "refused", "reset", "unreachable", "No route", "Broken pipe", "ECONN", "EPIPE")
        return isinstance(error, OSError) and any(word in str(error) for word in words)


class _EngineEvents:
    """Emits what happens in our engine as events of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def job_started(self, job: RunningJob) -> None:
        """A processor is about to run."""
        mine = self._worker._started(job)
        if "active" in self._worker._listeners:
            self._worker._emit_safely("active", mine, "waiting")

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended."""
        worker = self._worker
        mine = worker._current.pop(job, None)
        if worker._ends and (end := worker._ends.pop(job, None)) is not None and not end.done():
            end.set_result(None)
        if worker._wants_signal:
            worker.lockManager.untrack_job(job.id)
        if mine is None:
            mine = Job._claimed(worker, job, managed=True)
        if code != ReplyCode.DONE:
            refused = refusal(code if isinstance(code, int) else None, "moveToFinished", job.id, "active")
            worker._emit_safely("error", refused, mine)
        elif outcome.kind == OutcomeKind.COMPLETED:
            mine.attemptsMade = job.attempts_made + 1
            mine.finishedOn = outcome.at_ms
            worker._emit_safely("completed", mine, mine.returnvalue)
        elif outcome.kind in _FAILED and (outcome.counts or outcome.kind != OutcomeKind.DELAY):
            reason = outcome.value.decode("utf-8", "replace")
            error = mine._error or UnrecoverableError(reason)
            mine.attemptsMade = job.attempts_made + 1
            mine.failedReason = reason
            if outcome.kind == OutcomeKind.FAILED:
                mine.finishedOn = outcome.at_ms
            elif outcome.delay_ms:
                mine.delay = outcome.delay_ms
            worker._emit_safely("failed", mine, error)

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Jobs were recovered from lost workers."""
        for job_id in job_ids:
            self._worker._emit_safely("stalled", job_id)

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""
        ids = [job.id for job in list(self._worker._current)]
        self._worker._emit_safely("locksRenewed", {"count": leases, "jobIds": ids})

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""
        lost = [job.id for job in list(self._worker._current) if job.is_cancelled]
        self._worker.lockManager.emit_failed(lost)

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call ended attempts and claimed jobs."""

    def scripted(self, verb: str, seconds: float) -> None:
        """A script was answered."""

    def check_skipped(self, queue: str) -> None:
        """A stalled check was skipped."""

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""

    def connection(self, up: bool) -> None:
        """The server can be reached, or not."""

    def workers(self, change: int) -> None:
        """The worker started or ended."""


def takes_signal(processor: Processor | None) -> bool:
    """Returns whether a processor has a third parameter, or takes any number of them."""
    if processor is None:
        return False
    try:
        parameters = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters) >= 3


def _or_all(retention: Any) -> Any:
    """Returns a retention as a worker takes it; without one every job is kept."""
    return False if retention is None else retention
