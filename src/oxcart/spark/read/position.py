"""Positions in a stream that is trimmed: where a reader is, what it missed, and which stream it read.

A stream that was deleted and recreated (an obliterated queue) is another generation and counts from 1 again.
A reader recognises it by its mark, which attaching a pipeline writes to the queue's settings. Without a mark
it recognises it by the count: fewer entries are gone than were read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.broker.export import START, StreamFacts


def order(entry_id: str) -> tuple[int, int]:
    """Returns an id as numbers, which sort in the order of the stream."""
    millis, _, number = entry_id.partition("-")
    return int(millis), int(number or 0)


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place between two entries of a stream.

    Attributes:
        id: The last entry before it.
        n: The ordinal of that entry; 0 before the first.
        life: The generation of the stream, from 1; 0 before the first read.
        mark: The mark of that generation; may be empty.
        minute: For the event stream: the minute since 1970 of the last sample of the queue's lengths.
    """

    id: str = START
    n: int = 0
    life: int = 0
    mark: str = ""
    minute: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns it as part of an offset."""
        done: dict[str, Any] = msgspec.to_builtins(self)
        return {"id": self.id, "n": self.n, **done}


def read_position(value: Any) -> Position:
    """Reads a position of an offset."""
    return msgspec.convert(value, Position)


def is_recreated(at: Position, facts: StreamFacts) -> bool:
    """Whether the stream is another one than that of the position."""
    if at.life == 0 or at.id == START or not facts.exists:
        return False
    if facts.first and order(facts.first) <= order(at.id):
        return False  # the last entry read is still there, or is newer than the first one kept
    if order(facts.last) < order(at.id):
        return True  # the server's clock was set back
    if at.mark and at.mark != facts.mark:
        # Also if the mark is gone: detached, or obliterated and not attached since. The two look the same, so
        # no count would be certain.
        return True
    return facts.gone < at.n


def settle(at: Position, facts: StreamFacts) -> Position:
    """Returns the position to read on from: the same, or the beginning of the stream's next generation."""
    if at.life == 0:
        return Position(at.id, at.n, 1, facts.mark, at.minute)
    if is_recreated(at, facts):
        return Position(at.id, 0, at.life + 1, facts.mark, at.minute)
    if facts.mark and not at.mark:
        return Position(at.id, at.n, at.life, facts.mark, at.minute)
    return at


def before_next(at: Position, facts: StreamFacts) -> int:
    """Returns the ordinal before the next entry kept; more than ``at.n`` where entries are gone."""
    if facts.first and order(facts.first) <= order(at.id):
        return at.n
    return max(at.n, facts.gone)
