"""A snapshot of a stored job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oxcart.model import history
from oxcart.model.masking import masked
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions
from oxcart.model.state import State
from oxcart.model.steps import Step, steps_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(ms: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # a peer's number beyond any date
        return _EPOCH


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a job: what its producer passed (up to `dedup_id`), then its state.

    Attributes:
        id: The job's id, unique in its queue.
        name: The name of its handler.
        queue: The name of its queue.
        lane: Its target as the name of its lane, ``all;c=gpu``, or None without a target.
        data: Its payload.
        options: Its options.
        timestamp: When it was created, in milliseconds.
        delay: Its current delay in milliseconds; 0 once it is due.
        priority: Lower runs first; 0 runs before every other.
        parent_key: The full key of its parent, if it is a child.
        parent: Its parent as on the wire: id, queue key, and the failure policy.
        scheduler_id: The schedule that added it, if any.
        dedup_id: Its deduplication id, if any.
        progress: A number from 0 to 100 or an object; any value that a peer wrote.
        attempts_made: Attempts that have ended.
        attempts_started: The number of claims: the fencing number of its current run.
        stalled_count: The number of stalls.
        processed_on: When the latest attempt began, in milliseconds.
        finished_on: When it ended, in milliseconds.
        worker_id: The worker that claimed it last, if that worker has a name.
        return_value: The handler's result.
        failed_reason: The latest failure in one line; None once the job has completed.
        stacktrace: One text per failed attempt, newest last.
        deferred_failure: A failure that the next worker records without running the job.
        state: Its formal state, or None if it was not requested (a list of many ids).
        fault: Why a field cannot be decoded, beginning with the field's name, or None. A worker quarantines
            such a job instead of running it.
        idempotency_key: Its idempotency key, if any.
        ready_ms: When it last became ready, in milliseconds; None if no Oxcart worker recorded it.
        moved_ms: When it last changed its state, in milliseconds; None if no Oxcart worker recorded it.
        category: The category of the failure that ended it, if an Oxcart worker stored one.
        code: The application's code for that failure: the class of the exception, unless it has a code.
        dead_reason: Why it is a dead letter although attempts were left: ``lifetime``, ``dependency`` or
            ``undecodable``; else None.
        unhandled_start: The number of the latest claim by a worker without a handler for the name.
        cancel_reason: The reason of a request to cancel it while it runs.
        unreported: Why its parent could not be notified of its end.
        checkpointed: The checkpoint that its handler saved last, or None.
        signals: The names of the signals that its handler has not received yet, the oldest first.
        step_records: The records of its durable steps by their names; ``steps`` reads them.
        transition_records: The record of its transitions; ``transitions`` reads it.
        attempt_records: The record of its ended attempts; ``past_attempts`` reads it.
    """

    id: str
    name: str
    queue: str
    lane: str | None = None
    data: Any = None
    options: JobOptions = DEFAULT_OPTIONS
    timestamp: int = 0
    delay: int = 0
    priority: int = 0
    parent_key: str | None = None
    parent: dict[str, Any] | None = None
    scheduler_id: str | None = None
    dedup_id: str | None = None
    progress: Any = 0
    attempts_made: int = 0
    attempts_started: int = 0
    stalled_count: int = 0
    processed_on: int | None = None
    finished_on: int | None = None
    worker_id: str | None = None
    return_value: Any = None
    failed_reason: str | None = None
    stacktrace: list[str] = msgspec.field(default_factory=list)
    deferred_failure: str | None = None
    state: State | None = None
    fault: str | None = None
    idempotency_key: str | None = None
    ready_ms: int | None = None
    moved_ms: int | None = None
    category: str | None = None
    code: str | None = None
    dead_reason: str | None = None
    unhandled_start: int | None = None
    cancel_reason: str | None = None
    unreported: str | None = None
    checkpointed: Any = None
    signals: list[str] = msgspec.field(default_factory=list)
    step_records: dict[str, str] = msgspec.field(default_factory=dict)
    transition_records: str = ""
    attempt_records: str = ""

    def __repr__(self) -> str:
        return masked(
            self,
            *("data", "return_value", "progress", "idempotency_key", "checkpointed"),
            *("step_records", "transition_records", "attempt_records"),
        )

    @property
    def type(self) -> str:
        """Its name, which the formal model calls type."""
        return self.name

    @property
    def tags(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.options.tags or {})

    @property
    def correlation_id(self) -> str | None:
        """The id that connects it with other jobs, logs and traces."""
        return self.options.correlation_id

    @property
    def callback_url(self) -> str | None:
        """The URL that receives a webhook when it has ended."""
        return self.options.callback_url

    @property
    def created_at(self) -> datetime:
        """When it was added.

        A peer whose clock is ahead writes a time later than the server's. Then this is the time of the first
        known transition.
        """
        return _time(min([self.timestamp, *self._times()[:1]]))

    @property
    def scheduled_at(self) -> datetime | None:
        """When it last became ready; None while it is delayed or waits for other jobs.

        A peer that makes it ready does not record the time. Then a job with a delay shows None until it
        starts, and then the end of its delay or its start, whichever was first; a job without shows its add.
        """
        if self.state in (State.PENDING, State.DELAYED):
            return None
        ready = self.ready_ms
        if ready is None:
            if self.options.delay and self.processed_on is None:
                return None
            ready = self.timestamp + self.options.delay
            if self.processed_on is not None:
                ready = min(ready, self.processed_on)
        return _time(ready)

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt began."""
        return None if self.processed_on is None else _time(self.processed_on)

    @property
    def completed_at(self) -> datetime | None:
        """When it ended, in any state; not before its latest attempt began."""
        return None if self.finished_on is None else _time(max(self.finished_on, self.processed_on or 0))

    @property
    def updated_at(self) -> datetime:
        """When it last changed its state, as far as it is recorded."""
        return _time(max(self._times(), default=self.timestamp))

    def _times(self) -> list[int]:
        """Returns the known times of transitions without that of the add; the end comes last."""
        known = (self.ready_ms, self.moved_ms, self.processed_on, self.finished_on)
        return [at for at in known if at is not None]

    @property
    def attempts_used(self) -> int:
        """The number of used attempts: ended attempts and stalls."""
        return self.attempts_made + self.stalled_count

    @property
    def attempt(self) -> int:
        """The 1-based number of the attempt that runs now or runs next.

        Once the job has ended, it is the number of the last attempt.
        """
        if self.finished_on is not None:
            return max(self.attempts_used, 1)
        return self.attempts_used + 1

    @property
    def attempts_left(self) -> int:
        """The number of attempts that are left, the current one included."""
        return max(max(self.options.attempts, 1) - self.attempts_used, 0)

    @property
    def attempt_id(self) -> str | None:
        """The id of its latest attempt; None before the first."""
        return history.attempt_id(self.id, self.attempts_started) if self.attempts_started else None

    @property
    def previous_attempt_id(self) -> str | None:
        """The id of the attempt before its latest, or None."""
        return history.attempt_id(self.id, self.attempts_started - 1) if self.attempts_started > 1 else None

    @property
    def steps(self) -> list[Step]:
        """The durable steps that it remembers, in the order of recording."""
        return steps_of(self.step_records)

    @property
    def put_off(self) -> str | None:
        """Why the latest worker put it off without running it: it has no handler for the name. Or None."""
        if self.unhandled_start != self.attempts_started:
            return None  # not put off, or claimed again since
        if self.finished_on is not None or self.state is State.RUNNING:
            return None
        return f"no handler for {self.name} in worker {self.worker_id or '(unnamed)'}"

    @property
    def transitions(self) -> list[history.Change]:
        """Its transitions, oldest first; inferred if it has no history, or if a peer moved it."""
        return history.transitions(self.transition_records, self._known())

    @property
    def past_attempts(self) -> list[history.Attempt]:
        """Its ended attempts, oldest first, at most 20; inferred if they were not recorded."""
        return history.attempts(self.attempt_records, self.id, self.attempts_started, self._known())

    def _known(self) -> history.Known:
        return history.Known(
            self.state,
            self.timestamp,
            self.options.delay > 0,
            self.processed_on,
            self.finished_on,
            self.worker_id,
        )
