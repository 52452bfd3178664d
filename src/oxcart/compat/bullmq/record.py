"""What is stored, as PyPI's package hands it on: fields as text, numbers, lists of texts.

May touch: nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.broker.port import ClaimedJob


def loads(text: str | bytes | None, default: Any = None) -> Any:
    """What a JSON text holds; the text itself where it is none."""
    if text is None:
        return default
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def next_of(jobs: list[ClaimedJob], limited_ms: int, due_ms: int) -> list[Any]:
    """A claim as PyPI's scripts answer it: fields as text, id, and times until which there is none."""
    if not jobs:
        return [None, None, limited_ms, due_ms]
    fields = {key.decode(): value.decode("utf-8", "replace") for key, value in jobs[0].fields.items()}
    fields["ats"] = str(jobs[0].starts)
    fields["processedOn"] = str(jobs[0].started_ms)
    return [fields, jobs[0].id, limited_ms, due_ms]


def number(text: Any) -> int:
    """A number as somebody stored it; 0 where it is none."""
    try:
        return int(float(text)) if text else 0
    except (TypeError, ValueError, OverflowError):
        return 0


def texts(value: Any) -> list[str]:
    """A list of texts, empty where it is none."""
    return [str(one) for one in value] if isinstance(value, list) else []
