"""One event of a queue."""

from __future__ import annotations

from typing import Any

import msgspec

#: The events that peers and our scripts write. Producers may publish others.
EVENT_NAMES = frozenset(
    {
        "active",
        "added",
        "cleaned",
        "completed",
        "debounced",
        "deduplicated",
        "delayed",
        "drained",
        "duplicated",
        "failed",
        "paused",
        "progress",
        "removed",
        "resumed",
        "retries-exhausted",
        "stalled",
        "waiting",
        "waiting-children",
    }
)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a job or of its queue.

    Attributes:
        id: The entry's id in the stream; later events have higher ids.
        name: The event as it stands on the wire, e.g. ``completed``.
        queue: The queue.
        timestamp: When it was written, in milliseconds, by the server's clock.
        job_id: The job, or None for an event of the queue.
        prev: The job's previous state, if the event has it.
        delay: For ``delayed``: when the job is due, in milliseconds since 1970 (not the duration).
        data: For ``progress``: the progress.
        return_value: For ``completed``: the handler's result.
        failed_reason: For ``failed``: the failure in one line.
        attempts_made: For ``retries-exhausted``: the number of attempts.
        fields: All other fields as text: the job's name of ``added``, the count of ``cleaned``.
    """

    id: str
    name: str
    queue: str
    timestamp: int
    job_id: str | None = None
    prev: str | None = None
    delay: int | None = None
    data: Any = None
    return_value: Any = None
    failed_reason: str | None = None
    attempts_made: int | None = None
    fields: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def is_retry(self) -> bool:
        """Returns whether the job returned from a worker to the queue without having ended.

        The wire has no event of that name: a ``waiting`` event from ``active`` is an immediate retry, a
        recovered job (``stalled`` follows) or a returned job. A retry after a wait is a ``delayed`` event
        like any other; only an ``active`` event before it shows that an attempt ended.
        """
        return self.name == "waiting" and self.prev == "active"

    @property
    def kind(self) -> str:
        """The event's name, or ``retry`` if `is_retry`."""
        return "retry" if self.is_retry else self.name
