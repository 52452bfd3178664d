"""``oxcart pipeline …`` as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from oxcart.spark import session
from tests.cli.conftest import Commands
from tests.spark.lake.contents import words_in

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Emit = Callable[..., list[str]]
DAY_MS = 86_400_000
FIRST = 1_793_577_600_000  # 2026-11-02
SUBJECT, JOB = "subject-9c1e77", "job-5e1f04"
OBJECTIVES = """
[objectives.mail-sent]
queue = "mail"
success = 0.999

[alerts]
queue = "ops"
"""


class Shell:
    """Runs commands with a lake and a server, in this process with its Spark session or in a new one."""

    def __init__(self, lake: Path, url: str) -> None:
        self.lake = lake
        self._commands = Commands(url)
        self.env = {**os.environ, "OXCART_URL": url, "OXCART_LAKE": str(lake)}

    def start(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "oxcart.cli", "pipeline", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *words: str, code: int = 0) -> str:
        done = self._commands("pipeline", *words)
        assert done.code == code, done
        return done.out if code == 0 else done.err


@pytest.fixture
def shell(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("OXCART_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("OXCART_URL", url)  # commands set it; this restores it
    return Shell(tmp_path / "lake", url)


@pytest.fixture
def joined(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Restores the session that commands of this process join and whose settings they change."""
    monkeypatch.setattr(session, "SETTINGS", {**session.SETTINGS, **session.QUICK_SETTINGS})
    return spark


def count_readlink(folder: Path, shell: Shell) -> Path:
    """Lets programs that a command starts find a ``readlink`` that notes each call; returns the notes."""
    notes = folder / "calls"
    notes.touch()
    own = folder / "bin" / "readlink"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\necho "$*" >> {notes}\nexec {shutil.which("readlink")} "$@"\n')
    own.chmod(0o755)
    shell.env["PATH"] = f"{own.parent}:{shell.env['PATH']}"
    return notes


def life(job: str) -> list[dict[str, str]]:
    return [
        {"event": "added", "jobId": job, "name": "welcome"},
        {"event": "waiting", "jobId": job},
        {"event": "active", "jobId": job, "prev": "waiting"},
        {"event": "completed", "jobId": job, "returnvalue": "1", "prev": "active"},
    ]


def test_from_a_queue_to_a_report(
    shell: Shell, emit: Emit, store: redis.Redis, joined: SparkSession, tmp_path: Path
) -> None:
    emit("mail", *life(JOB), *life("2"), at=FIRST)
    emit("mail", {"event": "added", "jobId": JOB, "corr": SUBJECT}, suffix="ox:attempts", at=FIRST)
    shell.lake.mkdir()
    (shell.lake / "objectives.toml").write_text(OBJECTIVES)
    calls = count_readlink(tmp_path, shell)
    assert "built: 2026-11-02" in shell.start("run", "--once", "--master", "local[1]")
    assert "_checkpoints" not in calls.read_text(), "a batch starts no process to rename its files"
    assert store.hget("bull:mail:meta", "opts.maxLenEvents") == "500000"
    standing, _ = json.loads(shell.run("status", "--json"))
    assert (standing["queue"], standing["read"], standing["lag"], standing["kept"]) == ("mail", 8, 0, 500000)
    page = tmp_path / "report.html"
    assert "written" in shell.run("report", "--html", str(page), "--master", "local[1]")
    assert "mail: jobs per second" in page.read_text()
    text = "SELECT name, state, count(*) AS n FROM jobs GROUP BY 1, 2"
    assert json.loads(shell.run("query", text, "--json", "--master", "local[1]")) == [
        {"name": "welcome", "state": "completed", "n": 2}
    ]
    shown = shell.run("report", "--day", "2026-11-02")
    assert "Queues on 2026-11-02" in shown
    assert shell.run("report", "--day", "2026-11-02", "--spark") == shown
    assert shell.run("report", "--day", "2026-11-02", "--master", "local[1]") == shown
    wrong = shell.run("query", "SELECT nothing FROM jobs", "--master", "local[1]", code=2)
    assert "UNRESOLVED_COLUMN" in wrong
    assert len(wrong.splitlines()) <= 2, wrong
    shell.run("compact")
    shell.run("expire")
    jobs = pytest.importorskip("deltalake").DeltaTable(shell.lake / "jobs").to_pyarrow_table()
    assert sorted(jobs["job_id"].to_pylist()) == ["2", JOB]
    the_subject_is_erased(shell)
    assert "as before" in shell.run("detach")
    assert store.hget("bull:mail:meta", "opts.maxLenEvents") == "10000"


