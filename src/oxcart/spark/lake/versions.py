"""The lake: tables as Parquet files, and versions of all of them published together.

A version is a manifest in ``_versions/``: its files, and a few marks (the offsets of the ingest, which days
are built). A writer publishes the next version by creating its manifest exclusively, so one of two racing
writers gets a number. The other checks what changed, and takes the next number or raises. Readers read the
files that a manifest names and no others. All tables share one sequence of versions, so that a change of
several tables appears at once.

A manifest holds added files, removed files and marks. Every so often it holds all files and marks, so that a
reader need not begin with the first one. Files are never changed. Their paths have table, day and queue, but
readers take paths from the manifest. The columns ``day`` and ``queue`` are in the files too, for any reader
of Parquet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from oxcart.model.errors import OxcartError

#: Every so many versions the manifest holds the whole list of files.
WHOLE_EVERY = 32
#: Attempts to publish before a writer gives up; each is lost only to another writer's success.
MOST_RACES = 1000

VERSIONS = "_versions"
STAGING = "_staging"
#: Errors of a full file system.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LakeError(OxcartError):
    """The lake cannot be read or written; the message names the remedy."""


class LakeConflict(LakeError):
    """Another writer changed the same part of the lake first; nothing of this change was published."""


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a version.

    Attributes:
        table: The table.
        day: The day of its rows, ``YYYY-MM-DD``; empty for a table without days.
        queue: The queue of its rows; empty for a table without queues.
        path: Its path, relative to the lake.
        rows: How many rows it has.
        size: Its size in bytes.
        pending: Whether the next build of its day replaces it: bronze that was not built from yet, and rows
            of silver and gold that are not settled.
    """

    table: str
    day: str
    queue: str
    path: str
    rows: int
    size: int
    pending: bool = False

    @property
    def part(self) -> Part:
        """The part of the lake that it belongs to."""
        return (self.table, self.day, self.queue)


#: Table, day and queue: the unit that is replaced as a whole.
Part = tuple[str, str, str]


class Change(msgspec.Struct, frozen=True):
    """A change that a writer publishes.

    Attributes:
        why: The purpose, in a word or two, for people who list the versions.
        add: New files, already in their place.
        replace: Parts whose files of the base version go; ``add`` may bring others for them.
        remove: Single files that go, by path; the version before must still have them.
        marks: Marks to set; None removes one.
        expects: Marks and the values that they must still have, else there is a conflict.
    """

    why: str
    add: Sequence[File] = ()
    replace: frozenset[Part] = frozenset()
    remove: frozenset[str] = frozenset()
    marks: Mapping[str, Any] = msgspec.field(default_factory=dict)
    expects: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Version(msgspec.Struct, frozen=True):
    """A state of all tables.

    Attributes:
        number: Its number; 0 is the empty lake.
        at_ms: When it was published.
        why: Its purpose.
        files: All files, by path.
        marks: All marks.
    """

    number: int
    at_ms: int
    why: str
    files: Mapping[str, File]
    marks: Mapping[str, Any]

    def of(
        self, table: str, *, days: Iterable[str] | None = None, queues: Iterable[str] | None = None
    ) -> list[File]:
        """Returns the files of a table, of some days and queues or of all, in a stable order."""
        wanted_days = None if days is None else frozenset(days)
        wanted_queues = None if queues is None else frozenset(queues)
        found = (
            file
            for file in self.files.values()
            if file.table == table
            and (wanted_days is None or file.day in wanted_days)
            and (wanted_queues is None or file.queue in wanted_queues)
        )
        return sorted(found, key=lambda file: (file.day, file.queue, file.path))

    @property
    def queues(self) -> set[str]:
        """The queues of its files, by the names of their streams."""
        return {file.queue for file in self.files.values()}

    def parts(self, table: str) -> list[Part]:
        """Returns the parts of a table, sorted."""
        return sorted({file.part for file in self.files.values() if file.table == table})


