"""Reads single values as any client may have stored them: a malformed value reads as a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.broker.replies import text
from oxcart.model import payload
from oxcart.model.errors import PayloadError

#: No number of a stored job is further from 0: Lua and Node count beyond it inexactly.
MOST = 2**53 - 1

#: How the fields of durable steps begin in the hash of a job's run; the name follows.
FIELD_STEP = b"ox:step:"
#: The signals that no handler has received yet, a line each: name, tab, JSON.
FIELD_SIGNALS = b"ox:signals"

_json = msgspec.json.Encoder()


def text_of(raw: bytes | None) -> str | None:
    """Returns text; bytes that are not UTF-8 become escapes."""
    return None if raw is None else text(raw)


def count_of(raw: bytes | str | float | None) -> int:
    """Returns a counter; 0 for what is no number."""
    number: int = int_of(raw, 0)
    return number


def ready_of(fields: Mapping[bytes, bytes]) -> int | None:
    """Returns when a claimed job became ready, by its fields before the claim; None if they lack the time.

    A peer that makes a job ready leaves the time of an earlier start, which counts as none.
    """
    ready = count_of(fields.get(b"ox:ready"))
    return ready if ready and ready >= count_of(fields.get(b"processedOn")) else None


def reason_of(text: str | None) -> str | None:
    """Returns the reason of a failure as plain text."""
    # Old Python clients stored the reason as a JSON string, quotes and all.
    if text and len(text) > 1 and text[0] == '"' and text[-1] == '"':
        try:
            inner = payload.read(text)
        except PayloadError:
            return text
        return inner if isinstance(inner, str) else text
    return text


def json_of(raw: bytes | None, default: Any = None) -> Any:
    """Returns the value of JSON; the text itself if it is no JSON."""
    if raw is None:
        return default
    try:
        return payload.decode(raw)
    except PayloadError:
        return text_of(raw)


def int_of(raw: Any, default: Any) -> Any:
    """Returns a whole number; the default for what is none or further from 0 than `MOST`."""
    if raw is None or isinstance(raw, bool):
        return default
    try:
        number = int(raw)
    except (TypeError, ValueError, OverflowError):
        try:
            number = int(float(raw))
        except (TypeError, ValueError, OverflowError):
            return default
    return number if -MOST <= number <= MOST else default


def step_fields(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Returns the records of durable steps in a job's hash, by the names of the steps."""
    return {
        name[len(FIELD_STEP) :].decode("utf-8", "replace"): raw
        for name, raw in fields.items()
        if name.startswith(FIELD_STEP)
    }


def recorded(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Returns the fields of `Job` that Oxcart's scripts record in the hash of a job's run.

    Both protocols have this hash. Sealed values of steps must have been opened.
    """
    if not any(name.startswith(b"ox:") for name in fields):
        return {}
    get = fields.get
    return {
        "ready_ms": _moment(get(b"ox:ready")),
        "moved_ms": _moment(get(b"ox:moved")),
        "category": text_of(get(b"ox:category")),
        "code": text_of(get(b"ox:code")),
        "dead_reason": text_of(get(b"ox:dead")),
        "unhandled_start": _moment(get(b"ox:unhandled")),
        "cancel_reason": text_of(get(b"ox:cancel")),
        "signals": _signals(get(FIELD_SIGNALS)),
        "step_records": {name: text(raw) for name, raw in step_fields(fields).items()},
        "transition_records": text(get(b"ox:history", b"")),
        "attempt_records": text(get(b"ox:attempts", b"")),
    }


def _moment(raw: bytes | None) -> int | None:
    """Returns a number of our scripts; None for what no script of ours writes."""
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 16 else None


def _signals(raw: bytes | None) -> list[str]:
    if raw is None:
        return []
    return [line.partition("\t")[0] for line in text(raw).splitlines()]


def encode_tags(tags: Mapping[str, str]) -> str:
    """Returns tags as JSON."""
    return _json.encode(tags).decode()


def decode_tags(raw: bytes | str | None) -> dict[str, str]:
    """Returns tags from JSON, without values that are no text."""
    if not raw:
        return {}
    try:
        found = payload.read(raw)
    except PayloadError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}
