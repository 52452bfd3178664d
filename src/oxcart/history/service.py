"""Ready questions about the service as a whole: objectives, anomalies, capacity, costs, changes.

They read the views of `oxcart.spark.views`. Each question has a reader of the days that its answer needs, so
that its cost does not grow with the lake.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.versions import Version
from oxcart.spark.views.anomalies import WEEKS

Row = dict[str, Any]
#: Days of an error budget, and days in which a version counts as the one before another.
BUDGET_DAYS, VERSION_DAYS = 31, 91
#: Narrows a question to a queue, if one is given, and to days.
_WHERE = "day >= CAST($day AS DATE) AND ($queue IS NULL OR queue = $queue)"


def objectives_reader(version: Version, hours: int = 0) -> LakeReader:
    """Returns a reader for `objectives`, and for `objective_hours` if some hours are given."""
    known = [file.day for file in version.of("queue_metrics")]
    since = _before(max(known), BUDGET_DAYS + -(-hours // 24)) if known else ""
    return LakeReader(version.lake, version, since_day=since)


def anomalies_reader(version: Version, since_day: str) -> LakeReader:
    """Returns a reader for `anomalies`: days since a day, and the same days of the weeks before."""
    wanted = {file.day for file in version.of("queue_metrics") if file.day >= since_day}
    days = {_before(day, 7 * weeks) for day in wanted for weeks in range(WEEKS + 1)}
    return LakeReader(version.lake, version, days=days)


def since_reader(version: Version, since_day: str) -> LakeReader:
    """Returns a reader for `capacity` and `costs`."""
    return LakeReader(version.lake, version, since_day=since_day)


def changes_reader(version: Version, since_day: str) -> LakeReader:
    """Returns a reader for `changes`. A version that did not run for `VERSION_DAYS` counts as a new one."""
    return LakeReader(version.lake, version, since_day=_before(since_day, VERSION_DAYS))


def objectives(reader: LakeReader, queue: str | None = None) -> list[Row]:
    """Returns how each objective stands now, the one with the least budget first."""
    text = (
        "SELECT * EXCLUDE (day, hours_ago) FROM slo WHERE hours_ago = 0 "
        "AND ($queue IS NULL OR queue = $queue) ORDER BY budget_left, objective"
    )
    return reader.sql(text, {"queue": queue}).dicts()


def objective_hours(reader: LakeReader, hours: int, queue: str | None = None) -> list[Row]:
    """Returns how each objective stood in the last hours, the oldest first."""
    text = (
        "SELECT objective, queue, hours_ago, burn_1h, budget_left FROM slo WHERE hours_ago < $hours "
        "AND ($queue IS NULL OR queue = $queue) ORDER BY objective, hours_ago DESC"
    )
    return reader.sql(text, {"hours": hours, "queue": queue}).dicts()


def anomalies(reader: LakeReader, since_day: str, queue: str | None = None) -> list[Row]:
    """Returns the hours since a day that differ from the weeks before, the latest day first."""
    text = f"SELECT * EXCLUDE (day) FROM anomalies WHERE {_WHERE} ORDER BY day DESC, abs(score) DESC"
    return reader.sql(text, {"day": since_day, "queue": queue}).dicts()


def capacity(reader: LakeReader, since_day: str, queue: str | None = None) -> list[Row]:
    """Returns the busiest hour of each queue and lane since a day: how many workers it needed."""
    text = (
        f"SELECT * EXCLUDE (day) FROM capacity WHERE {_WHERE} "
        "QUALIFY row_number() OVER (PARTITION BY queue, lane ORDER BY workers DESC, load DESC) = 1 "
        "ORDER BY workers DESC, queue, lane"
    )
    return reader.sql(text, {"day": since_day, "queue": queue}).dicts()


def costs(reader: LakeReader, since_day: str, queue: str | None = None, tag: str | None = None) -> list[Row]:
    """Returns the seconds that workers spent since a day, by queue, job name and tenant; the most first.

    Args:
        reader: The lake.
        since_day: The first day.
        queue: Only of this queue.
        tag: By the values of this tag too, of attempts that have it.
    """
    shown = "queue, name, tenant" if tag is None else "queue, name, tenant, value"
    text = (
        f"SELECT {shown}, CAST(sum(attempts) AS BIGINT) AS attempts, round(sum(worker_s), 3) AS worker_s, "
        f"round(sum(wasted_s), 3) AS wasted_s FROM costs WHERE {_WHERE} AND tag IS NOT DISTINCT FROM $tag "
        f"GROUP BY {shown} ORDER BY worker_s DESC, {shown}"
    )
    return reader.sql(text, {"day": since_day, "queue": queue, "tag": tag}).dicts()


def changes(reader: LakeReader, since_day: str, queue: str | None = None) -> list[Row]:
    """Returns versions that were first seen since a day, each against the one before it; the latest first."""
    text = f"SELECT * EXCLUDE (day) FROM changes WHERE {_WHERE} ORDER BY day DESC, queue, lane, name, version"
    return reader.sql(text, {"day": since_day, "queue": queue}).dicts()


def _before(day: str, days: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=days)).isoformat()
