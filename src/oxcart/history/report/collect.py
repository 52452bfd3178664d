"""Collects the figures of a report, as SQL that DuckDB and Spark both run.

Figures of several days are sums of the days' rows. A percentile of several days is computed from the attempts
themselves: no mean of the days' percentiles is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from oxcart.drawing.charts import Row
from oxcart.history.report.buckets import points_of, width_of
from oxcart.history.report.figures import Report, shown
from oxcart.history.report.source import STREAM, DuckdbSource, Open, Source
from oxcart.spark.lake.columns import ALL, WINDOWS
from oxcart.spark.lake.versions import Lake, Version

#: Queues that have charts: those with most failures, then those with most jobs.
MOST_CHARTED = 60
#: Rows of a table that are shown. How many more there are is shown too.
MOST_ROWS = 200
MOST_FAILURES = 20
MOST_FLOWS = 20

_SUMS = ("arrivals", "completed", "failed", "retries", "stalls")
_SHARES = {"p50": 0.5, "p99": 0.99}
_SPENT = tuple(f"{kind}_{share}" for kind in ("wait", "run") for share in _SHARES)


def collect(
    lake: Lake,
    day: str | None = None,
    version: Version | None = None,
    *,
    last: str | None = None,
    source: Open = DuckdbSource,
) -> Report:
    """Reads the figures of a day or of several.

    Args:
        lake: The lake.
        day: The first day; by default the last with figures.
        version: the lake's version; by default the newest.
        last: The last day; by default the first one.
        source: What runs the queries.
    """
    version = version or lake.head()
    known = sorted({file.day for file in version.of("queue_metrics")})
    if not known:
        return Report(day=day or "", version=version.number, last=max(day or "", last or ""))
    day = day or known[-1]
    until = max(day, last or day)
    days = [one for one in known if day <= one <= until] if until > day else [day]
    with closing(source(version, days)) as opened:
        return _Collector(opened, is_range=until > day).report(day, min(until, known[-1]), version.number)


class _Collector:
    """The queries of one report."""

    def __init__(self, source: Source, *, is_range: bool) -> None:
        self._source = source
        self._dialect = source.dialect
        self._is_range = is_range
        self._more: dict[str, int] = {}

    def report(self, day: str, last: str, number: int) -> Report:
        metrics = self._days() if self._is_range else self._day()
        queues = self._source.rows(f"SELECT * FROM ({metrics}) m WHERE name = '{ALL}'")
        # A row is small: all queues are read, and the page shows as many as it has room for.
        queues.sort(key=_worst_first)
        charted = [row["queue"] for row in queues[:MOST_CHARTED]]
        points, width, span = self._points(charted)
        names = f"SELECT * FROM ({metrics}) m WHERE name <> '{ALL}'"
        gaps = f"SELECT {STREAM} AS queue, life, first_lost, last_lost, count, refilled, cause FROM gaps"
        return Report(
            day=day,
            version=number,
            queues=queues,
            names=self._most("names", names, "-failed", "-stalls", "-retries", "-arrivals", "queue", "name"),
            points=points,
            width=width,
            span=span,
            failures=self._most(
                "failures", self._failures(), "-count", "queue", "cluster", most=MOST_FAILURES
            ),
            gaps=self._most("gaps", gaps, "queue", "life", "first_lost"),
            states=self._source.rows(
                f"SELECT {STREAM} AS queue, state, count(*) AS count FROM jobs GROUP BY 1, 2 ORDER BY 1, 2"
            ),
            flows=self._flows(),
            schedules=self._most(
                "schedules", self._schedules(), "-coalesce(missed, 0)", "queue", "schedule", "first_ms"
            ),
            more=self._more,
            last=last,
        )

    def _most(self, name: str, text: str, *order: str, most: int = MOST_ROWS) -> list[Row]:
        rows = f"FROM ({text}) found"
        found = self._source.rows(f"SELECT * {rows} ORDER BY {', '.join(order)} LIMIT {most}")
        if len(found) == most:
            left = self._source.rows(f"SELECT count(*) AS n {rows}")[0]["n"] - most
            self._more.update({name: left} if left else {})
        return found

    def _points(self, charted: Sequence[str]) -> tuple[list[Row], int, tuple[int, int]]:
        at = self._dialect.ms("m.start_ms")
        (bounds,) = self._source.rows(
            f"SELECT min({at}) AS first, max({at}) AS last FROM queue_metrics m WHERE m.window = 'minute'"
        )
        first, end = 0, 0
        if bounds["first"] is not None:
            first, end = bounds["first"], bounds["last"] + WINDOWS["minute"]
        width = width_of(end - first)
        points = points_of(self._source, charted, width) if charted else []
        if points and width < WINDOWS["minute"]:
            first = min(row["start_ms"] for row in points)
            end = max(row["start_ms"] for row in points) + width
            if width_of(end - first) < width:
                width = width_of(end - first)
                points = points_of(self._source, charted, width)
        places = {queue: place for place, queue in enumerate(charted)}
        return (
            sorted(points, key=lambda row: (places[row["queue"]], row["start_ms"])),
            width,
            (first, end),
        )

    def _day(self) -> str:
        """The figures of queues and names on one day, as gold has them."""
        columns = ", ".join((*_SUMS, *_SPENT))
        return (
            f"SELECT {STREAM} AS queue, m.name, {columns}, backlog_ready FROM queue_metrics m "
            "WHERE m.window = 'day'"
        )

    def _days(self) -> str:
        """The figures of queues and names over several days."""
        sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in _SUMS)
        spent = ", ".join(
            f"{self._dialect.percentile(f'{kind}_ms', share)} AS {kind}_{word}"
            for kind in ("wait", "run")
            for word, share in _SHARES.items()
        )
        waits = f"SELECT {STREAM} AS queue, {{}} AS name, wait_ms, run_ms FROM attempts"
        tried = f"{waits} WHERE ended_at IS NOT NULL"
        return f"""
