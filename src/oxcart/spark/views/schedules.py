"""``schedules``: how many runs of a schedule were due on a day, and how many there were.

A run belongs to the day on which it was due, a missed run to the day of the run after it. The next run of a
schedule, and a run that was removed before its start, do not count. A row has one rule; ``expected`` and
``missed`` are null where no run has it.

The runs missed before a run are those between the previous one and itself. So the rows of a day need runs of
earlier days: those of `BACK` days, in which a monthly schedule fires. A run may end days after it was due, so
`AHEAD` later days are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from oxcart.spark.views.dialect import Dialect
from oxcart.spark.views.objectives import Objectives
from oxcart.spark.views.parts import Ask, Column, Part

SOURCES = ("firings",)
COLUMNS = (
    "day date, queue string, lane string, schedule string, name string, every_ms bigint, cron string, "
    "tz string, expected bigint, made bigint, started bigint, missed bigint, failed bigint, late_p50 double, "
    "late_p99 double, late_max bigint, first_ms bigint, last_ms bigint"
)
#: Runs that are counted between two others at most.
MOST_MISSED = 100_000
#: Days before and after a day whose runs are read for its rows.
BACK, AHEAD = 35, 7

_RUNS, _SKIPPED = "schedules_runs", "schedules_skipped"
_RULE = ("every_ms", "cron", "tz")


def runs(dialect: Dialect) -> str:
    """Returns a query: runs with the rule of their schedule, and when the previous run was due."""
    by_time = "PARTITION BY queue, lane, schedule ORDER BY due, first_id"
    upto = f"{by_time} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    onward = f"{by_time} ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"
    return f"""
WITH begun AS (
  SELECT queue, lane, schedule, first_id, name, state, {dialect.ms("expected_ms")} AS due,
    {dialect.ms("started_ms")} AS started, late_ms,
    CASE WHEN every_ms IS NOT NULL OR cron IS NOT NULL THEN {dialect.struct(*_RULE)} END AS known
  FROM firings WHERE NOT (started_at IS NULL AND state IN ('delayed', 'removed'))
),
ruled AS (
  -- A peer's run has no record: its rule is that of the previous run, or else of the next.
  SELECT *, coalesce(
    {dialect.last_known("known")} OVER ({upto}), {dialect.first_known("known")} OVER ({onward})
  ) AS rule
  FROM begun
),
paired AS (
  SELECT *, lag(due) OVER ({by_time}) AS earlier,
    lag(rule) OVER ({by_time}) IS NOT DISTINCT FROM rule AS is_kept
  FROM ruled
)
SELECT queue, lane, schedule, name, state, due, started, late_ms, rule.every_ms AS every_ms,
  rule.cron AS cron, rule.tz AS tz, rule IS NOT NULL AS is_known,
  CASE WHEN is_kept THEN earlier END AS earlier
FROM paired
"""


def skipped(dialect: Dialect) -> str:
    """Returns a query: the pairs of due times between which an expression may have fired."""
    return (
        f"SELECT DISTINCT cron, tz, earlier, due FROM {_RUNS} "
        "WHERE coalesce(every_ms, 0) <= 0 AND cron IS NOT NULL AND earlier IS NOT NULL"
    )


def cron_between(cron: str, tz: str | None, after: int, before: int) -> int | None:
    """Returns how often an expression fires between two of its times; None if that cannot be computed."""
    from oxcart.model.cron import parse_cron
    from oxcart.model.errors import ValidationError

    try:
        rule = parse_cron(cron)
        for count in range(MOST_MISSED):
            found = rule.next_ms(after, tz)
            if found is None or found >= before:
                return count
            after = found
    except ValidationError:
        return None
    return None


PARTS = (
    Part(_RUNS, SOURCES, runs),
    Part(
        _SKIPPED,
        (),
        skipped,
        Column("cron string, tz string, earlier bigint, due bigint, skipped bigint", cron_between),
    ),
)


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    rule = ", ".join(_RULE)
    return f"""
WITH counted AS (
  -- The first run of an interval may be off its slots, so a part of a slot does not count.
  SELECT r.*, CASE
    WHEN NOT r.is_known THEN NULL
    WHEN r.earlier IS NULL THEN 0
    WHEN r.every_ms > 0
      THEN greatest(0, CAST(round((r.due - r.earlier) / CAST(r.every_ms AS DOUBLE)) AS BIGINT) - 1)
    ELSE s.skipped END AS missed
  FROM {_RUNS} r LEFT JOIN {_SKIPPED} s
    ON s.cron = r.cron AND coalesce(s.tz, '') = coalesce(r.tz, '') AND s.earlier = r.earlier AND s.due = r.due
    AND coalesce(r.every_ms, 0) <= 0
),
grouped AS (
  SELECT {dialect.day("due")} AS day, queue, lane, schedule, {rule},
    max_by(name, CASE WHEN name IS NOT NULL THEN due END) AS name, count(*) AS made,
    count(CASE WHEN started IS NOT NULL THEN 1 END) AS started,
    CASE WHEN count(missed) = count(*) THEN CAST(sum(missed) AS BIGINT) END AS missed,
    count(CASE WHEN state IN ('failed', 'dead_letter', 'cancelled') THEN 1 END) AS failed,
    {dialect.percentile("late_ms", 0.5)} AS late_p50, {dialect.percentile("late_ms", 0.99)} AS late_p99,
    max(late_ms) AS late_max, min(due) AS first_due, max(due) AS last_due
  FROM counted GROUP BY 1, 2, 3, 4, {rule}
)
SELECT day, queue, lane, schedule, name, {rule}, made + missed AS expected, made, started, missed, failed,
  late_p50, late_p99, late_max, {dialect.instant("first_due", "first_ms")},
  {dialect.instant("last_due", "last_ms")}
FROM grouped
"""


def days(dialect: Dialect, ask: Ask, known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Returns the days that have the runs before and after those of the wanted days."""
    if not wanted:
        return []
    first = _moved(wanted[0], -BACK)
    last = _moved(wanted[-1], AHEAD)
    return [day for day in known if first <= day <= last]


def _moved(day: str, by: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=by)).isoformat()
