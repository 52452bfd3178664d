"""The spool: rows of bronze on their way, as Arrow files on this machine's disk.

A file is written under another name and renamed, so readers never see half of one. Its name says where it
ends, ``<life>-<ordinal>-<minute>.arrow``, and its metadata has the whole position.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from oxcart.spark.lake.versions import explained
from oxcart.spark.read.position import Position, read_position

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION = b"oxcart.position"


@dataclass(frozen=True)
class Segment:
    """A file of the spool.

    Attributes:
        path: Its path.
        life: The generation of the stream in which it ends.
        n: The ordinal at which it ends.
        minute: The minute of the last sample in it, which distinguishes segments of the same ordinal.
    """

    path: Path
    life: int
    n: int
    minute: int

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place among the segments of its stream."""
        return (self.life, self.n, self.minute)


class Spool:
    """A folder of segments, one folder per stream.

    Args:
        root: The folder.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def streams(self) -> list[str]:
        """Returns the streams that have a folder."""
        try:
            return sorted(unquote(name) for name in os.listdir(self.root))
        except FileNotFoundError:
            return []

    def segments(self, key: str) -> list[Segment]:
        """Returns the segments of a stream, in order."""
        try:
            names = os.listdir(self.root / quote(key, safe=""))
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            if name.endswith(".arrow") and not name.startswith("."):
                life, n, minute = (int(part) for part in name.removesuffix(".arrow").split("-"))
                found.append(Segment(self.root / quote(key, safe="") / name, life, n, minute))
        return sorted(found, key=lambda segment: segment.order)

    def end(self, key: str) -> Position | None:
        """Returns where a stream's spool ends; None where there are no segments."""
        found = self.segments(key)
        return position_of(found[-1].path) if found else None

    def write(self, key: str, through: Position, batches: Iterable[pa.RecordBatch]) -> Segment:
        """Adds a segment.

        Raises:
            LakeError: The file system is full.
        """
        with explained(self.root, "spool"):
            return self._write(key, through, batches)

    def _write(self, key: str, through: Position, batches: Iterable[pa.RecordBatch]) -> Segment:
        import pyarrow as pa

        folder = self.root / quote(key, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(batches)
        schema = rows[0].schema.with_metadata({_POSITION: msgspec.json.encode(through.to_json())})
        made = folder / f".{uuid.uuid4().hex}"
        path = folder / f"{through.life}-{through.n:020d}-{through.minute:012d}.arrow"
        try:
            with pa.OSFile(str(made), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                for batch in rows:
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            with made.open("rb") as written:
                os.fsync(written.fileno())
            os.rename(made, path)
        finally:
            made.unlink(missing_ok=True)
        return Segment(path, through.life, through.n, through.minute)

    def blank(self, offsets: Mapping[str, Position]) -> int:
        """Removes the rows of segments that have been read, but not their positions; returns how many."""
        done = 0
        for key, at in offsets.items():
            for segment in self.segments(key):
                if segment.order <= place(at):
                    through = position_of(segment.path)
                    empty = [batch.slice(0, 0) for batch in _batches(segment.path)][:1]
                    if empty:
                        self.write(key, through, empty)
                        done += 1
        return done

    def forget(self, offsets: Mapping[str, Position]) -> int:
        """Deletes segments that have been read, except the last, which has the spool's position."""
        gone = 0
        for key, at in offsets.items():
            for segment in self.segments(key)[:-1]:
                if segment.order <= place(at):
                    segment.path.unlink(missing_ok=True)
                    gone += 1
        return gone


def place(at: Position) -> tuple[int, int, int]:
    """Returns a position's place among segments."""
    return (at.life, at.n, at.minute)


def position_of(path: Path) -> Position:
    """Returns the position at which a segment ends."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        written = pa.ipc.open_file(file).schema.metadata[_POSITION]
    return read_position(msgspec.json.decode(written))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with pa.OSFile(str(path), "rb") as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def read_segment(path: Path, after: Position) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a segment after a position."""
    from pyarrow import compute

    for batch in _batches(path):
        old = compute.and_kleene(
            compute.less_equal(batch["ordinal"], after.n), compute.equal(batch["life"], after.life)
        )
        kept = batch.filter(compute.invert(compute.fill_null(old, False)))
        if kept.num_rows:
            yield kept.replace_schema_metadata(None)
