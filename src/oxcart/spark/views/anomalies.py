"""``anomalies``: hours that differ from the same hour of the week in the weeks before.

For each whole hour, and each measure of a queue and job name, with the values ``b`` of the same hour of the
week in the 8 weeks before::

    expected = median(b)
    spread   = max(1.4826 * median(|b - expected|), floor)
    score    = (value - expected) / spread

A row is an hour with a score of 5 or more; for ``rate`` and ``run`` also of -5 or less. The floor keeps small
numbers quiet: it is the noise of a count, ``sqrt(expected)``, for ``rate``; that of a share for ``failures``;
a fifth of the expected duration, and 20 ms, for ``wait`` and ``run``. Nothing is judged that has fewer than 4
of those weeks, and no share or duration of fewer than 20 attempts.
"""

from __future__ import annotations

from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives
from oxcart.spark.views.slo import newest

SOURCES = ("queue_metrics",)
COLUMNS = (
    "day date, queue string, lane string, start_ms bigint, name string, measure string, value double, "
    "expected double, spread double, score double, weeks int"
)
#: How far a value must be from the expected one, in spreads.
LIMIT = 5
#: Weeks that are looked back at most, and that there must be.
WEEKS, FEWEST_WEEKS = 8, 4
#: Attempts of an hour whose share and durations are judged.
FEWEST = 20
WEEK_MS = 604_800_000
#: The standard deviation of a normal distribution, by its median absolute deviation.
_NORMAL = 1.4826
_KEY = ("day", "queue", "lane", "began", "name", "measure", "value", "judged")


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    key = ", ".join(_KEY)
    ended = "m.completed + m.failed + m.retries"
    common = f"m.day, m.queue, m.lane, {dialect.ms('m.start_ms')} AS began, m.name"
    enough = f"AND {ended} >= {FEWEST}"
    measures = " UNION ALL ".join(
        f"SELECT {common}, '{measure}' AS measure, CAST({value} AS DOUBLE) AS value, "
        f"CAST({ended} AS DOUBLE) AS judged FROM queue_metrics m WHERE m.window = 'hour' {more}"
        for measure, value, more in (
            ("rate", "m.arrivals", ""),
            ("failures", f"(m.failed + m.retries) / CAST({ended} AS DOUBLE)", enough),
            ("wait", "m.wait_p90", f"{enough} AND m.wait_p90 IS NOT NULL"),
            ("run", "m.run_p90", f"{enough} AND m.run_p90 IS NOT NULL"),
        )
    )
    likely = "((expected * judged + 1) / (judged + 2))"
    floor = (
        "CASE measure WHEN 'rate' THEN greatest(sqrt(expected), 0.1 * expected, 1) "
        f"WHEN 'failures' THEN sqrt({likely} * (1 - {likely}) / judged) ELSE greatest(0.2 * expected, 20) END"
    )
    return f"""
WITH newest AS ({newest(dialect)}),
measures AS ({measures}),
pairs AS (
  SELECT m.*, b.value AS before
  FROM measures m CROSS JOIN newest n CROSS JOIN range(1, {WEEKS + 1}) AS r(k)
  JOIN measures b ON b.queue = m.queue AND coalesce(b.lane, '') = coalesce(m.lane, '') AND b.name = m.name
    AND b.measure = m.measure AND b.began = m.began - r.k * {WEEK_MS}
  WHERE m.began + 3600000 <= n.now_ms
),
middles AS (
  SELECT {key}, median(before) AS expected, count(*) AS weeks FROM pairs GROUP BY {key}
  HAVING count(*) >= {FEWEST_WEEKS}
),
spreads AS (
  SELECT {", ".join(f"p.{name}" for name in _KEY)}, any_value(c.expected) AS expected,
    any_value(c.weeks) AS weeks, median(abs(p.before - c.expected)) AS deviation
  FROM pairs p JOIN middles c ON c.queue = p.queue AND coalesce(c.lane, '') = coalesce(p.lane, '')
    AND c.name = p.name AND c.measure = p.measure AND c.began = p.began
  GROUP BY {", ".join(f"p.{name}" for name in _KEY)}
),
judgements AS (SELECT *, greatest({_NORMAL} * deviation, {floor}) AS spread FROM spreads)
SELECT day, queue, lane, {dialect.instant("began", "start_ms")}, name, measure, value, expected, spread,
  (value - expected) / spread AS score, CAST(weeks AS INT) AS weeks
FROM judgements
WHERE (value - expected) / spread >= {LIMIT}
  OR (measure IN ('rate', 'run') AND (value - expected) / spread <= -{LIMIT})
"""
