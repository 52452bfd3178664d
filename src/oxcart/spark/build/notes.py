"""Notes about built days: what each (day, queue) was built from, as the table ``builds``.

A note shows a later build whether to rebuild a day: the previous day hands on other events, or rows
arrived that are older than the settled ones. The notes of a day are one file, which each build of the day
replaces.

A ledger knows which notes ask for a build. It reads all notes once, and keeps each queue's last one. Then its
cost depends on the notes that change, not on how many days there are.
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
from oxcart.spark.lake.files import FIRST_DAY, LakeConflict

if TYPE_CHECKING:
    from oxcart.spark.lake.versions import File, Lake, Version


#: Files whose notes stay in memory: those of days that are built now, and their neighbours.
_AT_HAND = 64
#: Changed files from which on all notes are read again.
_MOST_CHANGED = 32


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


class Ledger:
    """The notes of a lake, day by day.

    Args:
        lake: The lake.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._version: Version | None = None
        self._first = ""
        #: The file of each day.
        self._files: dict[str, str] = {}
        #: The last day of each queue, with its note.
        self._last: dict[str, tuple[str, Built]] = {}
        #: Each (day, queue) whose note is stale, or does not fit the note before it.
        self._wrong: set[tuple[str, str]] = set()

    def look(self, version: Version) -> Ledger:
        """Brings the ledger up to a version; returns it."""
        known, self._version = self._version, None  # an error leaves it to be read anew
        self._first = str(version.marks.get(FIRST_DAY, ""))
        if known is None or known.tables.get(BUILDS) != version.tables.get(BUILDS):
            files = {file.day: str(version.lake.place(file)) for file in version.of(BUILDS)}
            changed = {day for day in {*files, *self._files} if files.get(day) != self._files.get(day)}
            follow = known is not None and len(changed) <= _MOST_CHANGED
            before = self._former(changed) if follow else None
            self._files = files
            if before is None:
                self._read_all()
            else:
                self._follow(before)
        self._version = version
        return self

    def of(self, day: str) -> dict[str, Built]:
        """Returns the notes of a day, by queue."""
        return dict(_read(self._files[day])) if day in self._files else {}

    def had_related(self, queue: str, day: str) -> bool:
        """Whether a queue had jobs of flows or schedules, on a day that was built or on one before it."""
        known = (self._note(queue, day), self._note(queue, self._prior(queue, day)[0]))
        return any(built is not None and built.related for built in known)

    def basis(self, queue: str, day: str, fresh: Iterable[str]) -> Basis:
        """Returns what a (day, queue) would be built from now.

        Args:
            queue: The queue.
            day: The day.
            fresh: The days of its new bronze.
        """
        before, carried = self._prior(queue, day)
        newest = max((other for other in fresh if other < day), default="")
        if newest > before:
            before, carried = newest, ""
        return Basis(before, carried, day >= max((self._last_day(queue), *fresh)))

    def stale(self, present: frozenset[str] | None = None) -> dict[str, dict[str, bool]]:
        """Returns the days and queues that must be built, each with whether as a whole.

        Args:
            present: Only these paths of new bronze; by default all.
        """
        assert self._version is not None, "call look first"
        fresh = fresh_days(self._version, present)
        # A day whose bronze was dropped cannot be rebuilt.
        wanted = {(day, queue) for day, queue in self._wrong if day >= self._first}
        for queue, days in fresh.items():
            wanted |= {(day, queue) for day in days}
            if "" < self._last_day(queue) < max(days):
                wanted.add((self._last_day(queue), queue))  # it is not the last day any more
        found: dict[str, dict[str, bool]] = {}
        for day, queue in wanted:
            was, new = self._note(queue, day), fresh.get(queue, set())
            later = self.basis(queue, day, [one for one in new if one > day])
            if was is not None and not was.stale and was.basis == later and day not in new:
                continue  # its note says that it is not the last day, and new bronze says so, too
            basis = self.basis(queue, day, new)
            grows = (
                was is not None
                and not was.stale
                and was.basis.last
                and msgspec.structs.replace(basis, last=True) == was.basis
            )
            found.setdefault(day, {})[queue] = not grows
        return found

    def _note(self, queue: str, day: str) -> Built | None:
        return _read(self._files[day]).get(queue) if day in self._files else None

    def _last_day(self, queue: str) -> str:
        return self._last[queue][0] if queue in self._last else ""

    def _prior(self, queue: str, day: str) -> tuple[str, str]:
        """The day of the note before a (day, queue), and what that hands on; empty for none."""
        was = self._note(queue, day)
        if was is not None and (day, queue) not in self._wrong:
            return was.basis.before, was.basis.carried
        found = self._last.get(queue)
        if found is not None and found[0] >= day:
            found = self._nearest(queue, sorted((one for one in self._files if one < day), reverse=True))
        return ("", "") if found is None else (found[0], found[1].handed)

    def _after(self, queue: str, day: str) -> str | None:
        """The day of the note after a (day, queue)."""
        if self._last_day(queue) <= day:
            return None
        found = self._nearest(queue, sorted(one for one in self._files if one > day))
        return None if found is None else found[0]

    def _nearest(self, queue: str, days: Iterable[str]) -> tuple[str, Built] | None:
        for day in days:
            if (built := self._note(queue, day)) is not None:
                return day, built
        return None

    def _former(self, days: Iterable[str]) -> dict[str, dict[str, Built]] | None:
        """The notes of days as the ledger knows them; None if an erasure has deleted them."""
        try:
            return {day: self.of(day) for day in days}
        except FileNotFoundError:
            return None

    def _follow(self, before: Mapping[str, Mapping[str, Built]]) -> None:
        """Follows changed notes, given those of before by day."""
        changed: list[tuple[str, str, bool]] = []
        check: set[tuple[str, str]] = set()
        for day in sorted(before):
            now, then = self.of(day), before[day]
            for queue in {*now, *then}:
                if now.get(queue) != then.get(queue):
                    check |= {(day, queue), (self._last_day(queue), queue)}
                    self._move(queue, day, now.get(queue))
                    check.add((self._last_day(queue), queue))
                    changed.append((day, queue, queue in now))
        for day, queue in check:
            self._check(day, queue)
        for day, queue, noted in changed:
            if after := self._after(queue, day):
                self._check(after, queue, day if noted else None)

    def _move(self, queue: str, day: str, built: Built | None) -> None:
        """Follows the last note of a queue."""
        last = self._last_day(queue)
        if built is not None:
            if last <= day:
                self._last[queue] = day, built
        elif last == day:
            found = self._nearest(queue, sorted((one for one in self._files if one < day), reverse=True))
            self._last.pop(queue)
            if found is not None:
                self._last[queue] = found

    def _check(self, day: str, queue: str, before: str | None = None) -> None:
        """Decides whether a (day, queue) must be built, because its note does not fit the others.

        Args:
            day: The day.
            queue: The queue.
            before: The day of the note before it, where that is known to have changed.
        """
        was = self._note(queue, day)
        if was is None or day < self._first:
            self._wrong.discard((day, queue))
            return
        if (day, queue) in self._wrong:
            fits = was.basis == self.basis(queue, day, ())
        else:
            known = self._note(queue, was.basis.before)
            handed = "" if known is None else known.handed
            exists = known is not None or not was.basis.before
            fits = exists and before in (None, was.basis.before)
            fits = fits and was.basis == Basis(was.basis.before, handed, day == self._last_day(queue))
        if fits and not was.stale:
            self._wrong.discard((day, queue))
        else:
            self._wrong.add((day, queue))

    def _read_all(self) -> None:
        """Reads all notes, of which each queue's last one stays in memory."""
        self._last, self._wrong = {}, set()
        for day, path in sorted(self._files.items()):
            for queue, built in _parsed(path).items():
                before, was = self._last.get(queue, ("", None))
                basis = Basis(before, "" if was is None else was.handed, built.basis.last)
                if built.stale or built.basis != basis:
                    self._wrong.add((day, queue))
                if was is not None and was.basis.last:
                    self._wrong.add((before, queue))
                self._last[queue] = day, built
        self._wrong |= {(day, queue) for queue, (day, built) in self._last.items() if not built.basis.last}
        self._wrong = {(day, queue) for day, queue in self._wrong if day >= self._first}


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
    ledger = Ledger(version.lake).look(version)
    days: dict[str, set[str]] = {}
    for day, queue in parts:
        days.setdefault(day, set()).add(queue)
    files: list[File] = []
    for day, queues in days.items():
        of_day = ledger.of(day)
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


