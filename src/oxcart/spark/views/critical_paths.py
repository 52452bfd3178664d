"""``critical_paths``: the jobs that decided how long a tree of jobs took, from the first to the root.

Of the children that ended before a job last started, the last one to end is on the path, and so on below it.
A step lasts from the end of the previous one, or the creation of the first, to its own end. So the steps of a
tree add up to its time. Trees whose root has not ended are left out.

A tree may span queues and days. The rows of a day need the other days of its trees, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from oxcart.spark.views.dialect import Dialect, days_in
from oxcart.spark.views.objectives import Objectives
from oxcart.spark.views.parts import Ask, Part

SOURCES = ("flows", "jobs", "attempts")
COLUMNS = (
    "day date, flow_queue string, flow_id string, flow_first_id string, flow_name string, flow_state string, "
    "total_ms bigint, steps int, step int, queue string, lane string, job_id string, first_id string, "
    "name string, state string, begins_ms bigint, started_ms bigint, ended_ms bigint, took_ms bigint, "
    "wait_ms bigint, run_ms bigint, share double"
)
#: Levels of a tree that are followed.
DEEPEST = 100
#: How far the clock of a client may be ahead of the server's.
SKEW_MS = 60_000

_STREAM = "concat_ws('@', queue, lane)"
_ROOT = ("day", "root_place", "root_id", "root_first_id", "root_name", "root_state", "root_ended")
_NODE = (
    *("place", "queue", "lane", "job_id", "first_id", "name", "state"),
    *("created", "started", "ended", "wait_ms", "run_ms"),
)


def _node(dialect: Dialect) -> str:
    times = ", ".join(f"{dialect.ms(f'{name}_ms')} AS {name}" for name in ("created", "started", "ended"))
    return f"{_STREAM} AS place, queue, lane, job_id, first_id, name, state, {times}, wait_ms, run_ms"


def links(dialect: Dialect) -> str:
    """Returns a query: from each generation of a parent to the child that it waited for longest."""
    return f"""
WITH parents AS (SELECT DISTINCT parent_queue AS place, parent_id AS job_id FROM flows),
tried AS (
  SELECT {_STREAM} AS place, job_id, first_id, max({dialect.ms("started_ms")}) AS began
  FROM attempts GROUP BY 1, 2, 3
),
ended AS (
  SELECT {_STREAM} AS place, job_id, first_id, {dialect.ms("ended_ms")} AS ended
  FROM jobs WHERE ended_at IS NOT NULL
),
above AS (
  -- A job that failed because of a child, or was removed, did not start again.
  SELECT e.place, e.job_id, e.first_id, e.ended, coalesce(t.began, e.ended) AS began
  FROM ended e JOIN parents p ON p.place = e.place AND p.job_id = e.job_id
  LEFT JOIN tried t ON t.place = e.place AND t.job_id = e.job_id AND t.first_id = e.first_id
),
children AS (SELECT {_node(dialect)}, parent_queue, parent_id FROM flows WHERE ended_at IS NOT NULL),
pairs AS (
  -- An id can have several generations: the parent's is the one that ended first after the child.
  SELECT c.*, a.place AS p_place, a.job_id AS p_job_id, a.first_id AS p_first_id, a.began AS p_began,
    row_number() OVER (
      PARTITION BY c.place, c.job_id, c.first_id ORDER BY a.ended, a.began, a.first_id
    ) AS nth
  FROM children c JOIN above a ON a.place = c.parent_queue AND a.job_id = c.parent_id AND c.ended <= a.ended
),
waited AS (
  SELECT *, row_number() OVER (
    PARTITION BY p_place, p_job_id, p_first_id ORDER BY ended DESC, place DESC, job_id DESC, first_id DESC
  ) AS back
  FROM pairs WHERE nth = 1 AND ended <= p_began
)
SELECT p_place, p_job_id, p_first_id, {", ".join(_NODE)} FROM waited WHERE back = 1
"""


def roots(dialect: Dialect) -> str:
    """Returns a query: parents that no other job waited for."""
    return f"""
