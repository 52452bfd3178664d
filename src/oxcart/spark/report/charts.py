"""Charts as SVG. Every point carries its value (``data-value``), so a test can compare it with gold."""

from __future__ import annotations

from collections.abc import Sequence

from oxcart.spark.report.figures import Row, shown, time_of_day

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
#: The size of a chart, and its margins.
WIDE, HIGH, _LEFT, _LOW = 960, 220, 56, 24


def charts(rows: Sequence[Row]) -> list[tuple[str, str, Sequence[tuple[str, str, str]]]]:
    """Returns the charts of a queue that have values: name, title, and their lines as in `drawing`."""
    return [
        (name, title, series)
        for name, title, series in _CHARTS
        if any(row.get(column) is not None for row in rows for column, _, _ in series)
    ]


def drawing(rows: Sequence[Row], series: Sequence[tuple[str, str, str]], *, points: bool = True) -> str:
    """Draws the content of a chart's SVG, `WIDE` by `HIGH`.

    Args:
        rows: Figures by time.
        series: Column, kind and label of every line.
        points: Whether each value gets a point with a tooltip.
    """
    given = [row for row in rows if any(row.get(column) is not None for column, _, _ in series)]
    first, last = given[0]["start_ms"], given[-1]["start_ms"]
    top: float = max((row[column] or 0 for row in given for column, _, _ in series), default=0) or 1

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
        drawn.append(f"<text x='{x(at):.1f}' y='{HIGH - 6}' text-anchor='{anchor}'>{time_of_day(at)}</text>")
    for column, kind, label in series:
        values = [(row["start_ms"], row[column]) for row in given if row.get(column) is not None]
        path = " ".join(
            f"{'M' if at == 0 else 'L'}{x(ms):.1f},{y(value):.1f}" for at, (ms, value) in enumerate(values)
        )
        if path:
            drawn.append(f"<path class='{kind}' d='{path}'/>")
        if points:
            drawn += (
                f"<circle cx='{x(ms):.1f}' cy='{y(value):.1f}' r='5' data-series='{column}' "
                f"data-kind='{kind}' data-start='{ms}' data-value='{value}'>"
                f"<title>{time_of_day(ms)} {label}: {shown(value, '')}</title></circle>"
                for ms, value in values
            )
    return "".join(drawn)
