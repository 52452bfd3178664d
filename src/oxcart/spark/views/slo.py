"""``slo``: how fast each objective spends its error budget.

With the share of bad events ``e`` in a window and the target ``t``::

    burn = e / (1 - t)                     1 spends the budget of a period in that period
    budget_left = 1 - e(30 d) / (1 - t)    negative where more than the budget is spent

Windows end at the newest minute of the tables, and whole hours before it. So each row is exact, and the
newest one (``hours_ago = 0``) is the present.
"""

from __future__ import annotations

from oxcart.spark.views.dialect import Dialect, quoted
from oxcart.spark.views.objectives import RUN, SUCCESS, Objectives

SOURCES = ("timings", "queue_metrics")
COLUMNS = (
    "day date, objective string, queue string, name string, kind string, within_ms bigint, target double, "
    "until_ms bigint, hours_ago bigint, total_1h bigint, bad_1h bigint, total_6h bigint, bad_6h bigint, "
    "total_3d bigint, bad_3d bigint, burn_1h double, burn_6h double, burn_3d double, "
    "total_30d bigint, bad_30d bigint, budget_left double"
)
#: The windows, and how many hours they have.
_HOURS = {"1h": 1, "6h": 6, "3d": 72, "30d": 720}
#: Hours that are looked back at most.
_MOST_HOURS = 24 * 400


def declared(objectives: Objectives) -> str:
    """Returns the objectives as a query."""
    rows = [
        f"SELECT {quoted(one.objective)} AS objective, {quoted(one.queue)} AS queue, "
        f"{quoted(one.name)} AS name, {quoted(one.kind)} AS kind, "
        f"CAST({one.within_ms or 'NULL'} AS BIGINT) AS within_ms, CAST({one.target!r} AS DOUBLE) AS target"
        for one in objectives.objectives
    ]
    nothing = (
        f"SELECT {quoted(None)} AS objective, {quoted(None)} AS queue, {quoted(None)} AS name, "
        f"{quoted(None)} AS kind, CAST(NULL AS BIGINT) AS within_ms, "
        "CAST(NULL AS DOUBLE) AS target WHERE false"
    )
    return " UNION ALL ".join(rows) or nothing


def newest(dialect: Dialect) -> str:
    """Returns a query for the end of the newest minute of the tables, in ms."""
    return (
        f"SELECT max({dialect.ms('m.start_ms')}) + 60000 AS now_ms FROM queue_metrics m "
        "WHERE m.window = 'minute' AND m.day = (SELECT max(day) FROM queue_metrics)"
    )


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    buckets = f"CASE WHEN o.kind = '{RUN}' THEN t.runs ELSE t.waits END"
    is_success = f"o.kind = '{SUCCESS}'"
    total = f"CASE WHEN {is_success} THEN t.completed + t.failed + t.unrun ELSE {dialect.all_of(buckets)} END"
    kept = f"CASE WHEN {is_success} THEN t.completed ELSE {dialect.under(buckets, 'o.within_ms')} END"
    start = dialect.ms("t.start_ms")
    sums = ", ".join(
        f"sum({what}) OVER (PARTITION BY objective ORDER BY ago DESC "
        f"ROWS BETWEEN {hours - 1} PRECEDING AND CURRENT ROW) AS {what}_{window}"
        for window, hours in _HOURS.items()
        for what in ("total", "bad")
    )

    counts = ", ".join(
        f"CAST({what}_{window} AS BIGINT) AS {what}_{window}"
        for window in ("1h", "6h", "3d")
        for what in ("total", "bad")
    )

    def share(window: str) -> str:
        return f"bad_{window} / CAST(nullif(total_{window}, 0) AS DOUBLE)"

    return f"""
WITH declared AS ({declared(objectives)}),
newest AS ({newest(dialect)}),
events AS (
  SELECT o.objective, CAST(floor((n.now_ms - 60000 - {start}) / 3600000) AS BIGINT) AS ago,
    {total} AS total, {kept} AS kept
  FROM timings t JOIN declared o ON t.queue = o.queue AND (o.name IS NULL OR o.name = t.name)
  CROSS JOIN newest n
),
counted AS (
  SELECT objective, ago, sum(total) AS total, sum(total - kept) AS bad FROM events
  WHERE ago >= 0 GROUP BY objective, ago
),
hours AS (
  SELECT o.objective, r.ago, coalesce(c.total, 0) AS total, coalesce(c.bad, 0) AS bad
  FROM declared o
  JOIN range({_MOST_HOURS}) AS r(ago) ON r.ago <= (SELECT max(ago) FROM counted)
  LEFT JOIN counted c ON c.objective = o.objective AND c.ago = r.ago
),
windows AS (SELECT objective, ago, {sums} FROM hours)
SELECT {dialect.day("n.now_ms - w.ago * 3600000 - 1")} AS day, o.objective, o.queue, o.name, o.kind,
  o.within_ms, o.target, {dialect.instant("n.now_ms - w.ago * 3600000", "until_ms")},
  CAST(w.ago AS BIGINT) AS hours_ago,
  {counts},
  {share("1h")} / (1 - o.target) AS burn_1h, {share("6h")} / (1 - o.target) AS burn_6h,
  {share("3d")} / (1 - o.target) AS burn_3d,
  CAST(total_30d AS BIGINT) AS total_30d, CAST(bad_30d AS BIGINT) AS bad_30d,
  1 - {share("30d")} / (1 - o.target) AS budget_left
FROM windows w JOIN declared o ON o.objective = w.objective CROSS JOIN newest n
"""
