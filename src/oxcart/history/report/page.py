"""The report as one HTML page of at most 2 MB, without scripts, fonts or pictures from elsewhere.

The overview comes first, then the queues, worst first. A page with many queues has tooltips for the first
ones, charts for more of them, and table rows for the rest. What is left out is counted, never dropped
silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from oxcart.drawing.charts import HIGH, STYLE, WIDE, Axis, Chart, Row, charts_of, draw, title_of
from oxcart.drawing.labels import drawable
from oxcart.history.report.figures import TABLES, TEXTS, Report, shown
from oxcart.history.report.overview import cut, sentences

#: The size of a page at most, in bytes, and what of it tables may take, and charts with tooltips.
MOST_BYTES = 2_000_000
_TABLES, _HINTED = 700_000, 1_200_000
#: The longest text of a cell.
_LONGEST = 300

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1c20; --soft: #667; --line: #dde; --paper: #fff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ee; --soft: #99a; --line: #334; --paper: #15161a; --bad: #ff8a80; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; overflow-wrap: anywhere; }
p.note, figcaption { color: var(--soft); } figure { margin: 1rem 0; }
#overview li { color: var(--bad); overflow-wrap: anywhere; } #overview.well li { color: inherit; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th, td { white-space: nowrap; vertical-align: top; }
th.t, td.t { text-align: left; } td.t { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
@media (max-width: 620px) {
  body { margin: 1rem auto; }
  svg { overflow: visible; } svg text { font-size: 24px; }
  /* Every other label of time: the first three are of values. */
  svg text:nth-of-type(2n + 5) { display: none; }
}
"""


#: What stands for an empty table whose rows need the records that workers write for a pipeline.
_RECORDED = (
    "None recorded. {} are recorded while a pipeline is attached (<code>oxcart pipeline attach</code>)."
)
_ABSENT = {"flows": _RECORDED.format("Flows"), "schedules": _RECORDED.format("Runs of schedules")}


def page(report: Report) -> str:
    """Returns the report as one HTML page."""
    wrong = sentences(report)
    well = " class='well'" if wrong[0].startswith("Nothing") else ""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Oxcart, {escape(report.title)}</title><link rel='icon' href='data:,'>",
        f"<style>{_STYLE}{STYLE}</style></head>",
        f"<body><h1>{escape(report.title) or 'No day yet'}</h1>",
        f"<p class='note'>Version {report.version} of the lake. Times in ms, hours in UTC.</p>",
    ]
    if report.day:
        items = "".join(f"<li>{escape(cut(text, _LONGEST))}</li>" for text in wrong)
        parts.append(f"<h2>What is wrong</h2><ul id='overview'{well}>{items}</ul>")
    size = sum(map(_size, parts))
    # Each table gets its share of the room, and what the ones before it have left.
    made: list[str] = []
    for place, (name, (title, columns)) in enumerate(TABLES.items()):
        room = (_TABLES - sum(map(_size, made))) // (len(TABLES) - place)
        body = _table(columns, getattr(report, name), name, room, report.more.get(name, 0), report.form)
        made.append(f"<h2>{title}</h2>{body}")
    charts = list(_charts(report, MOST_BYTES - size - sum(map(_size, made)) - 1000))
    return drawable("\n".join([*parts, made[0], *charts, *made[1:], "</body></html>", ""]))


def _size(text: str) -> int:
    return len(text.encode(errors="replace")) + 1


def _table(
    columns: Sequence[tuple[str, str]], rows: Sequence[Row], name: str, room: int, beyond: int, form: str
) -> str:
    if not rows:
        return f"<p class='note' id='{name}'>{_ABSENT.get(name, 'None.')}</p>"
    kinds = [" class='t'" if column in TEXTS else "" for column, _ in columns]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, (_, title) in zip(kinds, columns, strict=True))
    body: list[str] = []
    for row in rows:
        cells = (cut(shown(row.get(column), column, form), _LONGEST) for column, _ in columns)
        made = (f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        body.append(f"<tr>{''.join(made)}</tr>")
        room -= _size(body[-1])
        if room < 0:
            break
    left = len(rows) - len(body) + beyond
    note = f"<p class='note'>And {left:,} more rows, in the table of the lake.</p>" if left else ""
    table = f"<table id='{name}'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<div class='wide'>{table}</div>{note}"


def _charts(report: Report, room: int) -> Iterator[str]:
    """The charts of queues, worst first, while there is room; then how many have none."""
    axis = Axis(*report.span, report.width)
    by_queue: dict[str, list[Row]] = {}
    for row in report.points:
        by_queue.setdefault(row["queue"], []).append(row)
    hinted, drawn = _HINTED, 0
    for queue, rows in by_queue.items():
        for hints in (True, False):
            text = _queue(queue, rows, axis, hints=hints)
            fits = _size(text) <= room and (not hints or _size(text) <= hinted)
            if fits:
                break
        else:
            break
        room -= _size(text)
        hinted -= _size(text)
        drawn += 1
        yield text
    left = len(report.queues) - drawn
    if left > 0:
        yield f"<p class='note' id='uncharted'>{left:,} more queues have a row above and no charts.</p>"


def _queue(queue: str, rows: Sequence[Row], axis: Axis, *, hints: bool) -> str:
    figures = (_figure(queue, rows, chart, axis, hints=hints) for chart in charts_of(rows))
    return f"<h2>{escape(cut(queue))}</h2>{''.join(figures)}"


def _figure(queue: str, rows: Sequence[Row], chart: Chart, axis: Axis, *, hints: bool) -> str:
    title = escape(f"{cut(queue)}: {title_of(chart, axis.width)}", quote=True)
    columns = ",".join(line.column for line in chart.lines)
    legend = " · ".join(
        f"<span class='{line.colour}-key'>{escape(line.label)}</span>" for line in chart.lines
    )
    return (
        f"<figure id='{escape(queue, quote=True)}/{chart.name}' data-series='{columns}'>"
        f"<svg viewBox='0 0 {WIDE} {HIGH}' role='img' aria-label='{title}'>"
        f"{draw(rows, chart, axis, hints=hints)}</svg>"
        f"<figcaption>{title}: {legend}</figcaption></figure>"
    )