WITH sums AS (
  SELECT {STREAM} AS queue, m.name AS name, {sums},
    max_by(backlog_ready, CASE WHEN backlog_ready IS NOT NULL THEN start_at END) AS backlog_ready
  FROM queue_metrics m WHERE m.window = 'day' GROUP BY 1, 2
),
spent AS (
  SELECT queue, name, {spent} FROM (
    {tried.format(f"'{ALL}'")}
    UNION ALL {tried.format("name")} AND name IS NOT NULL
  ) tried GROUP BY 1, 2
)
SELECT s.queue, s.name, {", ".join(f"s.{name}" for name in _SUMS)}, s.backlog_ready,
  {", ".join(f"t.{name}" for name in _SPENT)}
FROM sums s LEFT JOIN spent t ON t.queue = s.queue AND t.name = s.name
"""

    def _failures(self) -> str:
        first, last = self._dialect.ms("first_ms"), self._dialect.ms("last_ms")
        return (
            f"SELECT {STREAM} AS queue, cluster, max_by(message, last_at) AS message, "
            "CAST(sum(count) AS BIGINT) AS count, CAST(sum(fatal) AS BIGINT) AS fatal, "
            f"min({first}) AS first_ms, max({last}) AS last_ms FROM failures GROUP BY 1, 2"
        )

    def _schedules(self) -> str:
        first = self._dialect.ms("first_ms")
        if not self._is_range:
            return (
                f"SELECT {STREAM} AS queue, schedule, cron, every_ms, expected, started, missed, failed, "
                f"late_p50, late_p99, late_max, {first} AS first_ms FROM schedules"
            )
        # Percentiles of lateness are left out: the days' do not add up.
        sums = ", ".join(
            f"CAST(sum({name}) AS BIGINT) AS {name}" for name in ("expected", "started", "missed", "failed")
        )
        return (
            f"SELECT {STREAM} AS queue, schedule, cron, every_ms, {sums}, max(late_max) AS late_max, "
            f"min({first}) AS first_ms FROM schedules GROUP BY 1, 2, 3, 4"
        )

    def _flows(self) -> list[Row]:
        """The longest critical paths, each in one row."""
        columns = ("flow_queue", "flow_id", "flow_first_id", "flow_name", "flow_state", "total_ms", "steps")
        steps = self._source.rows(
            f"SELECT * FROM (SELECT {', '.join(columns)}, step, name, job_id, took_ms, "
            "dense_rank() OVER (ORDER BY total_ms DESC, flow_id, flow_queue, flow_first_id) AS nth "
            f"FROM critical_paths) ranked WHERE nth <= {MOST_FLOWS} ORDER BY nth, step"
        )
        found: dict[int, Row] = {}
        for one in steps:
            text = f"{one['name'] or one['job_id']} {shown(one['took_ms'], '')} ms"
            row = found.setdefault(one["nth"], {**{name: one[name] for name in columns}, "path": []})
            row["path"].append(text)
        return [{**row, "path": " → ".join(row["path"])} for row in found.values()]


def _worst_first(row: Row) -> tuple[Any, ...]:
    return -row["failed"], -row["stalls"], -row["retries"], -row["arrivals"], row["queue"]
