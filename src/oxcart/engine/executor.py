"""Runs handlers: a number of slots, each a task that takes one job after another.

A slot is a long-lived task, because a task per job costs more than a short job. One slot runs jobs that end
without waiting one after another. A second slot is woken beside it, so that a job that waits never delays the
next. A slot whose job changed its context (a context variable, a pending cancellation) is replaced, so that
nothing leaks from job to job.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from msgspec import UNSET

from oxcart.broker.port import Outcome
from oxcart.engine.batch_handler import BatchHandler
from oxcart.engine.batches import Batches
from oxcart.engine.deadlines import Deadlines
from oxcart.engine.handler import Handler
from oxcart.engine.injection import Injector
from oxcart.engine.processes import HandlerCrashed, HandlerProcesses
from oxcart.engine.running import Place, RunningJob, current_place
from oxcart.engine.steps import Suspended, suspension_of
from oxcart.engine.sync_running import HandlerStopped, SyncRunningJob, ThreadLink
from oxcart.engine.tracing import run_span
from oxcart.engine.verdict import Verdict
from oxcart.model.failure import Category, JobCancelled

log = logging.getLogger("oxcart.worker")

Call = Callable[[RunningJob], Awaitable[Any]]
Middleware = Callable[[RunningJob, Call], Awaitable[Any]]

TIMED_OUT = "timeout"
LEASE_LOST = "lease lost"
SHUTDOWN = "shutdown"
CANCELLED = "cancelled"
EXPIRED = "lifetime over"

#: Reasons that end an attempt whatever its handler does.
_ENDING = (TIMED_OUT, CANCELLED, EXPIRED)

#: Seconds that cancelled handlers have to end when the worker closes.
CLOSING = 1.0


class AttemptTimeout(TimeoutError):
    """An attempt exceeded its timeout."""


class Executor:
    """The slots of a worker.

    Args:
        concurrency: How many handlers run at once.
        verdict: Decides the outcome of an attempt.
        done: Receives every ended attempt and its outcome.
        middleware: Wraps every handler call, the first outermost.
        timeout: Seconds that an attempt may take if neither job nor handler has a timeout; None for no limit.
        processes: Runs handlers that want a process of their own.
        injector: Opens the dependencies of handlers.
        is_traced: Whether jobs may have spans, within which their handlers run.
    """

    def __init__(
        self,
        concurrency: int,
        verdict: Verdict,
        done: Callable[[RunningJob, Outcome], None],
        *,
        middleware: tuple[Middleware, ...] = (),
        timeout: float | None = 1800.0,
        processes: HandlerProcesses,
        injector: Injector | None = None,
        is_traced: bool = False,
    ) -> None:
        self.concurrency = concurrency
        self._verdict = verdict
        self._done = done
        self._middleware = middleware
        self._is_traced = is_traced
        self._timeout = timeout
        self._processes = processes
        self._injector = injector or Injector()
        self._batches = Batches(concurrency, self._call_batch)
        self._backlog: deque[RunningJob] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._slots: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._closing = False
        self._emptied: asyncio.Event | None = None
        self.running: set[RunningJob] = set()
        self.deadlines = Deadlines(self.running, self._expire)

    @property
    def load(self) -> int:
        """How many jobs run or wait for a slot."""
        return len(self.running) + len(self._backlog)

    def give(self, jobs: list[RunningJob]) -> None:
        """Runs jobs; the caller passes at most as many as there are free slots."""
        self._backlog.extend(jobs)
        self._wake()

    def take_back(self) -> list[RunningJob]:
        """Removes and returns the jobs that have not started."""
        jobs = list(self._backlog)
        self._backlog.clear()
        return jobs

    def stop(self, job: RunningJob, reason: str) -> None:
        """Asks a running attempt to stop, and cancels it if that is possible."""
        job.cancel(reason)
        if job.stop is not None:
            job.stop()

    def cancel(self, job: RunningJob, text: str, force: bool) -> None:
        """Ends an attempt whose job was cancelled; a thread is only asked to stop, unless by force."""
        job.cancel_text = text
        job.cancel(CANCELLED)
        in_thread = job.handler is not None and job.handler.kind == "thread"
        if job.stop is not None and (force or not in_thread):
            job.stop()

    async def idle(self, timeout: float) -> None:
        """Waits until no job runs, for so many seconds at most."""
        self._emptied = asyncio.Event()
        if self.running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._emptied.wait()

    def hurry(self) -> None:
        """Ends the wait of ``idle`` now."""
        if self._emptied is not None:
            self._emptied.set()

    async def close(self) -> None:
        """Ends all slots and cancels their jobs."""
        self._closing = True
        self.deadlines.close()
        slots = list(self._slots)
        for slot in slots:
            slot.cancel()
        if slots:
            # A handler that ignores cancellation must not keep the worker from stopping.
            _, deaf = await asyncio.wait(slots, timeout=CLOSING)
            if deaf:
                named = ", ".join(sorted(job.id for job in self.running)[:10])
                log.error("%d handlers ignored cancellation and were abandoned: job %s", len(deaf), named)
        self._batches.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()

    def _expire(self, job: RunningJob) -> None:
        self.stop(job, EXPIRED if job.limit_is_life else TIMED_OUT)

    def _shorten(self, job: RunningJob, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        if job.deadline is None or deadline < job.deadline:
            job.deadline, job.limit, job.limit_is_life = deadline, seconds, False
            self.deadlines.watch(deadline)

    def _wake(self) -> None:
        if self._waking or not self._backlog:
            return
        if self._idle:
            self._waking = True
            self._idle.pop().set_result(None)
        elif len(self._slots) < self.concurrency:
            self._waking = True
            self._start_slot()

    def _start_slot(self) -> None:
        # An empty context: handlers must not see context variables of the code that started the worker.
        task = asyncio.get_running_loop().create_task(
            self._slot(), name="oxcart-slot", context=contextvars.Context()
        )
        self._slots.add(task)
        task.add_done_callback(self._slot_ended)

    def _slot_ended(self, task: asyncio.Task[None]) -> None:
        self._slots.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a worker slot broke", exc_info=task.exception())
        if not self._closing:
            self._wake()

    async def _slot(self) -> None:
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        place = Place()
        current_place.set(place)
        clean = contextvars.copy_context()
        self._waking = False
        while True:
            while not self._backlog:
                free = loop.create_future()
                self._idle.append(free)
                try:
                    await free
                except asyncio.CancelledError:
                    if free in self._idle:
                        self._idle.remove(free)
                    else:
                        self._waking = False  # it was woken for nothing; wake another slot instead
                    raise
                self._waking = False
            job = self._backlog.popleft()
            if self._backlog and not self._waking:
                self._wake()
            place.job = job
            try:
                outcome = await self._attempt(job, me)
            except Exception as error:
                # Without an outcome its lease is renewed forever; if it were delayed, it would come back
                # forever.
                log.exception("could not decide the outcome of job %s", job.id, extra=job.log_fields())
                outcome = self._verdict.quarantined(job, f"{type(error).__name__}: {error}")
            place.job = None
            if outcome is not None:
                self._done(job, outcome)
            if self._closing:
                return
            if me.cancelling() or contextvars.copy_context() != clean:
                # The slot ends by itself, which wakes or starts another slot.
                return

    async def _attempt(self, job: RunningJob, me: asyncio.Task[None]) -> Outcome | None:
        """Runs one attempt; returns None if the slot itself is ending."""
        handler = job.handler
        assert handler is not None
        self.running.add(job)
        try:
            early = self._verdict.before_start(job)
            if early is not None:
                return early
            if job.cancel_reason == CANCELLED:
                return self._verdict.cancelled(job)
            if self._middleware and job.sealer is not None:
                _ = job.raw_data  # opens the payload: no layer sees a job whose payload is refused
            if job.limit is not None:
                job.deadline = me.get_loop().time() + job.limit
                self.deadlines.watch(job.deadline)
            job.stop = me.cancel
            job.shorten = self._shorten
            span = None
            if self._is_traced and (span := run_span(job)) is not None:
                token = span.enter()  # not a layer: a coroutine more per job is not free
            try:
                if self._middleware:
                    result = await self._through_middleware(job, handler)
                else:
                    result = await self._call(job, handler)
            except (Suspended, BaseExceptionGroup) as error:
                result = suspension_of(job, error)
            finally:
                if span is not None:
                    span.leave(token)
                job.stop = None
                job.deadline = None
            if job.cancel_reason in _ENDING:
                # The handler finished at the moment of its deadline; its result stands.
                while me.cancelling():
                    me.uncancel()
                if job.cancel_reason == CANCELLED and self._verdict.goes_on(result):
                    return self._verdict.cancelled(job)
            return self._verdict.of_result(job, result)
        except asyncio.CancelledError as error:
            if job.cancel_reason is None:
                if self._closing:
                    raise
                # A cancellation that the handler itself caused: an error like any other.
                return self._verdict.of_error(job, error, Category.TEMPORARY)
            while me.cancelling():
                me.uncancel()
            return self._stopped(job, error)
        except Exception as error:
            if job.cancel_reason is not None and isinstance(error, HandlerStopped | JobCancelled):
                return self._stopped(job, error)
            if job.cancel_reason in _ENDING:
                # An exception of a stopped handler, for example of its clean-up, is not why it ended.
                while me.cancelling():
                    me.uncancel()
                return self._stopped(job, error)
            return self._verdict.of_error(
                job, error, Category.SYSTEM if isinstance(error, HandlerCrashed) else None
            )
        except BaseException as error:
            # Of any kind: an attempt without an outcome would keep its lease forever.
            if job.cancel_reason in _ENDING:
                return self._stopped(job, error)
            ends = isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit))
            return self._verdict.of_error(job, error, Category.SYSTEM if ends else None)
        finally:
            self.running.discard(job)
            if self._emptied is not None and not self.running:
                self._emptied.set()

    def _stopped(self, job: RunningJob, error: BaseException) -> Outcome:
        if job.cancel_reason == TIMED_OUT:
            limit = job.limit
            late = AttemptTimeout(
                f"the attempt took longer than {limit:g} s" if limit else "the attempt took too long"
            )
            late.__cause__ = error
            return self._verdict.of_error(job, late, Category.TIMEOUT)
        if job.cancel_reason == CANCELLED:
            return self._verdict.cancelled(job, error)
        if job.cancel_reason == EXPIRED:
            return self._verdict.expired(job, error)
        return self._verdict.given_back(job)

    def limit_of(self, job: RunningJob) -> float | None:
        """Returns the seconds that an attempt of this job may take.

        The job's timeout applies, else the worker's. A handler's timeout may shorten it, never extend it. No
        attempt outlives its job's lifetime.
        """
        claim = job.claim
        asked = claim.options.timeout
        limit = self._timeout if asked is UNSET else None if asked is None else asked / 1000
        least = job.handler.options.timeout if job.handler else None
        if isinstance(least, int) and (limit is None or least / 1000 < limit):
            limit = least / 1000
        if claim.expires_ms is None:
            return limit
        life = self._verdict.life_left(job)
        if life is not None and (limit is None or life / 1000 < limit):
            job.limit_is_life = True
            return life / 1000
        return limit

    def _call(self, job: RunningJob, handler: Handler) -> Awaitable[Any]:
        """Calls the handler; not a coroutine of its own, because one more per job is not free."""
        arguments = handler.arguments(job.raw_data)
        if handler.batch is not None:
            return self._batches.run(job, handler, arguments.get("item"))
        if handler.kind == "async":
            if handler.takes_job is not None:
                arguments[handler.takes_job] = job
            if handler.needs:
                return self._with_needs(job, handler, arguments)
            called: Awaitable[Any] = handler.function(**arguments)
            return called
        if handler.kind == "thread":
            return self._in_thread(job, handler, arguments)
        return self._processes.run(job, handler, arguments)

    async def _with_needs(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        async with self._injector.job(handler.needs, job) as opened:
            try:
                return await handler.function(**arguments, **opened)
            except (Suspended, BaseExceptionGroup) as error:
                # For its dependencies a suspended handler has returned.
                return suspension_of(job, error)

    async def _through_middleware(self, job: RunningJob, handler: Handler) -> Any:
        async def innermost(job: RunningJob) -> Any:
            try:
                return await self._call(job, handler)
            except (Suspended, BaseExceptionGroup) as error:
                return suspension_of(job, error)  # for the layers a suspended handler has returned

        call: Call = innermost
        for layer in reversed(self._middleware):
            call = _layer(layer, call)
        return await call(job)

    async def _call_batch(self, handler: Handler, items: list[Any], jobs: list[RunningJob]) -> Any:
        assert isinstance(handler, BatchHandler)
        if (span := run_span(jobs[0])) is not None:
            with span.batch(jobs):
                return await self._call_items(handler, items, jobs)
        return await self._call_items(handler, items, jobs)

    async def _call_items(self, handler: BatchHandler, items: list[Any], jobs: list[RunningJob]) -> Any:
        arguments: dict[str, Any] = {} if handler.takes_items is None else {handler.takes_items: items}
        if handler.kind == "thread":
            return await self._batch_in_thread(handler, arguments, jobs)
        if handler.takes_jobs is not None:
            arguments[handler.takes_jobs] = jobs
        async with self._injector.job(handler.needs, jobs[0]) as opened:
            return await handler.function(**arguments, **opened)

    async def _batch_in_thread(
        self, handler: BatchHandler, arguments: dict[str, Any], jobs: list[RunningJob]
    ) -> Any:
        loop = asyncio.get_running_loop()
        if handler.takes_jobs is not None:
            arguments[handler.takes_jobs] = [SyncRunningJob(job, ThreadLink(job, loop)) for job in jobs]
        opening = self._injector.job_in_thread(handler.needs, jobs[0], loop) if handler.needs else None
        context = contextvars.copy_context()
        return await loop.run_in_executor(
            self._pool(), lambda: context.run(_call_in_thread, handler, arguments, opening)
        )

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            # More than slots, because an abandoned thread still occupies one.
            self._threads = ThreadPoolExecutor(self.concurrency + 1000, thread_name_prefix="oxcart-job")
        return self._threads

    async def _in_thread(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        if job.cancel_reason in (TIMED_OUT, SHUTDOWN, CANCELLED, EXPIRED):
            raise HandlerStopped("the attempt was stopped before its handler began")
        loop = asyncio.get_running_loop()
        place = Place()
        place.job = face = SyncRunningJob(job, ThreadLink(job, loop))
        if handler.takes_job is not None:
            arguments[handler.takes_job] = face
        context = contextvars.copy_context()
        context.run(current_place.set, place)
        opening = self._injector.job_in_thread(handler.needs, job, loop) if handler.needs else None
        work = loop.run_in_executor(
            self._pool(), lambda: context.run(_call_in_thread, handler, arguments, opening, job)
        )
        abandoned = loop.create_future()

        def abandon() -> None:
            if not abandoned.done() and not work.done():
                abandoned.set_result(None)

        before, job.stop = job.stop, abandon
        try:
            await asyncio.wait((work, abandoned), return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.stop = before  # for the layers around the handler
            if not work.done() or abandoned.done():
                # A thread cannot be stopped. Its result is dropped.
                work.add_done_callback(lambda late: late.cancelled() or late.exception())
        if not abandoned.done():
            return work.result()
        # Also if it has ended since: it may have stopped on request, with half of its work done.
        raise HandlerStopped("the handler's thread was asked to stop and abandoned")


def _call_in_thread(
    handler: Handler,
    arguments: dict[str, Any],
    opening: AbstractContextManager[dict[str, Any]] | None,
    job: RunningJob | None = None,
) -> Any:
    try:
        if opening is not None:
            with opening as opened:
                try:
                    return handler.function(**arguments, **opened)
                except Suspended as error:
                    if job is None:
                        raise
                    return suspension_of(job, error)
        return handler.function(**arguments)
    except StopIteration as error:
        # A future cannot carry it: the attempt would never end.
        raise RuntimeError("the handler raised StopIteration") from error


def _layer(layer: Middleware, inner: Call) -> Call:
    async def call(job: RunningJob) -> Any:
        return await layer(job, inner)

    return call
