"""The buckets of charts: as wide as the span needs, from seconds to days, and their figures.

A chart has at most `MOST_BUCKETS` points, whatever the span. Gold has minutes, hours and days. Other widths
are computed from silver and bronze, so that percentiles are exact and no mean of percentiles is ever shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from oxcart.broker.export import EVENTS
from oxcart.drawing.charts import WIDTHS, Row
from oxcart.history.report.source import STREAM, Source
from oxcart.spark.lake.columns import ALL, WINDOWS
from oxcart.spark.read.entries import ENTRY, REFILL

#: Points of a line at most.
MOST_BUCKETS = 180
BACKLOG = ("ready", "active", "delayed")
#: The figures of a bucket.
FIGURES = (
    *("arrivals", "completed", "failed", "wait_p50", "wait_p99"),
    *(f"backlog_{name}" for name in BACKLOG),
)


def width_of(span_ms: int) -> int:
    """Returns the least width whose buckets are few enough for a span."""
    return next((width for width in WIDTHS if span_ms <= width * MOST_BUCKETS), max(WIDTHS))


def points_of(source: Source, queues: Sequence[str], width: int) -> list[Row]:
    """Returns the figures of buckets, one row per queue and bucket that has any, in their order.

    Args:
        source: The lake, limited to the days of the charts.
        queues: The queues, by the names of their streams.
        width: The width of a bucket in ms.
    """
    dialect = source.dialect
    among = f"array_contains({dialect.parameter('queues')}, {STREAM})"

    def ask(text: str) -> list[Row]:
        return source.rows(text, queues=list(queues))

    window = next((name for name, length in WINDOWS.items() if length == width), None)
    if window is not None:
        return ask(
            f"SELECT {STREAM} AS queue, {dialect.ms('m.start_ms')} AS start_ms, {', '.join(FIGURES)} "
            f"FROM queue_metrics m WHERE m.window = '{window}' AND m.name = '{ALL}' AND {among} ORDER BY 1, 2"
        )

    def start(column: str) -> str:
        at = dialect.ms(column)
        return f"{STREAM} AS queue, {at} - {at} % {width} AS start_ms"

    found = [
        *ask(
            f"SELECT {start('at_ms')}, count(*) AS arrivals FROM events WHERE event = 'added' "
            f"AND kind IN ('{ENTRY}', '{REFILL}') AND stream = '{EVENTS}' AND {among} GROUP BY 1, 2"
        ),
        *ask(
            f"SELECT {start('ended_ms')}, count(CASE WHEN outcome = 'completed' THEN 1 END) AS completed, "
            "count(CASE WHEN outcome = 'failed' THEN 1 END) AS failed, "
            f"{dialect.percentile('wait_ms', 0.5)} AS wait_p50, "
            f"{dialect.percentile('wait_ms', 0.99)} AS wait_p99 "
            f"FROM attempts WHERE ended_at IS NOT NULL AND {among} GROUP BY 1, 2"
        ),
        *ask(
            "SELECT queue, start_ms, ready AS backlog_ready, active AS backlog_active, "
            "delayed AS backlog_delayed FROM (SELECT *, row_number() OVER (PARTITION BY queue, start_ms "
            "ORDER BY at_ms DESC, ready DESC, active DESC, delayed DESC) AS back "
            f"FROM (SELECT {start('at_ms')}, {dialect.ms('at_ms')} AS at_ms, "
            f"wait + paused + prioritized AS ready, active, delayed FROM counts WHERE {among}) samples) "
            "ranked WHERE back = 1"
        ),
    ]
    whole: dict[tuple[str, int], Row] = {}
    for row in found:
        whole.setdefault(_place(row), dict.fromkeys(FIGURES)).update(row)
    for row in whole.values():
        for name in FIGURES[:3]:  # a bucket without such an event has none of them
            row[name] = row[name] or 0
    return [whole[place] for place in sorted(whole)]


def _place(row: Row) -> tuple[str, int]:
    return row["queue"], row["start_ms"]
