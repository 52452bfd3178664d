"""The trace context that a job carries from its producer to its worker.

It is a W3C carrier as JSON text: ``{"traceparent": "00-…", "tracestate": "…", "baggage": "…"}``. BullMQ
stores the same text in ``opts.tm``, so that a trace continues between Node and Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.model.errors import ValidationError

#: The longest context, in bytes. W3C allows 8192 bytes of baggage; one KiB is left for the rest.
LONGEST = 9 * 1024

#: Version, trace id, span id and flags. Ids of zeros only are invalid.
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_json = msgspec.json.Encoder()
_decode = msgspec.json.Decoder(dict[str, str]).decode


def check_trace_context(value: Any, field: str = "trace_context") -> str:
    """Returns a carrier as JSON text.

    Args:
        value: A mapping of header names to values, or the JSON text of one.
        field: The name for errors.

    Raises:
        ValidationError: It is no object of strings, too long, or its ``traceparent`` is malformed.
    """
    if isinstance(value, str):
        carrier = read_carrier(value)
        if not carrier:
            raise ValidationError(field, "a JSON object of strings", value)
    elif isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair):
        carrier = dict(value)
    else:
        raise ValidationError(field, "a mapping of header names to values", value)
    parent = carrier.get("traceparent")
    if parent is not None and not TRACEPARENT.fullmatch(parent):
        raise ValidationError(field, "a carrier whose traceparent is 00-<32 hex>-<16 hex>-<2 hex>", parent)
    try:
        text = _json.encode(carrier).decode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValidationError(field, "text that UTF-8 can hold", value) from error
    if len(text.encode()) > LONGEST:
        raise ValidationError(field, f"at most {LONGEST} bytes", f"{len(text.encode())} bytes")
    return text


def carrier_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the trace of a request's headers as a carrier; None without a valid one.

    A malformed header is no error: the specification lets its receiver begin a trace.
    """
    parent = headers.get("traceparent", "")
    if not TRACEPARENT.fullmatch(parent):
        return None
    state = headers.get("tracestate", "")
    # W3C asks receivers for 512 characters of state; more is not worth storing with every job.
    return {"traceparent": parent, "tracestate": state} if 0 < len(state) <= 512 else {"traceparent": parent}


def read_carrier(text: str) -> dict[str, str]:
    """Returns the carrier in a stored context; empty if a peer wrote something else."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
