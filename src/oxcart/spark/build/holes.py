"""Finds gaps of event streams that were not refilled yet.

A gap is a row of bronze until its day is built, then also a row of the table ``gaps``. So only bronze that no
build has taken is read, and the table. A gap at the present end of a stream waits for an entry after it,
which is looked for in new files alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oxcart.broker.export import EVENTS
from oxcart.spark.build.notes import fresh_files
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.versions import File, Lake, Version
from oxcart.spark.read.entries import ENTRY, GAP, day_of

GAPS = "gaps"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Columns of bronze, and those of ``gaps``, in the order of `Gap`.
_OF_BRONZE = ("queue", "lane", "life", "ordinal", "lost", "entry_id", "occurred_at")
_OF_GAPS = ("queue", "lane", "life", "first_lost", "count", "after_id", "occurred_at")
#: Where both have the number of lost entries; a stream that was made anew has none.
_LOST = 4


class Gap(msgspec.Struct, frozen=True):
    """A gap of an event stream, whose end may not be known yet.

    Attributes:
        queue: The queue.
        lane: Its lane; None for the queue itself.
        life: The generation of the stream.
        first: The ordinal of the first lost entry.
        lost: How many entries are lost.
        after_id: The id of the entry before them.
        at: The time of the gap's own row.
    """

    queue: str
    lane: str | None
    life: int
    first: int
    lost: int
    after_id: str
    at: datetime

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return f"{self.queue}@{self.lane}" if self.lane else self.queue

    @property
    def key(self) -> str:
        """Its name in the mark of filled gaps."""
        return f"{self.stream}:{self.life}:{self.first}"

    @property
    def after_ms(self) -> int:
        """The time of the entry before it; 0 for none."""
        return int(self.after_id.partition("-")[0])


class Hole(msgspec.Struct, frozen=True):
    """A gap of an event stream whose two edges are known.

    Attributes:
        queue: The queue, or its lane.
        life: The generation of the stream.
        first: The ordinal of the first lost entry.
        lost: How many entries are lost.
        after_ms: The time of the entry before them; 0 for none.
        before_ms: The time of the entry after them.
        at_ms: The time of the gap's own row.
        key: Its name in the mark of filled gaps.
    """

    queue: str
    life: int
    first: int
    lost: int
    after_ms: int
    before_ms: int
    at_ms: int
    key: str


class Holes:
    """The gaps of a lake that were not refilled yet.

    Args:
        lake: The lake.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._read: dict[str, list[Gap]] = {}
        #: The files that lack the entry after a gap, by the gap's key.
        self._searched: dict[str, set[str]] = {}

    def open(self, version: Version) -> list[Gap]:
        """Returns the gaps of a version that ``gaps`` does not call refilled."""
        wanted = [*version.of(GAPS), *fresh_files(version)]
        self._read = {file.path: self._gaps(file) for file in wanted}
        found = {gap.key: gap for gaps in self._read.values() for gap in gaps}
        self._searched = {key: names for key, names in self._searched.items() if key in found}
        return list(found.values())

    def ended(self, version: Version, gaps: Iterable[Gap]) -> Iterator[Hole]:
        """Yields those gaps whose streams have an entry after them."""
        for gap in gaps:
            before_ms = self._behind(version, gap)
            if before_ms is not None:
                edges = (gap.after_ms, before_ms, millis(gap.at))
                yield Hole(gap.stream, gap.life, gap.first, gap.lost, *edges, gap.key)

    def _gaps(self, file: File) -> list[Gap]:
        if file.path in self._read:
            return self._read[file.path]
        if file.table == BRONZE:
            return self._rows(file, _OF_BRONZE, {"kind": GAP}) if _may_have_gaps(self._lake, file) else []
        return self._rows(file, _OF_GAPS, {"refilled": None})

    def _rows(self, file: File, columns: Sequence[str], where: Mapping[str, Any]) -> list[Gap]:
        from pyarrow import parquet

        names = [*columns, *where]
        with parquet.ParquetFile(self._lake.place(file)) as source:
            rows = source.read([*names, "stream"]).to_pylist()
        wanted = {**where, "stream": EVENTS}
        return [
            Gap(*(row[name] for name in columns))
            for row in rows
            if row[columns[_LOST]] is not None and all(row[name] == value for name, value in wanted.items())
        ]

    def _behind(self, version: Version, gap: Gap) -> int | None:
        """The time of the entry after a gap, or None."""
        from pyarrow import compute as pc
        from pyarrow import dataset

        first = day_of(gap.after_ms)
        done = self._searched.setdefault(gap.key, set())
        near = [
            file
            for file in version.of(BRONZE)
            if file.day >= first
            and file.name not in done
            and (not file.low or file.low <= gap.queue <= file.high)
        ]
        if not near:
            return None
        lane = pc.field("lane")
        wanted = (
            (pc.field("queue") == gap.queue)
            & (lane.is_null() if gap.lane is None else lane == gap.lane)
            & (pc.field("kind") == ENTRY)
            & (pc.field("ordinal") == gap.first + gap.lost)
            & (pc.field("life") == gap.life)
            & (pc.field("stream") == EVENTS)
        )
        found = dataset.dataset(self._lake.paths(near)).to_table(columns=["occurred_at"], filter=wanted)
        if not found.num_rows:
            done.update(file.name for file in near)
            return None
        return millis(found["occurred_at"][0].as_py())


def millis(at: datetime) -> int:
    """Returns a time of a file in ms."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _may_have_gaps(lake: Lake, file: File) -> bool:
    """Whether a file may have gaps: by its footer, a row has a cause."""
    from pyarrow import parquet

    footer = parquet.read_metadata(lake.place(file))
    place = footer.schema.names.index("cause")
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(place).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count < group.num_rows:
            return True
    return False
