"""The figures of a day or of several, as the report's page, picture and tables show them."""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.drawing.charts import Row, time_text
from oxcart.spark.lake.columns import INSTANTS


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
    queues: list[Row] = []
    names: list[Row] = []
    points: list[Row] = []
    width: int = 1000
    span: tuple[int, int] = (0, 0)
    failures: list[Row] = []
    gaps: list[Row] = []
    states: list[Row] = []
    flows: list[Row] = []
    schedules: list[Row] = []
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
#: The tables by their field of a report: title and columns.
TABLES = {
    "queues": ("Queues", QUEUE_COLUMNS),
    "failures": ("Failures", FAILURE_COLUMNS),
    "gaps": ("Gaps", GAP_COLUMNS),
    "schedules": ("Schedules", SCHEDULE_COLUMNS),
    "flows": ("Flows", FLOW_COLUMNS),
    "names": ("Jobs by name", NAME_COLUMNS),
}
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
