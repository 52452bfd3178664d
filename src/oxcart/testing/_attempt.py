"""One attempt of a job: the worker's own executor and verdict, in the test's thread.

A test therefore sees what a worker would do: categories, retries, timeouts, middleware, control values.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from oxcart.broker.port import ClaimedJob, Outcome
from oxcart.engine.batch_handler import BatchHandler
from oxcart.engine.batches import Batches
from oxcart.engine.executor import SHUTDOWN, Executor, Middleware
from oxcart.engine.handler import Handler
from oxcart.engine.injection import Injector
from oxcart.engine.processes import HandlerProcesses
from oxcart.engine.running import Place, RunningJob, current_place
from oxcart.engine.sync_running import SyncRunningJob, call_job
from oxcart.engine.verdict import Verdict
from oxcart.model.backoff import Strategy
from oxcart.model.errors import ValidationError
from oxcart.model.failure import Classifier

T = TypeVar("T")

WORKER = "inline"


class Settings:
    """How attempts run; the arguments are those of ``Worker``."""

    def __init__(
        self,
        *,
        state: Any = None,
        middleware: Sequence[Middleware] = (),
        timeout: float | None = None,
        classifier: Classifier | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        propagate: bool = False,
    ) -> None:
        self.state = state
        self.middleware = tuple(middleware)
        self.timeout = timeout
        self.verdict = _Verdict(rand=random.random, classifier=classifier, strategies=strategies)
        self.propagate = propagate


class InlineJob(RunningJob):
    """A job that runs in the test."""

    __slots__ = ()
    skips_waits = True

    def __init__(self, broker: Any, claim: ClaimedJob, settings: Settings) -> None:
        super().__init__(broker, claim, WORKER, settings.state)

    async def call_plain(self, function: Callable[[], Any]) -> Any:
        """Calls a plain function of a step in the test's own thread."""
        return function()


class InlineLink:
    """Runs the calls of a plain function's job in the test's own thread.

    The broker in memory never waits, so a coroutine of the job ends in its first step.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the job.

        Raises:
            RuntimeError: It has to wait, which a thread with a running event loop cannot do.
        """
        doing = call_job(self._job, method, args, kwargs)
        try:
            doing.send(None)
        except StopIteration as done:
            return done.value
        doing.close()
        raise RuntimeError(f"run inline, job.{method}() cannot wait for I/O: use a worker and drain()")

    def get(self, member: str) -> Any:
        """Reads a member of the job."""
        return getattr(self._job, member)


class _Verdict(Verdict):
    """Keeps the exception behind each failure, so that a test can see it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.errors: dict[str, BaseException] = {}

    def of_error(self, job: RunningJob, error: BaseException, category: Any = None) -> Outcome:
        self.errors[job.id] = error
        return super().of_error(job, error, category)


class _Executor(Executor):
    """Runs one attempt in the calling thread, for every kind of handler."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            1,
            settings.verdict,
            lambda job, outcome: None,
            middleware=settings.middleware,
            timeout=settings.timeout,
            processes=_Here(),
        )
        self._state = settings.state
        self._batches = Batches(1, self._call_batch, context=contextvars.copy_context)

    async def attempt(self, job: RunningJob) -> Outcome:
        """Runs one attempt in the current task."""
        me = asyncio.current_task()
        assert me is not None
        place = Place()
        place.job = job
        current_place.set(place)
        job.limit = self.limit_of(job)
        async with contextlib.AsyncExitStack() as stack:  # no worker stays open between jobs
            self._injector = Injector(self._state, stack)
            if job.handler is not None:
                await self._injector.start(job.handler.needs.values())
            outcome = await self._attempt(job, me)
        assert outcome is not None
        return outcome

    async def _in_thread(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        async with self._injector.job(handler.needs, job) as opened:
            return _call_here(job, handler, arguments | opened)

    async def _batch_in_thread(
        self, handler: BatchHandler, arguments: dict[str, Any], jobs: list[RunningJob]
    ) -> Any:
        if handler.takes_jobs is not None:
            arguments[handler.takes_jobs] = [SyncRunningJob(job, InlineLink(job)) for job in jobs]
        async with self._injector.job(handler.needs, jobs[0]) as opened:
            return handler.function(**arguments, **opened)


class _Here(HandlerProcesses):
    """Replaces the pool of processes by this process."""

    async def run(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        if handler.entry is not None:
            raise ValidationError(
                "run",
                "a kind that runs inline",
                handler.name,
                f"handler {handler.name!r} has a runner, which needs a worker: use drain() with a server, or "
                "call the function itself with what the runner would fill in",
            )
        return _call_here(job, handler, arguments)


def _call_here(job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
    """Calls a plain function in the test's thread."""
    face = SyncRunningJob(job, InlineLink(job))
    if handler.takes_job is not None:
        arguments[handler.takes_job] = face
    place = current_place.get()
    assert place is not None
    place.job = face
    try:
        return handler.function(**arguments)
    finally:
        place.job = job


async def run_attempt(job: RunningJob, settings: Settings) -> Outcome:
    """Runs one attempt in a task of its own, because a timeout cancels the task."""
    executor = _Executor(settings)
    task = asyncio.get_running_loop().create_task(executor.attempt(job), name=f"oxcart-inline-{job.id}")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:  # the end of the test ends the attempt too
        executor.stop(job, SHUTDOWN)
        await asyncio.gather(task, return_exceptions=True)
        raise
    finally:
        executor.deadlines.close()
    return task.result()


def run_here(doing: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in this thread, even if an event loop already runs in it.

    Plain functions then run in the thread and context of the test that enqueues them, so they see its
    database transaction.
    """
    outer: asyncio.AbstractEventLoop | None = None
    with contextlib.suppress(RuntimeError):
        outer = asyncio.get_running_loop()
    if outer is None:
        return asyncio.run(doing)
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(None)
    try:
        return loop.run_until_complete(doing)
    finally:
        asyncio._set_running_loop(outer)
        loop.close()
