"""All tables of some bronze, each computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxcart.spark.transforms import events
from oxcart.spark.transforms.attempts import attempts
from oxcart.spark.transforms.failures import failures
from oxcart.spark.transforms.gaps import counts, gaps
from oxcart.spark.transforms.jobs import jobs
from oxcart.spark.transforms.metrics import queue_metrics
from oxcart.spark.transforms.transitions import transitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SILVER = ("quarantine", "attempts", "jobs", "transitions", "gaps", "counts")
GOLD = ("queue_metrics", "failures")


def tables(
    bronze: DataFrame, carried: DataFrame | None = None, *, persist: bool = True
) -> dict[str, DataFrame]:
    """Silver and gold of a day.

    Args:
        bronze: The day's rows.
        carried: Events of jobs that were open when it began.
        persist: Whether to keep what several tables need; free it with `release`.

    Returns:
        The tables by name, and ``open``: what the next day begins with. Rows that end on other days, and
        those that have not ended (``day`` is null), are among them.
    """
    whole = bronze if carried is None else carried.unionByName(bronze)
    lives = events.lives(whole)
    if persist:
        lives = lives.persist()
    tried = attempts(lives)
    if persist:
        tried = tried.persist()
    lost = gaps(bronze)
    sampled = counts(bronze)
    return {
        "lives": lives,
        "attempts": tried,
        "jobs": jobs(lives, tried),
        "transitions": transitions(lives, lost),
        "gaps": lost,
        "counts": sampled,
        "quarantine": events.quarantine(bronze),
        "queue_metrics": queue_metrics(bronze, tried, sampled),
        "failures": failures(tried),
        "open": events.open_events(whole, lives),
    }


def release(made: dict[str, DataFrame]) -> None:
    """Frees what `tables` kept."""
    for name in ("lives", "attempts"):
        made[name].unpersist()
