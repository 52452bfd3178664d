"""`make bench-instructions`: its bars, its peers, and the commit that it compares with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import formal
from benchmarks.instructions import BARS, ROOT, judge, run_bound

from tests.servers import ValkeyServer


def test_bars_compare_with_numbers_and_with_the_bound() -> None:
    found = {"this": {"process": 150_000.0, "add_many": 66_000.0}, "bound": {"process": 100_000.0}}
    assert [(bar.kind, bar.peer, figure) for bar, figure in judge(found)] == [
        ("process", "bound", 1.5),
        ("process", None, 150_000.0),
        ("add_many", None, 66_000.0),
    ]
    assert [figure <= bar.most for bar, figure in judge(found)] == [False, True, False]


def test_bars_of_what_was_not_counted_are_left_out() -> None:
    assert [bar.kind for bar, _ in judge({"this": {"add_many": 1.0}})] == ["add_many"]
    assert len(BARS) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sides", "serv", "--check"], "--sides must be of server, client, got 'serv'"),
        (["--sides", "", "--check"], "--sides must be of server, client, got ''"),
        (["--sides", "client", "--check"], "--check has nothing to judge"),
        (["--kinds", "add", "--check"], "--check has nothing to judge"),
    ],
)
def test_a_check_that_would_judge_nothing_is_refused(words: list[str], told: str) -> None:
    command = [sys.executable, "-m", "benchmarks.instructions", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr


def test_the_bound_leaves_what_the_protocol_demands() -> None:
    with ValkeyServer() as server:
        run_bound(server.url, "process", 120)
        client: Any = server.client(decode_responses=True)
        (job_id, *_) = client.zrange("bull:counted:completed", 0, -1)
        assert client.zcard("bull:counted:completed") == 120
        assert client.exists("bull:counted:wait", "bull:counted:active", f"bull:counted:{job_id}:lock") == 0
        assert {"returnvalue", "finishedOn", "processedOn", "ats", "data"} <= client.hgetall(
            f"bull:counted:{job_id}"
        ).keys()
        events = [fields["event"] for _, fields in client.xrange("bull:counted:events")]
        assert {event: events.count(event) for event in events} == {
            "waiting": 120,
            "active": 120,
            "completed": 120,
        }


def test_the_base_is_a_commit_and_not_the_word_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(formal, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    git("init", "-b", "main")
    for text in ("first", "second"):
        (tmp_path / "src" / "text").write_text(text)
        git("add", "src")
        git("commit", "-m", text)
        assert (formal.checkout("main") / "text").read_text() == text
