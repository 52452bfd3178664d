"""A running job: what a handler sees and may do."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

import msgspec

from oxcart.broker.keyring import SEALED
from oxcart.broker.port import Broker, ClaimedJob
from oxcart.broker.port.results import AddedTree
from oxcart.broker.port.steps import Steps
from oxcart.broker.sealing import Sealer, open_value
from oxcart.engine.children import Parent
from oxcart.engine.steps import RunSteps, Suspended, Suspension, returned, step_threads
from oxcart.engine.tracing import names_in, run_span, step_span, traced_trees
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.failure import JobCancelled
from oxcart.model.flow import HasTree, Tree
from oxcart.model.history import attempt_id
from oxcart.model.options import DEFAULT_KEEP_LOGS, JobOptions
from oxcart.model.progress import check_progress

if TYPE_CHECKING:
    from oxcart.engine.handler import Handler
    from oxcart.engine.sync_running import SyncRunningJob
    from oxcart.engine.tracing import RunSpan
    from oxcart.model.job import Job

_MISSING: Any = object()

#: Bits of ``RunningJob.fence`` that hold the number of starts.
FENCE_BITS = 20


T = TypeVar("T")
P = ParamSpec("P")


class RunningJob(Parent):
    """A claimed job in an ``async def`` handler. Handlers ask for it with a parameter named ``job``.

    A plain ``def`` handler receives a `SyncRunningJob`: the same members without ``await``.

    Attributes:
        id: The job's id.
        queue: Its queue; for a job in a lane the base queue.
        token: The lease under which it runs.
        fencing: How often the job was started: grows with every claim, so a store can refuse a writer
            whose number is old. A job that is removed and added again starts from 1; ``fence`` does not.
        started_ms: When this attempt began, by the server's clock.
        began: The same in seconds of the monotonic clock.
        took: How many seconds it took, once it has ended.
        worker_id: The worker that runs it.
        state: The value of the worker's lifespan.
    """

    #: Whether sleeps end at once, as in tests without a server.
    skips_waits = False

    __slots__ = (
        "_broker",
        "_cancelled",
        "_data",
        "_opened",
        "_steps",
        "began",
        "cancel_reason",
        "cancel_text",
        "claim",
        "deadline",
        "fault",
        "fencing",
        "handler",
        "id",
        "limit",
        "limit_is_life",
        "on_cancel",
        "on_log",
        "queue",
        "shorten",
        "span",
        "started_ms",
        "state",
        "station",
        "stop",
        "suspension",
        "token",
        "took",
        "worker_id",
    )

    #: The span of this attempt. Unset without tracing: a store per job is not free.
    span: RunSpan
    #: Called with every line of ``log``. Unset if no observer wants them.
    on_log: Callable[[Sequence[str]], object]

    def __init__(self, broker: Broker, claim: ClaimedJob, worker_id: str, state: Any) -> None:
        self._broker = broker
        self.claim = claim
        self.id = claim.id
        self.queue = broker.base
        self.token = claim.token
        self.fencing = claim.starts
        self.started_ms = claim.started_ms
        self.began = time.monotonic()
        self.took = 0.0
        self.worker_id = worker_id
        self.state = state
        self.handler: Handler | None = None
        #: Why a field of the job cannot be decoded; empty if all can.
        self.fault = ""
        self.station: Any = None
        #: Seconds this attempt may take, or None.
        self.limit: float | None = None
        #: Whether that is the rest of the job's lifetime.
        self.limit_is_life = False
        #: Brings the deadline of the attempt forward; set by the executor while it runs.
        self.shorten: Callable[[RunningJob, float], None] | None = None
        #: Deadline of the attempt in loop time, or None.
        self.deadline: float | None = None
        #: Why the attempt must stop; None while it need not.
        self.cancel_reason: str | None = None
        #: The reason that the client gave for the cancellation.
        self.cancel_text = ""
        #: Called when the attempt should stop, to tell a handler outside of the event loop.
        self.on_cancel: Callable[[], object] | None = None
        #: Stops the attempt; set by the executor while it runs.
        self.stop: Callable[[], object] | None = None
        self._data: Any = _MISSING
        self._opened: bytes | None = None
        self._cancelled: asyncio.Event | None = None
        self._steps: RunSteps | None = None
        #: Why the handler was ended before its end; None unless it sleeps or waits for a signal.
        self.suspension: Suspension | None = None

    def __repr__(self) -> str:
        return f"RunningJob({self.queue}/{self.id} {self.name!r}, attempt {self.attempt})"

    @property
    def name(self) -> str:
        """The job's name."""
        return self.claim.name

    @property
    def raw_data(self) -> bytes:
        """The payload as JSON.

        Raises:
            SealError: The queue is sealed, and the payload is not what was sealed for this job.
            DecryptionError: It is sealed, and the worker's queue lacks its key.
        """
        raw = self.claim.payload
        sealer = self._broker.sealer
        if sealer is None and not raw.startswith(SEALED):
            return raw
        if self._opened is None:
            self._opened = open_value(sealer, "payload", self.id, raw, self.claim.schedule_id)
        return self._opened

    def set_opened(self, raw: bytes | None) -> None:
        """Sets the payload in plaintext, in a copy of the job that has no keys."""
        self._opened = raw

    def set_data(self, data: Any) -> None:
        """Sets what ``data`` returns, in a copy of the job whose original was changed."""
        self._data = data

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens the job's values; None if its queue has no keys."""
        return self._broker.sealer

    @property
    def seals_progress(self) -> bool:
        """Whether the job's queue seals progress."""
        return self.sealer is not None and self.sealer.seals("progress")

    @property
    def data(self) -> Any:
        """The payload.

        Raises:
            Undecodable: It is no JSON.
        """
        if self._data is _MISSING:
            self._data = payload.decode_stored(self.raw_data, "data")
        return self._data

    @property
    def options(self) -> JobOptions:
        """The job's options."""
        return self.claim.options

    @property
    def type(self) -> str:
        """The job's name, as the formal model calls it."""
        return self.name

    @property
    def tags(self) -> dict[str, str]:
        """The job's labels."""
        return self.claim.tags

    @property
    def correlation_id(self) -> str | None:
        """The id that ties the job to others, to logs and traces; jobs that its handler adds inherit it."""
        return self.claim.correlation_id

    @property
    def attempts_made(self) -> int:
        """Attempts that ended before this one."""
        return self.claim.attempts_made

    @property
    def fence(self) -> int:
        """A fencing number that also grows when the job's id is removed and added again.

        Holds the time of the add in ms and, in its lowest 20 bits, ``fencing``; fits a 64-bit integer. A
        worker of a peer can compute the same from the job's timestamp and its number of starts.
        """
        starts: int = min(self.fencing, 2**FENCE_BITS - 1)
        return (self.claim.created_ms << FENCE_BITS) + starts

    @property
    def stalls(self) -> int:
        """How often the job was recovered from a lost worker."""
        return self.claim.stalls

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; a start by a lost worker counts, a returned one does not."""
        return self.attempts_made + 1 + (self.stalls if self.options.attempts > 0 else 0)

    @property
    def waited_ms(self) -> int | None:
        """How long the job was ready before this start; None if the record does not tell.

        A first start counts from the add and its delay, or from the end of the jobs that it waited for. A
        later one counts from the end of a backoff, or from a recovery, a return or a replay. Peers do not
        record these.
        """
        claim, options = self.claim, self.options
        ready = claim.ready_ms
        if claim.starts == 1 and (ready is None or options.delay or options.group is not None):
            # The promotion may be late, and a group's turn is a wait of the queue's own making.
            ready = claim.created_ms + options.delay if claim.created_ms else None
        return None if ready is None else max(0, claim.started_ms - ready)

    @property
    def attempt_id(self) -> str:
        """The id of this attempt."""
        return attempt_id(self.id, self.fencing)

    @property
    def previous_attempt_id(self) -> str | None:
        """The id of the attempt before this one; None for the first."""
        return attempt_id(self.id, self.fencing - 1) if self.fencing > 1 else None

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key that the job was added with, if any."""
        return self.claim.idempotency_key

    @property
    def is_cancelled(self) -> bool:
        """Whether this attempt should stop: cancelled, lease lost, time up, or the worker shuts down."""
        return self.cancel_reason is not None

    async def cancelled(self) -> str:
        """Waits until the attempt should stop; returns the reason."""
        if self._cancelled is None:
            self._cancelled = asyncio.Event()
            if self.cancel_reason is not None:
                self._cancelled.set()
        await self._cancelled.wait()
        assert self.cancel_reason is not None
        return self.cancel_reason

    def raise_if_cancelled(self) -> None:
        """Ends the handler here if the attempt should stop.

        Raises:
            JobCancelled: It should.
        """
        if self.cancel_reason is not None:
            raise JobCancelled(self.cancel_text or self.cancel_reason)

    def cancel(self, reason: str) -> None:
        """Requests the attempt to stop. Called by the worker, in its loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
            if self._cancelled is not None:
                self._cancelled.set()
            if self.on_cancel is not None:
                self.on_cancel()

    async def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Writes the job's progress.

        Args:
            progress: A number from 0 to 100, or an object.
            message: Text beside it; a number is then stored as ``{"percent": 50, "message": "…"}``.

        Raises:
            ValidationError: The progress or the message is out of its bounds; nothing was written.
        """
        await self._broker.set_progress(self.id, check_progress(progress, message=message))

    async def log(self, *lines: str) -> None:
        """Appends lines to the job's log."""
        keep = self.options.keep_logs or DEFAULT_KEEP_LOGS
        texts = [str(line) for line in lines]
        if (listener := getattr(self, "on_log", None)) is not None:
            listener(texts)
        await self._broker.capabilities.part(self._broker.logs, "logs").append(self.id, texts, keep)

    async def checkpoint(self, data: Any) -> None:
        """Saves the progress of the work, from which the next attempt continues (``checkpointed``).

        Args:
            data: Anything JSON can hold; it replaces the last checkpoint.

        Raises:
            LeaseLost: Another worker now runs this job; nothing was written.
        """
        body = payload.encode(data, field="checkpoint")
        if (sealer := self.sealer) is not None:
            body = sealer.seal("checkpoint", self.id, body)
        payload.check_size(body, b"")
        await self._broker.set_checkpoint(self.id, self.token, body)
        self.claim.set_checkpoint(body)

    @property
    def checkpointed(self) -> Any:
        """The last value of ``checkpoint``, of this attempt or an earlier one; None if there is none.

        Raises:
            SealError: The queue is sealed, and this is not what was sealed for this job.
            DecryptionError: It is sealed, and the worker's queue lacks its key.
        """
        raw = self.claim.checkpoint
        if raw is None:
            return None
        opened = open_value(self.sealer, "checkpoint", self.id, raw)
        return payload.decode_stored(opened, "checkpoint")

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function once for the job, and remembers its result for later runs of the handler.

        The result goes through JSON and has the type that the function is annotated to return. A worker that
        is lost between the call and the record calls it again in the next run: docs/steps.md.

        Args:
            name: The step's name, unique in a run of the handler.
            function: An async function, or a plain one, which runs in a thread.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Raises:
            StepError: The name is used twice or was recorded as something else, the job has over 1,000
                steps, or their results have over 1 MiB.
            LeaseLost: Another worker now runs this job; the result was not recorded.
        """
        body = self.begin_step(name)
        if body is None:
            began = time.monotonic()
            with step_span(self, name):
                if inspect.iscoroutinefunction(function):
                    value = await function(*args, **kwargs)
                else:
                    value = await self.call_plain(functools.partial(function, *args, **kwargs))
                    if inspect.isawaitable(value):
                        value = await value
                body = payload.encode(value, field=f"the result of step {name!r}")
                await self.end_step(name, body, round((time.monotonic() - began) * 1000))
        return returned(function, body, name)

    async def call_plain(self, function: Callable[[], Any]) -> Any:
        """Calls a plain function of a step in a thread, with the context of the handler."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(step_threads(), context.run, function)

    def begin_step(self, name: str) -> bytes | None:
        """Begins a step; returns the result that an earlier run recorded, as JSON, or None."""
        raw = self.run_steps.begin(name, "step")
        return None if raw is None else self.run_steps.value_of(name, raw)

    async def end_step(self, name: str, body: bytes, took_ms: int) -> None:
        """Records the result of a step, as JSON."""
        await self.run_steps.end(name, body, took_ms)

    async def sleep(self, duration: Duration, *, step: str | None = None) -> None:
        """Ends this run of the handler, and runs it again after a time; its worker is free meanwhile.

        In the run after the time the call returns at once. It uses no attempt.

        Args:
            duration: How long, counted from the first call.
            step: The name by which it is remembered; by default ``sleep-1``, ``sleep-2`` in their order.
        """
        found = await self.run_steps.sleep(duration, step)
        if found is not None:
            self.suspend(found)

    async def wait_signal(
        self, signal: str, timeout: Duration | None = None, *, step: str | None = None
    ) -> Any:
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
        found = await self.run_steps.wait(signal, timeout, step)
        if isinstance(found, Suspension):
            self.suspend(found)
        return payload.decode_stored(found, f"signal {signal}")

    def suspend(self, found: Suspension) -> NoReturn:
        """Ends the handler: its job sleeps or waits for a signal."""
        if self.suspension is None:
            self.suspension = found
        raise Suspended

    @property
    def run_steps(self) -> RunSteps:
        """The durable steps of this run, for ``step``, ``sleep`` and ``wait_signal``."""
        if self._steps is None:
            self._steps = RunSteps(self)
        return self._steps

    @property
    def broker_steps(self) -> Steps:
        """Where the steps are kept."""
        return self._broker.steps

    def limit_to(self, timeout: Duration) -> None:
        """Shortens the time of the attempt, counted from now; it cannot be extended.

        Raises:
            ValidationError: The value is no duration.
        """
        seconds = parse_ms(timeout, "timeout", minimum=1) / 1000
        if self.shorten is not None:
            self.shorten(self, seconds)

    async def update_data(self, data: Any) -> None:
        """Replaces the payload for the next attempt."""
        await self._broker.update_data(self.id, data)
        self._data = data

    async def add_children(self, *flows: HasTree) -> list[AddedTree]:
        """Adds children to this job while it runs; return ``WaitForChildren()`` to wait for them.

        A repeated attempt adds them again. A ``job_id`` that is derived from this job's id makes them the
        same jobs.

        Args:
            *flows: The children, each optionally with children of its own (``Flow``).

        Raises:
            ValidationError: Something is wrong with a child; nothing was written.
            LeaseLost: Another worker now runs this job; nothing was written.
        """
        return await self.add_trees([flow.tree() for flow in flows])

    async def add_trees(self, trees: Sequence[Tree]) -> list[AddedTree]:
        """Adds children as values of the model, for ``add_children`` of a plain function."""
        flows, span = self._flows, run_span(self)
        if span is None:
            return await flows.add_children(self.id, list(trees), token=self.token)
        with span.add(self._broker.capabilities.protocol, self.queue, names_in(trees)) as adding:
            added = await flows.add_children(self.id, traced_trees(trees, adding.context), token=self.token)
            adding.added([one.id for one in added], len(added))
            return added

    def _storage(self) -> Broker:
        return self._broker

    def log_fields(self) -> dict[str, Any]:
        """Returns the fields of a log line about this attempt."""
        fields = {**self.facts(), "job_name": self.name, "attempt": self.attempt}
        if (correlation := self.correlation_id) is not None:
            fields["correlation_id"] = correlation
        if (span := run_span(self)) is not None:
            fields.update(span.ids)
        return fields

    def facts(self) -> dict[str, Any]:
        """Returns the fields of a log line about a job that cannot be decoded."""
        return {"worker_id": self.worker_id, "job_id": self.id, "queue": self.queue}

    def server_ms(self) -> int:
        """Returns the time in ms by the clock of the job's server."""
        return self._broker.clock()

    def snapshot(self) -> Job:
        """Returns the job as a value of the model."""
        sealer = self.sealer
        if sealer is None:
            _ = self.raw_data  # raises if the payload is sealed: without keys it would pass as data
        return self.claim.to_job(self._broker.queue, self.worker_id, sealer)


class Place:
    """The running job of a handler, for code that it calls."""

    __slots__ = ("job",)

    def __init__(self) -> None:
        self.job: RunningJob | SyncRunningJob | None = None


current_place: ContextVar[Place | None] = ContextVar("oxcart_place", default=None)

#: The id of the worker whose loops the calling code is part of; handlers have `current_job` instead.
current_worker: ContextVar[str] = ContextVar("oxcart_worker", default="")


def carry(options: JobOptions) -> JobOptions:
    """Returns options of a job that a handler adds; they inherit its correlation id by default."""
    place = current_place.get()
    if place is None or place.job is None or options.correlation_id is not None:
        return options
    correlation = place.job.correlation_id
    return options if correlation is None else msgspec.structs.replace(options, correlation_id=correlation)


def current_job() -> RunningJob | SyncRunningJob | None:
    """Returns the job that the calling code is part of, or None outside of handlers.

    It is the object that the handler receives: a `SyncRunningJob` in plain functions, otherwise a
    `RunningJob`.
    """
    place = current_place.get()
    return place.job if place else None
