"""A job as it was when it was read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oxcart.model import history, payload
from oxcart.model.masking import masked
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions
from oxcart.model.state import State

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(ms: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # a peer's number that is no time
        return _EPOCH


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a job: what its producer asked for (up to `dedup_id`), and what has become of it.

    Attributes:
        id: The job's id, unique in its queue.
        name: Which handler runs it.
        queue: The queue it belongs to.
        lane: What it asks of its worker, as the name of its lane: ``all;c=gpu``; None for nothing.
        data: Its payload.
        options: How it is to be run and kept.
        timestamp: When it was created, in milliseconds.
        delay: How long it waits now, in milliseconds; 0 once it is due.
        priority: Lower runs first; 0 runs before every other.
        parent_key: The full key of its parent, if it is a child.
        parent: Its parent as the wire has it: id, queue key, and what the child's failure does to it.
        scheduler_id: The schedule that made it, if one did.
        dedup_id: The deduplication id it was added with, if any.
        progress: A number from 0 to 100 or an object; what a peer wrote is shown as it is.
        attempts_made: Attempts that have ended.
        attempts_started: How often a worker has taken it: the fencing number of its present run.
        stalled_count: How often a worker lost it.
        processed_on: When the latest attempt began, in milliseconds.
        finished_on: When it ended, in milliseconds.
        worker_id: The worker that took it last, if that one gave its name.
        return_value: The handler's result.
        failed_reason: The latest failure in one line; None once the job has completed.
        stacktrace: One text per failed attempt, newest last.
        deferred_failure: A failure that the next worker shall record without running the job.
        state: Its formal state; None where it was not asked for (a list of many ids).
        fault: Why a field of it cannot be decoded, beginning with the field's name; None where all can. A
            worker does not run such a job but quarantines it.
        extra: Oxcart's own fields of the job, as text, under their names on the wire (``ox:…``).
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
    extra: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return masked(self, "data", "return_value", "progress")

    @property
    def type(self) -> str:
        """What kind of job it is: its name, in the word of the formal model."""
        return self.name

    @property
    def tags(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.options.tags or {})

    @property
    def correlation_id(self) -> str | None:
        """What ties it to other jobs, to logs and traces."""
        return self.options.correlation_id

    @property
    def callback_url(self) -> str | None:
        """Who is told when it has ended."""
        return self.options.callback_url

    @property
    def created_at(self) -> datetime:
        """When it was added.

        A peer whose clock is ahead writes a later time than the server's: then it is that of the first
        transition that is known.
        """
        return _time(min([self.timestamp, *self._times()[:1]]))

    @property
    def scheduled_at(self) -> datetime | None:
        """When it last became ready for a worker; None while it waits for its time or for other jobs.

        Where a peer made it ready, nobody wrote that down. Then a job with a delay shows nothing until it
        starts, and then the end of its delay or its start, whichever was first; one without shows its add.
        """
        if self.state in (State.PENDING, State.DELAYED):
            return None
        ready = self._ms("ox:ready")
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
        """When it ended, however it ended; not before its latest attempt began."""
        return None if self.finished_on is None else _time(max(self.finished_on, self.processed_on or 0))

    @property
    def updated_at(self) -> datetime:
        """When it last changed its state, as far as its record tells."""
        return _time(max(self._times(), default=self.timestamp))

    def _times(self) -> list[int]:
        """The times of transitions that are known, but for that of the add; that of the end comes last."""
        known = (self._ms("ox:ready"), self._ms("ox:moved"), self.processed_on, self.finished_on)
        return [at for at in known if at is not None]

    def _ms(self, field: str) -> int | None:
        raw = self.extra.get(field, "")
        return int(raw) if raw.isdigit() and len(raw) < 16 else None

    @property
    def attempts_used(self) -> int:
        """How many of its attempts are used up: those that ended, and those whose worker was lost."""
        return self.attempts_made + self.stalled_count

    @property
    def attempt(self) -> int:
        """The 1-based number of the attempt that runs now, or would run next.

        Once the job has ended it is the number of the attempt that ended it.
        """
        if self.finished_on is not None:
            return max(self.attempts_used, 1)
        return self.attempts_used + 1

    @property
    def attempts_left(self) -> int:
        """How many attempts may still begin or end."""
        return max(max(self.options.attempts, 1) - self.attempts_used, 0)

    @property
    def attempt_id(self) -> str | None:
        """The id of its latest attempt; None before the first."""
        return history.attempt_id(self.id, self.attempts_started) if self.attempts_started else None

    @property
    def previous_attempt_id(self) -> str | None:
        """The id of the attempt before its latest; None where there is none."""
        return history.attempt_id(self.id, self.attempts_started - 1) if self.attempts_started > 1 else None

    @property
    def checkpointed(self) -> Any:
        """What its handler saved last for the next attempt; None for nothing."""
        raw = self.extra.get("ox:checkpoint")
        return None if raw is None else payload.decode(raw)

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key that it was added with, if any."""
        return self.extra.get("ox:idem")

    @property
    def category(self) -> str | None:
        """The category of the failure that ended it, where our worker wrote one."""
        return self.extra.get("ox:category")

    @property
    def transitions(self) -> list[history.Change]:
        """What became of it, oldest first; inferred where it keeps no history, or a peer moved it."""
        return history.transitions(self.extra.get("ox:history", ""), self._known())

    @property
    def past_attempts(self) -> list[history.Attempt]:
        """Its ended attempts, oldest first, at most 20; inferred where nobody wrote them down."""
        return history.attempts(
            self.extra.get("ox:attempts", ""), self.id, self.attempts_started, self._known()
        )

    def _known(self) -> history.Known:
        return history.Known(
            self.state,
            self.timestamp,
            self.options.delay > 0,
            self.processed_on,
            self.finished_on,
            self.worker_id,
        )
