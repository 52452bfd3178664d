"""The figures of a day, as the report's page, picture and tables show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.spark.transforms.metrics import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.lake.versions import Version

#: Points of a chart at most; a day by the minute has 1440.
MOST_POINTS = 1440
#: Failures that are shown, and flows.
MOST_FAILURES = 20
MOST_FLOWS = 20

Row = dict[str, Any]


class Report(msgspec.Struct, frozen=True):
    """The figures of a day.

    Attributes:
        day: The day.
        version: The lake's version that they come from.
        queues: The day's figures, one row per queue.
        names: The day's figures, one row per queue and job name.
        minutes: Figures by the minute, one row per queue.
        failures: The most frequent failures of the day.
        gaps: The lost entries of the day.
        states: How many jobs are in which state, per queue.
        flows: The flows of the day that took longest, each with its critical path.
        schedules: Expected and actual runs of the day, one row per schedule.
    """

    day: str
    version: int
    queues: list[Row]
    names: list[Row]
    minutes: list[Row]
    failures: list[Row]
    gaps: list[Row]
    states: list[Row]
    flows: list[Row]
    schedules: list[Row]


def collect(tables: Tables, day: str | None = None, version: Version | None = None) -> Report:
    """Reads the figures of a day.

    Args:
        tables: The lake's tables.
        day: The day; by default the last with figures.
        version: the lake's version; by default the newest.
    """
    from oxcart.spark.transforms.lanes import join_lanes

    version = version or tables.lake.head()
    known = sorted({file.day for file in version.of("queue_metrics")})
    day = day or (known[-1] if known else "")
    days = [day]

    def read(table: str) -> DataFrame:
        # A lane has figures of its own, under its whole name.
        return join_lanes(tables.read(table, version, days=days))

    def rows(table: str, where: str, order: str, most: int = MOST_POINTS * 20) -> list[Row]:
        found = read(table).filter(where).orderBy(*order.split(",")).limit(most)
        return [row.asDict() for row in found.collect()]

    figures = rows(
        "queue_metrics", f"window = 'day' or (window = 'minute' and name = '{ALL}')", "queue,name,start_ms"
    )
    counted = read("jobs").groupBy("queue", "state").count().orderBy("queue", "state")
    by_count = read("failures").orderBy("count", "cluster", ascending=[False, True])
    return Report(
        day=day,
        version=version.number,
        queues=[row for row in figures if row["window"] == "day" and row["name"] == ALL],
        names=[row for row in figures if row["window"] == "day" and row["name"] != ALL],
        minutes=[row for row in figures if row["window"] == "minute"],
        failures=[row.asDict() for row in by_count.limit(MOST_FAILURES).collect()],
        gaps=rows("gaps", "true", "queue,life,first_lost"),
        states=[row.asDict() for row in counted.collect()],
        flows=_flows(tables, version, days),
        schedules=rows("schedules", "true", "queue,schedule,first_ms"),
    )


def _flows(tables: Tables, version: Version, days: list[str]) -> list[Row]:
    """The longest critical paths, each in one row."""
    from pyspark.sql import functions as fn

    step = fn.struct("step", "name", "job_id", "took_ms")
    paths = tables.read("critical_paths", version, days=days)
    found = (
        paths.groupBy(
            "flow_queue", "flow_id", "flow_first_id", "flow_name", "flow_state", "total_ms", "steps"
        )
        .agg(fn.array_sort(fn.collect_list(step)).alias("path"))
        .orderBy("total_ms", "flow_id", ascending=[False, True])
        .limit(MOST_FLOWS)
    )
    flows = []
    for row in found.collect():
        path = " → ".join(f"{one.name or one.job_id} {shown(one.took_ms, '')} ms" for one in row.path)
        flows.append({**row.asDict(), "path": path})
    return flows


QUEUE_COLUMNS = (
    ("queue", "queue"),
    ("arrivals", "added"),
    ("completed", "completed"),
    ("failed", "failed"),
    ("retries", "retries"),
    ("stalls", "stalls"),
    ("wait_p50", "wait p50"),
    ("wait_p99", "wait p99"),
    ("run_p50", "run p50"),
    ("run_p99", "run p99"),
    ("backlog_ready", "backlog"),
)
NAME_COLUMNS = (("queue", "queue"), ("name", "job"), *QUEUE_COLUMNS[1:-1])
FAILURE_COLUMNS = (
    ("message", "message"),
    ("count", "times"),
    ("fatal", "for good"),
    ("queue", "queue"),
    ("first_ms", "first"),
    ("last_ms", "last"),
)
GAP_COLUMNS = (
    ("queue", "queue"),
    ("first_lost", "first"),
    ("last_lost", "last"),
    ("count", "entries"),
    ("refilled", "refilled"),
    ("cause", "cause"),
)
FLOW_COLUMNS = (
    ("flow_name", "flow"),
    ("flow_queue", "queue"),
    ("flow_id", "job"),
    ("flow_state", "state"),
    ("total_ms", "took"),
    ("steps", "steps"),
    ("path", "critical path"),
)
SCHEDULE_COLUMNS = (
    ("schedule", "schedule"),
    ("queue", "queue"),
    ("cron", "cron"),
    ("every_ms", "every"),
    ("expected", "expected"),
    ("started", "started"),
    ("missed", "missed"),
    ("failed", "failed"),
    ("late_p50", "late p50"),
    ("late_p99", "late p99"),
    ("late_max", "late max"),
)
#: Columns that are text, and columns in ms that are durations.
TEXTS = {"queue", "name", "message", "cause", "flow_name", "flow_queue", "flow_id", "flow_state", "path"}
TEXTS |= {"schedule", "cron"}
_SPANS = {"total_ms", "every_ms"}


def shown(value: Any, column: str) -> str:
    """Returns a value as people read it."""
    if value is None:
        return "–"
    if column.endswith("_ms") and column not in _SPANS:
        return time_of_day(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}".removesuffix(".0")
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def time_of_day(at_ms: int) -> str:
    """Returns the hour and minute of a time in ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")
