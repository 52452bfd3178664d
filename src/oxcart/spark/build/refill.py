"""Fills gaps from the records of jobs, as far as these still exist.

A gap is a run of entries that the server trimmed before they were read: all between the entry before it and
the entry after it. A job's record outlives them. It has the times when the job was added, last started and
ended. A time strictly inside a gap means that its event is one of the lost ones. It becomes a row of bronze
of the kind ``refill`` with an ordinal of the gap, together with the record that a worker would have written:
how the job failed, its tags and correlation id.

The stream of attempt records is trimmed by itself. A record that was read, but whose event was not, restores
the start and the end of its attempt, also of earlier attempts and removed jobs. What no record has stays
lost. The gap's row counts the refilled entries.

Records bear the time of the client that wrote them, gaps that of the server. So an event that was read within
a few seconds of a gap is not refilled again, and one at the very edge of a gap may be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.spark.build.holes import Hole, Holes
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, File, LakeConflict
from oxcart.spark.read.entries import COLUMNS, ENTRY, REFILL, REFILLED, day_of, rows_of
from oxcart.spark.transforms.days import day_of as utc_day

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The mark with gaps that have been refilled, while ``gaps`` does not say so yet.
MARK = "refill"
#: How far the clocks of clients may differ from the server's, in ms.
SKEW = 10_000
_DAY_MS = 86_400_000
#: The event that ended an attempt, by the outcome in its record. A retry without a delay has another event,
#: which no other field shows.
_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "retried": "delayed",
    "snoozed": "delayed",
    "given_back": "waiting",
}
#: The ranks of a start and an end among the events of one ms.
_STARTED, _ENDED = 2, 3
#: Columns of a job's record about its failure, and the fields of an attempt record for them.
_FAILED = {"category": "category", "code": "code", "formal_state": "state"}


class Refill:
    """Fills the gaps of a lake.

    Args:
        tables: The lake's tables.
        options: The source's options for the server.
        queues: Returns the queues of this pipeline; other gaps are another pipeline's.
    """

    def __init__(
        self, tables: Tables, options: Mapping[str, str], queues: Callable[[], Collection[str]]
    ) -> None:
        self._tables = tables
        self._lake = tables.lake
        self._options = dict(options)
        self._queues = queues
        self._gaps = Holes(tables.lake)

    def run(self) -> int:
        """Fills new gaps; returns how many entries were refilled.

        A gap at the present end of a stream waits for an entry after it.
        """
        head = self._lake.head()
        done, mine = head.marks.get(MARK, {}), self._queues()
        gaps = [gap for gap in self._gaps.open(head) if gap.key not in done and gap.stream in mine]
        filled = 0
        for hole in self._gaps.ended(head, gaps):
            try:
                filled += self._fill(hole)
            except LakeConflict:  # another pipeline of this lake was first; the next run does the rest
                break
        return filled

    def _fill(self, hole: Hole) -> int:
        import pyarrow as pa

        base = self._lake.head()
        before: dict[str, int] | None = base.marks.get(MARK)
        if before is not None and hole.key in before:
            return 0
        # The table has the count of gaps that were built since they were filled.
        known = {gap.key for gap in self._gaps.open(base)}
        done = {key: count for key, count in (before or {}).items() if key in known}
        found = self._found(hole).persist()
        try:
            files = write_refill(self._tables, found, [hole.queue])
            count = sum(file.rows for file in files[0])
        finally:
            found.unpersist()
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
        made = [*files[0], *files[1], *self._tables.write(noted, BRONZE, True, streams=[hole.queue], parts=1)]
        done[hole.key] = count
        self._lake.publish(Change("refill", add=made, marks={MARK: done}, expects={MARK: before}))
        return count

    def _found(self, hole: Hole) -> DataFrame:
        """The events of a gap, as far as records have them."""
        source = self._tables.spark.read.format("oxcart").options(**self._options)
        jobs = source.option("queues", hole.queue).load()
        if "namespace" not in self._options:  # a lane of BullMQ's has a stream of its own
            jobs = jobs.filter(fn.concat_ws("@", "queue", "lane") == hole.queue)
        known = jobs.select("job_id", fn.explode(fn.array(*moments())).alias("_m")).select("job_id", "_m.*")
        recorded = self._recorded(hole)
        known = _without(known, recorded).withColumn("entry_id", fn.lit(None).cast("string"))
        known = known.unionByName(recorded.drop("ended_ms"), allowMissingColumns=True)
        # Both ends included: of the events in the same millisecond, those that were read are left out below.
        inside = known.filter(fn.col("at_ms").between(hole.after_ms, hole.before_ms))
        # An end that has an id is known to be unread, though other ends of its job may have been read.
        nearby = self._read_nearby(hole).distinct().withColumn("_read", fn.lit(True))
        unread = inside.join(fn.broadcast(nearby), ["job_id", "event"], "left").filter(
            fn.col("_read").isNull() | fn.col("entry_id").isNotNull()
        )
        by_time = Window.orderBy("at_ms", "rank", "job_id")
        ordinal = fn.lit(hole.first) + fn.row_number().over(by_time) - 1
        rows = unread.withColumn("ordinal", ordinal).filter(fn.col("ordinal") < hole.first + hole.lost)
        return rows.withColumns(
            {
                "queue": fn.lit(hole.queue),
                "life": fn.lit(hole.life),
                "entry_id": fn.coalesce("entry_id", fn.concat_ws("-r", "at_ms", "ordinal")),
            }
        ).drop("_read")

    def _recorded(self, hole: Hole) -> DataFrame:
        """Starts and ends of attempts whose records were read, while the events that ended them were not."""
        first, last = day_of(hole.after_ms), day_of(hole.before_ms)
        days = {day for day in self._lake.head().days(BRONZE) if first <= day <= last}
        rows = self._tables.read(BRONZE, days=days, streams=[hole.queue]).filter(
            (fn.col("queue") == hole.queue)
            & (fn.col("kind") == ENTRY)
            & fn.col("at_ms").between(hole.after_ms, hole.before_ms)
        )
        read = rows.filter(fn.col("stream") == EVENTS).select("job_id", "entry_id")
        records = rows.filter((fn.col("stream") == ATTEMPTS) & fn.col("event").isin(*_ENDS))
        events = fn.create_map(*(fn.lit(word) for pair in _ENDS.items() for word in pair))

        def number(name: str) -> Column:
            return fn.get_json_object("extra", f"$.{name}").try_cast("bigint")

        start = fn.struct(
            fn.lit(_STARTED).alias("rank"),
            fn.lit("active").alias("event"),
            number("began").alias("at_ms"),
            fn.lit(None).cast("string").alias("entry_id"),
            fn.lit(None).cast("string").alias("reason"),
        )
        end = fn.struct(
            fn.lit(_ENDED).alias("rank"),
            events[fn.col("event")].alias("event"),
            "at_ms",
            "entry_id",
            fn.when(fn.col("event") == "failed", fn.col("reason")).alias("reason"),
        )
        lost = records.join(read, ["job_id", "entry_id"], "left_anti")
        both = lost.select("job_id", number("ended").alias("ended_ms"), fn.explode(fn.array(start, end)))
        return both.select("job_id", "ended_ms", "col.*")

    def _read_nearby(self, hole: Hole) -> DataFrame:
        """Job and event of entries just before and just after a gap."""
        at = fn.col("at_ms")
        edges = [hole.after_ms - SKEW, hole.after_ms, hole.before_ms, hole.before_ms + SKEW]
        bronze = self._tables.read(BRONZE, days={day_of(max(0, ms)) for ms in edges}, streams=[hole.queue])
        return bronze.filter(
            fn.col("kind").isin(ENTRY, REFILL)  # two gaps may share a millisecond
            & (fn.col("stream") == EVENTS)
            & (fn.col("life") == hole.life)
            & (at.between(*edges[:2]) | at.between(*edges[2:]))
        ).select("job_id", "event")


def _without(known: DataFrame, recorded: DataFrame) -> DataFrame:
    """The moments of jobs without starts and ends that records of attempts have too."""
    over = fn.max(fn.col("event").isin("completed", "failed"))
    ends = recorded.filter(fn.col("rank") == _ENDED).groupBy("job_id")
    found = ends.agg(fn.max("ended_ms").alias("_ended"), over.alias("_over"))
    same = fn.when(fn.col("rank") == _STARTED, fn.col("at_ms") <= fn.col("_ended")).when(
        fn.col("rank") == _ENDED, fn.col("_over")
    )
    joined = known.join(found, ["job_id"], "left")
    return joined.filter(~fn.coalesce(same, fn.lit(False))).drop("_ended", "_over")


def write_refill(tables: Tables, found: DataFrame, streams: Collection[str]) -> tuple[list[File], list[File]]:
    """Writes events that records of jobs have to bronze, and the attempt records that belong to them.

    Args:
        tables: The lake's tables.
        found: The events, with queue, generation, ordinal and entry id.
        streams: All streams of the events.

    Returns:
        The files of events, and the files of attempt records.
    """
    rows = _rows(found.withColumn("extra", fn.lit(None)), EVENTS)
    events = tables.write(rows, BRONZE, True, streams=streams, parts=1)
    recorded = found.filter(fn.length("extra") > len("{}")).withColumn("ordinal", fn.lit(None))
    return events, tables.write(_rows(recorded, ATTEMPTS), BRONZE, True, streams=streams, parts=1)


def _rows(found: DataFrame, stream: str) -> DataFrame:
    """Events as rows of bronze."""
    known: dict[str, Column] = {
        "day": utc_day("at_ms"),
        "stream": fn.lit(stream),
        "kind": fn.lit(REFILL),
    }
    columns = (
        known.get(name, fn.col(name) if name in found.columns else fn.lit(None)).cast(kind).alias(name)
        for name, kind in COLUMNS.items()
    )
    return found.select(*columns)


def moments() -> list[Column]:
    """Returns the events in a job's record as columns, each with its rank among them."""
    nothing = fn.lit(None).cast("string")
    once = fn.coalesce(fn.col("attempts_started"), fn.lit(0)) <= 1
    # The record's delay is that of the last retry; the options have the delay that the job was added with.
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

    labels = (fn.col("correlation_id").alias("corr"), "tags")
    failed = (fn.when(state == "failed", fn.col(name)).alias(word) for name, word in _FAILED.items())
    created = fn.unix_millis("created_at")
    # A claim bears the time of its call, which may have waited for a job that was added later.
    started = fn.when(fn.col("started_at").isNotNull(), fn.greatest(created, fn.unix_millis("started_at")))
    last = fn.greatest(started, fn.unix_millis("ended_at"))
    ended = fn.when(state.isin("completed", "failed") & fn.col("ended_at").isNotNull(), last)
    return [
        moment(0, "added", created, name=fn.col("name"), extra=fn.to_json(fn.struct(*labels))),
        moment(1, "delayed", fn.when(delay > 0, created), due_ms=created + delay),
        # The record does not have the time at which a retried job became ready for its last attempt.
        moment(1, "waiting", fn.when((delay == 0) & once, created)),
        moment(2, "active", started),
        moment(3, state, ended, reason=reason, result=result, extra=fn.to_json(fn.struct(*labels, *failed))),
    ]