def the_subject_is_erased(shell: Shell) -> None:
    """In the same lake, because every build costs seconds."""
    erase = ("erase", "--correlation-id", SUBJECT, "--master", "local[1]")
    kept = {path.name for path in shell.lake.iterdir()}
    assert kept >= {"_checkpoints", "_alerts", "_snapshots"}
    assert {SUBJECT, JOB} <= words_in(shell.lake, SUBJECT, JOB)
    assert shell.run(*erase, "--dry-run") == "jobs that would be erased: 1, with 5 events and records\n"
    text = "SELECT count(DISTINCT job_id) AS n, count(*) AS m FROM events WHERE job_id IS NOT NULL"
    assert json.loads(shell.run("query", text, "--json")) == [{"n": 2, "m": 9}], "a dry run removes nothing"
    assert "jobs erased: 1, with 5 events and records; rebuilt: 2026-11-02" in shell.run(*erase)
    jobs = pytest.importorskip("deltalake").DeltaTable(shell.lake / "jobs").to_pyarrow_table()
    assert jobs["job_id"].to_pylist() == ["2"]
    assert json.loads(shell.run("query", text, "--json", "--master", "local[1]")) == [{"n": 1, "m": 4}]
    assert words_in(shell.lake, SUBJECT, JOB) == set(), "no file of the lake names the subject or its job"
    assert {path.name for path in shell.lake.iterdir()} >= {"_checkpoints", "_alerts", "_snapshots"}
    assert shell.run(*erase) == "the tables have no job of that correlation id\n"


def test_attaching_and_what_is_unread_without_spark(shell: Shell, emit: Emit) -> None:
    emit("mail", *life("1"))
    assert "mail: keeps 20000 events" in shell.run("attach", "--keep", "20000")
    assert "no queue is attached" in shell.run("status", "--name", "other")
    assert ["mail", "events", "0", "4"] in [line.split()[:4] for line in shell.run("status").splitlines()]
    assert "mail: as before" in shell.run("detach")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rebuild", "--from", "yesterday"), "--from must be a day like 2026-11-02, got 'yesterday'"),
        (("rebuild", "--from", "2026-02-30"), "--from must be a day of the calendar"),
        (("rebuild", "--from", "2026-11-02", "--to", "2026-11-01"), "is before --from"),
        (
            ("report", "--from", "2026-11-02", "--to", "2026-11-01"),
            "--to 2026-11-01 is before --from 2026-11-02",
        ),
        (("report", "--to", "2026-11-01"), "--to needs --from"),
        (("report", "--day", "2026-11-02", "--from", "2026-11-01"), "either --day, or --from and --to"),
        (("attach", "--keep", "5"), "keep must be at least 1000, got 5"),
        (("erase", "--correlation-id", ""), "correlation_id must be text of 1 to 256 printable characters"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    shell: Shell, emit: Emit, words: tuple[str, ...], message: str
) -> None:
    emit("mail", *life("1"))
    assert message in shell.run(*words, code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("compact",),
        ("expire",),
        ("query", "SELECT 1"),
        ("report",),
        ("rebuild", "--from", "2026-11-02"),
        ("erase", "--correlation-id", "ada"),
    ],
)
def test_without_tables_it_says_how_to_get_some(shell: Shell, words: tuple[str, ...]) -> None:
    assert "there are no tables in" in shell.run(*words, code=1)


def test_without_queues_it_says_so(shell: Shell) -> None:
    assert shell.run("attach") == shell.run("detach") == "there are no queues yet\n"
