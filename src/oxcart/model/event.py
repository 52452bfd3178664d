"""One entry of a queue's event stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.errors import PayloadError, ValidationError
from oxcart.model.payload import decode

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

_OWN = frozenset({"event", "jobId", "prev", "delay", "data", "returnvalue", "failedReason", "attemptsMade"})


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

    @classmethod
    def parse(cls, stream_id: str | bytes, fields: Mapping[Any, Any], queue: str) -> Event:
        """Parses an entry. Invalid fields of a peer stay text and raise no error.

        Args:
            stream_id: The entry's id, ``<milliseconds>-<number>``.
            fields: The entry's fields, as text or bytes.
            queue: The queue the stream belongs to.

        Raises:
            ValidationError: The id is no stream id.
        """
        entry_id = _text(stream_id)
        millis = entry_id.partition("-")[0]
        if not millis.isdecimal():
            raise ValidationError("stream_id", "<milliseconds>-<number>", stream_id)
        texts = {_text(key): _text(value) for key, value in fields.items()}
        name = texts.get("event", "")
        reason = texts.get("failedReason")
        return cls(
            id=entry_id,
            name=name,
            queue=queue,
            timestamp=int(millis),
            job_id=texts.get("jobId"),
            prev=texts.get("prev"),
            delay=_integer(texts.get("delay")),
            # Only these two are JSON on the wire; the `data` of a published event is text.
            data=_json(texts.get("data")) if name == "progress" else texts.get("data"),
            return_value=_json(texts.get("returnvalue")),
            failed_reason=None if reason is None else plain_reason(reason),
            attempts_made=_integer(texts.get("attemptsMade")),
            fields={key: value for key, value in texts.items() if key not in _OWN},
        )

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


def plain_reason(text: str) -> str:
    """Returns a failure's reason without the JSON quotes that old Python clients add."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        value = _json(text)
        if isinstance(value, str):
            return value
    return text


def _text(value: str | bytes) -> str:
    # Another client's bytes need not be UTF-8, and one entry must not stop the reader.
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return decode(text)
    except PayloadError:
        return text


def _integer(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(float(text))  # Lua may have written 1.7e+12
    except (ValueError, OverflowError):
        return None
