"""All tables of some bronze, each computed once.

A day may be built at one go or in spans, one after the other. A span has rows of its own, and begins with the
events of jobs that were open at the end of the one before. Its rows are those that end in it; so the spans of
a day together have the rows that the day has as a whole.
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
#: The column that says when a row ends, of tables whose rows may be open.
ENDS = {
    "attempts": "ended_ms",
    "jobs": "ended_ms",
    "transitions": "at_ms",
    "flows": "ended_ms",
    "firings": "ended_ms",
}


@dataclass(frozen=True)
class Earlier:
    """What earlier spans of the same day have settled.

    Attributes:
        after: The time by which a row must have ended to be among it; it may differ by queue.
        bronze: Their rows, from the minute of that time on at least.
        attempts: Their attempts.
        metrics: Their minutes.
        gaps: Their gaps.
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
    """Silver and gold of a day, or of its next span.

    Args:
        bronze: The new rows.
        carried: Events of jobs that were open when they began.
        earlier: What earlier spans of the day have settled, if there were any.
        through: Jobs that ended later are handed on all the same; none unless given.
        gapless: Whether it is known that there is no gap.
        persist: Whether to keep what several tables need; free it with `release`.
        without: Tables that are not needed. To say how a table is made takes Spark as long as to make a small
            one.

    Returns:
        The tables by name, and ``open``: what the next day or span begins with. Rows that end on other days,
        and those that have not ended (``day`` is null), are among them.
    """
    whole = bronze if carried is None else carried.unionByName(bronze)
    lives = events.lives(whole)
    if persist:
        lives = lives.persist()
    tried = attempts(lives)
    if persist:
        tried = tried.persist()
    known_jobs = jobs(lives, tried)
    sampled = counts(bronze)
    made = {"lives": lives, "tried": tried, "attempts": tried, "jobs": known_jobs, "counts": sampled}
    holes = None
    if not gapless or "gaps" not in without:
        made["gaps"] = lost = gaps(bronze)
        if not gapless:
            holes = lost if earlier is None else lost.unionByName(earlier.gaps)
    makers: dict[str, Callable[[], DataFrame]] = {
        "transitions": lambda: transitions(lives, holes),
        "flows": lambda: flows(lives, known_jobs),
        "firings": lambda: firings(lives, known_jobs),
        "quarantine": lambda: events.quarantine(bronze),
        "open": lambda: events.open_events(whole, lives, through),
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
    """Frees what `tables` kept."""
    for name in ("lives", "tried"):
        made[name].unpersist()
