"""Converts stored values to those of PyPI's package: fields as text, numbers, lists of texts."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.port import Claimed, ClaimedJob
from oxcart.compat.bullmq.refusals import NotAName, NotJson
from oxcart.model import payload
from oxcart.model.errors import PayloadError


def loads(text: str | bytes | None, default: Any = None) -> Any:
    """Returns the value of a JSON text; the text itself if it is no JSON."""
    if text is None:
        return default
    try:
        return payload.read(text)
    except PayloadError:
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def dumps(value: Any, field: str = "data") -> msgspec.Raw:
    """Returns a value as JSON, for calls that take a value and store it.

    Values that Oxcart refuses but Python's ``json`` accepts are written as ``json`` does: integers of any
    size, keys that are None, bool or float.

    Raises:
        NotJson: It contains an object of a type that JSON cannot express.
        PayloadError: It contains NaN or an infinity, or itself.
    """
    try:
        return msgspec.Raw(payload.encode(value, field=field))
    except PayloadError as refused:
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        except TypeError as error:
            raise NotJson(field, refused.bound, value, str(error)) from error
        except ValueError as error:
            raise PayloadError(field, refused.bound, value, str(error)) from error
        return msgspec.Raw(text.encode())


def name_of(name: Any) -> str:
    """Returns a job's name as text; the server makes text of a number too.

    Raises:
        NotAName: It is neither.
    """
    if isinstance(name, str):
        return name
    if isinstance(name, int | float) and not isinstance(name, bool):
        return str(name)
    raise NotAName("job name", "a text", name)


def hash_of(claim: ClaimedJob) -> dict[bytes, bytes]:
    """Returns the hash of a claimed job; this package has only BullMQ's queues."""
    assert isinstance(claim, BullMQClaim)
    return claim.fields


def next_of(claimed: Claimed) -> list[Any]:
    """Returns a claim as PyPI's scripts do: fields as text, id, and times until which there is none."""
    if not claimed.jobs:
        if not (claimed.closed or claimed.limited_ms or claimed.due_ms):
            return [None, None, None, None]
        return [None, 0, claimed.limited_ms, claimed.due_ms]
    job = claimed.jobs[0]
    fields = {key.decode(): value.decode("utf-8", "replace") for key, value in hash_of(job).items()}
    fields["ats"] = str(job.starts)
    fields["processedOn"] = str(job.started_ms)
    return [fields, job.id, claimed.limited_ms, claimed.due_ms]


def number(text: Any) -> int:
    """Returns a stored number; 0 if it is none."""
    try:
        return int(float(text)) if text else 0
    except (TypeError, ValueError, OverflowError):
        return 0


def texts(value: Any) -> list[str]:
    """Returns a list of texts, empty if it is none."""
    return [str(one) for one in value] if isinstance(value, list) else []