WITH tops AS (
  SELECT DISTINCT u.p_place AS place, u.p_job_id AS job_id, u.p_first_id AS first_id
  FROM {LINKS} u LEFT JOIN {LINKS} b
    ON b.place = u.p_place AND b.job_id = u.p_job_id AND b.first_id = u.p_first_id
  WHERE b.place IS NULL
),
nodes AS (SELECT day, {_node(dialect)} FROM jobs)
SELECT n.* FROM nodes n
JOIN tops t ON t.place = n.place AND t.job_id = n.job_id AND t.first_id = n.first_id
"""


LINKS = "critical_paths_links"
_ROOTS = "critical_paths_roots"
PARTS = (Part(LINKS, SOURCES, links), Part(_ROOTS, ("jobs",), roots))


def text(dialect: Dialect, objectives: Objectives) -> str:
    """Returns the query."""
    root, node = ", ".join(_ROOT), ", ".join(_NODE)
    of_root = "PARTITION BY root_place, root_id, root_first_id"
    return f"""
WITH RECURSIVE {dialect.recursive(f"path({root}, level, {node})", DEEPEST + 1)} AS (
  SELECT day, place, job_id, first_id, name, state, ended, 0, {node} FROM {_ROOTS}
  UNION ALL
  SELECT {", ".join(f"p.{name}" for name in _ROOT)}, p.level + 1, {", ".join(f"u.{name}" for name in _NODE)}
  FROM path p JOIN {LINKS} u
    ON u.p_place = p.place AND u.p_job_id = p.job_id AND u.p_first_id = p.first_id
  WHERE p.level < {DEEPEST}
),
timed AS (
  SELECT *, max(level) OVER ({of_root}) AS deepest,
    coalesce(lead(ended) OVER ({of_root} ORDER BY level), created, started, ended) AS begins
  FROM path
),
spent AS (
  SELECT *, root_ended - min(begins) OVER ({of_root}) AS total, greatest(0, ended - begins) AS took FROM timed
)
SELECT day, root_place AS flow_queue, root_id AS flow_id, root_first_id AS flow_first_id,
  root_name AS flow_name, root_state AS flow_state, CAST(total AS BIGINT) AS total_ms,
  CAST(deepest + 1 AS INT) AS steps, CAST(deepest - level + 1 AS INT) AS step,
  queue, lane, job_id, first_id, name, state,
  {dialect.instant("begins", "begins_ms")}, {dialect.instant("started", "started_ms")},
  {dialect.instant("ended", "ended_ms")}, CAST(took AS BIGINT) AS took_ms, wait_ms, run_ms,
  CASE WHEN total > 0 THEN took / CAST(total AS DOUBLE) END AS share
FROM spent
"""


def days(dialect: Dialect, ask: Ask, known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Returns the days that have all jobs on the critical paths of roots that ended on the wanted days.

    A child is created with its tree and ends before its parent. So no job of a tree ended before the root
    was created. A job of these days is no root if it decided how long its own parent took, and that may have
    ended on a later day.
    """
    if not wanted:
        return []
    least = f"SELECT min({dialect.ms('coalesce(created_at, started_at, ended_at)', named=True)}) FROM jobs"
    first = _first_day(ask(least, wanted), wanted[0])
    last = wanted[-1]
    if first < wanted[0]:  # by a job that waited for long: what do the parents among them say?
        above = (
            f"{least} WHERE {days_in(wanted)} AND ({_STREAM}, job_id) IN "
            "(SELECT parent_queue, parent_id FROM flows)"
        )
        first = _first_day(ask(above, [day for day in known if first <= day <= last]), wanted[0])
    open_parents = f"""
WITH parents AS (
  SELECT DISTINCT parent_queue AS place, parent_id AS job_id FROM flows WHERE {days_in(wanted)}
),
ended AS (SELECT DISTINCT {_STREAM} AS place, job_id FROM jobs WHERE ended_at IS NOT NULL)
SELECT count(*) FROM parents p LEFT JOIN ended e ON e.place = p.place AND e.job_id = p.job_id
WHERE p.place IS NOT NULL AND e.place IS NULL
"""
    step = 1
    while later := [day for day in known if day > last]:
        ((found,),) = ask(open_parents, [day for day in known if first <= day <= last])
        if not found:
            break
        last = later[:step][-1]
        step *= 2
    return [day for day in known if first <= day <= last]


def _first_day(least: Sequence[Sequence[int | None]], otherwise: str) -> str:
    """The day of the only value of a result, a time in ms by some client's clock; unless null or later."""
    ((found,),) = least
    if found is None:
        return otherwise
    return min(otherwise, datetime.fromtimestamp(max(0, found - SKEW_MS) / 1000, UTC).date().isoformat())
