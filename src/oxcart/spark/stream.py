"""One stream of one queue: measured where it lies, and read page by page with exact ordinals.

A page is asked for from the last entry of the page before it. If that one comes again, nothing was lost
between them; if not, the stream was trimmed while we read, and its counts say by how much.

May touch: the server; reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.spark.position import START, Facts, Position, before_next, order, settle
from oxcart.spark.wire import Wire

if TYPE_CHECKING:
    from oxcart.spark.layout import Layout

#: Entries per page: about 2 ms of the server's time.
PAGE = 2000
#: Entries per stride of a plan; the same.
STRIDE = 2000

EVENTS = "events"
ATTEMPTS = "ox:attempts"

#: An entry as it comes from the wire: its id, and names and values in turn.
Entry = tuple[bytes, list[bytes]]


class Lost(msgspec.Struct, frozen=True):
    """Entries that are gone.

    Attributes:
        first: The ordinal of the first.
        last: The ordinal of the last; None where nobody can tell.
        cause: ``trimmed``, ``deleted``, ``recreated`` or ``before`` (gone before the first read).
        life: The life of the stream.
        after: The id after which they were.
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
    """What one task reads: everything after one position, up to and including another."""

    after: Position
    through: Position


class Stream:
    """A stream.

    Args:
        wire: The connection to its server.
        layout: Where streams lie.
        queue: Its queue.
        suffix: ``events`` or ``ox:attempts``.
    """

    def __init__(self, wire: Wire, layout: Layout, queue: str, suffix: str = EVENTS) -> None:
        self._wire = wire
        self._layout = layout
        self._queue = queue
        self.suffix = suffix
        self._key = layout.stream(queue, suffix)

    def measure(self, after: str = START, through: str = "+", most: int = 0) -> tuple[Facts, int, str]:
        """The facts, and how many entries a stride has and where it ends."""
        told = self._layout.stride(self._wire, self._queue, self.suffix, after, through, min(most, STRIDE))
        facts = Facts(int(told[0]), int(told[1]), *(part.decode() for part in told[2:6]))
        return facts, int(told[6]), told[7].decode()

    def plan(self, start: Position, most: int, until: str = "+") -> list[Piece]:
        """Pieces of a stride each, until so many entries are planned or the stream ends.

        Args:
            start: Where to begin.
            most: How many entries at most; entries that are gone count too.
            until: The last id to reach.
        """
        pieces: list[Piece] = []
        at, left = start, most
        while left > 0:
            facts, count, last = self.measure(at.id, until, left)
            if not facts.exists:
                break
            now = settle(at, facts)
            if count == 0:
                gone = before_next(now, facts)
                nothing_new = now == at and gone == now.n
                if facts.kept or nothing_new or (until != "+" and order(facts.last) > order(until)):
                    break
                # All that we had not read was trimmed away: go on behind it.
                through = Position(facts.last, facts.added, now.life, now.mark, now.minute)
            else:
                through = Position(last, before_next(now, facts) + count, now.life, now.mark, now.minute)
            pieces.append(Piece(at, through))
            at, left = through, left - max(count, 1)
            if count < STRIDE:
                break
        return pieces

    def end(self) -> Position:
        """The position behind the newest entry."""
        facts, _, _ = self.measure()
        return Position(facts.last, facts.added, 1, facts.mark) if facts.exists else Position()

    def read(self, piece: Piece, page: int = PAGE) -> Iterator[Page | Lost]:
        """The entries of a piece, and in their place what was lost of them."""
        through = piece.through
        at, n = piece.after.id, piece.after.n
        if piece.after.life not in (0, through.life):
            yield Lost(n + 1, None, "recreated", piece.after.life, at)
            n = 0
        while n < through.n:
            entries, known = self._next(at, through.id, page)
            if not known:
                facts, entries = self._again(at, through.id, page)
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
        found = self._wire.call("XRANGE", self._key, at, through, "COUNT", page + 1)
        if found and found[0][0].decode() == at:
            return found[1:], True
        return [], False

    def _again(self, at: str, through: str, page: int) -> tuple[Facts, list[Any]]:
        """The facts and the next entries of the same moment."""
        answers = self._wire.pipeline(
            [
                ("MULTI",),
                ("EXISTS", self._key),
                ("XRANGE", self._key, f"({at}", through, "COUNT", page),
                ("XINFO", "STREAM", self._key),
                ("EXEC",),
            ]
        )
        _, found, told = answers[-1]
        if isinstance(told, Exception):
            return Facts(), []
        pairs = iter(told)
        facts = dict(zip(pairs, pairs, strict=True))
        first = facts.get(b"first-entry")
        return (
            Facts(
                int(facts[b"entries-added"]),
                int(facts[b"length"]),
                first[0].decode() if first else "",
                facts[b"last-generated-id"].decode(),
                facts[b"max-deleted-entry-id"].decode(),
            ),
            found,
        )

    def _missing(self, piece: Piece, at: str, n: int, facts: Facts, entries: list[Any]) -> Lost | None:
        through = piece.through
        here = Position(at, n, through.life)
        if facts.gone < n:
            # Another life began while we read: the rest of this piece went with the old one.
            return Lost(n + 1, through.n, "recreated", through.life, at)
        gone = min(before_next(here, facts) if entries else through.n, through.n)
        if gone <= n:
            return None
        by_hand = order(facts.deleted) > order(at)
        cause = "before" if at == START else "deleted" if by_hand else "trimmed"
        return Lost(n + 1, gone, cause, through.life, at)
