"""Which field of a stored job cannot be decoded, and why.

A worker does not run a job with such a field but quarantines it (docs/decisions/63-quarantine.md); readers
show it with the reason. A field of the right form that holds an odd value is no fault: it reads as its
default.

May touch: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxcart.model import payload
from oxcart.model.errors import PayloadError

#: No number of a stored job is further from 0: Lua and Node count beyond it inexactly.
MOST = 2**53 - 1

#: Why a record of another protocol cannot be decoded; its broker names it in this field, which is not stored.
FIELD_FAULT = b"ox:fault"

#: So many digits are below that bound.
_DIGITS = 15

#: Whole numbers from 0 on: attempts, starts and stalls. Scripts count them up.
_COUNTS = frozenset((b"atm", b"attemptsMade", b"ats", b"stc", b"ox:excused", b"ox:forgiven"))
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
    """Why a field cannot be decoded, with its name; empty where all can.

    Leaves out data and options: whoever decodes them judges them.
    """
    for name, raw in fields.items():
        if name in _ALL_NUMBERS:
            if raw.isdigit() and len(raw) <= _DIGITS:
                continue
            if raw and (name in _COUNTS or not is_number(raw)):
                kind = "a count" if name in _COUNTS else "a number"
                return f"{name.decode()}: {kind} of at most {_DIGITS} digits is needed, got {_shown(raw)}"
        elif name in _JSON:
            why = raw and json_fault(raw, name.decode())
            if why:
                return why
        elif name == FIELD_FAULT:
            return raw.decode("utf-8", "replace")
        elif name == b"name" and not raw.isascii():
            try:
                raw.decode()
            except UnicodeDecodeError:
                return f"name: text in UTF-8 is needed, got {_shown(raw)}"
    return ""


def json_fault(raw: bytes, field: str) -> str:
    """Why a field is no JSON, with its name; empty where it is."""
    try:
        payload.read(raw, field=field)
    except PayloadError as error:
        return (
            f"{field}: {error.bound} is needed, got {error.value}"  # without a word of it: it may be secret
        )
    return ""


def is_number(raw: bytes) -> bool:
    """Whether a field holds a finite number within the bound."""
    try:
        return abs(float(raw)) <= MOST
    except ValueError:
        return False


def _shown(raw: bytes) -> str:
    head = ascii(raw[:_SHOWN].decode("latin-1"))
    return head if len(raw) <= _SHOWN else f"{head}… ({len(raw)} bytes)"
