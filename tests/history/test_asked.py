"""Which days a query asks for: a condition that is understood limits them, and no other does."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("duckdb")

import duckdb

from oxcart.history.asked import asked_days

KNOWN = [f"2026-11-0{number}" for number in range(1, 8)]


def asked(text: str) -> list[int] | None:
    """The days of the month that a query asks of `critical_paths`; None for all."""
    connection = duckdb.connect()
    try:
        ((tree,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
    finally:
        connection.close()
    found = asked_days(json.loads(tree), "critical_paths")
    return None if found is None else [int(day[-1]) for day in KNOWN if found(day)]


@pytest.mark.parametrize(
    ("where", "days"),
    [
        ("day = '2026-11-02'", [2]),
        ("day = DATE '2026-11-02' AND share > 0.5", [2]),
        ("'2026-11-05' <= day", [5, 6, 7]),
        ("day > '2026-11-02' AND day < '2026-11-05'", [3, 4]),
        ("day BETWEEN '2026-11-02' AND '2026-11-03'::DATE", [2, 3]),
        ("Critical_Paths.day IN ('2026-11-02', '2026-11-06')", [2, 6]),
        ("day >= '2026-11-06' AND (name = 'a' OR name = 'b')", [6, 7]),
        ("day = '2026-11-02' OR share > 0.5", None),
        ("NOT day = '2026-11-02'", None),
        ("day = current_date", None),
        ("day IN ('2026-11-02', current_date)", None),
        ("day NOT IN ('2026-11-02')", None),
        ("day = $day", None),
        ("other.day = '2026-11-02'", None),
        ("started_at = '2026-11-02'", None),
        ("day = 'soon'", None),
    ],
)
def test_a_condition_on_the_day(where: str, days: list[int] | None) -> None:
    assert asked(f"SELECT * FROM critical_paths WHERE {where}") == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("SELECT * FROM critical_paths", None),
        ("EXPLAIN SELECT * FROM critical_paths WHERE day = '2026-11-02'", None),
        ("SELECT * FROM critical_paths AS c(started, day) WHERE c.day = '2026-11-02'", None),
        ("SELECT * FROM critical_paths AS c(day) WHERE day = '2026-11-02'", None),
        ("SELECT * FROM critical_paths c JOIN jobs j USING (job_id) WHERE c.day = '2026-11-02'", [2]),
        ("SELECT * FROM jobs j LEFT JOIN critical_paths c ON true WHERE c.day = '2026-11-02'", [2]),
        ("SELECT * FROM critical_paths c, jobs j WHERE c.day = '2026-11-02'", [2]),
        ("SELECT * FROM critical_paths c JOIN jobs j ON true WHERE j.day = '2026-11-02'", None),
        ("SELECT * FROM critical_paths c JOIN jobs j ON true WHERE day = '2026-11-02'", None),
        ("SELECT * FROM jobs j ASOF JOIN critical_paths c ON j.x >= c.x WHERE c.day = '2026-11-02'", None),
        ("SELECT * FROM (SELECT * FROM critical_paths) WHERE day = '2026-11-02'", None),
        ("WITH c AS (SELECT * FROM critical_paths WHERE day = '2026-11-02') SELECT * FROM c", [2]),
        (
            "FROM critical_paths WHERE day = '2026-11-02' UNION FROM critical_paths WHERE day = '2026-11-04'",
            [2, 4],
        ),
        (
            "FROM critical_paths WHERE day = '2026-11-02' AND job_id IN (SELECT name FROM critical_paths)",
            None,
        ),
        (
            "FROM critical_paths a, critical_paths b WHERE a.day = '2026-11-02' AND b.day = '2026-11-03'",
            [2, 3],
        ),
    ],
)
def test_every_mention_of_the_table_counts(text: str, days: list[int] | None) -> None:
    assert asked(text) == days
