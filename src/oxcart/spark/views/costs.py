"""``costs``: the seconds that workers spent, by day, job name, tenant and tag.

The row without a tag has all attempts of its name and tenant; a row with a tag has those that carry it. So
sums are over rows with ``tag IS NULL``, or over one tag. ``wasted_s`` is the part that did not complete a
job: failed, retried, stalled and returned attempts.
"""

from __future__ import annotations

from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives

SOURCES = ("spending",)
COLUMNS = (
    "day date, queue string, lane string, name string, tenant string, tag string, value string, "
    "attempts bigint, worker_s double, wasted_s double"
)


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    return """
SELECT day, queue, lane, name, tenant, tag, value, CAST(sum(attempts) AS BIGINT) AS attempts,
  CAST(sum(run_total) AS DOUBLE) / 1000 AS worker_s, CAST(sum(wasted_total) AS DOUBLE) / 1000 AS wasted_s
FROM spending GROUP BY day, queue, lane, name, tenant, tag, value
"""
