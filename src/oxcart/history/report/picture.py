"""The report as one picture: an SVG without external parts, for pages and messages."""

from __future__ import annotations

from html import escape

from oxcart.drawing.charts import HIGH, STYLE, WIDE, Axis, charts_of, draw, title_of
from oxcart.drawing.labels import drawable
from oxcart.history.report.figures import QUEUE_COLUMNS, Report, shown
from oxcart.history.report.overview import cut, sentences

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #667; } .ink { fill: #1a1c20; } .title { font-size: 20px; }
.bad { fill: #b3261e; }
"""
#: The margin, the height of a line, and the height of a chart's title.
_EDGE, _LINE, _TITLE = 20, 22, 30
#: The width of the first column, and the most characters in it and in a line.
_FIRST, _MOST_NAME, _MOST_LINE = 200, 28, 140
#: Queues in the picture, and queues with charts.
_MOST_QUEUES, _MOST_CHARTED = 20, 4


def picture(report: Report) -> str:
    """Returns the report as SVG: what is wrong, the figures of queues, and charts of the worst ones."""
    parts = [f"<text class='ink title' x='0' y='20'>{escape(report.title) or 'No day yet'}</text>"]
    at = 56
    for text in sentences(report) if report.day else ():
        kind = "ink" if text.startswith("Nothing") else "bad"
        parts.append(f"<text class='{kind}' x='0' y='{at}'>{escape(cut(text, _MOST_LINE))}</text>")
        at += _LINE
    at += _LINE // 2
    step = (WIDE - _FIRST) / (len(QUEUE_COLUMNS) - 1)
    rows = [[title for _, title in QUEUE_COLUMNS]]
    rows += [
        [shown(row.get(column), column) for column, _ in QUEUE_COLUMNS]
        for row in report.queues[:_MOST_QUEUES]
    ]
    for number, row in enumerate(rows):
        for place, cell in enumerate(row):
            side = "x='0'" if place == 0 else f"x='{_FIRST + step * place:.0f}' text-anchor='end'"
            ink = "class='ink' " if number else ""
            parts.append(f"<text {ink}{side} y='{at}'>{escape(cut(cell, _MOST_NAME))}</text>")
        at += _LINE
    left = len(report.queues) - _MOST_QUEUES
    if left > 0:
        parts.append(f"<text x='0' y='{at}'>and {left:,} more queues</text>")
        at += _LINE
    axis = Axis(*report.span, report.width)
    queues = dict.fromkeys(row["queue"] for row in report.points)
    for queue in list(queues)[:_MOST_CHARTED]:
        points = [row for row in report.points if row["queue"] == queue]
        for chart in charts_of(points):
            keys = " ".join(
                f"<tspan dx='8' class='{line.colour}-key'>{escape(line.label)}</tspan>"
                for line in chart.lines
            )
            title = escape(f"{cut(queue, _MOST_NAME)}: {title_of(chart, report.width)}")
            parts.append(f"<text class='ink' x='0' y='{at + 16}'>{title} {keys}</text>")
            inside = draw(points, chart, axis, hints=False)
            parts.append(f"<g transform='translate(0 {at + _TITLE})'>{inside}</g>")
            at += HIGH + _TITLE
    wide, high = WIDE + 2 * _EDGE, at + 2 * _EDGE
    size = f"width='{wide}' height='{high}' viewBox='0 0 {wide} {high}'"
    document = "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size}>",
            f"<style>{STYLE}{_STYLE}</style><rect width='{wide}' height='{high}' fill='#fff'/>",
            f"<g transform='translate({_EDGE} {_EDGE})'>",
            *parts,
            "</g></svg>",
            "",
        ]
    )
    return drawable(document)