def fresh_days(version: Version, present: frozenset[str] | None = None) -> dict[str, set[str]]:
    """Returns the days of bronze that no build has taken yet, by queue; ``present`` as for `fresh_files`."""
    found: dict[str, set[str]] = {}
    for file in fresh_files(version, present):
        for queue in version.lake.streams(file):
            found.setdefault(queue, set()).add(file.day)
    return found


def without_dropped(version: Version, first: str) -> tuple[list[File], set[str]]:
    """Drops the notes of days before the first whose bronze is kept, but each queue's last one of them.

    The next day of its queue begins with the jobs that are open at its end.

    Returns:
        New files of notes, and the paths of files that go.

    Raises:
        LakeConflict: An erasure has deleted notes of this version.
    """
    files = [file for file in version.of(BUILDS) if file.day < first]
    try:
        noted = {file.day: _parsed(str(version.lake.place(file))) for file in files}
    except FileNotFoundError as error:
        raise LakeConflict(f"notes were replaced by an erasure meanwhile ({error.filename})") from error
    last = {queue: day for day, known in sorted(noted.items()) for queue in known}
    made: list[File] = []
    gone: set[str] = set()
    for file in files:
        known = noted[file.day]
        kept = {queue: built for queue, built in known.items() if last[queue] == file.day}
        if len(kept) < len(known):
            made += write_notes(version.lake, file.day, kept)
            gone.add(file.path)
    return made, gone


@lru_cache(maxsize=_AT_HAND)
def _read(path: str) -> dict[str, Built]:
    """The notes of a file, which never changes, by queue; do not change them."""
    return _parsed(path)


def _parsed(path: str) -> dict[str, Built]:
    from pyarrow import parquet

    found: dict[str, Built] = {}
    for row in parquet.ParquetFile(path).read().to_pylist():
        values: dict[str, Any] = {
            name: row[name] for name in ("through", "handed", "related", "stale") if name in row
        }
        found[row["queue"]] = Built(Basis(row["before"], row["carried"], row["last"]), **values)
    return found
