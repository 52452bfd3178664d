"""Converts options of PyPI's package, dicts with Node's names, to and from stored options.

Given options are checked, and stored unchanged: also options that only a peer knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from oxcart.broker.bullmq.codec import WrittenOptions
from oxcart.model.backoff import NO_BACKOFF, Backoff
from oxcart.model.deduplication import Deduplication
from oxcart.model.errors import ValidationError
from oxcart.model.flow import OnFailure
from oxcart.model.options import JobOptions

#: Names that are stored in a short form.
SHORT = {
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
    "keepLogs": "kl",
    "deduplication": "de",
}
LONG = {short: long for long, short in SHORT.items()}

POLICIES = {
    "removeDependencyOnFailure": OnFailure.REMOVE,
    "failParentOnFailure": OnFailure.FAIL,
    "continueParentOnFailure": OnFailure.CONTINUE,
    "ignoreDependencyOnFailure": OnFailure.IGNORE,
}

#: Our names of options that are checked as everywhere else.
_OURS = {
    "jobId": "job_id",
    "keepLogs": "keep_logs",
    "lifo": "lifo",
    "priority": "priority",
    "removeOnComplete": "remove_on_complete",
    "removeOnFail": "remove_on_fail",
    "sizeLimit": "size_limit",
    "stackTraceLimit": "stack_trace_limit",
    "timestamp": "timestamp",
}

_encode = msgspec.json.Encoder().encode
_EMPTY = b"{}"


def stored(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options under their stored names, without those that are None."""
    return {SHORT.get(name, name): value for name, value in opts.items() if value is not None}


def shown(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns stored options under the names that users know."""
    return {LONG.get(name, name): value for name, value in opts.items()}


def backoff_of(backoff: Any) -> Any:
    """Returns a backoff option; a whole number becomes a fixed wait."""
    if type(backoff) is int:
        return {"type": "fixed", "delay": backoff}
    return backoff or None


def policy_of(opts: Mapping[str, Any]) -> OnFailure:
    """Returns the effect of the job's failure on its parent.

    Raises:
        ValueError: There is more than one.
    """
    given = [name for name in POLICIES if opts.get(name)]
    if len(given) > 1:
        raise ValueError(f"The following options cannot be used together: {', '.join(given)}")
    return POLICIES[given[0]] if given else OnFailure.WAIT


def read_options(opts: Mapping[str, Any]) -> WrittenOptions:
    """Returns checked options, ready to be stored, without the parent and the failure policy.

    Raises:
        ValidationError: A value is outside its bound.
    """
    given = {name: value for name, value in opts.items() if name not in POLICIES and name not in ("parent",)}
    if not given:
        return _read(_EMPTY)
    try:
        return _read(_encode(given))
    except TypeError as error:
        raise ValidationError("opts", "JSON", given, f"opts must be JSON: {error}") from error


@lru_cache(maxsize=512)
def _read(text: bytes) -> WrittenOptions:
    given: dict[str, Any] = msgspec.json.decode(text)
    known: Any = {ours: given[name] for name, ours in _OURS.items() if given.get(name) is not None}
    checked = JobOptions.build(**known)
    backoff = backoff_of(given.get("backoff"))
    written = stored(given | {"backoff": backoff})
    attempts = _count(given, "attempts")
    delay = _count(given, "delay")
    window = given.get("deduplication")
    deduplication = None if window is None else Deduplication.from_wire(window)
    if window is not None and (deduplication is None or not deduplication.id):
        raise ValidationError("deduplication", "a dict with an id", window)
    names = (*_OURS.values(),)
    return WrittenOptions(
        **{name: getattr(checked, name) for name in names},
        attempts=attempts,
        delay=delay,
        backoff=_backoff(backoff),
        deduplication=deduplication,
        written=_encode({"attempts": 0, "delay": 0} | written).decode(),
    )


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if value is None:
        return 0
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= 2**53:
        raise ValidationError(name, "an integer, at least 0", value)
    return value


def _backoff(backoff: Any) -> Backoff:
    if backoff is None:
        return NO_BACKOFF
    if type(backoff) is float and 0 <= backoff < float("inf"):
        return Backoff.from_wire(backoff)
    if not isinstance(backoff, dict) or not isinstance(backoff.get("type"), str):
        raise ValidationError("backoff", "ms, or a dict with a type and a delay", backoff)
    delay, jitter = backoff.get("delay", 0), backoff.get("jitter", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay < 0:
        raise ValidationError("backoff.delay", "ms, at least 0", delay)
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise ValidationError("backoff.jitter", "a number from 0 to 1", jitter)
    return Backoff.from_wire(backoff)
