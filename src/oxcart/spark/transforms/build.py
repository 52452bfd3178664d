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

from oxcart.spark.transforms import events
from oxcart.spark.transforms.attempts import attempts
from oxcart.spark.transforms.failures import failures
from oxcart.spark.transforms.flows import flows
from oxcart.spark.transforms.gaps import counts, gaps
from oxcart.spark.transforms.jobs import jobs
from oxcart.spark.transforms.metrics import WINDOWS, queue_metrics
from oxcart.spark.transforms.schedules import firings
from oxcart.spark.transforms.transitions import transitions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SILVER = ("quarantine", "attempts", "jobs", "transitions", "gaps", "counts", "flows", "firings")
GOLD = ("queue_metrics", "failures")
#: The column with the time of a row's end, for tables whose rows may be open.
ENDS = {
    "attempts": "ended_ms",
    "jobs": "ended_ms",
    "transitions": "at_ms",
    "flows": "ended_ms",
    "firings": "ended_ms",
}


@dataclass(frozen=True)
class Earlier:
    """The settled rows of earlier spans of the same day.

    Attributes:
        after: The time by which a settled row has ended; it may differ by queue.
        bronze: The rows of bronze, at least from the minute of that time on.
        attempts: The attempts.
        metrics: The figures by minute.
        gaps: The gaps.
    """

    after: Column
    bronze: DataFrame
    attempts: DataFrame
    metrics: DataFrame
    gaps: DataFrame


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
        earlier: The settled rows of earlier spans of the day, if there were any.
        through: Jobs that ended after this time are handed on too; by default none.
        gapless: Whether there is certainly no gap.
        persist: Whether to cache rows that several tables need; `release` frees them.
        without: Tables that are not needed. Planning a small table takes Spark as long as computing it.

    Returns:
        The tables by name, and ``open``: the events that the next day or span begins with. Rows that end on
        other days, and rows that have not ended (``day`` is null), are among them.
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
    holes = None
    if not gapless or "gaps" not in without:
        made["gaps"] = lost = gaps(bronze)
        if not gapless:
            holes = lost if earlier is None else lost.unionByName(earlier.gaps)
    makers: dict[str, Callable[[], DataFrame]] = {
        "transitions": lambda: transitions(generations, holes),
        "flows": lambda: flows(generations, known_jobs),
        "firings": lambda: firings(generations, known_jobs),
        "quarantine": lambda: events.quarantine(bronze),
        "open": lambda: events.open_events(whole, generations, through),
    }
    made |= {name: make() for name, make in makers.items() if name not in without}
    if earlier is None:
        made["queue_metrics"] = queue_metrics(bronze, tried, sampled)
        if "failures" not in without:
            made["failures"] = failures(tried)
        return made
    for name, column in ENDS.items():
        if name in made:
            made[name] = made[name].filter(fn.col(column).isNull() | (fn.col(column) > earlier.after))
    since = earlier.after - earlier.after % fn.lit(WINDOWS["minute"])
    minutes = earlier.metrics.filter((fn.col("window") == "minute") & (fn.col("start_ms") < since))
    known = earlier.attempts.unionByName(made["attempts"])
    recent = earlier.bronze.filter(fn.col("at_ms") >= since).unionByName(bronze)
    made["queue_metrics"] = queue_metrics(recent, known, counts(recent), before=minutes, since=since)
    if "failures" not in without:
        made["failures"] = failures(known)
    return made


def release(made: dict[str, DataFrame]) -> None:
    """Frees the rows that `tables` cached."""
    for name in ("generations", "tried"):
        made[name].unpersist()
