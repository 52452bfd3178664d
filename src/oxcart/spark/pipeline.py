"""The pipeline: streams → bronze → silver and gold, once or continuously.

Bronze is exactly once. Every batch is one commit of the Delta table ``events`` that carries the offset at
which the batch ends. Spark repeats a batch whose end it could not record: the offset shows that it was
published, and the batch is skipped. A batch that does not begin where the lake ends is refused. So the lake
is the truth, not Spark's checkpoint: without a checkpoint the pipeline continues from the lake's mark.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.utils import is_remote

from oxcart.spark.build.bridge_refill import BridgeRefill
from oxcart.spark.build.builder import Builder, Progress
from oxcart.spark.build.refill import Refill
from oxcart.spark.errors import WorkerLate, unwrapped
from oxcart.spark.lake.bronze import BRONZE, files_of
from oxcart.spark.lake.retention import Retention, retain
from oxcart.spark.lake.tables import TABLES, Tables
from oxcart.spark.lake.upkeep import DAY_MS, HOUR_MS, disk_bytes, expire, tidy
from oxcart.spark.lake.versions import Change, Lake, LakeConflict, LakeError
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.paced import Paced, Stop
from oxcart.spark.read.attachment import KEEP
from oxcart.spark.read.connection import split_key
from oxcart.spark.read.events import MAX_ROWS
from oxcart.spark.read.position import read_position
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.tailer import MOST, Tailer, Tailing

log = logging.getLogger("oxcart.spark.pipeline")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CHECKPOINTS = "_checkpoints"
#: Writes the files of a checkpoint. Spark's default starts 16 processes (``readlink``) per batch, to rename
#: files of a local folder: on a busy machine a batch waits for each of them.
_CHECKPOINT_FILES = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
#: The file whose age says when old days and files were last looked for.
_EXPIRED = "_expired"
#: The share of time that upkeep may take beside ingest and builds.
UPKEEP_SHARE = 0.25
#: Seconds between looks for days and files that have to go.
EXPIRE_EVERY = 600.0
#: How often a stream is started that could not start, because the machine was busy.
MOST_BEGINNINGS = 3
#: How often tables are built that other writers changed meanwhile.
MOST_CONFLICTS = 3


@dataclass(frozen=True)
class Plan:
    """The settings of a pipeline: what it reads and where it writes.

    Attributes:
        lake: The lake's folder.
        address: The server.
        selection: The queues.
        name: Pipelines of different names may share a lake, each with queues of its own.
        max_rows: Rows per batch at most.
        samples: Whether to sample the queues' lengths every minute.
        spool: The folder of a tailer's spool, on this machine; None to read the server in every batch.
        keep: Events that a queue keeps at least.
        retention: How long tables keep their rows.
    """

    lake: Path
    address: ServerAddress = field(default_factory=ServerAddress)
    selection: QueueSelection = field(default_factory=lambda: QueueSelection(pattern="*"))
    name: str = "main"
    max_rows: int = MAX_ROWS
    samples: bool = True
    spool: Path | None = None
    keep: int = KEEP
    retention: Retention = field(default_factory=Retention)


class Pipeline:
    """A pipeline in a session.

    Args:
        spark: The session.
        plan: What to read and where to write.
        progress: Called with the progress of long work.
        built: Called after each build, for example to evaluate alerts.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        *,
        progress: Progress | None = None,
        built: Callable[[], object] = lambda: None,
    ) -> None:
        self.spark = spark
        self.plan = plan
        self._built = built
        self.lake = Lake(plan.lake)
        self.tables = Tables(spark, self.lake)
        self.builder = Builder(spark, self.lake, progress=progress)
        self._refill = Refill(self.tables, plan.address.options(), self._queues)
        self._bridge_refill = None
        if plan.address.namespace is not None:
            options = plan.address.options() | _queue_options(plan)
            self._bridge_refill = BridgeRefill(self.tables, options, plan.name, self.offsets)
        self._mark = f"ingest:{plan.name}"
        self._checkpoint = self.lake.root / _CHECKPOINTS / plan.name

    # -- bronze

    def offsets(self) -> dict[str, Any]:
        """Returns where bronze ends: one position per stream."""
        found: dict[str, Any] = self.lake.head().marks.get(self._mark, {})
        return found

    def _queues(self) -> set[str]:
        return {split_key(key)[0] for key in self.offsets()}

    def ingest(self) -> int:
        """Brings bronze up to the present end of the streams; returns the number of new rows.

        Raises:
            AccessDenied: The server refuses the login.
            BrokerUnavailable: The server cannot be reached.
            LakeError: The lake cannot grow, or the checkpoint cannot be used.
        """
        before = _rows(self.lake)
        if self.plan.spool is not None:
            tailer = self.tailer(self.plan.spool)
            while tailer.step() >= MOST:
                pass  # a pass that reads fewer entries has reached the end of every stream
        for left in reversed(range(MOST_BEGINNINGS)):
            try:
                self._await(self.start(once=True))
                break
            except WorkerLate:
                if not left:
                    raise
        return _rows(self.lake) - before

    def _await(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            raise unwrapped(error, self.lake.root) from error

    def start(self, *, once: bool = False, every: float = 2.0) -> StreamingQuery:
        """Starts the stream that fills bronze.

        Args:
            once: Whether to stop at the present end of the streams.
            every: Seconds between batches otherwise.

        Raises:
            LakeError: The checkpoint cannot be used.
        """
        self.lake.recover()  # a killed run may have committed a batch without a snapshot
        if not self.lake.head().number:
            self.lake.create_tables(TABLES)  # a reader of Delta finds each of them, also before its first row
        begin = self.offsets()
        reader = (
            self.spark.readStream.format("oxcart")
            .option("content", "events")
            .option("lake", str(self.lake.root))
            .option("maxRowsPerBatch", str(self.plan.max_rows))
            .option("samples", str(self.plan.samples).lower())
            .option("startingOffsets", json.dumps(begin) if begin else "earliest")
        )
        for name, value in _options(self.plan).items():
            reader = reader.option(name, value)
        self._checkpoint.mkdir(parents=True, exist_ok=True)
        self._check_checkpoint()
        self.spark.conf.set(*_CHECKPOINT_FILES)
        writer = (
            reader.load()
            .writeStream.foreachBatch(self._publish)
            .queryName(f"oxcart-{self.plan.name}")
            .option("checkpointLocation", str(self._checkpoint))
        )
        writer = (
            writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every} seconds")
        )
        with self._pool("ingest"):
            return writer.start()

    def _publish(self, batch: DataFrame, number: int) -> None:
        ends, begins = self._noted_offset(number), self._noted_offset(number - 1)
        at = self.offsets()
        if at == ends:
            return  # published before, but Spark could not record it
        if at != (begins if begins is not None else at):
            raise LakeError(
                f"the checkpoint {self._checkpoint} does not fit the lake: its batch {number} does not begin "
                "where bronze ends; move it away and run again: the pipeline continues from the lake's mark"
            )
        for left in reversed(range(MOST_CONFLICTS)):
            written = files_of(batch.collect())  # the tasks write
            queues: Counter[str] = Counter()
            for one in written:
                queues.update(one.queues)
            try:
                self.lake.publish(
                    Change(
                        "ingest",
                        add=[one.file for one in written],
                        marks={self._mark: ends},
                        expects={self._mark: at or None},
                        rows=queues,
                    )
                )
                return
            except LakeConflict:  # an erasure deletes staged files, too
                if not left or self.offsets() != at:
                    raise

    def _noted_offset(self, number: int) -> dict[str, Any] | None:
        """The offset at which a batch ends, from Spark's own log, which is written before the batch runs."""
        path = self._checkpoint / "offsets" / str(number)
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
            for position in found.values():
                read_position(position)
        except (ValueError, IndexError, AttributeError) as error:
            raise self._unreadable(path, error) from error
        return found

    def _check_checkpoint(self) -> None:
        for folder in ("offsets", "commits"):
            for path in (self._checkpoint / folder).glob("[0-9]*"):
                if folder == "offsets":
                    self._noted_offset(int(path.name))
                elif not path.read_text().startswith("v"):
                    raise self._unreadable(path, ValueError("no version"))
        metadata = self._checkpoint / "metadata"
        if metadata.exists():
            try:
                json.loads(metadata.read_text())
            except ValueError as error:
                raise self._unreadable(metadata, error) from error

    def _unreadable(self, path: Path, error: Exception) -> LakeError:
        return LakeError(
            f"the checkpoint cannot be read ({path.name}: {error}): move {self._checkpoint} away and run "
            "again; the pipeline continues from the lake's own mark, so that nothing is lost or doubled"
        )

    # -- all of it

    def once(self) -> list[str]:
        """Reads up to the present end of the streams, then builds silver and gold; returns the days built."""
        self.ingest()
        days = self._refresh()
        self._built()
        self._expire()
        return days

    def _refresh(self) -> list[str]:
        """Fills gaps and builds silver and gold; again, where maintenance changed the same files first.

        Raises:
            LakeConflict: Other writers were first every time.
        """
        for left in reversed(range(MOST_CONFLICTS)):
            try:
                self._fill_gaps()
                days = self.builder.refresh()
                break
            except LakeConflict:
                if not left:
                    raise
        return days

    def run(self, every: float = 30.0, *, until: Callable[[], bool] = lambda: False) -> None:
        """Fills bronze continuously, and builds silver and gold every so many seconds, until ``until()``.

        Ingest, builds and upkeep (gaps, small files) run beside each other, each at its own pace. A build
        that takes longer than ``every`` is followed by the next one at once.

        Args:
            every: Seconds from the start of a build to the start of the next one.
            until: Ends the run when it returns True; a build at work is interrupted and publishes nothing.
        """
        tailing = None if self.plan.spool is None else Tailing(self.tailer(self.plan.spool))
        query, beginnings = self.start(), 1
        beside = [
            Paced(self.spark, "build", self._build, every),
            Paced(self.spark, "upkeep", self._keep_up, every, UPKEEP_SHARE),
        ]
        try:
            while not until():
                if not query.isActive:
                    try:
                        self._await(query)  # raises the error that ended it
                        return
                    except WorkerLate:
                        if beginnings == MOST_BEGINNINGS:
                            raise
                    query, beginnings = self.start(), beginnings + 1
                if tailing is not None:
                    tailing.check()
                for work in beside:
                    work.check()
                time.sleep(0.1)
        finally:
            for work in beside:
                work.stop()
            query.stop()
            if tailing is not None:
                tailing.stop()

    def _build(self, stop: Stop) -> None:
        self.builder.refresh(stop)
        self._built()

    def _keep_up(self, stop: Stop) -> None:
        self._fill_gaps()
        tidy(self.lake, stop=stop)
        self._expire()

    def _expire(self) -> None:
        """Drops days that are too old, and deletes files that the tables have not named for a day.

        Not every run does: the age of a file says when it is due again.
        """
        noted = self.lake.root / _EXPIRED
        if noted.exists() and time.time() - noted.stat().st_mtime < EXPIRE_EVERY:
            return
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.touch()
        try:
            retain(self.lake, self.plan.retention)
        except LakeConflict as error:
            log.info("old days are left to the next look: %s", error)
        most = self.plan.retention.max_bytes
        over = most is not None and disk_bytes(self.lake) > most
        try:
            expire(self.lake, older_than_ms=HOUR_MS if over else DAY_MS)
        except LakeError as error:  # an old file is no reason to stop reading
            log.warning("could not delete old files, trying again in %d s: %s", EXPIRE_EVERY, error)

    def _fill_gaps(self) -> None:
        self._refill.run()
        if self._bridge_refill is not None:
            self._bridge_refill.run()

    @contextlib.contextmanager
    def _pool(self, name: str) -> Iterator[None]:
        """Work started inside shares executors fairly with other work; Spark Connect decides by itself."""
        context = None if is_remote() else self.spark.sparkContext
        if context is not None:
            context.setLocalProperty("spark.scheduler.pool", name)
        try:
            yield
        finally:
            if context is not None:
                context.setLocalProperty("spark.scheduler.pool", cast(str, None))  # as documented

    def tailer(self, spool: Path) -> Tailer:
        """Returns the tailer that fills a spool; it begins where bronze ends."""
        plan = self.plan
        return Tailer(
            plan.address, plan.selection, Spool(spool), name=plan.name, keep=plan.keep, begin=self.offsets()
        )

    def query(self, text: str) -> DataFrame:
        """Returns the result of an SQL query over all tables of one version."""
        self.tables.register(text=text)
        return self.spark.sql(text)


def _rows(lake: Lake) -> int:
    return sum(file.rows for file in lake.head().of(BRONZE))


def _options(plan: Plan) -> Mapping[str, str]:
    spool = {} if plan.spool is None else {"spool": str(Path(plan.spool).absolute())}
    return plan.address.options() | _queue_options(plan) | spool


def _queue_options(plan: Plan) -> dict[str, str]:
    given = {"queues": ",".join(plan.selection.names), "pattern": plan.selection.pattern}
    return {name: value for name, value in given.items() if value}
