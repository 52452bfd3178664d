"""``capacity``: how many workers an hour needed for a target of waiting.

A worker here is a slot that runs one job at a time. With the mean run time ``S`` of an attempt and the load
``a = arrivals per hour * work per job / 1 h`` (in Erlang), ``c`` workers leave waiting, by Erlang C::

    B(c) = (a^c / c!) / sum(a^k / k!, k = 0 … c)      P(wait > 0) = c B / (c - a (1 - B))
    P(wait > t) = P(wait > 0) * exp(-(c - a) t / S)

``workers`` is the smallest ``c`` above ``a`` whose ``P(wait > t)`` is at most ``1 - target``. Erlang C
assumes random arrivals within the hour and exponential run times. Bursts, and run times that
vary more, need more.
"""

from __future__ import annotations

from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import DEFAULT_TARGET, DEFAULT_WITHIN, WAIT, Objectives
from oxcart.spark.views.slo import declared, newest

SOURCES = ("timings", "queue_metrics")
COLUMNS = (
    "day date, queue string, lane string, start_ms bigint, arrivals bigint, attempts bigint, "
    "run_mean double, busy double, load double, within_ms bigint, target double, workers int"
)
_HOUR = 3_600_000
#: Workers that are considered at most; a load that needs more has null.
MOST = 5000


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    at = dialect.ms("start_ms")
    return f"""
WITH declared AS ({declared(objectives)}),
newest AS ({newest(dialect)}),
targets AS (
  SELECT queue, min(within_ms) AS within_ms, max(target) AS target FROM declared
  WHERE kind = '{WAIT}' AND name IS NULL GROUP BY queue
),
works AS (
  SELECT queue, lane, CAST(floor({at} / {_HOUR}) AS BIGINT) * {_HOUR} AS began, sum(attempts) AS attempts,
    sum(completed + failed + unrun + cancelled) AS ended, sum(run_total) AS run_total
  FROM timings GROUP BY 1, 2, 3
),
arrived AS (
  SELECT m.queue, m.lane, {dialect.ms("m.start_ms")} AS began, m.arrivals FROM queue_metrics m
  WHERE m.window = 'hour' AND m.name = '*'
),
hours AS (
  SELECT w.queue, w.lane, w.began, a.arrivals, w.attempts,
    w.run_total / CAST(w.attempts AS DOUBLE) AS run_mean,
    w.run_total / 3.6e6 AS busy, a.arrivals * w.run_total / (w.ended * 3.6e6) AS load,
    coalesce(t.within_ms, {DEFAULT_WITHIN}) AS within_ms,
    coalesce(t.target, CAST({DEFAULT_TARGET} AS DOUBLE)) AS target
  FROM works w JOIN arrived a ON a.queue = w.queue AND coalesce(a.lane, '') = coalesce(w.lane, '')
    AND a.began = w.began
  CROSS JOIN newest n LEFT JOIN targets t ON t.queue = w.queue
  WHERE w.began + {_HOUR} <= n.now_ms AND w.attempts > 0 AND w.ended > 0
),
factorials AS (
  SELECT k, sum(ln(greatest(k, 1))) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING) AS ln_factorial
  FROM range({MOST + 1}) AS r(k)
),
terms AS (
  SELECT h.queue, h.lane, h.began, h.load, h.run_mean, h.within_ms, h.target, f.k,
    exp(f.k * ln(h.load) - f.ln_factorial - h.load) AS term
  FROM hours h JOIN factorials f ON f.k <= h.load + 10 * sqrt(h.load) + 20
  WHERE h.load > 0
),
blocked AS (
  SELECT *, term / sum(term) OVER (PARTITION BY queue, lane, began ORDER BY k ROWS UNBOUNDED PRECEDING) AS b
  FROM terms
),
late AS (
  SELECT queue, lane, began, k, target,
    k * b / (k - load * (1 - b)) * exp(-(k - load) * within_ms / run_mean) AS share
  FROM blocked WHERE k > load
),
needed AS (
  SELECT queue, lane, began, min(k) AS workers FROM late WHERE share <= 1 - target
  GROUP BY queue, lane, began)
SELECT {dialect.day("h.began")} AS day, h.queue, h.lane, {dialect.instant("h.began", "start_ms")}, h.arrivals,
  CAST(h.attempts AS BIGINT) AS attempts, h.run_mean, CAST(h.busy AS DOUBLE) AS busy,
  CAST(h.load AS DOUBLE) AS load,
  CAST(h.within_ms AS BIGINT) AS within_ms, CAST(h.target AS DOUBLE) AS target,
  CASE WHEN h.load > 0 THEN CAST(n.workers AS INT) ELSE CAST(least(h.arrivals, 1) AS INT) END AS workers
FROM hours h LEFT JOIN needed n
  ON n.queue = h.queue AND coalesce(n.lane, '') = coalesce(h.lane, '') AND n.began = h.began
"""
