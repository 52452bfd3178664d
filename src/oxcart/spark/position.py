"""Positions in a stream that forgets: where a reader is, what it missed, whether it is the same stream.

An entry's ordinal is its number in the stream's life, from 1. The server does not tell it, but it tells how
many entries were ever added and how many are kept: the difference is the ordinal of the last one gone. So a
reader that keeps an ordinal beside its id can say exactly how many entries it missed.

A stream that was deleted and made anew (an obliterated queue) counts from the beginning. It is known by its
mark of life, which attaching a pipeline puts into the queue's settings, and without one by its count: fewer
gone than we had read.

May touch: nothing; values and rules.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Before the first entry of any stream.
START = "0-0"


def order(entry_id: str) -> tuple[int, int]:
    """An id as numbers, in the order of the stream."""
    millis, _, number = entry_id.partition("-")
    return int(millis), int(number or 0)


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place between two entries of a stream.

    Attributes:
        id: The last entry before it.
        n: The ordinal of that entry; 0 before the first.
        life: Which life of the stream it is in, from 1; 0 before anything is known.
        mark: The mark of that life, empty where there is none.
        minute: For the event stream: the minute since 1970 in which the queue's lengths were last sampled.
    """

    id: str = START
    n: int = 0
    life: int = 0
    mark: str = ""
    minute: int = 0

    def to_json(self) -> dict[str, Any]:
        """As part of an offset."""
        done: dict[str, Any] = msgspec.to_builtins(self)
        return {"id": self.id, "n": self.n, **done}


def read_position(value: Any) -> Position:
    """A position from an offset."""
    return msgspec.convert(value, Position)


class Facts(msgspec.Struct, frozen=True):
    """What a server says of a stream at one moment.

    Attributes:
        added: Entries ever added in this life.
        kept: Entries still there.
        first: The id of the first one kept, empty for none.
        last: The last id ever given.
        deleted: The highest id that was deleted by hand, ``0-0`` for none.
        mark: The mark of its life, or empty.
    """

    added: int = 0
    kept: int = 0
    first: str = ""
    last: str = START
    deleted: str = START
    mark: str = ""

    @property
    def gone(self) -> int:
        """How many entries are gone: the ordinal of the last of them."""
        return self.added - self.kept

    @property
    def exists(self) -> bool:
        """Whether there is a stream."""
        return self.added > 0 or self.kept > 0


def is_recreated(at: Position, facts: Facts) -> bool:
    """Whether the stream is another one than that of the position."""
    if at.life == 0 or at.id == START or not facts.exists:
        return False
    if facts.first and order(facts.first) <= order(at.id):
        return False  # what we read last is still there, or came after what is
    if order(facts.last) < order(at.id):
        return True  # a clock that was set back
    if at.mark and at.mark != facts.mark:
        # Also where it is simply gone: detached, or obliterated and not attached since. Nobody can tell, so
        # nobody may claim to have counted.
        return True
    return facts.gone < at.n


def settle(at: Position, facts: Facts) -> Position:
    """The position to read on from: the same, or the beginning of the stream's next life."""
    if at.life == 0:
        return Position(at.id, at.n, 1, facts.mark, at.minute)
    if is_recreated(at, facts):
        return Position(at.id, 0, at.life + 1, facts.mark, at.minute)
    if facts.mark and not at.mark:
        return Position(at.id, at.n, at.life, facts.mark, at.minute)
    return at


def before_next(at: Position, facts: Facts) -> int:
    """The ordinal before the next entry that can still be read; more than ``at.n`` where some are gone."""
    if facts.first and order(facts.first) <= order(at.id):
        return at.n
    return max(at.n, facts.gone)
