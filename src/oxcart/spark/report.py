"""The report: what the tables say of a day, for people, as one HTML page and in the terminal.

The page is whole in itself: no script, no font, no picture from elsewhere. Charts are SVG, and every point of
one carries its value (``data-value``), so that what is drawn can be compared with what is in gold.

May touch: the lake, through Spark; the page's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.spark.transforms.metrics import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from oxcart.spark.lake import Version
    from oxcart.spark.tables import Tables

#: Points of a chart at most; a day by the minute has 1440.
MOST_POINTS = 1440
#: Failures that are shown, and flows.
MOST_FAILURES = 20
MOST_FLOWS = 20

Row = dict[str, Any]


class Report(msgspec.Struct, frozen=True):
    """What is shown.

    Attributes:
        day: The day.
        version: The lake's version that it is of.
        queues: The day's figures, one row per queue.
        names: The day's figures, one row per queue and job name.
        minutes: Figures by the minute, one row per queue.
        failures: The most frequent failures of the day.
        gaps: What is missing of the day.
        states: How many jobs are in which state, per queue.
        flows: The flows of the day that took longest, each with the jobs that its time went to.
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
    """Reads what a report shows.

    Args:
        tables: The lake's tables.
        day: The day; the last one that has figures unless given.
        version: The lake's version; the newest unless given.
    """
    from oxcart.spark.lanes import together

    version = version or tables.lake.head()
    known = sorted({file.day for file in version.of("queue_metrics")})
    day = day or (known[-1] if known else "")
    days = [day]

    def read(table: str) -> DataFrame:
        # Each lane has figures of its own; here it goes by its whole name.
        return together(tables.read(table, version, days=days))

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
    told = []
    for row in found.collect():
        way = " → ".join(f"{one.name or one.job_id} {shown(one.took_ms, '')} ms" for one in row.path)
        told.append({**row.asDict(), "path": way})
    return told


# -- the page

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1c20; --soft: #667; --line: #dde; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ee; --soft: #99a; --line: #334; --paper: #15161a; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note, figcaption { color: var(--soft); } figure { margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td.text { text-align: left; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
.axis { stroke: var(--line); } .a { stroke: #2a78d6; } .b { stroke: #1f9d63; } .c { stroke: #d2483f; }
path { fill: none; stroke-width: 1.6; } circle { fill: transparent; stroke: none; }
.a-key { color: #2a78d6; } .b-key { color: #1f9d63; } .c-key { color: #d2483f; }
"""

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
_NAME_COLUMNS = (("queue", "queue"), ("name", "job"), *QUEUE_COLUMNS[1:-1])
_FAILURE_COLUMNS = (
    ("message", "message"),
    ("count", "times"),
    ("fatal", "for good"),
    ("queue", "queue"),
    ("first_ms", "first"),
    ("last_ms", "last"),
)
_GAP_COLUMNS = (
    ("queue", "queue"),
    ("first_lost", "first"),
    ("last_lost", "last"),
    ("count", "entries"),
    ("refilled", "refilled"),
    ("cause", "cause"),
)
_FLOW_COLUMNS = (
    ("flow_name", "flow"),
    ("flow_queue", "queue"),
    ("flow_id", "job"),
    ("flow_state", "state"),
    ("total_ms", "took"),
    ("steps", "steps"),
    ("path", "critical path"),
)
_SCHEDULE_COLUMNS = (
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
#: Columns that are text, and those in ms that are no times of the day.
_TEXTS = {"queue", "name", "message", "cause", "flow_name", "flow_queue", "flow_id", "flow_state", "path"}
_TEXTS |= {"schedule", "cron"}
_SPANS = {"total_ms", "every_ms"}
#: The charts of a queue: name, title, and column, kind and label of every line.
_CHARTS = (
    (
        "jobs",
        "jobs a minute",
        (("arrivals", "a", "added"), ("completed", "b", "completed"), ("failed", "c", "failed")),
    ),
    ("wait", "wait before a start, in ms", (("wait_p50", "a", "p50"), ("wait_p99", "c", "p99"))),
    (
        "backlog",
        "backlog",
        (
            ("backlog_ready", "a", "ready"),
            ("backlog_active", "b", "active"),
            ("backlog_delayed", "c", "delayed"),
        ),
    ),
)


def page(report: Report) -> str:
    """The report as one HTML page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Oxcart, {escape(report.day)}</title><link rel='icon' href='data:,'>",
        f"<style>{_STYLE}</style></head>",
        f"<body><h1>{escape(report.day) or 'No day yet'}</h1>",
        f"<p class='note'>Version {report.version} of the lake. Times in ms, hours in UTC.</p>",
        "<h2>Queues</h2>",
        _table(QUEUE_COLUMNS, report.queues, "queues"),
    ]
    for queue in sorted({row["queue"] for row in report.minutes}):
        rows = [row for row in report.minutes if row["queue"] == queue]
        parts.append(f"<h2>{escape(queue)}</h2>")
        parts += (_figure(queue, name, title, rows, series) for name, title, series in charts(rows))
    parts += ["<h2>Jobs by name</h2>", _table(_NAME_COLUMNS, report.names, "names")]
    parts += ["<h2>Flows</h2>", _table(_FLOW_COLUMNS, report.flows, "flows")]
    parts += ["<h2>Schedules</h2>", _table(_SCHEDULE_COLUMNS, report.schedules, "schedules")]
    parts += ["<h2>Failures</h2>", _table(_FAILURE_COLUMNS, report.failures, "failures")]
    parts += ["<h2>Gaps</h2>", _table(_GAP_COLUMNS, report.gaps, "gaps")]
    return "\n".join([*parts, "</body></html>", ""])


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[Row], name: str) -> str:
    if not rows:
        return f"<p class='note' id='{name}'>None.</p>"
    head = "".join(f"<th>{escape(title)}</th>" for _, title in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(shown(row.get(column), column))}</td>" for column, _ in columns)
        + "</tr>"
        for row in rows
    )
    return f"<table id='{name}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


