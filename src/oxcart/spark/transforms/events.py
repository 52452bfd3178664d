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
    from pyspark.sql.window import WindowSpec

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
    "reason",
)
#: What an attempt record tells, in the wire's names; all of it is text, some of it numbers.
_RECORD = (
    *("began", "ended", "worker", "category", "code", "stack", "parent", "rule"),
    *("corr", "tags", "state", "created"),
)
_NUMBERS = ("began", "ended", "created")


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
    """The records: what no event tells, each under the id of its event; written while a pipeline is attached.

    One per attempt that a worker of ours ended, per job that ended without one, and per job that was added
    with something to tell of it. Bridge's events carry their own, in fields of these names. What one tells is
    in ``r``, as one value: what is done to rows later would else be done to each of many columns, most of
    them null.
    """
    beside = fn.col("stream") == ATTEMPTS
    told = (
        bronze.filter(fn.col("kind").isin(ENTRY, REFILL) & (beside | fn.col("extra").isNotNull()))
        .withColumn("told", fn.from_json("extra", "map<string,string>"))
        .withColumn("_outcome", fn.when(beside, fn.col("event")).otherwise(fn.col("told").getItem("outcome")))
        .filter(beside | fn.col("_outcome").isNotNull() | fn.col("told").getItem("state").isNotNull())
    )
    facts = {name: fn.col("told").getItem(name) for name in _RECORD}
    numbers = {name: facts[name].cast("bigint") for name in _NUMBERS}
    found = told.select(
        "queue",
        "job_id",
        "entry_id",
        fn.struct(
            fn.col("_outcome").alias("outcome"),
            "name",
            "reason",
            *(numbers.get(name, facts[name]).alias(name) for name in _RECORD),
        ).alias("r"),
    )
    return found.repartition("queue", "job_id").dropDuplicates(["queue", "job_id", "entry_id"])


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
    ``from_ordinal``, ``ready_ms`` (when the job last became ready), ``life_name`` (the job's name, as far as
    it is known by then), and what the attempt record tells (``r``).
    """
    mine = life_events(bronze)
    # Everything below is by job: rows are brought together once, and sorted once.
    events = mine.filter(fn.col("stream") == EVENTS).select(*_COLUMNS).repartition("queue", "job_id")
    told = events.join(records(mine), ["queue", "job_id", "entry_id"], "left")
    event, prev = fn.col("event"), fn.col("prev")

    # What the record of a job tells has the place of the last entry before it.
    of_job = Window.partitionBy("queue", "job_id").orderBy("life", "ordinal", "at_ms", "entry_id")
    before = of_job.rowsBetween(Window.unboundedPreceding, -1)

    def last(value: Column, window: WindowSpec) -> Column:
        """The last value of a job, with its life."""
        told = fn.when(value.isNotNull(), fn.struct("first_id", value.alias("value")))
        return fn.last(told, True).over(window)

    def of_life(found: str) -> Column:
        """What was found, where it was in the same life: another life of the same job does not count."""
        return fn.when(fn.col(f"{found}.first_id") == fn.col("first_id"), fn.col(f"{found}.value"))

    replayed = (event == "waiting") & prev.isin("failed", "completed")
    active = fn.when(event == "active", 1).otherwise(0)
    born = fn.when(event == "added", "added").otherwise("replayed")
    begins = (event == "added") | replayed
    start = fn.struct("entry_id", born.alias("born"))
    cut = told.withColumns(
        {
            "_actives": fn.sum(active).over(of_job),
            "_begun": fn.last(fn.when(begins, start), True).over(of_job),
            "_first": fn.first("entry_id").over(of_job),
        }
    )
    numbered = cut.withColumns(
        {
            "first_id": fn.coalesce("_begun.entry_id", "_first"),
            "born": fn.col("_begun.born"),
        }
    )
    # The last event other than `delayed`: whether a delay comes after a run, however often it was changed.
    snoozed = (fn.col("r.outcome") == "snoozed") & ~fn.col("r.state").eqNullSafe("retrying")
    came = fn.when(snoozed, "snoozed").when(event != "delayed", event)
    found = numbered.withColumns(
        {
            "_came": last(came, before),
            "_next": fn.lead(fn.struct("first_id", event.alias("value"))).over(of_job),
            "_ready": last(fn.when(event == "waiting", fn.col("at_ms")), of_job),
            "_name": last(fn.col("name"), of_job),
            "_before": fn.last(fn.when(begins, fn.col("_actives")), True).over(of_job),
        }
    )
    stated = found.withColumns(
        {
            "attempt": (fn.col("_actives") - fn.coalesce("_before", fn.lit(0))).cast("int"),
            "state": _state(event, of_life("_came"), of_life("_next")),
            "ready_ms": of_life("_ready"),
            "life_name": of_life("_name"),  # `added` tells it, and begins a life
        }
    )
    state = fn.when(fn.col("state").isNotNull(), fn.struct("state", "ordinal", "life"))
    return (
        stated.withColumn("_last", last(state, before))
        .withColumn("_from", of_life("_last"))
        .withColumns(
            {
                "from_state": fn.coalesce(fn.col("_from.state"), fn.when(replayed, prev)),
                "from_ordinal": fn.col("_from.ordinal"),
                "from_life": fn.col("_from.life"),
            }
        )
        .drop(
            "_actives", "_begun", "_first", "_came", "_next", "_ready", "_name", "_before", "_last", "_from"
        )
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
    category = fn.col("r.category")
    return (
        fn.when(event.isin("failed", "delayed") & fn.col("r.state").isNotNull(), fn.col("r.state"))
        .when(event == "waiting", "scheduled")
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
        .when((event == "delayed") & (fn.col("r.outcome") == "snoozed"), "delayed")
        .when((event == "delayed") & (came == "active"), "retrying")
        .when((event == "delayed") & (came == "waiting"), "scheduled")  # a limit holds it back
        .when(event == "delayed", "delayed")
        .when(event == "removed", "removed")
    )
