"""The report as one HTML page, without scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from oxcart.spark.report.charts import HIGH, WIDE, charts, drawing
from oxcart.spark.report.figures import (
    FAILURE_COLUMNS,
    FLOW_COLUMNS,
    GAP_COLUMNS,
    NAME_COLUMNS,
    QUEUE_COLUMNS,
    SCHEDULE_COLUMNS,
    Report,
    Row,
    shown,
)

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


def page(report: Report) -> str:
    """Returns the report as one HTML page."""
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
    parts += ["<h2>Jobs by name</h2>", _table(NAME_COLUMNS, report.names, "names")]
    parts += ["<h2>Flows</h2>", _table(FLOW_COLUMNS, report.flows, "flows")]
    parts += ["<h2>Schedules</h2>", _table(SCHEDULE_COLUMNS, report.schedules, "schedules")]
    parts += ["<h2>Failures</h2>", _table(FAILURE_COLUMNS, report.failures, "failures")]
    parts += ["<h2>Gaps</h2>", _table(GAP_COLUMNS, report.gaps, "gaps")]
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
