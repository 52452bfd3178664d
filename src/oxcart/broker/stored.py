"""Reads single values as any client may have stored them: a malformed value reads as a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.broker.replies import text
from oxcart.model import payload
from oxcart.model.errors import PayloadError
from oxcart.model.steps import FIELD_STEP

#: No number of a stored job is further from 0: Lua and Node count beyond it inexactly.
MOST = 2**53 - 1

_STEP = FIELD_STEP.encode()
_json = msgspec.json.Encoder()


def text_of(raw: bytes | None) -> str | None:
    """Returns text; bytes that are not UTF-8 become escapes."""
    return None if raw is None else text(raw)


def count_of(raw: bytes | str | float | None) -> int:
    """Returns a counter; 0 for what is no number."""
    number: int = int_of(raw, 0)
    return number


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
        name[len(_STEP) :].decode("utf-8", "replace"): raw
        for name, raw in fields.items()
        if name.startswith(_STEP)
    }


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
