"""What is wrong with a day, in a few sentences: the first thing that a report shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from oxcart.drawing.charts import Row
    from oxcart.history.report.figures import Report

#: Findings that are shown.
MOST_FINDINGS = 12
#: A queue's jobs wait too long where p99 is above this, in ms.
LONG_WAIT = 60_000
#: Attempts that were retried, as a share of ended attempts, that are worth a look; and how many at least.
RETRY_SHARE, FEW = 0.1, 20

#: How bad a finding is, worst first.
LOST, FAILED, LATE, ODD = "lost", "failed", "late", "odd"
_ORDER = (LOST, FAILED, LATE, ODD)


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        kind: ``lost``, ``failed``, ``late`` or ``odd``.
        weight: How many jobs or entries it concerns.
        text: One sentence.
    """

    kind: str
    weight: int
    text: str


def findings(report: Report) -> list[Finding]:
    """Returns what is wrong, worst first; empty where nothing is."""
    found = [*_gaps(report), *_queues(report), *_schedules(report)]
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), -one.weight, one.text))


def sentences(report: Report) -> list[str]:
    """Returns the findings as text; one sentence says so where nothing is wrong."""
    found = findings(report)
    if not found:
        return ["Nothing is wrong: no job failed for good, none stalled, and no entry was lost."]
    shown = [one.text for one in found[:MOST_FINDINGS]]
    left = len(found) - len(shown)
    return [*shown, f"And {left} more findings in the tables below."] if left else shown


def _gaps(report: Report) -> Iterator[Finding]:
    by_queue: dict[str, list[Row]] = {}
    for gap in report.gaps:
        by_queue.setdefault(gap["queue"], []).append(gap)
    for queue, gaps in by_queue.items():
        lost = sum(gap["count"] or 0 for gap in gaps)
        refilled = sum(gap["refilled"] or 0 for gap in gaps)
        unknown = any(gap["count"] is None for gap in gaps)
        entries = f"{'at least ' if unknown else ''}{lost:,} entries"
        again = f"; {refilled:,} events of them were restored from job records" if refilled else ""
        yield Finding(LOST, lost, f"{queue}: {entries} of the stream were lost{again}.")


def _queues(report: Report) -> Iterator[Finding]:
    causes: dict[str, Row] = {}
    for failure in report.failures:  # the most frequent first
        if failure["fatal"]:
            causes.setdefault(failure["queue"], failure)
    for row in report.queues:
        queue, failed, ended = row["queue"], row["failed"], row["failed"] + row["completed"]
        if failed:
            cause = causes.get(queue)
            most = f"; most often: {cut(cause['message'])} ({cause['fatal']:,})" if cause else ""
            share = f"{failed / ended:.1%} of those that ended"
            yield Finding(FAILED, failed, f"{queue}: {_jobs(failed)} failed for good, {share}{most}.")
        if row["stalls"]:
            text = (
                f"{queue}: {row['stalls']:,} attempts stalled, because their worker died or lost the lease."
            )
            yield Finding(FAILED, row["stalls"], text)
        attempts = ended + row["retries"]
        if row["retries"] >= FEW and row["retries"] >= RETRY_SHARE * attempts:
            share = f"{row['retries'] / attempts:.0%} of attempts"
            yield Finding(ODD, row["retries"], f"{queue}: {row['retries']:,} attempts were retried, {share}.")
        if (row["wait_p99"] or 0) >= LONG_WAIT:
            waited = row["wait_p99"] / 1000
            text = f"{queue}: one job in a hundred waited {waited:,.0f} s or longer before a start."
            yield Finding(LATE, int(row["arrivals"] or 0), text)


def _schedules(report: Report) -> Iterator[Finding]:
    for row in report.schedules:
        if row["missed"]:
            runs = f"{row['missed']:,} of {row['expected']:,} runs"
            yield Finding(LATE, row["missed"], f"{row['queue']}: schedule {row['schedule']} missed {runs}.")


def cut(text: str, most: int = 120) -> str:
    """Returns a text that is not longer than some characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
