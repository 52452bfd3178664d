"""The report as one picture: an SVG without external parts, for pages and messages."""

from __future__ import annotations

from html import escape

from oxcart.spark.report.charts import HIGH, WIDE, charts, drawing
from oxcart.spark.report.figures import QUEUE_COLUMNS, Report, shown

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #667; } .ink { fill: #1a1c20; } .title { font-size: 20px; }
.axis { stroke: #dde; } path { fill: none; stroke-width: 1.6; }
.a { stroke: #2a78d6; } .b { stroke: #1f9d63; } .c { stroke: #d2483f; }
.a-key { fill: #2a78d6; } .b-key { fill: #1f9d63; } .c-key { fill: #d2483f; }
"""
#: The margin, the height of a line, and the height of a chart's title.
_EDGE, _LINE, _TITLE = 20, 22, 30


def picture(report: Report) -> str:
    """Returns the report as SVG: the figures of its queues, and their charts."""
    parts = [f"<text class='ink title' x='0' y='20'>{escape(report.day) or 'No day yet'}</text>"]
    at = 56
    step = WIDE / len(QUEUE_COLUMNS)
    rows = [[title for _, title in QUEUE_COLUMNS]]
    rows += [[shown(row.get(column), column) for column, _ in QUEUE_COLUMNS] for row in report.queues]
    for number, row in enumerate(rows):
        for place, cell in enumerate(row):
            side = "x='0'" if place == 0 else f"x='{step * (place + 1):.0f}' text-anchor='end'"
            ink = "class='ink' " if number else ""
            parts.append(f"<text {ink}{side} y='{at}'>{escape(cell)}</text>")
        at += _LINE
    for queue in sorted({row["queue"] for row in report.minutes}):
        minutes = [row for row in report.minutes if row["queue"] == queue]
        for _, title, series in charts(minutes):
            keys = " ".join(
                f"<tspan dx='8' class='{kind}-key'>{escape(label)}</tspan>" for _, kind, label in series
            )
            parts.append(f"<text class='ink' x='0' y='{at + 16}'>{escape(f'{queue}: {title}')} {keys}</text>")
            inside = drawing(minutes, series, points=False)
            parts.append(f"<g transform='translate(0 {at + _TITLE})'>{inside}</g>")
            at += HIGH + _TITLE
    wide, high = WIDE + 2 * _EDGE, at + 2 * _EDGE
    size = f"width='{wide}' height='{high}' viewBox='0 0 {wide} {high}'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size}>",
            f"<style>{_STYLE}</style><rect width='{wide}' height='{high}' fill='#fff'/>",
            f"<g transform='translate({_EDGE} {_EDGE})'>",
            *parts,
            "</g></svg>",
            "",
        ]
    )
