"""The lake: Delta tables, and snapshots that show one version of all of them.

A snapshot is a small file in ``_snapshots/``: the version of every Delta table, and a few marks such as the
offsets of the ingest. Readers begin with the newest snapshot, so that a change of several tables appears at
once. A reader of one Delta table by itself sees each change of that table at once too.

A writer publishes a change under a lock: it moves the files of the change to their place, commits them to
the log of each table, and writes the next snapshot. Before the first commit it notes its intent in the lock's
file. If it is killed, the next writer finds the note. Where every table has its commit, that writer completes
the change; else it takes the commits back. So a batch and the offset at which it ends, which concern one
table, are one atomic step: the commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from oxcart.spark.lake.delta import DeltaLog, require_deltalake, tables_of
from oxcart.spark.lake.files import STAGING, File, LakeConflict, LakeError, explained, file_name, sync

__all__ = ["Change", "File", "Lake", "LakeConflict", "LakeError", "Version", "explained"]

SNAPSHOTS = "_snapshots"
#: The file that is locked while a change is published. It has the note of a change that is not complete.
LOCK = "_publish.lock"
#: The folder of manifests in lakes of earlier releases.
OLD_LAYOUT = "_versions"
#: Errors of file systems without locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
#: Files of which a lake remembers the streams, at most.
_STREAMS = 20_000


class Change(msgspec.Struct, frozen=True):
    """A change that a writer publishes.

    Attributes:
        why: The purpose, in a word or two, for people who list the snapshots.
        add: New files, as `Lake.take` returns them.
        remove: Files that go, by path; the newest snapshot must still have them.
        marks: Marks to set; None removes one.
        expects: Marks and the values that they must still have, else there is a conflict.
        rows: How many rows of each queue it brings, for `oxcart pipeline status`.
    """

    why: str
    add: Sequence[File] = ()
    remove: frozenset[str] = frozenset()
    marks: Mapping[str, Any] = msgspec.field(default_factory=dict)
    expects: Mapping[str, Any] = msgspec.field(default_factory=dict)
    rows: Mapping[str, int] = msgspec.field(default_factory=dict)


class Snapshot(msgspec.Struct, omit_defaults=True):
    """A snapshot as a file.

    Attributes:
        number: Its number, from 1.
        at_ms: When it was published.
        why: Its purpose.
        tables: The version of every Delta table.
        marks: All marks.
        rows: How many rows of each queue the change brought.
    """

    number: int
    at_ms: int
    why: str
    tables: dict[str, int] = {}
    marks: dict[str, Any] = {}
    rows: dict[str, int] = {}


class _Intent(msgspec.Struct, omit_defaults=True):
    """The note of a change at work: the snapshot that it makes, and the tables that get a commit.

    The versions in the snapshot are those before the change. ``placed`` are the files that were moved.
    """

    snapshot: Snapshot
    changed: list[str] = []
    placed: list[str] = []


class Version:
    """All tables as one snapshot shows them.

    Args:
        lake: The lake.
        snapshot: The snapshot.

    Attributes:
        number: Its number; 0 is the empty lake.
        at_ms: When it was published.
        why: Its purpose.
        tables: The version of every Delta table.
        marks: All marks.
    """

    def __init__(self, lake: Lake, snapshot: Snapshot) -> None:
        self.lake = lake
        self.number = snapshot.number
        self.at_ms = snapshot.at_ms
        self.why = snapshot.why
        self.tables: Mapping[str, int] = snapshot.tables
        self.marks: Mapping[str, Any] = snapshot.marks

    def __repr__(self) -> str:
        return f"Version({self.number}, {self.why!r})"

    def of(self, table: str, *, days: Iterable[str] | None = None) -> list[File]:
        """Returns the files of a table, of some days or of all, in a stable order."""
        wanted = None if days is None else frozenset(days)
        found = (file for file in self.by_path(table).values() if wanted is None or file.day in wanted)
        return sorted(found, key=lambda file: (file.day, file.path))

    def by_path(self, table: str) -> Mapping[str, File]:
        """Returns the files of a table by path."""
        version = self.tables.get(table)
        return {} if version is None else self.lake._files_of(table, version)

    @property
    def files(self) -> Mapping[str, File]:
        """All files of all tables, by path."""
        return {path: file for table in self.tables for path, file in self.by_path(table).items()}

    def days(self, table: str) -> list[str]:
        """Returns the days of a table, sorted."""
        return sorted({file.day for file in self.by_path(table).values()})


class Lake:
    """The tables in a folder.

    Args:
        root: The folder; made when first written to.
        clock: The time in ms.
    """

    def __init__(self, root: str | Path, *, clock: Callable[[], int] | None = None) -> None:
        self.root = Path(root).absolute()
        self.clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._mine = threading.RLock()  # batches, builds and upkeep share a lake
        self._logs: dict[str, DeltaLog] = {}
        self._known: dict[str, tuple[int, dict[str, File]]] = {}
        self._newest: Version | None = None
        self._held: _Lock | None = None
        self._streams: dict[str, frozenset[str]] = {}

    def __repr__(self) -> str:
        return f"Lake({str(self.root)!r})"

    # -- reading

    def head(self) -> Version:
        """Returns the newest version.

        Raises:
            LakeError: The lake is of an earlier release, or its snapshot cannot be read.
        """
        found = self._head()
        if not found.number and (self.root / OLD_LAYOUT).is_dir():
            raise LakeError(
                f"the lake in {self.root} is of an earlier release: run 'oxcart pipeline migrate --lake "
                f"{self.root}' once"
            )
        return found

    def _head(self) -> Version:
        numbers = self.numbers()
        if not numbers:
            return self.at(0)
        newest = self._newest
        if newest is not None and newest.number == numbers[-1]:
            return newest
        self._newest = newest = self.at(numbers[-1])
        return newest

    def at(self, number: int) -> Version:
        """Returns a version by its number.

        Raises:
            LakeError: There is none, or it has expired.
        """
        if number == 0:
            return Version(self, Snapshot(0, 0, "empty"))
        return Version(self, self.snapshot(number))

    def numbers(self) -> list[int]:
        """Returns the numbers of snapshots that have not expired.

        Raises:
            LakeError: The folder cannot be read.
        """
        try:
            names = os.listdir(self.root / SNAPSHOTS)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LakeError(f"the lake {str(self.root)!r:.200} cannot be read: {error.strerror}") from error
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def snapshot(self, number: int) -> Snapshot:
        """Reads a snapshot.

        Raises:
            LakeError: There is none, or it cannot be read.
        """
        path = self.root / SNAPSHOTS / snapshot_name(number)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Snapshot)
        except FileNotFoundError:
            raise LakeError(f"{self.root} has no version {number}: it has expired or never was") from None
        except msgspec.MsgspecError as error:
            raise LakeError(
                f"{path} cannot be read ({error}): restore it from a backup, or delete it and rebuild from "
                "the version before"
            ) from error

    def history(self) -> list[tuple[int, int, str]]:
        """Returns number, time and purpose of every version that has not expired."""
        found = (self.snapshot(number) for number in self.numbers())
        return [(one.number, one.at_ms, one.why) for one in found]

    def place(self, file: File) -> Path:
        """Returns where a file is now, on this machine; it may not be published yet."""
        staged = self.root / file.source if file.source else None
        return staged if staged is not None and staged.exists() else self.root / file.path

    def paths(self, files: Iterable[File]) -> list[str]:
        """Returns the paths of files on this machine."""
        return [str(self.place(file)) for file in files]

    def streams(self, file: File) -> frozenset[str]:
        """Returns the streams whose rows a file has; it is read once."""
        from pyarrow import parquet

        found = self._streams.get(file.name)
        if found is None:
            with parquet.ParquetFile(self.place(file)) as source:
                columns = [name for name in ("queue", "lane") if name in source.schema_arrow.names]
                rows = source.read(columns).group_by(columns).aggregate([]).to_pylist() if columns else []
            names = (f"{row['queue']}@{row['lane']}" if row.get("lane") else row["queue"] for row in rows)
            found = frozenset(name for name in names if name is not None)
            if len(self._streams) > _STREAMS:
                self._streams.clear()
            self._streams[file.name] = found
        return found

    def _files_of(self, table: str, version: int) -> Mapping[str, File]:
        with self._mine:
            known = self._known.get(table)
            if known is not None and known[0] == version:
                return known[1]
            found = self._log(table).files(version)
            if known is None or known[0] < version:
                self._known[table] = version, found
            return found

    def _log(self, table: str) -> DeltaLog:
        require_deltalake()
        return self._logs.setdefault(table, DeltaLog(self.root, table))

    # -- writing

    def staging(self) -> Path:
        """Makes a new folder for files that are not yet part of the lake."""
        folder = self.root / STAGING / uuid.uuid4().hex
        with explained(self.root):
            folder.mkdir(parents=True)
        return folder

    def take(self, made: Path, table: str, day: str, *, pending: bool = False) -> File:
        """Takes a finished Parquet file into staging; returns the file, which is not yet published."""
        from pyarrow import parquet

        unique = uuid.uuid4().hex
        with explained(self.root):
            footer = parquet.read_metadata(made)
            low, high = _queues(footer)
            sync(made)
            source = f"{STAGING}/{unique}.parquet"
            os.rename(made, self.root / source)
            path = f"{table}/day={day}/{file_name(unique, pending=pending)}"
            size = (self.root / source).stat().st_size
            return File(table, day, path, footer.num_rows, size, low, high, source)

    def discard(self, files: Iterable[File]) -> None:
        """Deletes staged files that will not be published."""
        for file in files:
            if file.source.startswith(STAGING):
                (self.root / file.source).unlink(missing_ok=True)

    def publish(self, change: Change, base: Version | None = None) -> Version:
        """Publishes the next version.

        Args:
            change: What it changes.
            base: The version that the change was made from; by default the newest.

        Raises:
            LakeConflict: Since the base, another writer removed a file that this change removes, or set a
                mark that it expects or sets; or an erasure deleted its staged files.
            LakeError: The file system is full.
        """
        require_deltalake()
        base = self.head() if base is None else base
        with self._mine, explained(self.root), self._locked() as lock:
            current = self._head()
            try:
                _check(change, base, current)
            except LakeConflict:
                self.discard(change.add)
                raise
            intent = _intended(change, current, self.clock())
            intent.placed = self._move(change)
            try:
                if intent.changed:
                    lock.write(msgspec.json.encode(intent))
                self._commit(change, current, intent)
                self._create(intent.snapshot)
            except BaseException:
                with contextlib.suppress(Exception):  # else the next writer does it
                    placed, intent.placed = intent.placed, []
                    if not self._settle(intent):
                        self._put_back(change, placed)
                    lock.clear()
                raise
            lock.clear()
            self._newest = Version(self, intent.snapshot)
            return self._newest

    def recover(self) -> None:
        """Completes or takes back the change of a writer that was killed."""
        if (self.root / LOCK).exists():
            with self._mine, explained(self.root), self._locked():
                pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other writers from publishing until the block ends."""
        with self._mine, explained(self.root), self._locked():
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Lock]:
        if self._held is not None:
            yield self._held  # by this thread, as it has `_mine`
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with _Lock(self.root / LOCK) as lock, contextlib.ExitStack() as held:
            self._held = lock
            held.callback(setattr, self, "_held", None)
            if note := lock.read():
                # No commit begins before the whole note is on disk.
                with contextlib.suppress(msgspec.DecodeError):
                    self._settle(msgspec.json.decode(note, type=_Intent))
                lock.clear()
            yield lock

    def _move(self, change: Change) -> list[str]:
        """Moves staged files to their place; all or none."""
        placed: list[str] = []
        try:
            for file in change.add:
                if not file.source:
                    continue
                target = self.root / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.source.startswith(STAGING):
                    os.rename(self.root / file.source, target)
                else:
                    with contextlib.suppress(FileExistsError):
                        os.link(self.root / file.source, target)
                placed.append(file.path)
        except FileNotFoundError as error:
            for path in placed:
                (self.root / path).unlink(missing_ok=True)
            raise LakeConflict(
                f"{change.why}: a file of the change was deleted meanwhile, by an erasure or an expiry "
                f"({error.filename}); run it again"
            ) from error
        return placed

    def _commit(self, change: Change, current: Version, intent: _Intent) -> None:
        made = intent.snapshot
        note = ""
        if change.marks:
            note = msgspec.json.encode({"number": made.number, "marks": change.marks}).decode()
        for table in intent.changed:
            known = current.by_path(table)
            add = [msgspec.structs.replace(file, source="") for file in change.add if file.table == table]
            remove = [known[path] for path in change.remove if path in known]
            made.tables[table] = self._log(table).commit(
                made.number, made.at_ms, change.why, add, remove, note
            )
            files = {path: file for path, file in known.items() if path not in change.remove}
            self._known[table] = made.tables[table], files | {file.path: file for file in add}

    def _put_back(self, change: Change, placed: Iterable[str]) -> None:
        """Returns files of a change that was not published to staging, so that it can be published again."""
        sources = {file.path: file.source for file in change.add}
        for path in placed:
            if sources[path].startswith(STAGING):
                os.rename(self.root / path, self.root / sources[path])
            else:
                (self.root / path).unlink(missing_ok=True)

    def _settle(self, intent: _Intent) -> bool:
        """Ends a change whose writer did not; returns whether the change is published.

        It is completed if all tables have it, else taken back. A change that was taken back has a snapshot
        too, because the commits of tables have its number.
        """
        made = intent.snapshot
        if made.number <= (self.numbers() or [0])[-1]:
            return True  # only the note was left
        old = self.at(made.number - 1)
        done = [table for table in intent.changed if self._has(table, made.number)]
        self._known = {table: known for table, known in self._known.items() if table not in intent.changed}
        if done and len(done) == len(intent.changed):
            made.tables = {**old.tables, **{table: self._log(table).version() for table in done}}
            self._create(made)
            return True
        # A table that the change created has no version before it but that of its creation.
        restored = {table: self._log(table).restore(old.tables.get(table, 0)) for table in done}
        named = {path for table in intent.changed for path in old.by_path(table)}
        for path in intent.placed:
            if path not in named:
                (self.root / path).unlink(missing_ok=True)
        if done:
            tables = {**old.tables, **restored}
            self._create(
                Snapshot(made.number, self.clock(), f"took back: {made.why}", tables, dict(old.marks))
            )
        return False

    def _has(self, table: str, number: int) -> bool:
        log = self._log(table)
        return log.exists and log.number() == number

    def _create(self, snapshot: Snapshot) -> None:
        """Writes a snapshot under its number.

        Raises:
            LakeConflict: The number is taken, where the file system has no locks.
        """
        folder = self.root / SNAPSHOTS
        made = folder / f".{uuid.uuid4().hex}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            made.write_bytes(msgspec.json.encode(snapshot))
            sync(made)
            # A link to a complete file: readers never see half a snapshot, and no number exists twice.
            os.link(made, folder / snapshot_name(snapshot.number))
            sync(folder)
        except FileExistsError:
            raise LakeConflict(
                f"{snapshot.why}: another writer has published version {snapshot.number}; run it again"
            ) from None
        finally:
            made.unlink(missing_ok=True)

    def logs(self) -> dict[str, DeltaLog]:
        """Returns the logs of all tables."""
        return {table: self._log(table) for table in tables_of(self.root)}

    def create_tables(self, names: Iterable[str]) -> None:
        """Creates tables that do not exist yet, so that any reader finds them empty."""
        with self.locked():
            for name in names:
                self._log(name).create()
        self.note_versions("create")

    def note_versions(self, why: str) -> Version:
        """Publishes a snapshot with the newest version of every table, after commits that change no row."""
        with self._mine, explained(self.root), self._locked():
            head = self.head()
            tables = {table: self._log(table).version() for table in tables_of(self.root)}
            if tables == head.tables:
                return head
            snapshot = Snapshot(head.number + 1, self.clock(), why, tables, dict(head.marks))
            self._create(snapshot)
            self._newest = Version(self, snapshot)
            return self._newest


