"""Figures per queue and job name, by minute, hour and day.

The row named ``*`` is the whole queue. Backlog is the last sample of the queue's lengths in the window,
because a sum of arrivals and ends would drift with every gap. The server has no lengths by job name.

Every figure can be continued: a window that is still open has a tally, from which the next span of the day
goes on without the rows of earlier ones. So the cost of a span depends on its own rows. A tally has the sums
of settled rows, and how often each duration occurred. Durations of more than 2 s are rounded for that to 11
binary digits, so that a window has a few thousand different ones at most. Percentiles are computed from
these: they are exact up to 2 047 ms, and beyond that within 0.05 %. Spark's own sketches (KLL) are random,
so that a rebuilt day would differ from the day that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.model.failure import Category
from oxcart.spark.lake.columns import ALL, WINDOWS
from oxcart.spark.read.entries import ENTRY, REFILL
from oxcart.spark.transforms.days import day_of
from oxcart.spark.transforms.jobs import FAILED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Binary digits of a duration that count.
DIGITS = 11
_SHARES = (0.5, 0.9, 0.99)
_NAMES = ("p50", "p90", "p99")
_UNTOLD = "untold"
_KEY = ("queue", "window", "start_ms", "name")
_CATEGORIES = (*(str(category) for category in Category), _UNTOLD)
#: Columns that count attempts, and the outcomes that they count.
_OUTCOMES = {"completed": "completed", "failed": "failed", "retries": "retried", "stalls": "stalled"}
_NUMBERS = ("arrivals", *_OUTCOMES, *(f"failures_{word}" for word in _CATEGORIES))
_KINDS = ("wait", "run")
_BACKLOG = ("ready", "active", "delayed")
_SAMPLE = "struct<at_ms:bigint,ready:bigint,active:bigint,delayed:bigint>"
#: The columns of the tallies of windows.
TALLY_SCHEMA = ", ".join(
    [
        "window string, start_ms bigint, name string",
        *(f"{name} bigint" for name in _NUMBERS),
        f"sample {_SAMPLE}",
        *(f"{kind}_max bigint" for kind in _KINDS),
        "times array<struct<kind:string,ms:bigint,times:bigint>>",
    ]
)
_TALLIED = (*_NUMBERS, "sample", *(f"{kind}_max" for kind in _KINDS), "times")


def rounded(ms: Column) -> Column:
    """Returns a duration with its first `DIGITS` binary digits; shorter ones are not changed.

    A rounded duration is not changed by rounding it again, so that rounding sums and summing roundings are
    the same.
    """
    extra = fn.greatest(fn.length(fn.bin(ms)) - fn.lit(DIGITS), fn.lit(0))
    # A step is 2 to the power of the digits that do not count.
    step = fn.call_function("shiftleft", fn.lit(1).cast("bigint"), extra)
    near = ms + fn.call_function("shiftright", step, fn.lit(1))
    return fn.when(ms < fn.lit(1 << DIGITS), ms).otherwise(near - near % step)


def figures(
    bronze: DataFrame,
    attempts: DataFrame,
    counts: DataFrame,
    *,
    tallies: DataFrame | None = None,
    through: Column | None = None,
) -> DataFrame:
    """Returns the figures of all windows that have new rows or a tally, each with its tally.

    Args:
        bronze: New rows, for arrivals.
        attempts: New attempts; running ones are left out.
        counts: New samples, for the backlog.
        tallies: Tallies of windows that were open before these rows.
        through: Attempts that ended later are in the figures but not in the tally, because the next span has
            them again. None tallies all of them. Windows that ended by then have no tally.

    Returns:
        Rows with the columns of ``queue_metrics``, and ``tally``: null where the window needs none.
    """
    kept = fn.lit(True) if through is None else fn.col("at_ms") <= through
    tries = attempts.filter(fn.col("ended_ms").isNotNull()).select(
        "queue", "name", fn.col("ended_ms").alias("at_ms"), "outcome", "category", "wait_ms", "run_ms"
    )
    rows = _sums(bronze, tries.withColumn("_kept", kept), counts)
    times = _times(tries.withColumn("_kept", kept))
    if tallies is not None:
        windows = tallies.filter(fn.col("window").isNotNull())
        rows = rows.unionByName(_tallied_sums(windows))
        times = times.unionByName(_tallied_times(windows))
    times = times.groupBy(*_KEY, "kind", "ms").agg(
        fn.sum("times").alias("times"), fn.sum("kept").alias("kept")
    )
    together = rows.unionByName(times, allowMissingColumns=True).groupBy(*_KEY)
    made = together.agg(
        *(fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in _NUMBERS),
        fn.max("sample").alias("_sample"),
        *(_percentiles(kind).alias(f"_{kind}") for kind in _KINDS),
        *(fn.max(f"{kind}_max").alias(f"{kind}_max") for kind in _KINDS),
        *(fn.coalesce(fn.sum(f"_kept_{name}"), fn.lit(0)).alias(f"_kept_{name}") for name in _NUMBERS),
        *(fn.max(f"_kept_{kind}_max").alias(f"_kept_{kind}_max") for kind in _KINDS),
        fn.collect_list(
            fn.when(
                (fn.col("kept") > 0) & _open(through), fn.struct("kind", "ms", fn.col("kept").alias("times"))
            )
        ).alias("times"),
    )
    tally = fn.struct(
        *(fn.col(f"_kept_{name}").alias(name) for name in _NUMBERS),
        fn.col("_sample").alias("sample"),
        *(fn.col(f"_kept_{kind}_max").alias(f"{kind}_max") for kind in _KINDS),
        "times",
    )
    return made.select(
        day_of("start_ms").alias("day"),
        *_KEY,
        *_NUMBERS,
        *(fn.col(f"_sample.{name}").alias(f"backlog_{name}") for name in _BACKLOG),
        *_durations(),
        fn.when(_open(through), tally).alias("tally"),
    )


def queue_metrics(figures: DataFrame) -> DataFrame:
    """Returns the figures without tallies."""
    return figures.drop("tally")


def window_tallies(figures: DataFrame) -> DataFrame:
    """Returns the tallies of windows that are open."""
    found = figures.filter(fn.col("tally").isNotNull())
    return found.select("day", *_KEY, *(fn.col(f"tally.{name}").alias(name) for name in _TALLIED))


def _open(through: Column | None) -> Column:
    """Whether a window ends after the settled rows."""
    if through is None:
        return fn.lit(False)
    length = fn.create_map(*(fn.lit(part) for pair in WINDOWS.items() for part in pair))
    return fn.col("start_ms") + length[fn.col("window")] > through


def _sums(bronze: DataFrame, tries: DataFrame, counts: DataFrame) -> DataFrame:
    """One row per window, name and new row that counts there."""
    added = bronze.filter(
        fn.col("kind").isin(ENTRY, REFILL) & (fn.col("stream") == EVENTS) & (fn.col("event") == "added")
    )
    ready = fn.col("wait") + fn.col("paused") + fn.col("prioritized")
    sample = fn.struct("at_ms", ready.alias("ready"), "active", "delayed").cast(_SAMPLE)
    outcome, category = fn.col("outcome"), fn.coalesce(fn.col("category"), fn.lit(_UNTOLD))
    failed = outcome.isin(*FAILED)
    ended = {
        **{name: _one(outcome == word) for name, word in _OUTCOMES.items()},
        **{f"failures_{word}": _one(failed & (category == word)) for word in _CATEGORIES},
    }
    minute = fn.col("at_ms") - fn.col("at_ms") % fn.lit(WINDOWS["minute"])
    # A union, then one sum: that is cheaper than a join of sums. Minutes are summed before they are spread.
    arrived = added.select(
        "queue",
        "name",
        minute.alias("_from"),
        fn.lit(1).cast("bigint").alias("arrivals"),
        fn.lit(True).alias("_kept"),
    )
    tried = tries.select(
        "queue",
        "name",
        minute.alias("_from"),
        *(number.alias(name) for name, number in ended.items()),
        *(fn.col(f"{kind}_ms").alias(f"{kind}_max") for kind in _KINDS),
        "_kept",
    )
    numbered = arrived.unionByName(tried, allowMissingColumns=True)
    sums = numbered.groupBy("queue", "name", "_from").agg(
        *(fn.sum(name).alias(name) for name in _NUMBERS),
        *(fn.max(f"{kind}_max").alias(f"{kind}_max") for kind in _KINDS),
        *(fn.sum(fn.when(fn.col("_kept"), fn.col(name))).alias(f"_kept_{name}") for name in _NUMBERS),
        *(
            fn.max(fn.when(fn.col("_kept"), fn.col(f"{kind}_max"))).alias(f"_kept_{kind}_max")
            for kind in _KINDS
        ),
    )
    samples = counts.select("queue", minute.alias("_from"), fn.lit(ALL).alias("name"), sample.alias("sample"))
    rows = _named(sums).unionByName(samples, allowMissingColumns=True)
    return _windows(rows)


def _times(tries: DataFrame) -> DataFrame:
    """How often each duration occurs, per window and name."""
    measures = fn.array(
        *(fn.struct(fn.lit(kind).alias("kind"), rounded(fn.col(f"{kind}_ms")).alias("ms")) for kind in _KINDS)
    )
    minute = fn.col("at_ms") - fn.col("at_ms") % fn.lit(WINDOWS["minute"])
    found = (
        tries.select("queue", "name", "_kept", minute.alias("_from"), fn.inline(measures))
        .filter(fn.col("ms").isNotNull())
        .groupBy("queue", "name", "_from", "kind", "ms")
        .agg(fn.count(fn.lit(1)).alias("times"), _one_sum(fn.col("_kept")).alias("kept"))
    )
    return _windows(_named(found))


def _tallied_sums(tallies: DataFrame) -> DataFrame:
    """Tallies as rows of sums: all that they have is settled."""
    return tallies.select(
        *_KEY,
        *_NUMBERS,
        "sample",
        *(f"{kind}_max" for kind in _KINDS),
        *(fn.col(name).alias(f"_kept_{name}") for name in _NUMBERS),
        *(fn.col(f"{kind}_max").alias(f"_kept_{kind}_max") for kind in _KINDS),
    )


def _tallied_times(tallies: DataFrame) -> DataFrame:
    found = tallies.select(*_KEY, fn.inline("times"))
    return found.withColumn("kept", fn.col("times"))


def _percentiles(kind: str) -> Column:
    value = fn.when(fn.col("kind") == kind, fn.col("ms"))
    return fn.percentile(value, fn.array(*map(fn.lit, _SHARES)), fn.coalesce("times", fn.lit(1)))


def _durations() -> Iterator[Column]:
    """The columns of durations."""
    for kind in _KINDS:
        for at, name in enumerate(_NAMES):
            yield fn.col(f"_{kind}")[at].alias(f"{kind}_{name}")
        yield fn.col(f"{kind}_max")


def _windows(rows: DataFrame) -> DataFrame:
    """Each row of a minute (``_from``) once per window."""
    at = fn.col("_from")
    spans = fn.array(
        *(
            fn.struct(fn.lit(name).alias("window"), (at - at % fn.lit(length)).alias("start_ms"))
            for name, length in WINDOWS.items()
        )
    )
    return rows.select("*", fn.inline(spans)).drop("_from")


def _named(rows: DataFrame) -> DataFrame:
    """Each row once more under the name of the whole queue; rows without a name count for the queue alone."""
    both = fn.when(fn.col("name").isNull(), fn.array(fn.lit(ALL))).otherwise(fn.array(fn.lit(ALL), "name"))
    return rows.withColumn("name", fn.explode(both))


def _one(condition: Column) -> Column:
    return fn.when(condition, 1).otherwise(0).cast("bigint")


def _one_sum(condition: Column) -> Column:
    return fn.sum(_one(condition))
