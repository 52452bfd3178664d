"""Charts of figures over time as SVG, for the report of the pipeline and the dashboard.

All charts of a page share the axis of time. A time without values is a gap in the lines, and a value
between two gaps is a dot. With ``hints`` every bucket carries its values as attributes and as a tooltip, so
that a test can compare them with the tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

Row = dict[str, Any]

#: Widths of buckets in ms, and what a chart calls them.
WIDTHS = {
    1000: "second",
    5000: "5 s",
    15_000: "15 s",
    60_000: "minute",
    300_000: "5 min",
    600_000: "10 min",
    1_800_000: "30 min",
    3_600_000: "hour",
    21_600_000: "6 h",
    86_400_000: "day",
}

#: The size of a chart, and its margins.
WIDE, HIGH, _LEFT, _RIGHT, _TOP, _LOW = 960, 200, 60, 8, 8, 24
#: A running pipeline samples the backlog every minute; a longer pause between values is a gap.
_SAMPLED = 60_000
#: Steps between the labels of time, in ms, and the most labels.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_MOST_LABELS = 8
_DAY = 86_400_000

#: One style for all charts: a colour has one meaning. `a` is what arrives, `b` what is well, `c` what is not.
STYLE = """
.axis { stroke: var(--line, #dde); } .a { stroke: #2a78d6; } .b { stroke: #1f9d63; } .c { stroke: #d2483f; }
path { fill: none; stroke-width: 1.6; stroke-linejoin: round; } circle { stroke: none; }
circle.a, .a-key { fill: #2a78d6; color: #2a78d6; } circle.b, .b-key { fill: #1f9d63; color: #1f9d63; }
circle.c, .c-key { fill: #d2483f; color: #d2483f; } .hint { fill: transparent; }
.hint:hover { fill: #8884; }
"""


@dataclass(frozen=True)
class Line:
    """A line of a chart: its column, its colour and its label."""

    column: str
    colour: str
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart of a queue.

    Attributes:
        name: Its name.
        title: Its title; ``{}`` is the width of a bucket.
        lines: Its lines.
        is_count: Whether a short pause between two buckets means 0. A long one is a gap: while a pipeline
            runs, every minute has a row.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    is_count: bool = False


CHARTS = (
    Chart(
        "jobs",
        "jobs per {}",
        (Line("arrivals", "a", "added"), Line("completed", "b", "completed"), Line("failed", "c", "failed")),
        is_count=True,
    ),
    Chart("wait", "wait before a start, in ms", (Line("wait_p50", "a", "p50"), Line("wait_p99", "c", "p99"))),
    Chart(
        "backlog",
        "backlog",
        (
            Line("backlog_ready", "a", "ready"),
            Line("backlog_active", "b", "active"),
            Line("backlog_delayed", "c", "delayed"),
        ),
    ),
)


@dataclass(frozen=True)
class Axis:
    """The axis of time that all charts of a report share.

    Attributes:
        first: When the first bucket begins, in ms.
        last: When the last bucket ends.
        width: The width of a bucket.
    """

    first: int
    last: int
    width: int

    def x(self, at: float) -> float:
        """Returns the place of a time."""
        inside = WIDE - _LEFT - _RIGHT
        return _LEFT + inside * (at - self.first) / max(self.last - self.first, 1)

    @property
    def form(self) -> str:
        """How a time is shown, to the minute: with its day where the axis has several."""
        return "%H:%M" if self.last - self.first <= _DAY else "%m-%d %H:%M"

    def labels(self) -> Iterator[tuple[int, str]]:
        """Yields times with their labels, at round times and far enough from each other."""
        span = max(self.last - self.first, 1)
        step = next((s * 1000 for s in _STEPS if span <= s * 1000 * _MOST_LABELS), 0)
        while not step or span > step * _MOST_LABELS:
            step = step * 2 or 2 * _STEPS[-1] * 1000
        form = "%m-%d" if step >= _DAY else self.form if step >= 60_000 else "%H:%M:%S"
        at = -(-self.first // step) * step
        while at <= self.last:
            yield at, time_text(at, form)
            at += step


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """Returns the charts that have a value in these rows."""
    return [
        chart
        for chart in CHARTS
        if any(row.get(line.column) is not None for row in rows for line in chart.lines)
    ]


def title_of(chart: Chart, width: int) -> str:
    """Returns a chart's title."""
    return chart.title.format(WIDTHS.get(width, f"{width / 1000:g} s"))


def draw(rows: Sequence[Row], chart: Chart, axis: Axis, *, hints: bool = True) -> str:
    """Draws the content of a chart's SVG, `WIDE` by `HIGH`.

    Args:
        rows: The figures of a queue, by time.
        chart: The chart.
        axis: The axis of time.
        hints: Whether every bucket has its values as attributes and as a tooltip.
    """
    given = {row["start_ms"]: row for row in rows}
    longest = 1.5 * max(axis.width, _SAMPLED)
    if chart.is_count:
        given = _filled(given, axis.width, longest)
    series = {line: [(at, _value(row, line, chart)) for at, row in given.items()] for line in chart.lines}
    top = _round_up(max((value for found in series.values() for _, value in found if value), default=1))

    def y(value: float) -> float:
        return _TOP + (HIGH - _TOP - _LOW) * (1 - value / top)

    drawn = []
    for share in (0, 0.5, 1):
        at = y(top * share)
        drawn.append(f"<line class='axis' x1='{_LEFT}' x2='{WIDE - _RIGHT}' y1='{at:.1f}' y2='{at:.1f}'/>")
        drawn.append(f"<text x='{_LEFT - 6}' y='{at + 4:.1f}' text-anchor='end'>{number(top * share)}</text>")
    for moment, label in axis.labels():
        place = axis.x(moment)
        room = 4 * len(label)  # about half of its width
        anchor = "start" if place < _LEFT + room else "end" if place > WIDE - _RIGHT - room else "middle"
        drawn.append(f"<text x='{place:.1f}' y='{HIGH - 6}' text-anchor='{anchor}'>{label}</text>")
    for line, found in series.items():
        known = [(at, value) for at, value in found if value is not None]
        for part in _parts(known, longest):
            places = [(axis.x(at + axis.width / 2), y(value)) for at, value in part]
            if len(places) == 1:
                drawn.append(
                    f"<circle class='{line.colour}' cx='{places[0][0]:.1f}' cy='{places[0][1]:.1f}' r='3'/>"
                )
            else:
                path = "L".join(f"{px:.1f},{py:.1f}" for px, py in places)
                drawn.append(f"<path class='{line.colour}' d='M{path}'/>")
    if hints:
        drawn += (_hint(at, row, chart, axis) for at, row in given.items())
    return "".join(drawn)


def _hint(at: int, row: Row, chart: Chart, axis: Axis) -> str:
    values = [_value(row, line, chart) for line in chart.lines]
    texts = (
        f"{line.label} {number(value)}"
        for line, value in zip(chart.lines, values, strict=True)
        if value is not None
    )
    form = "%m-%d" if axis.width >= _DAY else axis.form if axis.width % 60_000 == 0 else "%H:%M:%S"
    left, right = axis.x(at), axis.x(at + axis.width)
    data = ",".join("" if value is None else f"{value:.12g}" for value in values)
    return (
        f"<rect class='hint' x='{left:.1f}' y='{_TOP}' width='{right - left:.1f}' "
        f"height='{HIGH - _TOP - _LOW}' data-at='{at}' data-v='{data}'>"
        f"<title>{time_text(at, form)} {escape(', '.join(texts))}</title></rect>"
    )


def _value(row: Row, line: Line, chart: Chart) -> float | None:
    value: Any = row.get(line.column)
    return 0 if value is None and chart.is_count else value


def _filled(given: dict[int, Row], width: int, longest: float) -> dict[int, Row]:
    """Adds empty buckets to pauses that are no gaps."""
    found: dict[int, Row] = {}
    before: int | None = None
    for at, row in given.items():
        if before is not None and at - before <= longest:
            found.update({between: {} for between in range(before + width, at, width)})
        found[at] = row
        before = at
    return found


def _parts(known: Sequence[tuple[int, float]], longest: float) -> Iterator[list[tuple[int, float]]]:
    """Splits values at gaps."""
    part: list[tuple[int, float]] = []
    for at, value in known:
        if part and at - part[-1][0] > longest:
            yield part
            part = []
        part.append((at, value))
    if part:
        yield part


def _round_up(value: float) -> float:
    """Returns the next round number, so that the labels of the axis are round too."""
    power: float = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    steps = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
    return next(round(power * step, 9) for step in steps if value <= power * step * 1.000001)


def number(value: float) -> str:
    """Returns a number as people read it."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"


def time_text(at_ms: int, form: str = "%H:%M") -> str:
    """Returns a time in ms as text, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