class Manifest(msgspec.Struct, omit_defaults=True):
    """A version as a file: what it changes, or with ``files`` all files and marks.

    A mark that is None is removed.
    """

    number: int
    at_ms: int
    why: str
    marks: dict[str, Any]
    add: list[File] = []
    remove: list[str] = []
    files: list[File] | None = None


_NOTHING = Version(0, 0, "empty", {}, {})


class Lake:
    """The tables in a folder.

    Args:
        root: The folder; made when first written to.
        clock: The time in ms.
    """

    def __init__(self, root: str | Path, *, clock: Callable[[], int] | None = None) -> None:
        self.root = Path(root).absolute()
        self.clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._known = _NOTHING

    def __repr__(self) -> str:
        return f"Lake({str(self.root)!r})"

    # -- reading

    def head(self) -> Version:
        """Returns the newest version."""
        numbers = self.numbers()
        if not numbers:
            return _NOTHING
        return self.at(numbers[-1])

    def at(self, number: int) -> Version:
        """Returns a version by its number.

        Raises:
            LakeError: There is none, or it has expired.
        """
        if number == 0:
            return _NOTHING
        # Read once: the threads of the stream and of the builds share a lake, and either may change it.
        known = self._known
        if known.number == number:
            return known
        steps: list[Manifest] = []
        version = _NOTHING
        at = number
        while at > 0:
            manifest = self.manifest(at)
            if manifest.files is not None:
                version = _stated(manifest)
                break
            steps.append(manifest)
            if known.number == at - 1:
                version = known
                break
            at -= 1
        for manifest in reversed(steps):
            version = _followed(version, manifest)
        if number >= known.number:
            self._known = version
        return version

    def paths(self, files: Iterable[File]) -> list[str]:
        """Returns the paths of files on this machine."""
        return [str(self.root / file.path) for file in files]

    def history(self) -> list[tuple[int, int, str]]:
        """Returns number, time and purpose of every version that has not expired."""
        manifests = (self.manifest(number) for number in self.numbers())
        return [(manifest.number, manifest.at_ms, manifest.why) for manifest in manifests]

    # -- writing

    def staging(self) -> Path:
        """Makes a new folder for files that are not yet part of the lake."""
        folder = self.root / STAGING / uuid.uuid4().hex
        with explained(self.root):
            folder.mkdir(parents=True)
        return folder

    def place(self, table: str, day: str, queue: str) -> str:
        """Returns a new path for a file of a part, relative to the lake."""
        folders = [table]
        if day:
            folders.append(f"day={day}")
        if queue:
            folders.append(f"queue={quote(queue, safe='')}")
        return "/".join([*folders, f"{uuid.uuid4().hex}.parquet"])

    def take(self, made: Path, table: str, day: str = "", queue: str = "", *, pending: bool = False) -> File:
        """Moves a finished Parquet file to its path; returns the file, which is not yet published."""
        from pyarrow import parquet

        with explained(self.root):
            footer = parquet.read_metadata(made)
            path = self.place(table, day, queue)
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            sync(made)
            os.rename(made, target)
            return File(table, day, queue, path, footer.num_rows, target.stat().st_size, pending)

    def publish(self, change: Change, base: Version | None = None) -> Version:
        """Publishes the next version.

        Args:
            change: What it changes.
            base: The version that the change was made from; by default the newest.

        Raises:
            LakeConflict: Since the base, another writer changed a part that this change replaces, a file
                that it removes, or a mark that it expects or sets.
            LakeError: The file system is full.
        """
        base = self.head() if base is None else base
        current = base
        for _ in range(MOST_RACES):
            current = self.head()
            _check(change, base, current)
            made = _applied(change, base, current, self.clock())
            if self._create(made):
                self._known = _followed(current, made)
                return self._known
        raise LakeConflict(
            f"{change.why}: lost the race for a version {MOST_RACES} times, last {current.number}"
        )

    def _create(self, manifest: Manifest) -> bool:
        """Writes a manifest under its number; False where the number is taken."""
        folder = self.root / VERSIONS
        made = folder / f".{uuid.uuid4().hex}"
        with explained(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                made.write_bytes(msgspec.json.encode(manifest))
                sync(made)
                # A link to a complete file: readers never see half a manifest, and no number exists twice.
                os.link(made, folder / manifest_name(manifest.number))
                sync(folder)
            except FileExistsError:
                return False
            finally:
                made.unlink(missing_ok=True)
        return True

    # -- manifests

    def numbers(self) -> list[int]:
        """Returns the numbers of versions that have not expired."""
        try:
            names = os.listdir(self.root / VERSIONS)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def manifest(self, number: int) -> Manifest:
        """Reads the manifest of a version."""
        path = self.root / VERSIONS / manifest_name(number)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise LakeError(f"{self.root} has no version {number}: it has expired or never was") from None
        except msgspec.MsgspecError as error:
            raise LakeError(
                f"{path} cannot be read ({error}): restore it from a backup, or move it and all later ones "
                "away and rebuild from the version before"
            ) from error


def manifest_name(number: int) -> str:
    """Returns the file name of a version's manifest."""
    return f"{number:020d}.json"


def _stated(manifest: Manifest) -> Version:
    files = {file.path: file for file in manifest.files or ()}
    return Version(manifest.number, manifest.at_ms, manifest.why, files, manifest.marks)


def _followed(version: Version, manifest: Manifest) -> Version:
    if manifest.files is not None:
        return _stated(manifest)
    gone = set(manifest.remove)
    files = (
        {path: file for path, file in version.files.items() if path not in gone}
        if gone
        else dict(version.files)
    )
    files.update((file.path, file) for file in manifest.add)
    return Version(
        manifest.number, manifest.at_ms, manifest.why, files, _marked(version.marks, manifest.marks)
    )


def _marked(before: Mapping[str, Any], set_: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**before, **set_}.items() if value is not None}


