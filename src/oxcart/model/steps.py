"""Durable steps: what a job remembers of its earlier runs, and how a record of it is written.

A record is a header line, a newline and a value as JSON. The header has seven parts with tabs between: kind,
number, at, took, start, until, signal. The value alone may be sealed: scripts understand the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from oxcart.model import payload
from oxcart.model.errors import ValidationError
from oxcart.model.failure import PermanentError

#: Most records of a job, and most bytes of all of them together.
MOST_STEPS = 1000
MOST_BYTES = 1_048_576
#: Most bytes of the signals of a job that no handler has received yet.
MOST_SIGNAL_BYTES = 1_048_576
#: Most characters of the name of a step or signal.
LONGEST_NAME = 200

#: ``step`` has ended; ``sleep`` has a time; ``wait`` is pending and becomes ``signal`` or ``timeout``.
Kind = Literal["step", "sleep", "wait", "signal", "timeout"]
_KINDS = ("step", "sleep", "wait", "signal", "timeout")


class StepError(ValidationError):
    """A durable step is used in a way that its job cannot remember.

    Its name is taken or malformed, its result is too large, or an earlier run recorded something else under
    this name. A retry cannot help: the job fails.
    """


class SignalTimeout(PermanentError):
    """The signal that a handler waited for did not arrive in time.

    A handler may catch it. If it does not, its job fails without a retry.

    Attributes:
        signal: The signal's name.
    """

    def __init__(self, signal: str) -> None:
        super().__init__(f"signal {signal!r} did not arrive in time", code="signal_timeout")
        self.args = (signal,)
        self.signal = signal


class Step(msgspec.Struct, frozen=True):
    """A step that a job remembers.

    Attributes:
        name: Its name, unique in the job.
        kind: ``step`` for a result, ``sleep``, ``wait`` for a signal that has not arrived, ``signal`` for one
            that has, ``timeout`` for one that did not arrive in time.
        number: Its place in the order of recording, from 1.
        at_ms: When it was recorded; for a wait that is over, when it ended.
        took_ms: How long it took.
        start: The start of the job (its fencing number) that recorded it.
        until_ms: When a sleep or the timeout of a wait ends; None for none.
        signal: The name of the signal that it waits or waited for; empty for other kinds.
        value: The result of a step, or the data of a signal.
    """

    name: str
    kind: Kind
    number: int
    at_ms: int
    took_ms: int = 0
    start: int = 0
    until_ms: int | None = None
    signal: str = ""
    value: Any = None

    def header(self) -> bytes:
        """Returns the header line of its record, without the newline."""
        until = "" if self.until_ms is None else self.until_ms
        parts = (self.kind, self.number, self.at_ms, self.took_ms, self.start, until, self.signal)
        return "\t".join(map(str, parts)).encode()


def read_step(name: str, raw: bytes) -> tuple[Step, bytes]:
    """Returns a step without its value, and its value as it is stored.

    Raises:
        ValueError: It is no record.
    """
    head, line, value = raw.partition(b"\n")
    kind, number, at_ms, took_ms, start, until, signal = head.decode().split("\t")
    if kind not in _KINDS or not line:
        raise ValueError(f"the record of step {name!r} cannot be read")
    return Step(
        name,
        kind,  # type: ignore[arg-type]
        int(number),
        int(at_ms),
        int(took_ms),
        int(start),
        int(until) if until else None,
        signal,
    ), value


def steps_of(records: Mapping[str, str]) -> list[Step]:
    """Returns the steps that can be read, in the order of recording; the records are by their names."""
    found = []
    for name, raw in records.items():
        try:
            step, value = read_step(name, raw.encode("utf-8", "surrogatepass"))
            found.append(msgspec.structs.replace(step, value=payload.decode(value or b"null")))
        except ValueError:
            continue
    return sorted(found, key=lambda step: step.number)


def check_step_name(name: Any, field: str = "step") -> str:
    """Returns the name of a step or signal.

    Raises:
        StepError: It is no text of 1 to 200 printable characters.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise StepError(field, f"text of 1 to {LONGEST_NAME} printable characters", name)
    return name
