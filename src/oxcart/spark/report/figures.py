"""The figures of a day or of several, as the report's page, picture and tables show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.drawing.charts import Row, time_text
from oxcart.spark.lake.columns import INSTANTS
from oxcart.spark.report.buckets import points_of, width_of
from oxcart.spark.transforms.metrics import ALL, WINDOWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.lake.versions import Version

#: Queues that have charts: those with most failures, then those with most jobs.
MOST_CHARTED = 60
#: Rows of a table that are shown. How many more there are is shown too.
MOST_ROWS = 200
MOST_FAILURES = 20
MOST_FLOWS = 20


class Report(msgspec.Struct, frozen=True):
    """The figures of a day or of several.

    Attributes:
        day: The first day; empty if there is none.
        version: The lake's version that they come from.
        queues: Figures of the whole span, one row per queue; those with most failures first.
        names: Figures of the whole span, one row per queue and job name; those with most failures first.
        points: Figures by bucket of the queues that have charts, in the order of `queues`.
        width: The width of a bucket in ms.
        span: When the first bucket of any queue begins, and when the last one ends.
        failures: The most frequent failures.
        gaps: The lost entries.
        states: How many jobs are in which state, per queue.
        flows: The flows that took longest, each with its critical path.
        schedules: Expected and actual runs, one row per schedule.
        more: How many rows a table has beyond those above, by its name.
        last: The last day; empty for that of `day`.
    """

    day: str
    version: int
    queues: list[Row]
    names: list[Row]
    points: list[Row]
    width: int
    span: tuple[int, int]
    failures: list[Row]
    gaps: list[Row]
    states: list[Row]
    flows: list[Row]
    schedules: list[Row]
    more: dict[str, int] = {}
    last: str = ""

    @property
    def title(self) -> str:
        """The day, or the first and the last one."""
        return f"{self.day} to {self.last}" if self.last not in ("", self.day) else self.day

    @property
    def form(self) -> str:
        """How instants are shown: with their day where there are several."""
        return "%H:%M" if self.title == self.day else "%m-%d %H:%M"


def collect(
    tables: Tables, day: str | None = None, version: Version | None = None, *, last: str | None = None
) -> Report:
    """Reads the figures of a day or of several.

    Args:
        tables: The lake's tables.
        day: The first day; by default the last with figures.
        version: the lake's version; by default the newest.
        last: The last day; by default the first one.
    """
    from pyspark.sql import functions as fn

    from oxcart.spark.report import range as range_
    from oxcart.spark.transforms.lanes import join_lanes

    version = version or tables.lake.head()
    known = sorted({file.day for file in version.of("queue_metrics")})
    day = day or (known[-1] if known else "")
    until = max(day, last or day)
    days = [one for one in known if day <= one <= until] if until > day else [day]

    def read(table: str) -> DataFrame:
        # A lane has figures of its own, under its whole name.
        return join_lanes(tables.read(table, version, days=days))

    more: dict[str, int] = {}

    def most_of(name: str, rows: DataFrame, *order: str, most: int = MOST_ROWS) -> list[Row]:
        found = [row.asDict() for row in rows.orderBy(*map(fn.expr, order)).limit(most).collect()]
        left = rows.count() - most if len(found) == most else 0
        more.update({name: left} if left else {})
        return found

    metrics = read("queue_metrics")
    day_rows = metrics.filter("window = 'day'")
    failed, planned = read("failures"), read("schedules")
    if until > day:
        day_rows = range_.queue_rows(day_rows, read("attempts"))
        failed, planned = range_.failure_rows(failed), range_.schedule_rows(planned)
    worst_first = ("-failed", "-stalls", "-retries", "-arrivals", "queue", "name")
    # A row is small: all queues are read, and the page shows as many as it has room for.
    queues = [row.asDict() for row in day_rows.filter(f"name = '{ALL}'").collect()]
    queues.sort(key=_worst_first)
    charted = [row["queue"] for row in queues[:MOST_CHARTED]]
    bounds = metrics.filter("window = 'minute'").agg(fn.min("start_ms"), fn.max("start_ms")).collect()[0]
    first, end = (bounds[0], bounds[1] + WINDOWS["minute"]) if bounds[0] is not None else (0, 0)
    width = width_of(end - first)
    points = points_of(tables, version, days, charted, width) if charted else []
    if points and width < WINDOWS["minute"]:
        first = min(row["start_ms"] for row in points)
        end = max(row["start_ms"] for row in points) + width
        if width_of(end - first) < width:
            width = width_of(end - first)
            points = points_of(tables, version, days, charted, width)
    counted = read("jobs").groupBy("queue", "state").count().orderBy("queue", "state")
    failures = most_of("failures", failed, "-count", "cluster", most=MOST_FAILURES)
    return Report(
        day=day,
        version=version.number,
        queues=queues,
        names=most_of("names", day_rows.filter(f"name <> '{ALL}'"), *worst_first),
        points=sorted(points, key=lambda row: (charted.index(row["queue"]), row["start_ms"])),
        width=width,
        span=(first, end),
        failures=failures,
        gaps=most_of("gaps", read("gaps"), "queue", "life", "first_lost"),
        states=[row.asDict() for row in counted.collect()],
        flows=_flows(tables, version, days),
        schedules=most_of("schedules", planned, "-coalesce(missed, 0)", "queue", "schedule", "first_ms"),
        more=more,
        last=min(until, known[-1]) if known else until,
    )


def _worst_first(row: Row) -> tuple[Any, ...]:
    return -row["failed"], -row["stalls"], -row["retries"], -row["arrivals"], row["queue"]


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


def shown(value: Any, column: str, form: str = "%H:%M") -> str:
    """Returns a value as people read it; ``form`` is that of instants."""
    if value is None:
        return "–"
    if column in INSTANTS:
        return time_text(value, form)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}".removesuffix(".0")
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