#: The size of a chart, and its margins.
WIDE, HIGH, _LEFT, _LOW = 960, 220, 56, 24


def charts(rows: Sequence[Row]) -> list[tuple[str, str, Sequence[tuple[str, str, str]]]]:
    """The charts of a queue that have something to show: name, title, and its lines as in `drawing`."""
    return [
        (name, title, series)
        for name, title, series in _CHARTS
        if any(row.get(column) is not None for row in rows for column, _, _ in series)
    ]


def drawing(rows: Sequence[Row], series: Sequence[tuple[str, str, str]], *, points: bool = True) -> str:
    """The inside of a chart's SVG, `WIDE` by `HIGH`.

    Args:
        rows: Figures by time.
        series: Column, kind and label of every line.
        points: Whether each value is a point of its own, which can be pointed at.
    """
    told = [row for row in rows if any(row.get(column) is not None for column, _, _ in series)]
    first, last = told[0]["start_ms"], told[-1]["start_ms"]
    top: float = max((row[column] or 0 for row in told for column, _, _ in series), default=0) or 1

    def x(at: int) -> float:
        return _LEFT + (WIDE - _LEFT - 8) * float(at - first) / float((last - first) or 1)

    def y(value: float) -> float:
        return 8.0 + (HIGH - 8 - _LOW) * (1 - value / top)

    drawn = []
    for share in (0, 0.5, 1):
        at = y(top * share)
        drawn.append(f"<line class='axis' x1='{_LEFT}' x2='{WIDE}' y1='{at:.1f}' y2='{at:.1f}'/>")
        drawn.append(
            f"<text x='{_LEFT - 6}' y='{at + 4:.1f}' text-anchor='end'>{shown(top * share, '')}</text>"
        )
    for at, anchor in ((first, "start"), (last, "end")):
        drawn.append(f"<text x='{x(at):.1f}' y='{HIGH - 6}' text-anchor='{anchor}'>{_clock(at)}</text>")
    for column, kind, label in series:
        values = [(row["start_ms"], row[column]) for row in told if row.get(column) is not None]
        path = " ".join(
            f"{'M' if at == 0 else 'L'}{x(ms):.1f},{y(value):.1f}" for at, (ms, value) in enumerate(values)
        )
        if path:
            drawn.append(f"<path class='{kind}' d='{path}'/>")
        if points:
            drawn += (
                f"<circle cx='{x(ms):.1f}' cy='{y(value):.1f}' r='5' data-series='{column}' "
                f"data-kind='{kind}' data-start='{ms}' data-value='{value}'>"
                f"<title>{_clock(ms)} {label}: {shown(value, '')}</title></circle>"
                for ms, value in values
            )
    return "".join(drawn)


def _figure(
    queue: str, name: str, title: str, rows: Sequence[Row], series: Sequence[tuple[str, str, str]]
) -> str:
    legend = " · ".join(f"<span class='{kind}-key'>{escape(label)}</span>" for _, kind, label in series)
    title = escape(f"{queue}: {title}", quote=True)
    return (
        f"<figure id='{escape(queue, quote=True)}/{name}'><svg viewBox='0 0 {WIDE} {HIGH}' role='img' "
        f"aria-label='{title}'>{drawing(rows, series)}</svg>"
        f"<figcaption>{title}: {legend}</figcaption></figure>"
    )


def shown(value: Any, column: str) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if column.endswith("_ms") and column not in _SPANS:
        return _clock(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}".removesuffix(".0")
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")


# -- the terminal


def lines(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """The report as tables for a terminal: title, columns (numbers end in ``#``), rows."""
    made = []
    for title, columns, rows in (
        (f"Queues on {report.day}", QUEUE_COLUMNS, report.queues),
        ("Jobs by name", _NAME_COLUMNS, report.names),
        ("Flows", _FLOW_COLUMNS, report.flows),
        ("Schedules", _SCHEDULE_COLUMNS, report.schedules),
        ("Failures", _FAILURE_COLUMNS, report.failures),
        ("Gaps", _GAP_COLUMNS, report.gaps),
    ):
        heads = [name if column in _TEXTS else f"{name}#" for column, name in columns]
        made.append(
            (title, heads, [[shown(row.get(column), column) for column, _ in columns] for row in rows])
        )
    return made
