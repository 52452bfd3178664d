"""Splits a Bridge record into its members as JSON, however deep, long or broken they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.broker.faults import json_fault
from oxcart.model import payload
from oxcart.model.errors import PayloadError

_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_json = msgspec.json.Encoder()


def fault_of(raw: bytes) -> str:
    """Returns why a record cannot be read; empty if the type of the job is known."""
    parts = members_of(raw)
    if not parts:
        return json_fault(raw, "record") or "record: a JSON object is needed"
    job_type = decoded(parts.get("type"))
    return "" if isinstance(job_type, str) and job_type else "type: a text is needed"


def members_of(raw: bytes) -> Mapping[str, bytes | msgspec.Raw]:
    """Returns the members of a record, each as JSON; none if it is no object."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except RecursionError:
        return _split(raw)
    except (msgspec.MsgspecError, UnicodeError):
        try:
            members = payload.read(raw)
        except PayloadError:
            return {}
        return {name: dump(part) for name, part in members.items()} if isinstance(members, dict) else {}
    return found


def _split(raw: bytes) -> dict[str, bytes]:
    """Does the same without a limit of depth: one part may be nested deeper than the decoder goes."""
    parts: dict[str, bytes] = {}
    depth = start = 0
    name = None
    for token in _TOKENS.finditer(raw):
        mark = token[0]
        if mark in (b"}", b"]"):
            depth -= 1
        if name is not None and ((depth == 1 and mark == b",") or depth == 0):
            parts[name], name = raw[start : token.start()].strip(), None
        elif name is None and depth == 1 and mark[:1] == b'"':
            try:
                name, start = str(payload.read(mark)), raw.index(b":", token.end()) + 1
            except ValueError:  # also a PayloadError
                return {}
        if mark in (b"{", b"["):
            depth += 1
    return parts


def decoded(raw: bytes | msgspec.Raw | None) -> Any:
    """Returns the value of a piece of JSON; None if it cannot be read."""
    if not raw:
        return None
    try:
        return payload.read(raw)
    except PayloadError:
        return None


def dump(value: Any) -> bytes:
    """Returns JSON of a value that was read from JSON; half of a surrogate pair is written as its escape."""
    try:
        return _json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def text_bytes(text: str) -> bytes:
    """Returns UTF-8 of text that was read from JSON; half a surrogate pair becomes invalid bytes."""
    return text.encode("utf-8", "surrogatepass")
