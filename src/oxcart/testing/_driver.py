"""Inline and manual mode: a queue in memory whose jobs run in the test, one after another.

The broker is the one in memory, and the worker's own executor and verdict run the attempts. The driver only
decides which job is next: it claims a job, runs one attempt and finishes it, until the job has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from oxcart.broker.memory import MemoryBroker, MemoryServer
from oxcart.broker.memory.broker import Encoded
from oxcart.broker.memory.parts import MemorySteps
from oxcart.broker.memory.record import ENDED, Record
from oxcart.broker.port import Added, Ask, Code, Ended, Outcome, OutcomeKind
from oxcart.broker.port.steps import SignalCode
from oxcart.engine.running import RunningJob
from oxcart.engine.unknown import UnknownNames
from oxcart.model.errors import JobFailed, OxcartError, ReplyCode, ResultTimeout
from oxcart.model.job import Job
from oxcart.queue import Queue
from oxcart.testing._attempt import WORKER, InlineJob, Settings, run_attempt

#: Snoozes in a row after which a job counts as endless.
MOST_SNOOZES = 100
#: The deepest nesting of jobs that enqueue jobs.
DEEPEST = 50
#: Claims with a lease that lasts longer than any test.
ASK = Ask(worker=WORKER, lock_ms=86_400_000)

_PUT_OFF = (OutcomeKind.DELAY, OutcomeKind.HOLD_QUEUE, OutcomeKind.AWAIT_CHILDREN)
_depth: ContextVar[int] = ContextVar("oxcart_inline_depth", default=0)

#: Receives every ended attempt, as the observer of a worker does.
Note = Callable[[RunningJob, Outcome, Code, float], None]


class EndlessJobs(OxcartError):
    """A job snoozes, or jobs enqueue each other, without end: a worker would never be done."""


class Mode(MemoryServer):
    """The memory of one queue in inline or manual mode, and the driver of its jobs.

    Args:
        queue: The queue.
        settings: How attempts run.
        at_once: Whether a job runs as soon as it is added.
        note: Receives every ended attempt.
    """

    def __init__(self, queue: Queue, settings: Settings, at_once: bool, note: Note) -> None:
        super().__init__()
        self.broker = ModeBroker(
            self, queue.name, *self._parts_of(queue.name, queue._core.prefix, queue._core.key_ring)
        )
        self.at_once = at_once
        self.added: list[Job] = []
        #: Also receives every ended attempt, while the queue is drained.
        self.also: Note | None = None
        self._handlers = queue._core.handlers
        self._settings = settings
        self._note = note
        self._unknown = UnknownNames(settings.verdict)
        self._errors: dict[str, BaseException | None] = {}
        self._removed: dict[str, Record] = {}  # on their end; callers still ask for their results

    def open(self, queue: str, **_: Any) -> MemoryBroker:
        """Returns the queue's one broker."""
        return self.broker

    def waiting(self) -> list[str]:
        """Returns the jobs that wait for a worker or for their time, in the order in which they would run."""
        store = self.broker.store
        return [record.id for record in store.of_state("wait", "prioritized") + store.of_state("delayed")]

    def unhandled(self) -> list[str]:
        """Returns the waiting jobs whose names have no handler."""
        records = self.broker.store.records
        return [one for one in self.waiting() if self._handlers.find(records[one].name) is None]

    def is_waiting_for_signal(self, job_id: str) -> bool:
        """Returns whether a job is delayed until a signal that has not arrived."""
        record = self.broker.store.records.get(job_id)
        return record is not None and record.state == "delayed" and record.delay > 0 and record.waits != ""

    async def run(self, job_id: str) -> None:
        """Runs a job until it ended, without pauses between attempts.

        Raises:
            EndlessJobs: It does not end.
        """
        broker, depth = self.broker, _depth.get()
        record = broker.store.records[job_id]
        if depth >= DEEPEST:
            raise EndlessJobs(
                f"jobs enqueue jobs {depth} deep; the last is {record.name!r} in {broker.queue!r}"
            )
        token = _depth.set(depth + 1)
        try:
            await self._run(record)
        finally:
            _depth.reset(token)
        if self._settings.propagate and record.state == "failed" and (error := self._errors[job_id]):
            raise error

    async def _run(self, record: Record) -> None:
        broker, snoozes = self.broker, 0
        while record.state not in ENDED:
            job = InlineJob(broker, broker.take(record.id, ASK), self._settings)
            job.handler = self._handlers.find(record.name)
            began = time.perf_counter()
            if job.handler is None:
                await broker.finish([self._unknown.outcome_of(job, broker.queue)])
                return
            outcome = await run_attempt(job, self._settings)
            self._errors[record.id] = self._settings.verdict.errors.pop(record.id, None)
            (code,), _ = await broker.finish([outcome])
            if code == ReplyCode.NOTHING_TO_DO:  # it waits for children, and has none
                await broker.finish([self._settings.verdict.given_back(job)])
            for note in (self._note, self.also):
                if note is not None:
                    note(job, outcome, ReplyCode.DONE, time.perf_counter() - began)
            if self.is_waiting_for_signal(record.id):
                return
            snoozes += outcome.kind in _PUT_OFF and not outcome.counts
            if snoozes > MOST_SNOOZES:
                raise EndlessJobs(f"job {record.id} ({record.name!r}) snoozed {snoozes} times in a row")
        if record.id not in broker.store.records:
            self._removed[record.id] = record

    async def ended(self, job_id: str) -> Ended:
        """Reads a job's end.

        Raises:
            JobFailed: It failed for good; the cause is the handler's exception.
            ResultTimeout: It has not ended, and nothing runs it.
        """
        record = self.broker.store.records.get(job_id) or self._removed.get(job_id)
        if record is None:
            return Ended(False, False)
        # It may run in the loop of another thread.
        while record.state == "active":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if record.state == "failed":
            job = self.broker.job_of(record, lenient=True)
            error = self._errors[job_id]
            raise JobFailed(job_id, job.failed_reason or "", job.stacktrace, job.category) from error
        if record.state == "completed":
            return Ended(True, True, record.result)
        raise ResultTimeout(f"job {job_id} is {record.state} and nothing runs it: {self._why(record)}")

    def _why(self, record: Record) -> str:
        broker = self.broker
        if self._handlers.find(record.name) is None:
            return f"queue {broker.queue!r} has no handler for {record.name!r}"
        if self.is_waiting_for_signal(record.id):
            return f"it waits for signal {record.waits!r}"
        return "the queue is paused" if broker.store.paused else "drain the queue first"