class _Lock:
    """An exclusive lock on a file, whose text is the note of a change that is not complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def __enter__(self) -> _Lock:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(self._file)
                raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # closing it frees the lock

    def read(self) -> bytes:
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.read(self._file, 1 << 26)

    def write(self, note: bytes) -> None:
        self.clear()
        if os.pwrite(self._file, note, 0) < len(note):
            self.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._file)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)


def snapshot_name(number: int) -> str:
    """Returns the file name of a snapshot."""
    return f"{number:020d}.json"


def _intended(change: Change, current: Version, now: int) -> _Intent:
    changed = {file.table for file in change.add} | {path.partition("/")[0] for path in change.remove}
    marks = {name: value for name, value in {**current.marks, **change.marks}.items() if value is not None}
    snapshot = Snapshot(current.number + 1, now, change.why, dict(current.tables), marks, dict(change.rows))
    return _Intent(snapshot, sorted(changed))


def _check(change: Change, base: Version, current: Version) -> None:
    """Refuses a change that conflicts with versions published since its base."""
    for name, value in change.expects.items():
        if current.marks.get(name) != value:
            raise LakeConflict(
                f"{change.why}: mark {name!r} is {current.marks.get(name)!r}, not {value!r} as expected "
                f"(version {current.number}); another writer is at work on the same lake"
            )
    others = f"since version {base.number} another writer ({current.why}, version {current.number})"
    for name in change.marks:
        if name not in change.expects and current.marks.get(name) != base.marks.get(name):
            raise LakeConflict(f"{change.why}: {others} has set mark {name!r}; run it again")
    for path in change.remove:
        if path not in current.by_path(path.partition("/")[0]):
            raise LakeConflict(f"{change.why}: {others} has removed {path}; run it again")


def _queues(footer: Any) -> tuple[str, str]:
    """The least and the greatest queue of a file by its footer; empty where it has none."""
    names = [footer.schema.column(at).path for at in range(len(footer.schema))]
    if "queue" not in names or not footer.num_rows:
        return "", ""
    place = names.index("queue")
    found = [footer.row_group(at).column(place).statistics for at in range(footer.num_row_groups)]
    if not all(one is not None and one.has_min_max and one.null_count == 0 for one in found):
        return "", ""
    return min(one.min for one in found), max(one.max for one in found)