def _check(change: Change, base: Version, current: Version) -> None:
    """Refuses a change that conflicts with versions published since its base."""
    for name, value in change.expects.items():
        if current.marks.get(name) != value:
            raise LakeConflict(
                f"{change.why}: mark {name!r} is {current.marks.get(name)!r}, not {value!r} as expected "
                f"(version {current.number}); another writer is at work on the same lake"
            )
    if current.number == base.number:
        return
    others = f"since version {base.number} another writer ({current.why}, version {current.number})"
    for name in change.marks:
        if name not in change.expects and current.marks.get(name) != base.marks.get(name):
            raise LakeConflict(f"{change.why}: {others} has set mark {name!r}; run it again")
    for path in change.remove:
        if path not in current.files:
            raise LakeConflict(f"{change.why}: {others} has removed {path}; run it again")
    if change.replace:
        before = {path for path, file in base.files.items() if file.part in change.replace}
        after = {path for path, file in current.files.items() if file.part in change.replace}
        if before != after:
            path = min(before ^ after)
            table, day, queue = (base.files.get(path) or current.files[path]).part
            raise LakeConflict(f"{change.why}: {others} has changed {table} {day} {queue}; run it again")


def _applied(change: Change, base: Version, current: Version, now: int) -> Manifest:
    replaced = (path for path, file in base.files.items() if file.part in change.replace)
    manifest = Manifest(
        number=current.number + 1,
        at_ms=now,
        why=change.why,
        marks=dict(change.marks),
        add=list(change.add),
        remove=sorted({*change.remove, *replaced}),
    )
    if manifest.number % WHOLE_EVERY == 0:
        whole = _followed(current, manifest)
        manifest.files, manifest.marks = list(whole.files.values()), dict(whole.marks)
    return manifest


@contextlib.contextmanager
def explained(root: Path, what: str = "lake") -> Iterator[None]:
    """Raises a full or read-only file system as an error with the remedy."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise LakeError(
                f"the {what} in {root} cannot grow: {error.strerror}; make room ('oxcart pipeline expire' "
                "deletes what old versions keep) and run it again: nothing is lost"
            ) from error
        if isinstance(error, PermissionError):
            raise LakeError(f"no right to write to the {what} in {root}: {error.strerror}") from error
        raise


def sync(path: Path) -> None:
    """Flushes a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
