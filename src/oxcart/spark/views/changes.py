"""``changes``: what differs between a version of your program and the one before it.

A row per queue, lane, job name and version, in the order in which versions were first seen. With the failed
shares ``p1`` and ``p0`` of ``n1`` and ``n0`` ended attempts, and ``p`` of both together::

    failure_score = (p1 - p0) / sqrt(p (1 - p) (1 / n1 + 1 / n0))

``failing`` is ``more`` from 3 and ``less`` from -3. ``running`` is ``slower`` where the median run is at
least 1.2 times that of the version before and 5 ms longer, and ``faster`` the other way round. Both are
null where one of the versions has fewer than 100 such attempts. Percentiles are lower
edges of buckets of two digits.
"""

from __future__ import annotations

from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives

SOURCES = ("timings",)
COLUMNS = (
    "day date, queue string, lane string, name string, version string, first_ms bigint, last_ms bigint, "
    "attempts bigint, failure_share double, run_p50 bigint, run_p90 bigint, previous string, "
    "previous_attempts bigint, previous_failure_share double, previous_run_p50 bigint, "
    "previous_run_p90 bigint, failure_score double, failing string, running string"
)
#: Ended attempts that each of two versions must have.
FEWEST = 100
_SCORE, _RATIO, _LEAST_MS = 3, 1.2, 5
_KEY = "queue, lane, name, version"


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    same = " AND ".join(
        f"coalesce(s.{name}, '') = coalesce(r.{name}, '')" for name in ("queue", "lane", "name", "version")
    )
    lag = ", ".join(
        f"lag({name}) OVER (PARTITION BY queue, lane, name ORDER BY first_seen, version) AS old_{name}"
        for name in ("version", "ended", "broken", "run_p50", "run_p90")
    )
    share, old_share = (
        "broken / CAST(nullif(ended, 0) AS DOUBLE)",
        "old_broken / CAST(nullif(old_ended, 0) AS DOUBLE)",
    )
    pooled = "((broken + old_broken) / CAST(nullif(ended + old_ended, 0) AS DOUBLE))"
    score = (
        f"({share} - {old_share}) / nullif(sqrt({pooled} * (1 - {pooled}) * (1e0 / nullif(ended, 0) + "
        "1e0 / nullif(old_ended, 0))), 0)"
    )
    known = f"ended >= {FEWEST} AND old_ended >= {FEWEST}"
    return f"""
WITH sums AS (
  SELECT {_KEY}, min({dialect.ms("start_ms")}) AS first_seen, max({dialect.ms("last_ms")}) AS last_seen,
    sum(completed + failed + retries) AS ended, sum(failed + retries) AS broken
  FROM timings WHERE version IS NOT NULL GROUP BY {_KEY}
),
spread AS ({dialect.spread(_KEY, "runs", "timings WHERE version IS NOT NULL")}),
buckets AS (SELECT {_KEY}, ms, sum(times) AS times FROM spread GROUP BY {_KEY}, ms),
ranks AS (
  SELECT *, sum(times) OVER (PARTITION BY {_KEY} ORDER BY ms ROWS UNBOUNDED PRECEDING) AS upto,
    sum(times) OVER (PARTITION BY {_KEY}) AS whole
  FROM buckets
),
runs AS (
  SELECT {_KEY}, min(CASE WHEN upto >= 0.5 * whole THEN ms END) AS run_p50,
    min(CASE WHEN upto >= 0.9 * whole THEN ms END) AS run_p90
  FROM ranks GROUP BY {_KEY}
),
lives AS (
  SELECT s.queue, s.lane, s.name, s.version, s.first_seen, s.last_seen, s.ended, s.broken,
    r.run_p50, r.run_p90
  FROM sums s LEFT JOIN runs r ON {same}
),
compared AS (SELECT *, {lag} FROM lives),
judged AS (SELECT *, {score} AS score FROM compared)
SELECT {dialect.day("first_seen")} AS day, queue, lane, name, version,
  {dialect.instant("first_seen", "first_ms")},
  {dialect.instant("last_seen", "last_ms")}, CAST(ended AS BIGINT) AS attempts, {share} AS failure_share,
  run_p50, run_p90, old_version AS previous, CAST(old_ended AS BIGINT) AS previous_attempts,
  {old_share} AS previous_failure_share, old_run_p50 AS previous_run_p50, old_run_p90 AS previous_run_p90,
  score AS failure_score,
  CASE WHEN {known} THEN CASE
    WHEN score >= {_SCORE} THEN 'more' WHEN score <= -{_SCORE} THEN 'less' ELSE 'same' END END AS failing,
  CASE WHEN {known} THEN CASE
    WHEN run_p50 >= {_RATIO} * old_run_p50 AND run_p50 - old_run_p50 >= {_LEAST_MS} THEN 'slower'
    WHEN old_run_p50 >= {_RATIO} * run_p50 AND old_run_p50 - run_p50 >= {_LEAST_MS} THEN 'faster'
    ELSE 'same' END END AS running
FROM judged
"""
