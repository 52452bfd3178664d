"""``oxcart history slo | anomalies | capacity | costs | changes``: questions about the service as a whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.spark.views.objectives import FILE
from tests.cli.conftest import Commands, Ended
from tests.cli.test_terminal import HOSTILE, STEERS
from tests.history.histories import HOUR, day_of, timing, weeks
from tests.history.lakes import MIDNIGHT, make_lake

OBJECTIVES = '[objectives.sent]\nqueue = "mail"\nsuccess = 0.99\n'


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A lake whose last whole hour is bad."""
    now = time.time_ns() // 1_000_000
    hour = now - now % HOUR - HOUR - MIDNIGHT
    spent = {"name": "send", "tenant": "acme", "attempts": 2, "run_total": 1500, "wasted_total": 250}
    lake = make_lake(
        tmp_path / "lake",
        timings=[
            timing(hour - HOUR, completed=200, runs={90: 200}, version="1"),
            timing(hour, completed=150, failed=50, run_total=9_000_000, runs={300: 200}, version="2"),
        ],
        queue_metrics=weeks([*[{"arrivals": 20}] * 5, {"arrivals": 200}], hour),
        spending=[
            {**spent, "day": day_of(now)},
            {**spent, "day": day_of(now), "tag": "plan", "value": HOSTILE, "name": HOSTILE},
        ],
    )
    (lake.root / FILE).write_text(OBJECTIVES, encoding="utf-8")
    monkeypatch.setenv("OXCART_LAKE", str(lake.root))

    def run(*words: str, code: int = 0) -> Ended:
        done = Commands(None)("history", *words)
        assert done.code == code, done
        return done

    return run


def test_slo_shows_how_each_objective_stands_now(ask: Any) -> None:
    (found,) = ask("slo", "--json").json
    assert (found["objective"], found["total_30d"], found["bad_30d"]) == ("sent", 400, 50)
    assert found["budget_left"] == pytest.approx(-11.5)
    text = ask("slo").out
    assert "sent" in text
    assert "-11.5" in text
    assert "no objective is declared" in ask("slo", "--queue", "other").out


def test_anomalies_show_the_hours_that_differ(ask: Any) -> None:
    found = ask("anomalies", "--since", "2d", "--json").json
    assert [(row["measure"], row["value"], row["expected"]) for row in found] == [("rate", 200, 20)]
    assert "no anomaly since" in ask("anomalies", "--queue", "other").out


def test_capacity_shows_the_busiest_hour(ask: Any) -> None:
    (found,) = ask("capacity", "--json").json
    assert (found["arrivals"], found["workers"], found["within_ms"]) == (200, 8, 1000)


def test_costs_are_by_name_and_tenant_or_by_a_tag(ask: Any) -> None:
    (found,) = ask("costs", "--json").json
    assert found == {
        "queue": "mail",
        "name": "send",
        "tenant": "acme",
        "attempts": 2,
        "worker_s": 1.5,
        "wasted_s": 0.25,
    }
    (tagged,) = ask("costs", "--by-tag", "plan", "--json").json
    assert tagged["worker_s"] == 1.5
    assert "no attempt with the tag nothing has ended" in ask("costs", "--by-tag", "nothing").out


def test_changes_compare_versions(ask: Any) -> None:
    found = {row["version"]: row for row in ask("changes", "--json").json}
    assert (found["2"]["previous"], found["2"]["failing"], found["2"]["running"]) == ("1", "more", "slower")


def test_wrong_objectives_are_one_line(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "lake" / FILE).write_text('[objectives.x]\nqueue = "mail"\nsuccess = 2\n', encoding="utf-8")
    assert "objectives.x.success must be a number between 0 and 1" in ask("slo", code=2).err


def test_hostile_text_does_not_steer_the_terminal(ask: Any) -> None:
    for words in (("costs", "--by-tag", "plan"), ("costs", "--by-tag", HOSTILE), ("slo", "--queue", HOSTILE)):
        assert not [line for line in ask(*words).out.split("\n") if STEERS.search(line)], words
