"""``oxcart history``: one job, the causes of failures and the slowest runs, without a server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from tests.cli.conftest import Commands, Ended
from tests.cli.test_terminal import HOSTILE, STEERS
from tests.history.lakes import make_lake


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    now = time.time_ns() // 1_000_000 - 60_000
    today = datetime.fromtimestamp(now / 1000, UTC).date()
    tried = {"day": today, "first_id": "1-0", "name": "charge", "started_ms": now - 10, "ended_ms": now}
    make_lake(
        tmp_path / "lake",
        attempts=[
            {**tried, "job_id": "42", "attempt": 1, "outcome": "failed", "reason": "card 1 \x1b[31mrefused"},
            {**tried, "job_id": "failures", "attempt": 1, "outcome": "completed", "run_ms": 2345},
        ],
        jobs=[
            {**tried, "job_id": "42", "state": "dead_letter", "tags": [("tenant", "acme")]},
            {**tried, "job_id": "failures", "state": "completed", "lane": "all;c=gpu"},
        ],
        transitions=[{"job_id": "42", "first_id": "1-0", "at_ms": now, "to_state": "dead_letter"}],
    )
    monkeypatch.setenv("OXCART_LAKE", str(tmp_path / "lake"))

    def run(*words: str, code: int = 0) -> Ended:
        done = Commands(None)("history", *words)
        assert done.code == code, done
        return done

    return run


def test_a_word_that_is_no_command_is_a_job(history: Any) -> None:
    text = history("42").out
    assert text.startswith("42 of mail: charge, dead_letter\n")
    assert "dead_letter" in text.partition("transitions")[2]
    assert history("job", "42").out == text
    assert '"acme"' in text
    assert "\x1b" not in text


def test_a_job_may_be_called_like_a_command(history: Any) -> None:
    assert history("job", "failures").out.startswith("failures of mail@all;c=gpu: charge, completed\n")


def test_one_job_as_json(history: Any) -> None:
    (found,) = history("42", "--json").json
    assert found["job"]["tags"] == {"tenant": "acme"}
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["failed"]
    assert [move["to_state"] for move in found["transitions"]] == ["dead_letter"]


def test_an_unknown_job_is_one_line(history: Any) -> None:
    assert "have no job 7; if it is new" in history("7", code=1).err
    assert "have no job 42 of queue other" in history("42", "--queue", "other", code=1).err


def test_failures_show_cause_counts_and_jobs(history: Any) -> None:
    text = history("failures", "--since", "1d").out
    assert text.startswith("card <n> ")
    assert ["jobs", "42"] in [line.split() for line in text.splitlines()]
    (cause,) = history("failures", "--json").json
    assert (cause["count"], cause["final"], cause["ids"]) == (1, 1, ["42"])
    assert history("failures", "--since", "1s").out.startswith("no failures since 20")


def test_slow_shows_percentiles_and_the_longest_runs(history: Any) -> None:
    lines = [line.split() for line in history("slow").out.splitlines()]
    assert ["mail", "charge", "1", "2,345.0", "2,345.0", "2,345.0", "2,345"] in lines
    found = history("slow", "--json").json
    assert found["names"][0]["p99"] == found["runs"][0]["run_ms"] == 2345
    assert history("slow", "--since", "1s").out.startswith("no run ended since")


def test_a_wrong_time_is_refused(history: Any) -> None:
    assert "since must be a duration back from now" in history("slow", "--since", "soon", code=2).err


def test_without_tables_it_says_how_to_get_some(history: Any, tmp_path: Path) -> None:
    assert "there are no tables in" in history("42", "--lake", str(tmp_path / "none"), code=1).err


def test_hostile_text_does_not_steer_the_terminal(
    history: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns() // 1_000_000
    today = datetime.fromtimestamp(now / 1000, UTC).date()
    bad = {"day": today, "queue": HOSTILE, "job_id": HOSTILE, "first_id": "1-0", "name": HOSTILE}
    tried = {**bad, "attempt": 1, "outcome": "failed", "run_ms": 5, "worker": HOSTILE, "ended_ms": now}
    made = make_lake(
        tmp_path / "hostile",
        attempts=[{**tried, "reason": HOSTILE, "stack": f'File "{HOSTILE}", line 1, in x'}],
        jobs=[{**bad, "state": "failed", "reason": HOSTILE, "tags": [(HOSTILE, HOSTILE)]}],
        transitions=[{**bad, "event": HOSTILE, "to_state": "failed"}],
    )
    monkeypatch.setenv("OXCART_LAKE", str(made.root))
    questions: list[tuple[str, ...]] = [
        ("history", "job", HOSTILE),
        ("history", "failures"),
        ("history", "slow"),
    ]
    text = "SELECT * FROM attempts"
    questions += [("pipeline", "query", text), ("pipeline", "query", text, "--csv")]
    questions += [(*words, "--json") for words in questions[:4]]
    for words in (*questions, ("history", "job", f"no{HOSTILE}")):
        done = Commands(None)(*words)
        assert done.out or done.err
        lines = (done.out + done.err).split("\n")
        assert not [line for line in lines if STEERS.search(line)], words
