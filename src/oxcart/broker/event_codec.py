"""Decodes entries of event streams: both protocols write them with the field names of BullMQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxcart.broker.stored import reason_of
from oxcart.model.errors import PayloadError, ValidationError
from oxcart.model.event import Event
from oxcart.model.payload import decode

if TYPE_CHECKING:
    from oxcart.broker.sealing import Sealer

#: The fields that `Event` has attributes for.
_OWN = frozenset({"event", "jobId", "prev", "delay", "data", "returnvalue", "failedReason", "attemptsMade"})


def decode_event(
    stream_id: str | bytes, fields: Mapping[bytes, bytes], queue: str, sealer: Sealer | None = None
) -> Event:
    """Returns an event. Invalid fields of a peer stay text and raise no error.

    Args:
        stream_id: The entry's id, ``<milliseconds>-<number>``.
        fields: The entry's fields.
        queue: The queue that the stream belongs to.
        sealer: Opens sealed values; a value that does not open stays sealed.

    Raises:
        ValidationError: The id is no stream id.
    """
    entry_id = _text(stream_id)
    millis = entry_id.partition("-")[0]
    if not millis.isdecimal():
        raise ValidationError("stream_id", "<milliseconds>-<number>", stream_id)
    if sealer is not None and (job_id := fields.get(b"jobId")) is not None:
        fields = sealer.open_event(job_id.decode("utf-8", "surrogateescape"), fields)
    texts = {_text(key): _text(value) for key, value in fields.items()}
    name = texts.get("event", "")
    return Event(
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
        failed_reason=reason_of(texts.get("failedReason")),
        attempts_made=_integer(texts.get("attemptsMade")),
        fields={key: value for key, value in texts.items() if key not in _OWN},
    )


def _text(value: str | bytes) -> str:
    # Another client's bytes need not be UTF-8, and one entry must not stop the reader.
    return value if isinstance(value, str) else value.decode(errors="replace")


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
