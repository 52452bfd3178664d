"""One table of the lake: Parquet files and the Delta log that names them, kept by delta-rs.

Each change of the lake that concerns a table is one commit of its log. The commit adds and removes files, and
carries the number of the lake's snapshot as the application transaction ``oxcart``. So a writer that finds an
unfinished change can tell which tables have it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.model.errors import MissingExtra
from oxcart.spark.lake.columns import STORED, public
from oxcart.spark.lake.files import File, LakeConflict, LakeError, sync

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

#: The application under which commits record the number of the lake's snapshot.
APP = "oxcart"
LOG = "_delta_log"
#: Deleted files stay for readers of older snapshots for so many hours, unless an erasure deletes them.
KEPT_HOURS = 24
#: A checkpoint every so many commits bounds what a reader reads. Older commits go after an hour.
_SETTINGS: Mapping[str, str | None] = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    "delta.dataSkippingNumIndexedCols": "3",
}


class DeltaLog:
    """The log of a table.

    Args:
        root: The lake's folder.
        table: The table.
    """

    def __init__(self, root: Path, table: str) -> None:
        self._root = root
        self._table = table
        self._folder = root / table
        self._opened: DeltaTable | None = None

    @property
    def exists(self) -> bool:
        """Whether the table has a log."""
        return (self._folder / LOG).is_dir()

    def files(self, version: int) -> dict[str, File]:
        """Returns the files of a version by path.

        Raises:
            LakeError: The version has expired.
        """
        found = self._at(version).get_add_actions(flatten=True)
        names = set(found.column_names)

        def column(name: str) -> list[Any]:
            return list(found.column(name).to_pylist()) if name in names else [None] * found.num_rows

        rows = zip(
            column("path"),
            column("partition.day"),
            column("num_records"),
            column("size_bytes"),
            column("min.queue"),
            column("max.queue"),
            strict=True,
        )
        made = (
            File(self._table, str(day), f"{self._table}/{path}", count, size, low or "", high or "")
            for path, day, count, size, low, high in rows
        )
        return {file.path: file for file in made}

    def commit(
        self, number: int, at_ms: int, why: str, add: Collection[File], remove: Collection[File], note: str
    ) -> int:
        """Commits added and removed files; returns the version of the table.

        Args:
            number: The number of the lake's snapshot that the commit belongs to.
            at_ms: The time of the change.
            why: Its purpose.
            add: Files that are in their place.
            remove: Files that the table has.
            note: Text that the commit carries, for example the offset at which a batch ends.

        Raises:
            LakeConflict: Another program has changed the table meanwhile.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        log = self._writable(add)
        begin = len(self._table) + 1
        changed = not why.startswith("compact")
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path[begin:], file.size, {"day": file.day}, at_ms, changed, _statistics(file))
            for file in add
        ]
        actions += [
            RemoveAction(file.path[begin:], changed, at_ms, file.size, {"day": file.day}) for file in remove
        ]
        try:
            log.create_write_transaction(
                actions,
                "append",
                log.schema(),
                commit_properties=CommitProperties(
                    custom_metadata={"oxcart": note} if note else {},
                    app_transactions=[Transaction(APP, number, at_ms)],
                    max_commit_retries=0,
                ),
            )
        except CommitFailedError as error:
            raise LakeConflict(
                f"{why}: another program writes to the Delta table {self._folder}: {error}; only Oxcart may"
            ) from error
        log.update_incremental()
        version = log.version()
        with contextlib.suppress(FileNotFoundError):  # a checkpoint may have replaced it
            sync(self._folder / LOG / f"{version:020d}.json")
        return version

    def number(self) -> int:
        """Returns the number of the last change of the lake that the table has."""
        return self._newest().transaction_version(APP) or 0

    def version(self) -> int:
        """Returns the newest version."""
        return self._newest().version()

    def restore(self, version: int) -> int:
        """Takes the commits after a version back, by a new one; returns the version of the table."""
        log = self._newest()
        log.restore(version)
        return self.version()

    def vacuum(self, hours: int) -> int:
        """Deletes files that the newest version does not name and that are older than so many hours.

        Returns:
            How many files were deleted.
        """
        log = self._newest()
        gone = log.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        if gone:  # else it would still make two commits
            log.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return len(gone)

    def clean(self) -> None:
        """Writes a checkpoint and deletes older commits that have expired."""
        log = self._newest()
        log.create_checkpoint()
        log.cleanup_metadata()

    def create(self) -> None:
        """Creates an empty table with the columns of `columns`, unless it exists."""
        if not self.exists:
            self._create(_schema(self._table))

    def _at(self, version: int) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        known = self._opened
        if known is not None and known.version() < version:
            with contextlib.suppress(DeltaError):
                known.update_incremental()
        if known is not None and known.version() == version:
            return known
        try:
            made = DeltaTable(self._folder, version=version)
        except (DeltaError, FileNotFoundError) as error:
            raise LakeError(
                f"{self._folder} has no version {version}: it has expired or never was ({error})"
            ) from error
        if known is None or known.version() < version:
            self._opened = made
        return made

    def _newest(self) -> DeltaTable:
        from deltalake import DeltaTable

        if self._opened is None:
            self._opened = DeltaTable(self._folder)
        else:
            self._opened.update_incremental()
        return self._opened

    def _writable(self, add: Collection[File]) -> DeltaTable:
        """Opens or creates the table, and adds columns that the first new file has."""
        import pyarrow as pa
        from deltalake import Schema
        from pyarrow import parquet

        first = next(iter(add), None)
        found = None
        if first is not None:
            found = parquet.read_schema(self._root / first.path).remove_metadata()
        if not self.exists:
            self._create(_schema(self._table) if found is None or self._table in STORED else found)
        log = self._newest()
        if found is not None:
            known = {field.name for field in log.schema().fields}
            missing = [_nullable(field) for field in found if field.name not in known]
            if missing:
                log.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
                log.update_incremental()
        return log

    def _create(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        fields = [_nullable(field) for field in schema]
        if "day" not in schema.names:
            fields.insert(0, pa.field("day", pa.date32()))
        DeltaTable.create(
            self._folder,
            pa.schema(fields),
            mode="ignore",
            partition_by=["day"],
            name=self._table,
            configuration=_SETTINGS,
        )


def require_deltalake() -> None:
    """Checks that delta-rs is installed.

    Raises:
        MissingExtra: It is not.
    """
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise MissingExtra("the lake", "lake") from None


def arrow_type(kind: str) -> pa.DataType:
    """Returns the type of a column in files, by Spark's word for it."""
    import pyarrow as pa

    return {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "array<string>": pa.list_(pa.string()),
        "array<struct<ms:bigint,times:bigint>>": pa.list_(
            pa.struct([("ms", pa.int64()), ("times", pa.int64())])
        ),
    }[kind]


def _schema(table: str) -> pa.Schema:
    import pyarrow as pa

    if table not in STORED:
        raise LakeError(f"the table {table} has no columns yet")
    return pa.schema([(name, arrow_type(kind)) for name, kind in public(table).items()])


def _nullable(field: pa.Field) -> pa.Field:
    """Spark writes columns that are never null in one build as required."""
    return field.with_nullable(True).remove_metadata()


def _statistics(file: File) -> str:
    """Statistics by which readers skip files."""
    known: dict[str, Any] = {"numRecords": file.rows}
    if file.low:
        known |= {
            "minValues": {"queue": file.low},
            "maxValues": {"queue": file.high},
            "nullCount": {"queue": 0},
        }
    return msgspec.json.encode(known).decode()


def tables_of(root: Path) -> list[str]:
    """Returns the tables of a lake that have a log."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if (root / name / LOG).is_dir())
