"""The lives of jobs: which events belong together, and what state each leaves the job in.

A job's id can be used again, and an ended job can be run again; so events are divided into lives. A life
begins where a job is added, where an ended one is run again, and at the first event that is known at all. It
is named by the id of its first entry.

States are the formal ones. What our own attempt records tell is used where there is one: their entries bear
the id of the event that ended the attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.model.event import EVENT_NAMES
from oxcart.spark.entries import ENTRY, REFILL
from oxcart.spark.stream import ATTEMPTS, EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Events that tell where a job is.
PLACES = ("waiting", "delayed", "waiting-children", "active", "completed", "failed", "removed")
#: Events of a job's life; the others are of the queue, or tell nothing about where a job is.
LIFE_EVENTS = ("added", *PLACES, "stalled", "retries-exhausted")
#: Events of jobs, which must name one.
JOB_EVENTS = (*LIFE_EVENTS, "progress", "duplicated", "debounced", "deduplicated")
#: States in which a life is over.
OVER = ("completed", "failed", "dead_letter", "cancelled", "removed")

_COLUMNS = (
    "day",
    "queue",
    "life",
    "ordinal",
    "entry_id",
    "at_ms",
    "event",
    "job_id",
    "name",
    "prev",
    "due_ms",
    "reason",
)
#: What an attempt record tells, in the wire's names; all of it is text.
_RECORD = ("starts", "began", "ended", "worker", "category", "code", "stack", "parent", "rule")


def refusal() -> Column:
    """Why an entry of bronze cannot be used; null where it can."""
    event, job = fn.col("event"), fn.col("job_id")
    return (
        fn.when(event.isNull(), "no event field")
        .when(fn.col("raw").isNotNull(), "bytes that are no text, or a field that stands twice")
        .when((fn.col("stream") == EVENTS) & ~event.isin(*EVENT_NAMES), "an event of an unknown name")
        .when(event.isin(*JOB_EVENTS) & job.isNull(), "no jobId field")
        .when((event == "delayed") & fn.col("due_ms").isNull(), "a delay that is no number")
        .when((fn.col("stream") == ATTEMPTS) & job.isNull(), "no jobId field")
    )


def quarantine(bronze: DataFrame) -> DataFrame:
    """Entries that cannot be used, each with the reason. They stay in bronze all the same."""
    entries = bronze.filter(fn.col("kind") == ENTRY)
    return entries.withColumn("why", refusal()).filter(fn.col("why").isNotNull())


def records(bronze: DataFrame) -> DataFrame:
    """The attempt records: one row per attempt that a worker of ours ended while a pipeline was attached."""
    told = bronze.filter((fn.col("kind") == ENTRY) & (fn.col("stream") == ATTEMPTS)).withColumn(
        "told", fn.from_json("extra", "map<string,string>")
    )
    facts = {name: fn.col("told").getItem(name) for name in _RECORD}
    numbers = {name: facts[name].cast("bigint") for name in ("starts", "began", "ended")}
    return told.select(
        "queue",
        "entry_id",
        fn.col("event").alias("r_outcome"),
        fn.col("name").alias("r_name"),
        fn.col("reason").alias("r_reason"),
        *(numbers.get(name, facts[name]).alias(f"r_{name}") for name in _RECORD),
    ).dropDuplicates(["queue", "entry_id"])


def life_events(bronze: DataFrame) -> DataFrame:
    """Bronze rows that make up the lives of jobs: what is carried from day to day for open ones."""
    return bronze.filter(
        fn.col("kind").isin(ENTRY, REFILL)
        & fn.col("job_id").isNotNull()
        & (
            ((fn.col("stream") == EVENTS) & fn.col("event").isin(*LIFE_EVENTS))
            | (fn.col("stream") == ATTEMPTS)
        )
    )


def lives(bronze: DataFrame) -> DataFrame:
    """Events of jobs, each with its life, attempt and states.

    Adds ``first_id`` (names the life), ``born`` (``added``, ``replayed``, or null where the beginning is not
    known), ``attempt`` (0 before the first), ``state`` (null for events that change none), ``from_state``,
    ``from_ordinal``, and what the attempt record tells (``r_…``).
    """
    mine = life_events(bronze)
    events = mine.filter(fn.col("stream") == EVENTS).select(*_COLUMNS)
    told = events.join(records(mine), ["queue", "entry_id"], "left")
    event, prev = fn.col("event"), fn.col("prev")

    of_job = Window.partitionBy("queue", "job_id").orderBy("life", "ordinal")
    replayed = (event == "waiting") & prev.isin("failed", "completed")
    begins = (event == "added") | replayed | (fn.row_number().over(of_job) == 1)
    born = fn.when(event == "added", "added").when(replayed, "replayed").otherwise("unknown")
    cut = (
        told.withColumn("_begins", begins)
        .withColumn("first_id", fn.last(fn.when(fn.col("_begins"), fn.col("entry_id")), True).over(of_job))
        .withColumn("born", fn.last(fn.when(fn.col("_begins"), born), True).over(of_job))
    )

    of_life = Window.partitionBy("queue", "job_id", "first_id").orderBy("life", "ordinal")
    before = of_life.rowsBetween(Window.unboundedPreceding, -1)
    # The last event other than `delayed`: whether a delay comes after a run, however often it was changed.
    came = fn.when(fn.col("r_outcome") == "snoozed", "snoozed").when(event != "delayed", event)
    numbered = (
        cut.withColumn(
            "attempt", fn.sum(fn.when(event == "active", 1).otherwise(0)).over(of_life).cast("int")
        )
        .withColumn("_came", fn.last(came, True).over(before))
        .withColumn("_next", fn.lead("event").over(of_life))
        .withColumn("state", _state(event, fn.col("_came"), fn.col("_next")))
    )
    stated = fn.when(fn.col("state").isNotNull(), fn.struct("state", "ordinal", "life"))
    return (
        numbered.withColumn("_from", fn.last(stated, True).over(before))
        .withColumn("from_state", fn.coalesce(fn.col("_from.state"), fn.when(replayed, prev)))
        .withColumn("from_ordinal", fn.col("_from.ordinal"))
        .withColumn("from_life", fn.col("_from.life"))
        .withColumn("born", fn.when(fn.col("born") != "unknown", fn.col("born")))
        .drop("_begins", "_came", "_next", "_from")
    )


def open_events(
    bronze: DataFrame, known: DataFrame | None = None, through: Column | None = None
) -> DataFrame:
    """Bronze rows of lives that are not over: what the next day begins with.

    Args:
        bronze: The rows of a day, with those carried into it.
        known: The lives found in them, where the caller has them.
        through: Lives that were over later count as open, and later records are kept; none unless given.
    """
    found = lives(bronze) if known is None else known
    over = fn.col("state").isin(*OVER)
    if through is not None:
        over = over & (fn.col("at_ms") <= through)
    ends = found.groupBy("queue", "job_id", "first_id").agg(
        fn.max(fn.when(over, 1).otherwise(0)).alias("_over")
    )
    kept = found.join(ends.filter(fn.col("_over") == 0), ["queue", "job_id", "first_id"], "left_semi").select(
        "queue", "entry_id"
    )
    rows = life_events(bronze)
    if through is None:
        return rows.join(kept, ["queue", "entry_id"], "left_semi")
    # Records may be ahead of their events, so the newest wait for them.
    marked = rows.join(kept.withColumn("_kept", fn.lit(True)), ["queue", "entry_id"], "left")
    ahead = (fn.col("stream") == ATTEMPTS) & (fn.col("at_ms") > through)
    return marked.filter(fn.col("_kept") | ahead).select(*bronze.columns)


def _state(event: Column, came: Column, following: Column) -> Column:
    category = fn.col("r_category")
    return (
        fn.when(event == "waiting", "scheduled")
        .when(event == "waiting-children", "pending")
        .when(event == "active", "running")
        .when(event == "completed", "completed")
        .when((event == "failed") & (category == "cancelled"), "cancelled")
        .when(
            (event == "failed")
            & (following == "retries-exhausted")
            & (category.isNull() | (category != "permanent")),
            "dead_letter",
        )
        .when(event == "failed", "failed")
        .when((event == "delayed") & (fn.col("r_outcome") == "snoozed"), "delayed")
        .when((event == "delayed") & (came == "active"), "retrying")
        .when(event == "delayed", "delayed")
        .when(event == "removed", "removed")
    )