class ModeSteps(MemorySteps):
    """Steps of a queue in inline or manual mode: inline, a signal runs the job that waited for it."""

    def __init__(self, broker: ModeBroker) -> None:
        super().__init__(broker)
        self._mode_broker = broker

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        answer = await super().signal(job_id, signal, body)
        if answer == SignalCode.WOKEN:
            await self._mode_broker.run_now(job_id)
        return answer


class ModeBroker(MemoryBroker):
    """A queue in inline or manual mode.

    Args:
        mode: Runs its jobs.
        queue: Its name.
        *parts: As for `MemoryBroker`.
    """

    #: Code under test may use these; a mode has no lanes, limits, windows, histories and webhooks.
    ignored = frozenset({"callback_url", "deduplication", "group", "history", "limit_key", "target"})

    def __init__(self, mode: Mode, queue: str, *parts: Any) -> None:
        super().__init__(queue, *parts)
        self._mode = mode

    def attach(self, **_: Any) -> NoReturn:
        """Refuses a worker.

        Raises:
            OxcartError: Always.
        """
        raise OxcartError(f"queue {self.queue!r} is inline or manual: it has no server, so no worker")

    def open_events(self, *, unseals: bool = False) -> None:
        """Returns None: jobs run before anyone could wait for their events."""

    async def add(
        self, jobs: Sequence[Encoded], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds checked jobs and runs them in that order, unless they must wait."""
        answers = await super().add(jobs)
        created = [answer.id for answer in answers if answer.created]
        self._mode.added += [job for job in await self.get(created) if job is not None]
        await self.run_now(*created)
        return answers

    async def resume(self) -> None:
        """Runs the jobs that waited."""
        await super().resume()
        await self.run_now(*self._mode.waiting())

    async def promote_job(self, job_id: str) -> None:
        """Makes a delayed job ready and runs it."""
        await super().promote_job(job_id)
        await self.run_now(job_id)

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Makes an ended job ready again and runs it."""
        await super().retry_job(job_id, state, lifo=lifo, reset=reset)
        await self.run_now(job_id)

    async def ended(self, job_id: str) -> Ended:
        """Reads a job's end, or raises if nothing will end it."""
        return await self._mode.ended(job_id)

    @property
    def steps(self) -> ModeSteps:
        """Durable steps of jobs, and signals for them."""
        return ModeSteps(self)

    async def run_now(self, *job_ids: str) -> None:
        """Runs jobs in inline mode, unless the queue is paused."""
        if self._mode.at_once and not self.store.paused:
            for job_id in job_ids:
                await self._mode.run(job_id)
