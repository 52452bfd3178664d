"""Finds the field of a stored job that cannot be decoded.

A worker quarantines a job with such a field (docs/decisions/63-quarantine.md); readers show the reason.
A field of the right form with an odd value is no fault: it reads as its default.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxcart.broker.stored import MOST
from oxcart.model import payload
from oxcart.model.errors import PayloadError

#: A number of at most so many digits is within `MOST`.
DIGITS = 15

#: Whole numbers from 0 on: attempts, starts and stalls. Scripts count them up.
_COUNTS = frozenset((b"atm", b"attemptsMade", b"ats", b"stc", b"ox:excused", b"ox:forgiven", b"ox:shared"))
#: Times and spans, which a peer may write with a fraction.
_NUMBERS = frozenset(
    (
        b"timestamp",
        b"delay",
        b"priority",
        b"processedOn",
        b"finishedOn",
        b"ox:lifetime",
        b"ox:since",
        b"ox:timeout",
    )
)
_ALL_NUMBERS = _COUNTS | _NUMBERS
_JSON = frozenset((b"stacktrace", b"ox:tags"))

#: Bytes of a field that a reason shows.
_SHOWN = 40


def fault_in(fields: Mapping[bytes, bytes]) -> str:
    """Returns the first field of a hash that cannot be decoded and the reason; empty if all can.

    Payload and options are left out: their decoders check them.
    """
    for name, raw in fields.items():
        if name in _ALL_NUMBERS:
            if raw.isdigit() and len(raw) <= DIGITS:
                continue
            if why := number_fault(name, raw):
                return why
        elif name in _JSON:
            if raw and (why := json_fault(raw, name.decode())):
                return why
        elif name == b"name" and not raw.isascii() and (why := name_fault(raw)):
            return why
    return ""


def number_fault(name: bytes, raw: bytes) -> str:
    """Returns the field's name and why it is no number; empty if it is one, or empty itself."""
    if not raw or (name not in _COUNTS and is_number(raw)):
        return ""
    kind = "a count" if name in _COUNTS else "a number"
    return f"{name.decode()}: {kind} of at most {DIGITS} digits is needed, got {_shown(raw)}"


def name_fault(raw: bytes) -> str:
    """Returns why a job's name is not UTF-8; empty if it is."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"name: text in UTF-8 is needed, got {_shown(raw)}"
    return ""


def json_fault(raw: bytes, field: str) -> str:
    """Returns the field's name and why it is no JSON; empty if it is."""
    try:
        payload.read(raw, field=field)
    except PayloadError as error:
        # The error's value is a size or a kind, never the content: that may be secret.
        return f"{field}: {error.bound} is needed, got {error.value}"
    return ""


def is_number(raw: bytes) -> bool:
    """Whether a field holds a finite number within `MOST`."""
    try:
        return abs(float(raw)) <= MOST
    except ValueError:
        return False


def _shown(raw: bytes) -> str:
    head = ascii(raw[:_SHOWN].decode("latin-1"))
    return head if len(raw) <= _SHOWN else f"{head}… ({len(raw)} bytes)"
