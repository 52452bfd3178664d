"""Notes about built days: what each (day, queue) was built from, as the table ``builds``.

A note tells a later build whether a day must be rebuilt: the previous day hands on other events, or rows
arrived that are older than the settled ones. The notes of a day are one file, which each build of the day
replaces.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.columns import BUILDS

if TYPE_CHECKING:
    from oxcart.spark.lake.versions import File, Lake, Version


class Basis(msgspec.Struct, frozen=True):
    """What a (day, queue) is built from, besides its bronze.

    Attributes:
        before: The day whose open jobs it begins with; empty for none.
        carried: A fingerprint of these jobs.
        last: Whether it is the queue's last day.
    """

    before: str
    carried: str
    last: bool


class Built(msgspec.Struct, frozen=True):
    """The note about a (day, queue) that was built.

    Attributes:
        basis: What it was built from.
        through: The time by which a settled row has ended, in ms.
        handed: A fingerprint of the open jobs that it hands on; empty for none, and on the last day.
        related: Whether the queue had jobs of flows or schedules, on this day or an earlier one.
        stale: Whether it must be rebuilt as a whole: its bronze was rewritten.
    """

    basis: Basis
    through: int
    handed: str
    related: bool = False
    stale: bool = False


#: Notes by queue and day.
Notes = dict[str, dict[str, Built]]


def notes(version: Version) -> Notes:
    """Returns the notes of a version."""
    found: Notes = {}
    for file in version.of(BUILDS):
        for queue, built in _read(str(version.lake.place(file))).items():
            found.setdefault(queue, {})[file.day] = built
    return found


def write_notes(lake: Lake, day: str, known: Mapping[str, Built]) -> list[File]:
    """Writes the notes of a day, by queue, into a new file."""
    import pyarrow as pa
    from pyarrow import parquet

    if not known:
        return []
    kinds = {"last": pa.bool_(), "through": pa.int64(), "related": pa.bool_(), "stale": pa.bool_()}
    rows = [
        {
            "day": date.fromisoformat(day),
            "queue": queue,
            **msgspec.structs.asdict(built.basis),
            **{name: getattr(built, name) for name in ("through", "handed", "related", "stale")},
        }
        for queue, built in sorted(known.items())
    ]
    schema = pa.schema(
        [("day", pa.date32()), *((name, kinds.get(name, pa.string())) for name in list(rows[0])[1:])]
    )
    stage = lake.staging()
    try:
        parquet.write_table(pa.Table.from_pylist(rows, schema=schema), stage / "notes.parquet")
        return [lake.take(stage / "notes.parquet", BUILDS, day)]
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def made_stale(version: Version, parts: Iterable[tuple[str, str]]) -> tuple[list[File], set[str]]:
    """Marks some (day, queue) for a rebuild as a whole.

    Returns:
        New files of notes, and the paths of files that go.
    """
    known = notes(version)
    days: dict[str, set[str]] = {}
    for day, queue in parts:
        days.setdefault(day, set()).add(queue)
    files: list[File] = []
    for day, queues in days.items():
        of_day = {queue: built[day] for queue, built in known.items() if day in built}
        for queue in queues:
            was = of_day.get(queue) or Built(Basis("", "", False), -1, "")
            of_day[queue] = msgspec.structs.replace(was, stale=True)
        files += write_notes(version.lake, day, of_day)
    return files, {file.path for file in version.of(BUILDS, days=days)}


def fresh_files(version: Version, present: frozenset[str] | None = None) -> list[File]:
    """Returns bronze that no build has taken yet.

    Args:
        version: The version.
        present: Only these paths: bronze that arrived after a pass began waits for the next one.
    """
    found = (file for file in version.of(BRONZE) if file.pending)
    return [file for file in found if present is None or file.path in present]


def bases(known: Notes, fresh: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Basis]:
    """Returns what every (day, queue) would be built from now.

    Args:
        known: The notes.
        fresh: Each (day, queue) of new bronze.
    """
    days: dict[str, set[str]] = {queue: set(built) for queue, built in known.items()}
    for day, queue in fresh:
        days.setdefault(queue, set()).add(day)
    found = {}
    for queue, mine in days.items():
        before, last = "", max(mine)
        for day in sorted(mine):
            was = known.get(queue, {}).get(before)
            found[day, queue] = Basis(before, was.handed if was else "", day == last)
            before = day
    return found


def stale(version: Version, present: frozenset[str] | None = None) -> dict[str, dict[str, bool]]:
    """Returns the days and queues that must be built, each with whether as a whole."""
    known = notes(version)
    fresh = {
        (file.day, queue) for file in fresh_files(version, present) for queue in version.lake.streams(file)
    }
    found: dict[str, dict[str, bool]] = {}
    for (day, queue), basis in bases(known, fresh).items():
        was = known.get(queue, {}).get(day)
        if was is not None and not was.stale and was.basis == basis and (day, queue) not in fresh:
            continue
        grows = (
            was is not None
            and not was.stale
            and was.basis.last
            and msgspec.structs.replace(basis, last=True) == was.basis
        )
        found.setdefault(day, {})[queue] = not grows
    return found


@lru_cache(maxsize=4096)
def _read(path: str) -> dict[str, Built]:
    """The notes of a file, which never changes, by queue."""
    from pyarrow import parquet

    found: dict[str, Built] = {}
    for row in parquet.ParquetFile(path).read().to_pylist():
        values: dict[str, Any] = {
            name: row[name] for name in ("through", "handed", "related", "stale") if name in row
        }
        found[row["queue"]] = Built(Basis(row["before"], row["carried"], row["last"]), **values)
    return found
