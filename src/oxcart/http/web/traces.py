"""Stack traces for people: the cause first, with the place that raised it, and the whole text folded."""

from __future__ import annotations

import re

import msgspec

from oxcart.model.failure_groups import raised_in

#: The sentences by which Python joins the traces of a chain; the cause comes first.
_JOINTS = re.compile(
    r"\n\n?(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n?"
)
_NODE_FRAME = re.compile(r"^\s+at ", re.MULTILINE)


class Trace(msgspec.Struct, frozen=True):
    """One exception of a stack trace.

    Attributes:
        title: The exception and its message, in one line.
        frame: Where it was raised, or None.
        text: Its part of the trace.
    """

    title: str
    frame: str | None
    text: str


def read_trace(text: str) -> list[Trace]:
    """Splits a stack trace of Python or Node into its exceptions, the cause first."""
    parts = [part.strip("\n") for part in _JOINTS.split(text) if part.strip()]
    return [Trace(_title(part), raised_in(part), part) for part in parts]


def _title(part: str) -> str:
    lines = [line for line in part.splitlines() if line.strip()]
    if not lines:
        return "(no message)"
    if _NODE_FRAME.search(part):
        return lines[0].strip()
    # Python's last line that is not indented names the exception; notes and groups may follow it.
    plain = [line for line in lines if not line[0].isspace() and not line.startswith("Traceback")]
    return (plain[-1] if plain else lines[-1]).strip()
