"""What is stored, as PyPI's package hands it on: fields as text, numbers, lists of texts."""

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
    """What a JSON text holds; the text itself where it is none."""
    if text is None:
        return default
    try:
        return payload.read(text)
    except PayloadError:
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def dumps(value: Any, field: str = "data") -> msgspec.Raw:
    """A value as JSON, for what takes a value and stores it.

    What Oxcart refuses and Python's ``json`` writes is written as that does: integers of any size, keys that
    are None, bool or float.

    Raises:
        NotJson: It holds an object of a type that JSON has no form for.
        PayloadError: It holds NaN or an infinity, or itself.
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
    """A job's name as text; the server makes text of a number too.

    Raises:
        NotAName: It is neither.
    """
    if isinstance(name, str):
        return name
    if isinstance(name, int | float) and not isinstance(name, bool):
        return str(name)
    raise NotAName("job name", "a text", name)


def hash_of(claim: ClaimedJob) -> dict[bytes, bytes]:
    """Returns the hash of a claimed job: the drop-in has queues of BullMQ alone."""
    assert isinstance(claim, BullMQClaim)
    return claim.fields


def next_of(claimed: Claimed) -> list[Any]:
    """A claim as PyPI's scripts answer it: fields as text, id, and times until which there is none."""
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
    """A number as somebody stored it; 0 where it is none."""
    try:
        return int(float(text)) if text else 0
    except (TypeError, ValueError, OverflowError):
        return 0


def texts(value: Any) -> list[str]:
    """A list of texts, empty where it is none."""
    return [str(one) for one in value] if isinstance(value, list) else []
