"""A job in a plain function: the members of `RunningJob`, without ``await``.

A plain handler runs in a thread or in a process of its own, away from the event loop. Its job sends each call
to the worker's loop and waits for its end. A `Link` carries the calls: one for threads is here, the one for
inline tests is in ``oxcart.testing``.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from oxcart.broker.port.results import AddedTree
from oxcart.engine.running import RunningJob
from oxcart.engine.steps import returned
from oxcart.engine.tracing import step_span
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import OxcartError
from oxcart.model.flow import DependencyCounts, DependencyPage, HasTree
from oxcart.model.job import Job
from oxcart.model.options import JobOptions

T = TypeVar("T")
P = ParamSpec("P")

#: Seconds between looks whether the worker's loop still runs, while a thread waits for a call.
_LOOK = 1.0


class HandlerStopped(OxcartError):
    """The worker stopped an attempt, or ended while its handler ran."""


class Link(Protocol):
    """Carries the calls of a plain function to the job in the worker's event loop."""

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the `RunningJob` in the worker's event loop, and returns its result."""

    def get(self, member: str) -> Any:
        """Reads a member of the `RunningJob` that may change while the handler runs."""


class SyncRunningJob:
    """A claimed job in a plain ``def`` handler. Handlers ask for it with a parameter named ``job``.

    It has the members of `RunningJob` without ``await``: ``job.log("…")`` returns when the line is stored.
    All threads of the handler may use it until the handler returns.
    """

    __slots__ = ("_job", "_link", "_stopped")

    def __init__(self, job: RunningJob, link: Link) -> None:
        self._job = job
        self._link = link
        self._stopped = threading.Event()
        job.on_cancel = self._stopped.set
        if job.cancel_reason is not None:
            self._stopped.set()

    def __repr__(self) -> str:
        return f"Sync{self._job!r}"

    # -- what the job is

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._job.name

    @property
    def type(self) -> str:
        """The job's name, as the formal model calls it."""
        return self._job.type

    @property
    def queue(self) -> str:
        """The queue it came from; of a job in a lane the queue that the lane belongs to."""
        return self._job.queue

    @property
    def data(self) -> Any:
        """The payload.

        Raises:
            Undecodable: It is no JSON.
        """
        return self._job.data

    @property
    def raw_data(self) -> bytes:
        """The payload as JSON.

        Raises:
            SealError: The queue is sealed, and the payload is not what was sealed for this job.
            DecryptionError: It is sealed, and the worker's queue lacks its key.
        """
        return self._job.raw_data

    @property
    def options(self) -> JobOptions:
        """The job's options."""
        return self._job.options

    @property
    def tags(self) -> dict[str, str]:
        """The job's labels."""
        return self._job.tags

    @property
    def correlation_id(self) -> str | None:
        """The id that ties the job to others, to logs and traces; jobs that its handler adds inherit it."""
        return self._job.correlation_id

    @property
    def seals_progress(self) -> bool:
        """Whether the job's queue seals progress."""
        return cast(bool, self._link.get("seals_progress"))

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key that the job was added with, if any."""
        return self._job.idempotency_key

    def snapshot(self) -> Job:
        """Returns the job as a value of the model."""
        return cast(Job, self._link.call("snapshot"))

    # -- this attempt

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; a start by a lost worker counts, a returned one does not."""
        return self._job.attempt

    @property
    def attempts_made(self) -> int:
        """Attempts that ended before this one."""
        return self._job.attempts_made

    @property
    def stalls(self) -> int:
        """How often the job was recovered from a lost worker."""
        return self._job.stalls

    @property
    def attempt_id(self) -> str:
        """The id of this attempt."""
        return self._job.attempt_id

    @property
    def previous_attempt_id(self) -> str | None:
        """The id of the attempt before this one; None for the first."""
        return self._job.previous_attempt_id

    @property
    def fencing(self) -> int:
        """How often the job was started: grows with every claim, so a store can refuse an old writer."""
        return self._job.fencing

    @property
    def fence(self) -> int:
        """A fencing number that also grows when the job's id is removed and added again.

        Holds the time of the add in ms and, in its lowest 20 bits, ``fencing``; fits a 64-bit integer. A
        worker of a peer can compute the same from the job's timestamp and its number of starts.
        """
        return self._job.fence

    @property
    def token(self) -> str:
        """The lease under which the job runs."""
        return self._job.token

    @property
    def worker_id(self) -> str:
        """The worker that runs the job."""
        return self._job.worker_id

    @property
    def started_ms(self) -> int:
        """When this attempt began, by the server's clock."""
        return self._job.started_ms

    @property
    def state(self) -> Any:
        """What the worker's lifespan yielded; in a handler's process a copy of it.

        Raises:
            ValidationError: The handler has a process, and pickle cannot copy the state to it.
        """
        return self._link.get("state")

    @property
    def limit(self) -> float | None:
        """Seconds that this attempt may take, or None."""
        return cast("float | None", self._link.get("limit"))

    @property
    def deadline(self) -> float | None:
        """When the attempt's time is up, in seconds of ``time.monotonic()``, or None."""
        return cast("float | None", self._link.get("deadline"))

    def limit_to(self, timeout: Duration) -> None:
        """Shortens the time of the attempt, counted from now; it cannot be extended.

        Raises:
            ValidationError: The value is no duration.
        """
        parse_ms(timeout, "timeout", minimum=1)
        self._link.call("limit_to", timeout)

    def log_fields(self) -> dict[str, Any]:
        """Returns the fields of a log line about this attempt."""
        return self._job.log_fields()

    def server_ms(self) -> int:
        """Returns the time in ms by the clock of the job's server."""
        return cast(int, self._link.call("server_ms"))

    # -- cancellation

    @property
    def cancel_reason(self) -> str | None:
        """Why the attempt should stop, or None."""
        return self._job.cancel_reason

    @property
    def is_cancelled(self) -> bool:
        """Whether this attempt should stop: cancelled, lease lost, time up, or the worker shuts down.

        A thread cannot be stopped from outside: a long handler reads this between its steps.
        """
        return self._job.is_cancelled

    def cancelled(self) -> str:
        """Waits until the attempt should stop; returns the reason."""
        self._stopped.wait()
        reason = self._job.cancel_reason
        assert reason is not None
        return reason

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Waits until the attempt should stop, for so many seconds at most; returns whether it should."""
        return self._stopped.wait(timeout)

    def raise_if_cancelled(self) -> None:
        """Ends the handler here if the attempt should stop.

        Raises:
            JobCancelled: It should.
        """
        self._job.raise_if_cancelled()

    # -- what the handler reports

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Writes the job's progress.

        Args:
            progress: A number from 0 to 100, or an object.
            message: Text beside it; a number is then stored as ``{"percent": 50, "message": "…"}``.

        Raises:
            ValidationError: The progress or the message is out of its bounds; nothing was written.
        """
        self._link.call("update_progress", progress, message)

    def log(self, *lines: str) -> None:
        """Appends lines to the job's log."""
        self._link.call("log", *[str(line) for line in lines])

    def checkpoint(self, data: Any) -> None:
        """Saves the progress of the work, from which the next attempt continues (``checkpointed``).

        Args:
            data: Anything JSON can hold; it replaces the last checkpoint.

        Raises:
            LeaseLost: Another worker now runs this job; nothing was written.
        """
        self._link.call("checkpoint", data)

    @property
    def checkpointed(self) -> Any:
        """The last value of ``checkpoint``, of this attempt or an earlier one; None if there is none.

        Raises:
            SealError: The queue is sealed, and this is not what was sealed for this job.
            DecryptionError: It is sealed, and the worker's queue lacks its key.
        """
        return self._link.get("checkpointed")

    def update_data(self, data: Any) -> None:
        """Replaces the payload for the next attempt."""
        self._link.call("update_data", data)

    # -- durable steps

    def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function once for the job, and remembers its result for later runs of the handler.

        The result goes through JSON and has the type that the function is annotated to return. A worker that
        is lost between the call and the record calls it again in the next run: docs/steps.md.

        Args:
            name: The step's name, unique in a run of the handler.
            function: A plain function; it runs in the handler's thread or process.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Raises:
            StepError: The name is used twice or was recorded as something else, the job has over 1,000
                steps, or their results have over 1 MiB.
            LeaseLost: Another worker now runs this job; the result was not recorded.
        """
        body: bytes | None = self._link.call("begin_step", name)
        if body is None:
            began = time.monotonic()
            with step_span(self._job, name):
                body = payload.encode(function(*args, **kwargs), field=f"the result of step {name!r}")
                self._link.call("end_step", name, body, round((time.monotonic() - began) * 1000))
        return cast(T, returned(function, body, name))

    def sleep(self, duration: Duration, *, step: str | None = None) -> None:
        """Ends this run of the handler, and runs it again after a time; its worker is free meanwhile.

        In the run after the time the call returns at once. It uses no attempt.

        Args:
            duration: How long, counted from the first call.
            step: The name by which it is remembered; by default ``sleep-1``, ``sleep-2`` in their order.
        """
        self._link.call("sleep", duration, step=step)

    def wait_signal(self, signal: str, timeout: Duration | None = None, *, step: str | None = None) -> Any:
        """Returns the data of a signal: ``queue.jobs.signal(job_id, "approved", data)``.

        If it has not arrived, this run of the handler ends, and its worker is free. The signal wakes the job
        at once. A signal that was sent before is not lost. It uses no attempt.

        Args:
            signal: The signal's name.
            timeout: How long to wait, counted from the first call; None for ever.
            step: The name by which the wait is remembered, if it is not that of the signal: each wait of a
                handler needs its own.

        Raises:
            SignalTimeout: It did not arrive in time.
        """
        return self._link.call("wait_signal", signal, timeout, step=step)

    # -- children

    def add_children(self, *flows: HasTree) -> list[AddedTree]:
        """Adds children to this job while it runs; return ``WaitForChildren()`` to wait for them.

        A repeated attempt adds them again. A ``job_id`` that is derived from this job's id makes them the
        same jobs.

        Args:
            *flows: The children, each optionally with children of its own (``Flow``).

        Raises:
            ValidationError: Something is wrong with a child; nothing was written.
            LeaseLost: Another worker now runs this job; nothing was written.
        """
        # The trees are made here: a flow has a queue, which cannot travel to the worker's process.
        trees = [flow.tree() for flow in flows]
        return cast("list[AddedTree]", self._link.call("add_trees", trees))

    def children_values(self) -> dict[str, Any]:
        """Returns the results of completed children, by their keys (``bull:images:page-1``)."""
        return cast("dict[str, Any]", self._link.call("children_values"))

    def ignored_failures(self) -> dict[str, str]:
        """Returns why children failed whose failure did not fail the job, by their keys."""
        return cast("dict[str, str]", self._link.call("ignored_failures"))

    def dependency_counts(self) -> DependencyCounts:
        """Returns how many children the job has, by their states."""
        return cast(DependencyCounts, self._link.call("dependency_counts"))

    def dependencies(self, kind: str, *, cursor: str = "0", limit: int = 100) -> DependencyPage:
        """Returns a page of the job's children of a kind.

        Args:
            kind: ``processed``, ``unprocessed``, ``ignored`` or ``failed``, as in `DependencyCounts`.
            cursor: The cursor of the page before.
            limit: About how many; few children come in one page.
        """
        return cast(DependencyPage, self._link.call("dependencies", kind, cursor=cursor, limit=limit))


class ThreadLink:
    """Carries the calls of a thread to the worker's event loop.

    Args:
        job: The job.
        loop: The worker's event loop.
    """

    def __init__(self, job: RunningJob, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method in the loop and waits for its end.

        Raises:
            RuntimeError: The caller is in the loop's thread, where it would wait for itself.
            HandlerStopped: The worker has ended.
        """
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError(
                f"job.{method}() was called in the worker's event loop: it is for plain functions"
            )
        return run_in_loop(call_job(self._job, method, args, kwargs), self._loop, f"job.{method}()")

    def get(self, member: str) -> Any:
        """Reads a member."""
        return getattr(self._job, member)


def run_in_loop(doing: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, what: str) -> Any:
    """Runs a coroutine in the worker's event loop, from another thread, and waits for its end.

    Raises:
        HandlerStopped: The worker has ended.
    """
    if loop.is_closed():
        doing.close()
        raise HandlerStopped(f"the worker has ended: {what} cannot reach it")
    future = asyncio.run_coroutine_threadsafe(doing, loop)
    while True:
        try:
            return future.result(_LOOK)
        except TimeoutError:
            if future.done():
                raise
            if loop.is_closed():
                raise HandlerStopped(f"the worker ended during {what}") from None


async def call_job(job: RunningJob, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a method of a job, async or not."""
    value = getattr(job, method)(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value
