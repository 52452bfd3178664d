"""The ready questions: a job's history, the causes of failures, the slowest runs."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history.questions import NO_REASON, failure_causes, job_history, slowest
from oxcart.history.reader import LakeReader
from oxcart.spark.lake.versions import Lake
from tests.history.lakes import MIDNIGHT, make_lake

HOUR = 3_600_000


def attempt(job: str, number: int, outcome: str, at: int, **more: Any) -> dict[str, Any]:
    known = {"job_id": job, "first_id": "1-0", "attempt": number, "outcome": outcome, "name": "charge"}
    return {**known, "ended_ms": MIDNIGHT + at, **more}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    stack = 'Traceback\n  File "/app/pay.py", line 10, in charge\n    x\n'
    return make_lake(
        tmp_path / "lake",
        attempts=[
            attempt("1", 1, "retried", HOUR, reason="card 4711 refused", category="temporary", run_ms=100),
            attempt("1", 2, "failed", 2 * HOUR, reason="card 4712 refused", category="temporary", run_ms=300),
            attempt("2", 1, "failed", 3 * HOUR, reason="card 4713 refused", name="refund", run_ms=5000),
            attempt("3", 1, "failed", 4 * HOUR, reason="card 4714 refused", stack=stack, run_ms=20),
            attempt("4", 1, "retried", 5 * HOUR),  # a snooze of Node's looks so
            attempt("5", 1, "failed", 6 * HOUR, queue="other"),
            attempt("6", 1, "completed", 7 * HOUR, run_ms=40),
            attempt("1", 1, "completed", 8 * HOUR, first_id="2-0", run_ms=7),
        ],
        jobs=[
            {"job_id": "1", "first_id": "1-0", "state": "dead_letter", "created_ms": MIDNIGHT},
            {"job_id": "1", "first_id": "2-0", "state": "completed", "created_ms": MIDNIGHT + 7 * HOUR},
            {"job_id": "1", "first_id": "9-0", "state": "completed", "queue": "other"},
            {
                "job_id": "late",
                "first_id": "3-0",
                "state": "dead_letter",
                "reason": "lifetime of 60 s is over",
                "ended_ms": MIDNIGHT + HOUR,
            },
        ],
        transitions=[
            {"job_id": "1", "first_id": "1-0", "life": 1, "ordinal": 2, "to_state": "running"},
            {"job_id": "1", "first_id": "1-0", "life": 1, "ordinal": 1, "to_state": "scheduled"},
            {"job_id": "1", "first_id": "2-0", "life": 1, "ordinal": 9, "to_state": "scheduled"},
        ],
    )


def test_a_job_has_its_generations_each_with_attempts_and_transitions_in_order(lake: Lake) -> None:
    with LakeReader(lake) as reader:
        first, second = job_history(reader, "1", "mail")
        everywhere = job_history(reader, "1")
        nothing = job_history(reader, "unknown")
    assert [row["attempt"] for row in first.attempts] == [1, 2]
    assert [row["to_state"] for row in first.transitions] == ["scheduled", "running"]
    assert (second.job["state"], [row["outcome"] for row in second.attempts]) == ("completed", ["completed"])
    assert [one.job["queue"] for one in everywhere] == ["mail", "mail", "other"]
    assert nothing == []


def test_failures_are_grouped_by_cause(lake: Lake) -> None:
    with LakeReader(lake) as reader:
        causes = failure_causes(reader, MIDNIGHT)
    assert [(cause.reason, cause.frame, cause.count, cause.final) for cause in causes] == [
        ("card <n> refused", None, 3, 2),
        (NO_REASON, None, 1, 1),
        ("card <n> refused", "pay.py:10 in charge", 1, 1),
        ("lifetime of <n> s is over", None, 1, 1),
    ]
    cards = causes[0]
    assert (cards.first_ms, cards.last_ms) == (MIDNIGHT + HOUR, MIDNIGHT + 3 * HOUR)
    assert (cards.ids, cards.example) == (["2", "1"], "card 4713 refused")
    assert cards.names == {"charge": 2, "refund": 1}
    assert cards.categories == {"temporary": 2, "": 1}


def test_failures_since_a_time_and_of_a_queue(lake: Lake) -> None:
    with LakeReader(lake) as reader:
        assert [cause.count for cause in failure_causes(reader, MIDNIGHT + 4 * HOUR)] == [1, 1]
        assert [cause.ids for cause in failure_causes(reader, MIDNIGHT, "other")] == [["5"]]


def test_the_slowest_names_and_runs(lake: Lake) -> None:
    with LakeReader(lake) as reader:
        found = slowest(reader, MIDNIGHT, "mail", most=2)
    assert [(row["name"], row["runs"], row["p50"], row["max"]) for row in found.names] == [
        ("refund", 1, 5000, 5000),
        ("charge", 5, 40, 300),
    ]
    assert [(row["job_id"], row["run_ms"]) for row in found.runs] == [("2", 5000), ("1", 300)]


def test_files_of_earlier_days_are_not_opened(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", attempts=[attempt("1", 1, "failed", 0, day=date(2026, 11, 1))])
    with LakeReader(lake, since_day="2026-11-02") as reader:
        (lake.root / lake.head().of("attempts")[0].path).unlink()
        assert failure_causes(reader, 0) == []
