"""Filling gaps from the records of jobs, as far as those still exist.

A gap is a run of entries that the server forgot before anybody read them: everything between the entry before
it and the entry behind it. A job's own record outlives them. It tells when the job was added, when it last
began and when it ended; where such a moment lies strictly inside a gap, its event was one of those lost, and
it is written to bronze as a row of the kind ``refill``, with an ordinal of the gap; and with it what a worker
would have recorded: how the job failed, its tags and correlation id. What records do not tell (earlier
attempts, jobs that are removed) stays lost, and the gap's row says how many entries were refilled.

Clocks: records bear the time of the client that wrote them, gaps that of the server. So an event that was
read within a few seconds of a gap is not told again, and one at the very edge of a gap may be missed.

May touch: the server and the lake, through Spark; reads footers of the lake's files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.spark.bronze import BRONZE
from oxcart.spark.entries import COLUMNS, ENTRY, GAP, REFILL, REFILLED, day_of, rows_of
from oxcart.spark.lake import Change, File, Lake, LakeConflict, LakeError, Version
from oxcart.spark.stream import ATTEMPTS, EVENTS
from oxcart.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The mark that says which gaps have been refilled.
MARK = "refill"
#: How far the clocks of clients may differ from the server's, in ms.
SKEW = 10_000
_DAY_MS = 86_400_000
#: What a job's record tells of its failure, and the words of an attempt's.
_FAILED = {"category": "category", "code": "code", "formal_state": "state"}


class Hole(msgspec.Struct, frozen=True):
    """A gap of an event stream whose two edges are known.

    Attributes:
        queue: The queue.
        life: The life of the stream.
        first: The ordinal of the first entry that is lost.
        lost: How many are.
        after_ms: The time of the entry before them; 0 for none.
        before_ms: The time of the entry behind them.
        at_ms: The time under which the gap itself stands.
    """

    queue: str
    life: int
    first: int
    lost: int
    after_ms: int
    before_ms: int
    at_ms: int

    @property
    def key(self) -> str:
        """Its name in the mark."""
        return f"{self.queue}:{self.life}:{self.first}"


class Refill:
    """Fills the gaps of a lake.

    Args:
        tables: The lake's tables.
        options: Where the server is, in the words of the source.
        queues: The queues on it that the lake has; other gaps are another pipeline's.
    """

    def __init__(
        self, tables: Tables, options: Mapping[str, str], queues: Callable[[], Collection[str]]
    ) -> None:
        self._tables = tables
        self._lake = tables.lake
        self._options = dict(options)
        self._queues = queues
        self._looked = 0

    def run(self) -> int:
        """Fills gaps that are new; returns how many entries were refilled.

        A gap at the present end of a stream is left until an entry behind it has come.
        """
        head = self._lake.head()
        done: dict[str, int] = dict(head.marks.get(MARK, {}))
        waiting = False
        filled = 0
        for hole in self._holes(head):
            if hole is None:
                waiting = True
            elif hole.key not in done:
                try:
                    filled += self._fill(hole, done)
                except (
                    LakeConflict
                ):  # another pipeline of this lake was first; what is left is done next time
                    return filled
        if not waiting:
            self._looked = head.number
        return filled

    def _holes(self, head: Version) -> Iterator[Hole | None]:
        """Gaps in files that were not yet looked at; None for one whose end is not yet known."""
        from pyarrow import compute as pc
        from pyarrow import dataset

        files = [file for file in self._new(head) if _may_tell_of_gaps(self._lake, file)]
        if not files:
            return
        wanted = (pc.field("kind") == GAP) & (pc.field("stream") == EVENTS)
        found = dataset.dataset(self._lake.paths(files)).to_table(
            columns=["queue", "life", "ordinal", "entry_id", "at_ms", "lost"], filter=wanted
        )
        mine = self._queues()
        for row in found.to_pylist():
            if row["queue"] not in mine:
                continue
            behind = self._behind(head, row)
            after_ms = int(row["entry_id"].partition("-")[0])
            if behind is None:
                yield None
            else:
                yield Hole(
                    row["queue"], row["life"], row["ordinal"], row["lost"], after_ms, behind, row["at_ms"]
                )

    def _new(self, head: Version) -> list[File]:
        files = head.of(BRONZE)
        if not self._looked:
            return files
        try:
            later = [self._lake.manifest(number) for number in range(self._looked + 1, head.number + 1)]
        except LakeError:  # they have expired
            return files
        added = {file.path for manifest in later for file in manifest.add}
        return [file for file in files if file.path in added]

    def _behind(self, head: Version, row: Mapping[str, Any]) -> int | None:
        """The time of the entry behind a gap, or None."""
        from pyarrow import compute as pc
        from pyarrow import dataset

        paths = self._lake.paths(head.of(BRONZE, queues=[row["queue"]]))
        wanted = (
            (pc.field("kind") == ENTRY)
            & (pc.field("ordinal") == row["ordinal"] + row["lost"])
            & (pc.field("life") == row["life"])
            & (pc.field("stream") == EVENTS)
        )
        found = dataset.dataset(paths).to_table(columns=["at_ms"], filter=wanted)
        return int(found["at_ms"][0].as_py()) if found.num_rows else None

    def _fill(self, hole: Hole, done: dict[str, int]) -> int:
        import pyarrow as pa

        base = self._lake.head()
        told = self._told(hole).persist()
        try:
            files = write_told(self._tables, told)
            count = sum(file.rows for file in files[0])
        finally:
            told.unpersist()
        note = {
            "day": hole.at_ms // _DAY_MS,
            "queue": hole.queue,
            "stream": EVENTS,
            "kind": REFILLED,
            "life": hole.life,
            "ordinal": hole.first,
            "at_ms": hole.at_ms,
            "lost": count,
        }
        noted = self._tables.spark.createDataFrame(pa.Table.from_batches([rows_of([note])]))
        made = [*files[0], *files[1], *self._tables.write(noted, BRONZE, True)]
        before = base.marks.get(MARK)
        done[hole.key] = count
        self._lake.publish(Change("refill", add=made, marks={MARK: dict(done)}, expects={MARK: before}))
        return count

    def _told(self, hole: Hole) -> DataFrame:
        """What the records tell of a gap."""
        source = self._tables.spark.read.format("oxcart").options(**self._options)
        jobs = source.option("queues", hole.queue).load()
        if "namespace" not in self._options:  # a lane of BullMQ's has a stream of its own
            jobs = jobs.filter(fn.concat_ws("@", "queue", "lane") == hole.queue)
        told = jobs.select("job_id", fn.explode(fn.array(*moments())).alias("_m")).select("job_id", "_m.*")
        inside = told.filter((fn.col("at_ms") > hole.after_ms) & (fn.col("at_ms") < hole.before_ms))
        unread = inside.join(fn.broadcast(self._read_nearby(hole)), ["job_id", "event"], "left_anti")
        by_time = Window.orderBy("at_ms", "rank", "job_id")
        ordinal = fn.lit(hole.first) + fn.row_number().over(by_time) - 1
        rows = unread.withColumn("ordinal", ordinal).filter(fn.col("ordinal") < hole.first + hole.lost)
        return rows.withColumns(
            {
                "queue": fn.lit(hole.queue),
                "life": fn.lit(hole.life),
                "entry_id": fn.concat_ws("-r", "at_ms", "ordinal"),
            }
        )

    def _read_nearby(self, hole: Hole) -> DataFrame:
        """Job and event of entries just before and just behind a gap."""
        at = fn.col("at_ms")
        edges = [hole.after_ms - SKEW, hole.after_ms, hole.before_ms, hole.before_ms + SKEW]
        bronze = self._tables.read(BRONZE, days={day_of(max(0, ms)) for ms in edges}, queues=[hole.queue])
        return bronze.filter(
            (fn.col("kind") == ENTRY)
            & (fn.col("stream") == EVENTS)
            & (fn.col("life") == hole.life)
            & (at.between(*edges[:2]) | at.between(*edges[2:]))
        ).select("job_id", "event")


def write_told(tables: Tables, told: DataFrame) -> tuple[list[File], list[File]]:
    """Writes what records of jobs told as bronze: events, and what a worker would have recorded of them.

    Args:
        tables: The lake's tables.
        told: Moments of jobs, with queue, life, ordinal and entry id.
    """
    events = tables.write(_rows(told.withColumn("extra", fn.lit(None)), EVENTS), BRONZE, True)
    recorded = told.filter(fn.length("extra") > len("{}")).withColumn("ordinal", fn.lit(None))
    return events, tables.write(_rows(recorded, ATTEMPTS), BRONZE, True)


def _rows(told: DataFrame, stream: str) -> DataFrame:
    """What was told as rows of bronze."""
    known: dict[str, Column] = {
        "day": fn.to_date(fn.timestamp_millis("at_ms")),
        "stream": fn.lit(stream),
        "kind": fn.lit(REFILL),
    }
    columns = (
        known.get(name, fn.col(name) if name in told.columns else fn.lit(None)).cast(kind).alias(name)
        for name, kind in COLUMNS.items()
    )
    return told.select(*columns)


def _may_tell_of_gaps(lake: Lake, file: File) -> bool:
    """Whether a file has rows of a cause, by its footer; only gaps have."""
    from pyarrow import parquet

    footer = parquet.read_metadata(lake.root / file.path)
    place = footer.schema.names.index("cause")
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        told = group.column(place).statistics
        if told is None or not told.has_null_count or told.null_count < group.num_rows:
            return True
    return False


def moments() -> list[Column]:
    """The events that a job's record tells of, each with its rank among them."""
    nothing = fn.lit(None).cast("string")
    once = fn.coalesce(fn.col("attempts_started"), fn.lit(0)) <= 1
    # The record's own delay is that of the last retry; the one it was added with stands in its options.
    delay = fn.coalesce(fn.get_json_object("options", "$.delay").cast("bigint"), fn.lit(0))
    state = fn.col("state")
    reason = fn.when(state == "failed", fn.col("reason"))
    result = fn.when(state == "completed", fn.col("result"))

    def moment(rank: int, event: Any, at: Column, **fields: Any) -> Column:
        return fn.struct(
            fn.lit(rank).alias("rank"),
            (fn.lit(event) if isinstance(event, str) else event).alias("event"),
            at.alias("at_ms"),
            fields.get("name", nothing).alias("name"),
            fields.get("reason", nothing).alias("reason"),
            fields.get("result", nothing).alias("result"),
            fields.get("due_ms", fn.lit(None).cast("bigint")).alias("due_ms"),
            fields.get("extra", nothing).alias("extra"),
        )

    hung = (fn.col("correlation_id").alias("corr"), "tags")
    failed = (fn.when(state == "failed", fn.col(name)).alias(word) for name, word in _FAILED.items())
    created = fn.unix_millis("created_at")
    # A claim bears the time at which it was asked for, and may have waited for a job that was added later.
    started = fn.when(fn.col("started_at").isNotNull(), fn.greatest(created, fn.unix_millis("started_at")))
    last = fn.greatest(started, fn.unix_millis("ended_at"))
    ended = fn.when(state.isin("completed", "failed") & fn.col("ended_at").isNotNull(), last)
    return [
        moment(0, "added", created, name=fn.col("name"), extra=fn.to_json(fn.struct(*hung))),
        moment(1, "delayed", fn.when(delay > 0, created), due_ms=created + delay),
        # When a job that was tried more than once became ready for its last attempt, nobody knows.
        moment(1, "waiting", fn.when((delay == 0) & once, created)),
        moment(2, "active", started),
        moment(3, state, ended, reason=reason, result=result, extra=fn.to_json(fn.struct(*hung, *failed))),
    ]
