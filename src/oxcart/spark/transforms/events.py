"""The generations of jobs: which events belong together, and what state each leaves the job in.

A job's id can be used again, and an ended job can be replayed. So events are divided into generations. One
begins where a job is added, where an ended job is replayed, and at the first known event. The id of its first
entry names it.

States are the formal ones, and come from our attempt records where there are any. A record has the id of the
event that ended the attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as fn

from oxcart.broker.export import ATTEMPTS, EVENTS
from oxcart.broker.port.values import LIFETIME_OVER
from oxcart.model.event import EVENT_NAMES
from oxcart.spark.read.entries import ENTRY, REFILL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

#: Events that change the state of a job.
PLACES = ("waiting", "delayed", "waiting-children", "active", "completed", "failed", "removed")
#: Events of which generations are made; others are of the queue, or change no state.
PLACE_EVENTS = ("added", *PLACES, "stalled", "retries-exhausted")
#: Events that must have a job id.
JOB_EVENTS = (*PLACE_EVENTS, "progress", "duplicated", "debounced", "deduplicated")
#: Lists of the wire whose jobs no worker runs, as `prev` of an event names them. A parent that waits for
#: children may fail by one of them.
_IDLE = ("wait", "waiting", "paused", "prioritized", "delayed")
#: Terminal states.
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
#: The fields of an attempt record, in the wire's names; all are text, some of it numbers.
_RECORD = (
    *("began", "ended", "worker", "category", "code", "stack", "parent", "rule"),
    *("corr", "tags", "state", "created", "steps", "key", "version"),
)
_NUMBERS = ("began", "ended", "created")


def refusal() -> Column:
    """Returns why an entry of bronze cannot be used; null where it can."""
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
    """Returns entries that cannot be used, each with the reason. Bronze keeps them too."""
    entries = bronze.filter(fn.col("kind") == ENTRY)
    return entries.withColumn("why", refusal()).filter(fn.col("why").isNotNull())


def records(bronze: DataFrame) -> DataFrame:
    """Returns the records that our workers write while a pipeline is attached, each under its event's id.

    There is one per attempt that our worker ended, per job that ended without an attempt, per job that was
    added with tags or a correlation id, and per replay. Bridge's events carry the same fields themselves.
    They are one value, ``r``: many columns, most of them null, would cost more in every later step.
    """
    beside = fn.col("stream") == ATTEMPTS
    found = (
        bronze.filter(fn.col("kind").isin(ENTRY, REFILL) & (beside | fn.col("extra").isNotNull()))
        .withColumn("fields", fn.from_json("extra", "map<string,string>"))
        .withColumn(
            "_outcome", fn.when(beside, fn.col("event")).otherwise(fn.col("fields").getItem("outcome"))
        )
        .filter(beside | fn.col("_outcome").isNotNull() | fn.col("fields").getItem("state").isNotNull())
    )
    facts = {name: fn.col("fields").getItem(name) for name in _RECORD}
    numbers = {name: facts[name].cast("bigint") for name in _NUMBERS}
    found = found.select(
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


def job_events(bronze: DataFrame) -> DataFrame:
    """Returns the rows of bronze that make up generations: those of open jobs are carried to the next day."""
    return bronze.filter(
        fn.col("kind").isin(ENTRY, REFILL)
        & fn.col("job_id").isNotNull()
        & (
            ((fn.col("stream") == EVENTS) & fn.col("event").isin(*PLACE_EVENTS))
            | (fn.col("stream") == ATTEMPTS)
        )
    )


def generations(bronze: DataFrame) -> DataFrame:
    """Returns the events of jobs, each with its generation, attempt and states.

    Adds ``first_id`` (names the generation), ``born`` (``added``, ``replayed``, or null where the beginning
    is unknown), ``attempt`` (0 before the first), ``state`` (null for events that change none),
    ``from_state``, ``from_ordinal``, ``from_ms``, ``ready_ms`` (when the job last became ready),
    ``life_name``, ``life_created``, ``tags`` (as JSON) and ``limit_key`` of the job, if known by then, and
    the fields of the attempt record (``r``). A replayed job has the name and creation that our replay
    recorded, or else those of its earlier generation, if that is among these rows.
    """
    mine = job_events(bronze)
    # Everything below is by job: rows are shuffled once, and sorted once.
    events = mine.filter(fn.col("stream") == EVENTS).select(*_COLUMNS).repartition("queue", "job_id")
    joined = events.join(records(mine), ["queue", "job_id", "entry_id"], "left")
    event, prev = fn.col("event"), fn.col("prev")

    # A refilled event has the ordinal of the last entry before it.
    of_job = Window.partitionBy("queue", "job_id").orderBy("life", "ordinal", "at_ms", "entry_id")
    before = of_job.rowsBetween(Window.unboundedPreceding, -1)

    def last(value: Column, window: WindowSpec) -> Column:
        """The last value of a job, with its generation."""
        found = fn.when(value.isNotNull(), fn.struct("first_id", value.alias("value")))
        return fn.last(found, True).over(window)

    def of_generation(found: str, *, kept: bool = False) -> Column:
        """The found value if it is of the same generation, or if a replay keeps it; else null."""
        same = fn.col(f"{found}.first_id") == fn.col("first_id")
        if kept:
            same = same | (fn.col("born") == "replayed")
        return fn.when(same, fn.col(f"{found}.value"))

    replayed = (event == "waiting") & prev.isin("failed", "completed")
    active = fn.when(event == "active", 1).otherwise(0)
    born = fn.when(event == "added", "added").otherwise("replayed")
    begins = (event == "added") | replayed
    start = fn.struct("entry_id", born.alias("born"))
    cut = joined.withColumns(
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
            "_name": last(fn.coalesce("name", fn.when(replayed, fn.col("r.name"))), of_job),
            "_made": last(
                fn.when(event == "added", fn.coalesce("r.created", "at_ms")).when(
                    replayed, fn.col("r.created")
                ),
                of_job,
            ),
            "_tags": last(fn.col("r.tags"), of_job),
            "_key": last(fn.col("r.key"), of_job),
            "_before": fn.last(fn.when(begins, fn.col("_actives")), True).over(of_job),
        }
    )
    stated = found.withColumns(
        {
            "attempt": (fn.col("_actives") - fn.coalesce("_before", fn.lit(0))).cast("int"),
            "state": _state(event, of_generation("_came"), of_generation("_next")),
            "ready_ms": of_generation("_ready"),
            # `added` has name and creation, and begins a generation; a replayed job keeps those of its id.
            "life_name": of_generation("_name", kept=True),
            "life_created": of_generation("_made", kept=True),
            "tags": of_generation("_tags"),
            "limit_key": of_generation("_key"),
        }
    )
    state = fn.when(fn.col("state").isNotNull(), fn.struct("state", "ordinal", "life", "at_ms"))
    return (
        stated.withColumn("_last", last(state, before))
        .withColumn("_from", of_generation("_last"))
        .withColumns(
            {
                "from_state": fn.coalesce(fn.col("_from.state"), fn.when(replayed, prev)),
                "from_ordinal": fn.col("_from.ordinal"),
                "from_life": fn.col("_from.life"),
                "from_ms": fn.col("_from.at_ms"),
            }
        )
        .drop("_actives", "_begun", "_first", "_came", "_next", "_ready", "_name", "_made", "_tags", "_key")
        .drop("_before", "_last", "_from")
    )


def open_events(
    bronze: DataFrame, known: DataFrame | None = None, through: Column | None = None
) -> DataFrame:
    """Returns the rows of bronze of open generations, with which the next day begins.

    Args:
        bronze: The rows of a day, and rows carried into it.
        known: Their generations, if the caller has them.
        through: Generations that ended after this time count as open, and later records are kept; by
            default none.
    """
    found = generations(bronze) if known is None else known
    over = fn.col("state").isin(*OVER)
    if through is not None:
        over = over & (fn.col("at_ms") <= through)
    ends = found.groupBy("queue", "job_id", "first_id").agg(
        fn.max(fn.when(over, 1).otherwise(0)).alias("_over")
    )
    kept = found.join(ends.filter(fn.col("_over") == 0), ["queue", "job_id", "first_id"], "left_semi").select(
        "queue", "entry_id"
    )
    rows = job_events(bronze)
    if through is None:
        return rows.join(kept, ["queue", "entry_id"], "left_semi")
    # Records may be ahead of their events, so the newest records wait.
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
        # Without a record: a job that no worker runs was cancelled, or its lifetime is over.
        .when(
            (event == "failed") & category.isNull() & fn.col("prev").isin(*_IDLE),
            fn.when(fn.col("reason") == LIFETIME_OVER, "dead_letter").otherwise("cancelled"),
        )
        .when(event == "failed", "failed")
        .when((event == "delayed") & (fn.col("r.outcome") == "snoozed"), "delayed")
        .when((event == "delayed") & (came == "active"), "retrying")
        .when((event == "delayed") & (came == "waiting"), "scheduled")  # a limit holds it back
        .when(event == "delayed", "delayed")
        .when(event == "removed", "removed")
    )
