"""The lake's tables as Delta tables, over the very same files.

A Delta table is a log beside Parquet files. Every table of the lake gets one in its folder. Each version of
the lake that changes the table becomes one commit: the added and removed files, and the lake's version as an
application transaction. So a process that was killed, or comes late, reads from the log what is missing. Of
two processes that race, one finds the other's commit and has nothing left to do. No row is copied.

The lake's manifest stays the truth. A version appears at once in the manifest, and table by table in Delta.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.model.errors import MissingExtra
from oxcart.model.target import base_of
from oxcart.spark.lake.versions import File, Lake, LakeError, Version

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Tables whose rows go by the names of streams.
_BY_STREAM = ("events", "open")
#: The application under which the log records the lake's version.
APP = "oxcart"
#: Attempts to commit; each is lost only to another process's success.
MOST_RACES = 20

_LOG = "_delta_log"


def has_logs(lake: Lake) -> bool:
    """Says whether a lake has Delta tables."""
    return any(lake.root.glob(f"*/{_LOG}"))


class Delta:
    """Delta tables of a lake.

    Args:
        lake: The lake.

    Raises:
        MissingExtra: deltalake is not installed.
    """

    def __init__(self, lake: Lake) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise MissingExtra("Delta tables", "delta") from None
        self._lake = lake
        self._known: dict[str, DeltaTable] = {}
        self._turn = threading.Lock()  # batches and builds publish from threads of their own

    def follow(self, version: Version | None = None) -> dict[str, int]:
        """Brings every Delta table to a version of the lake, by default the newest.

        Returns:
            The tables that got a commit, each with how many files were added and removed.

        Raises:
            LakeError: A log is ahead of the lake, or other processes were faster every time.
        """
        with self._turn:
            version = version or self._lake.head()
            tables = sorted({file.table for file in version.files.values()} | self._with_log())
            done = {table: self._follow(table, version) for table in tables}
        return {table: moved for table, moved in done.items() if moved}

    def table(self, name: str) -> DeltaTable:
        """Returns a table as any reader of Delta sees it now.

        Raises:
            LakeError: It has no log.
        """
        from deltalake import DeltaTable

        if not self._has_log(name):
            raise LakeError(f"{self._lake.root / name} is no Delta table yet: run 'oxcart pipeline delta'")
        return DeltaTable(self._lake.root / name)

    def _follow(self, table: str, version: Version) -> int:
        from deltalake.exceptions import CommitFailedError

        files = {file.path.removeprefix(f"{table}/"): file for file in version.of(table)}
        for _ in range(MOST_RACES):
            if not files and not self._has_log(table):
                return 0
            log = self._opened(table, files)
            at = log.transaction_version(APP) or 0
            if at >= version.number:
                self._check_ahead(table, at)
                return 0
            there = {os.path.relpath(uri, self._lake.root / table) for uri in log.file_uris()}
            came, went = files.keys() - there, there - files.keys()
            if not came and not went:
                return 0
            try:
                self._commit(log, version, [files[path] for path in came], went, table)
                return len(came) + len(went)
            except CommitFailedError:
                continue  # another process was faster: look again
        raise LakeError(f"the Delta log of {table} changed {MOST_RACES} times meanwhile: run it again")

    def _commit(
        self, log: DeltaTable, version: Version, came: list[File], went: set[str], table: str
    ) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path.removeprefix(f"{table}/"), file.size, {}, version.at_ms, True, _statistics(file)
            )
            for file in came
        ]
        actions += [RemoveAction(path, True, version.at_ms) for path in sorted(went)]
        log.create_write_transaction(
            actions,
            "append",
            log.schema(),
            commit_properties=CommitProperties(
                custom_metadata={"why": version.why},
                app_transactions=[Transaction(APP, version.number, version.at_ms)],
                max_commit_retries=0,
            ),
        )

    def _opened(self, table: str, files: dict[str, File]) -> DeltaTable:
        """Opens or creates the log, and adds columns that the newest file has."""
        from deltalake import DeltaTable, Schema
        from pyarrow import parquet

        log = self._known.get(table)
        if log is not None and self._has_log(table):
            log.update_incremental()
        else:
            if not self._has_log(table):
                first = parquet.read_schema(self._lake.root / table / min(files)).remove_metadata()
                DeltaTable.create(self._lake.root / table, first, mode="ignore", name=table)
            log = self._known[table] = DeltaTable(self._lake.root / table)
        there = {os.path.relpath(uri, self._lake.root / table) for uri in log.file_uris()}
        if fresh := min(files.keys() - there, default=None):
            wanted = Schema.from_arrow(parquet.read_schema(self._lake.root / table / fresh).remove_metadata())
            known = {field.name for field in log.schema().fields}
            if added := [field for field in wanted.fields if field.name not in known]:
                log.alter.add_columns(added)
                log.update_incremental()
        return log

    def _check_ahead(self, table: str, at: int) -> None:
        head = self._lake.head().number
        if at > head:
            folder = self._lake.root / table / _LOG
            raise LakeError(
                f"the Delta log of {table} has version {at} of the lake, which is at {head}: the lake was "
                f"put back to an older state; delete {folder} and run it again, so that the log is made anew"
            )

    def _has_log(self, table: str) -> bool:
        return (self._lake.root / table / _LOG).is_dir()

    def _with_log(self) -> set[str]:
        try:
            names = os.listdir(self._lake.root)
        except FileNotFoundError:
            return set()
        return {name for name in names if self._has_log(name)}


def _statistics(file: File) -> str:
    """Statistics by which a reader skips files: a file has one day and one queue."""
    queue = file.queue if file.table in _BY_STREAM else base_of(file.queue)
    same: dict[str, Any] = {name: value for name, value in (("day", file.day), ("queue", queue)) if value}
    statistics = {
        "numRecords": file.rows,
        "minValues": same,
        "maxValues": same,
        "nullCount": dict.fromkeys(same, 0),
    }
    return msgspec.json.encode(statistics).decode()
