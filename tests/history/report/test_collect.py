"""The figures of a report, from a lake whose answers are known, without Spark and Java."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history.report import collect as collecting
from oxcart.history.report.collect import collect
from oxcart.history.report.overview import sentences
from oxcart.history.report.page import page
from oxcart.spark.lake.versions import Change, Lake
from tests.history.histories import HOUR, MINUTE, Row, child, firing, job, metric
from tests.history.lakes import DAY, MIDNIGHT, make_lake, write

FIGURES: Row = {"arrivals": 10, "completed": 7, "failed": 3, "retries": 2, "stalls": 0}


def tried(number: int, at: int, wait: int, run: int, outcome: str = "completed", **more: object) -> Row:
    """A row of `attempts` that ended `at` ms after midnight."""
    ended = MIDNIGHT + at
    spent = {"ended_ms": ended, "started_ms": ended - run, "wait_ms": wait, "run_ms": run}
    return {"job_id": str(number), "name": "send", "attempt": 1, "outcome": outcome, **spent, **more}


def failure(count: int, last: int, message: str = "card <n> refused") -> Row:
    at = MIDNIGHT + last
    return {"cluster": "c", "message": message, "count": count, "fatal": count, "first_ms": at, "last_ms": at}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two days of `mail` and of a lane of it, a flow and a schedule."""
    first = {
        "queue_metrics": [
            metric(0, "day", wait_p50=11.0, backlog_ready=4, **FIGURES),
            metric(0, "day", **{**FIGURES, "name": "send"}),
            metric(0, "day", queue="mail@all;c=gpu", **{**FIGURES, "failed": 0}),
            metric(HOUR, "minute", **FIGURES),
            metric(HOUR + MINUTE, "minute", **FIGURES),
        ],
        "attempts": [tried(n, HOUR + 1000 * n, wait, 10) for n, wait in enumerate((1, 2, 3))],
        "events": [
            {"stream": "events", "kind": "entry", "event": "added", "at_ms": MIDNIGHT + HOUR + second * 1000}
            for second in (0, 0, 7)
        ],
        "counts": [
            {
                "at_ms": MIDNIGHT + HOUR + at,
                "wait": wait,
                "paused": 1,
                "prioritized": 1,
                "active": 5,
                "delayed": 0,
            }
            for at, wait in ((0, 9), (900, 2))
        ],
        "failures": [failure(3, HOUR)],
        "gaps": [{"life": 0, "first_lost": 1, "last_lost": 5, "count": 5, "cause": "trimmed"}],
        "jobs": [job("sum", 0, 900, 1000, queue="top")],
        "flows": [child("slow", 0, 100, 800)],
        "firings": [firing("beat", minute * MINUTE, every_ms=MINUTE) for minute in (1, 4)],
    }
    made = make_lake(tmp_path / "lake", **first)
    day = {"day": DAY + timedelta(days=1)}
    second = {
        "queue_metrics": [{**metric(24 * HOUR, "day", backlog_ready=1, **FIGURES), **day}],
        "attempts": [{**tried(9, 25 * HOUR, 100, 10), **day}],
        "failures": [{**failure(4, 25 * HOUR, "card <n> is refused"), **day}],
    }
    made.publish(Change("build", add=[write(made, table, rows) for table, rows in second.items()]))
    return made


def test_a_day_has_its_figures(lake: Lake) -> None:
    found = collect(lake, "2026-11-02")
    assert [(row["queue"], row["failed"], row["wait_p50"]) for row in found.queues] == [
        ("mail", 3, 11.0),
        ("mail@all;c=gpu", 0, None),
    ]
    assert [row["name"] for row in found.names] == ["send"]
    assert [(row["message"], row["count"]) for row in found.failures] == [("card <n> refused", 3)]
    assert [row["count"] for row in found.gaps] == [5]
    assert found.states == [{"queue": "top", "state": "completed", "count": 1}]
    (flow,) = found.flows
    assert (flow["flow_id"], flow["total_ms"], flow["path"]) == ("sum", 1000, "slow 800 ms → sum 200 ms")
    (planned,) = found.schedules
    assert (planned["schedule"], planned["expected"], planned["missed"]) == ("beat", 4, 2)
    assert "mail: 5 entries of the stream were lost." in sentences(found)
    assert "cron: schedule beat missed 2 of 4 runs." in sentences(found)
    assert "<table id='flows'>" in page(found)


def test_charts_of_a_short_span_are_made_of_events_attempts_and_samples(lake: Lake) -> None:
    found = collect(lake, "2026-11-02")
    begin = MIDNIGHT + HOUR
    assert (found.width, found.span) == (1000, (begin, begin + 8000))
    points = {row["start_ms"] - begin: row for row in found.points}
    assert sorted(points) == [0, 1000, 2000, 7000]
    assert (points[0]["arrivals"], points[0]["completed"], points[0]["wait_p50"]) == (2, 1, 1)
    assert points[0]["backlog_ready"] == 4, "the last sample of the second"
    assert (points[7000]["arrivals"], points[7000]["completed"], points[7000]["wait_p50"]) == (1, 0, None)


def test_several_days_are_sums_and_percentiles_of_all_attempts(lake: Lake) -> None:
    found = collect(lake, "2026-11-02", last="2026-11-30")
    assert found.title == "2026-11-02 to 2026-11-03"
    queue = found.queues[0]
    assert (queue["queue"], queue["arrivals"], queue["failed"]) == ("mail", 20, 6)
    assert (queue["wait_p50"], queue["backlog_ready"]) == (2.5, 1)
    (cause,) = found.failures
    assert (cause["message"], cause["count"]) == ("card <n> is refused", 7)
    assert [(row["schedule"], row["missed"]) for row in found.schedules] == [("beat", 2)]


def test_the_newest_day_is_the_default(lake: Lake) -> None:
    assert (collect(lake).day, collect(lake).flows) == ("2026-11-03", [])


def test_rows_that_are_left_out_are_counted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_FAILURES", 1)
    more = [{**failure(1, HOUR), "cluster": f"other{number}"} for number in range(3)]
    lake.publish(Change("build", add=[write(lake, "failures", more)]))
    found = collect(lake, "2026-11-02")
    assert ([row["count"] for row in found.failures], found.more) == ([3], {"failures": 3})


def test_the_report_needs_no_pyspark_and_no_java(lake: Lake, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from oxcart.cli import main\n"
        "sys.argv[:1] = ['oxcart', 'pipeline', 'report']\n"
        "main()"
    )
    words = ["--lake", str(lake.root), "--from", "2026-11-02", "--html", str(html)]
    done = subprocess.run([sys.executable, "-c", code, *words], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "card &lt;n&gt; is refused" in html.read_text(encoding="utf-8")
