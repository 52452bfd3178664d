"""One stream of one queue: planned by strides, and read page by page with exact ordinals.

A page begins at the last entry of the page before it. If that entry comes again, no entry was lost between
them. If not, the stream was trimmed meanwhile, and its counts say by how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.export import EVENTS, START, StreamFacts, Stride
from oxcart.spark.read.position import Position, before_next, order, settle

if TYPE_CHECKING:
    from oxcart.spark.read.connection import Connection

#: Entries per page: about 2 ms of the server's time.
PAGE = 2000
#: Entries per stride of a plan; the same.
STRIDE = 2000


class Lost(msgspec.Struct, frozen=True):
    """A run of entries that are gone.

    Attributes:
        first: The ordinal of the first.
        last: The ordinal of the last; None where it cannot be known.
        cause: ``trimmed``, ``deleted``, ``recreated`` or ``before`` (gone before the first read).
        life: The generation of the stream.
        after: The id that they followed.
    """

    first: int
    last: int | None
    cause: str
    life: int
    after: str

    @property
    def count(self) -> int | None:
        """How many, or None."""
        return None if self.last is None else self.last - self.first + 1


class Page(msgspec.Struct, frozen=True):
    """Entries that follow each other; the first has ordinal ``first``."""

    first: int
    life: int
    entries: list[Any]


class Piece(msgspec.Struct, frozen=True):
    """The entries after one position, up to and including another."""

    after: Position
    through: Position


def end_of(facts: StreamFacts) -> Position:
    """Returns the position after the newest entry of a stream."""
    return Position(facts.last, facts.added, 1, facts.mark) if facts.exists else Position()


class Stream:
    """A stream of a queue.

    Args:
        connection: The connection to its server.
        queue: The queue.
        suffix: ``events`` or ``ox:attempts``.
    """

    def __init__(self, connection: Connection, queue: str, suffix: str = EVENTS) -> None:
        self._connection = connection
        self._queue = queue
        self.suffix = suffix

    def measure(self, after: str = START, through: str = "+", most: int = 0) -> Stride:
        """Returns the stream's facts, and how many entries follow an id, up to a stride of them."""
        export = self._connection.export
        return self._connection.run(
            export.stride(self._queue, self.suffix, after, through, min(most, STRIDE))
        )

    def plan(self, start: Position, most: int, until: str = "+") -> list[Piece]:
        """Returns pieces of a stride each, until so many entries are planned or the stream ends.

        Args:
            start: Where to begin.
            most: How many entries at most; entries that are gone count too.
            until: The last id to reach.
        """
        pieces: list[Piece] = []
        at, left = start, most
        while left > 0:
            stride = self.measure(at.id, until, left)
            facts, count = stride.facts, stride.count
            if not facts.exists:
                break
            now = settle(at, facts)
            if count == 0:
                gone = before_next(now, facts)
                nothing_new = now == at and gone == now.n
                if facts.kept or nothing_new or (until != "+" and order(facts.last) > order(until)):
                    break
                # All unread entries were trimmed: continue after them.
                through = Position(facts.last, facts.added, now.life, now.mark, now.minute)
            else:
                through = Position(
                    stride.last, before_next(now, facts) + count, now.life, now.mark, now.minute
                )
            pieces.append(Piece(at, through))
            at, left = through, left - max(count, 1)
            if count < STRIDE:
                break
        return pieces

    def end(self) -> Position:
        """Returns the position after the newest entry."""
        return end_of(self.measure().facts)

    def read(self, piece: Piece, page: int = PAGE) -> Iterator[Page | Lost]:
        """Yields the entries of a piece, and lost runs in their place."""
        through = piece.through
        at, n = piece.after.id, piece.after.n
        if piece.after.life not in (0, through.life):
            yield Lost(n + 1, None, "recreated", piece.after.life, at)
            n = 0
        while n < through.n:
            entries, known = self._next(at, through.id, page)
            if not known:
                export = self._connection.export
                facts, entries = self._connection.run(
                    export.page_with_facts(self._queue, self.suffix, at, through.id, page)
                )
                missing = self._missing(piece, at, n, facts, entries)
                if missing is not None:
                    yield missing
                    n = missing.last or n
            if not entries:
                break
            yield Page(n + 1, through.life, entries)
            n += len(entries)
            at = entries[-1][0].decode()
        if n < through.n:
            yield Lost(n + 1, through.n, "trimmed", through.life, at)

    def _next(self, at: str, through: str, page: int) -> tuple[list[Any], bool]:
        """The next entries, and whether they follow without a gap."""
        if at == START:
            return [], False
        export = self._connection.export
        found = self._connection.run(export.page(self._queue, self.suffix, at, through, page + 1))
        if found and found[0][0].decode() == at:
            return found[1:], True
        return [], False

    def _missing(self, piece: Piece, at: str, n: int, facts: StreamFacts, entries: list[Any]) -> Lost | None:
        through = piece.through
        here = Position(at, n, through.life)
        if facts.gone < n:
            # The stream was recreated meanwhile: the rest of this piece is gone with the old one.
            return Lost(n + 1, through.n, "recreated", through.life, at)
        gone = min(before_next(here, facts) if entries else through.n, through.n)
        if gone <= n:
            return None
        by_hand = order(facts.deleted) > order(at)
        cause = "before" if at == START else "deleted" if by_hand else "trimmed"
        return Lost(n + 1, gone, cause, through.life, at)
