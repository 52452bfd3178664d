"""All tables of some bronze, each computed once.

A day is built as a whole or in spans, one after the other. A span has bronze of its own, and begins with the
events of jobs that were open at the end of the previous one. Rows that end in a span are its rows, so the
spans of a day together have the rows of the whole day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.spark.read.entries import REFILL
from oxcart.spark.transforms import events
from oxcart.spark.transforms.attempts import attempts
from oxcart.spark.transforms.failures import cluster_tallies, clusters, failures
from oxcart.spark.transforms.flows import flows
from oxcart.spark.transforms.gaps import counts, gaps, record_gaps
from oxcart.spark.transforms.jobs import jobs
from oxcart.spark.transforms.metrics import figures, queue_metrics, window_tallies
from oxcart.spark.transforms.schedules import firings
from oxcart.spark.transforms.transitions import transitions
from oxcart.spark.transforms.usage import spending, timings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SILVER = ("quarantine", "attempts", "jobs", "transitions", "gaps", "counts", "flows", "firings")
GOLD = ("queue_metrics", "failures", "timings", "spending")
#: The column with the time of a row's end, for tables whose rows may be open.
ENDS = {
    "attempts": "ended_ms",
    "jobs": "ended_ms",
    "transitions": "at_ms",
    "flows": "ended_ms",
    "firings": "ended_ms",
    "timings": "last_ms",
    "spending": "last_ms",
}


@dataclass(frozen=True)
class Earlier:
    """What a span needs of the earlier spans of the same day.

    Attributes:
        after: The time by which a settled row has ended; it may differ by queue.
        tallies: The tallies of open windows and of clusters of failures.
        gaps: The gaps.
        records: The attempt records after gaps of their stream.
    """

    after: Column
    tallies: DataFrame
    gaps: DataFrame
    records: DataFrame


def tables(
    bronze: DataFrame,
    carried: DataFrame | None = None,
    *,
    earlier: Earlier | None = None,
    through: Column | None = None,
    gapless: bool = False,
    persist: bool = True,
    without: Collection[str] = (),
) -> dict[str, DataFrame]:
    """Returns silver and gold of a day, or of its next span.

    Args:
        bronze: The new rows.
        carried: Events of jobs that were open when these rows began.
        earlier: What earlier spans of the day left, if there were any.
        through: The time by which rows are settled. Jobs that ended after it are handed on too; none unless
            given.
        gapless: Whether there is certainly no gap.
        persist: Whether to cache rows that several tables need; `release` frees them.
        without: Tables that are not needed. Planning a small table takes Spark as long as computing it.

    Returns:
        The tables by name; ``open``, the events that the next day or span begins with; and ``tallies``, the
        sums that the next span goes on from. Rows that end on other days, and rows that have not ended
        (``day`` is null), are among them.
    """
    whole = bronze if carried is None else carried.unionByName(bronze)
    generations = events.generations(whole)
    if persist:
        generations = generations.persist()
    tried = attempts(generations)
    if persist:
        tried = tried.persist()
    known_jobs = jobs(generations, tried)
    sampled = counts(bronze)
    made = {
        "generations": generations,
        "tried": tried,
        "attempts": tried,
        "jobs": known_jobs,
        "counts": sampled,
    }
    holes = unrecorded = None
    if not gapless or "gaps" not in without:
        made["gaps"] = lost = gaps(bronze)
        if not gapless:
            holes = lost if earlier is None else lost.unionByName(earlier.gaps)
            unrecorded = record_gaps(
                holes, bronze if earlier is None else bronze.unionByName(earlier.records)
            )
    makers: dict[str, Callable[[], DataFrame]] = {
        "transitions": lambda: transitions(generations, _hidden(holes, whole), unrecorded),
        "flows": lambda: flows(generations, known_jobs),
        "firings": lambda: firings(generations, known_jobs),
        "quarantine": lambda: events.quarantine(bronze),
        "open": lambda: events.open_events(whole, generations, through),
    }
    made |= {name: make() for name, make in makers.items() if name not in without}
    if earlier is not None:
        for name, column in ENDS.items():
            if name in made:
                made[name] = made[name].filter(fn.col(column).isNull() | (fn.col(column) > earlier.after))
    fresh = generations if earlier is None else generations.filter(fn.col("at_ms") > earlier.after)
    made["timings"] = timings(fresh, made["attempts"], through)
    made["spending"] = spending(made["attempts"], through)
    known = None if earlier is None else earlier.tallies
    measured = figures(bronze, made["attempts"], sampled, tallies=known, through=through)
    made["figures"] = measured = measured.persist() if persist else measured
    made["queue_metrics"] = queue_metrics(measured)
    made["tallies"] = window_tallies(measured)
    if "failures" not in without:
        found = clusters(made["attempts"], tallies=known, through=through)
        made["clusters"] = found = found.persist() if persist else found
        made["failures"] = failures(found)
        made["tallies"] = made["tallies"].unionByName(cluster_tallies(found), allowMissingColumns=True)
    return made


def _hidden(holes: DataFrame | None, bronze: DataFrame) -> DataFrame | None:
    """Returns the gaps, with those of refilled events: the row of such a gap may be of a later day."""
    if holes is None:
        return None
    refilled = bronze.filter((fn.col("kind") == REFILL) & (fn.col("stream") == EVENTS))
    ordinal = fn.col("ordinal")
    columns = ("queue", "stream", "life")
    return holes.select(*columns, "first_lost", "last_lost").unionByName(
        refilled.select(*columns, ordinal.alias("first_lost"), ordinal.alias("last_lost"))
    )


def release(made: dict[str, DataFrame]) -> None:
    """Frees the rows that `tables` cached."""
    for name in ("generations", "tried", "figures", "clusters"):
        if name in made:
            made[name].unpersist()
