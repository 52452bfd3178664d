"""``oxcart demo``: runs to its end, and leaves no processes and no data."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oxcart.cli.demo import shop
from tests.cli.conftest import Program
from tests.cli.test_work import is_gone
from tests.servers import wait_until

Start = Callable[..., Program]


@pytest.fixture
def stage() -> Iterator[dict[str, str]]:
    """The demo's environment. Its folder has a short path, because the path of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="ox", ignore_cleanup_errors=True) as place:
        yield {"TMPDIR": place, "OXCART_URL": ""}


def left_behind(stage: dict[str, str]) -> list[str]:
    return os.listdir(stage["TMPDIR"])


def processes_of(stage: dict[str, str]) -> list[int]:
    """Returns the processes whose environment or command names the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                facts = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if stage["TMPDIR"].encode() in facts and not is_gone(int(entry.name)):
                found.append(int(entry.name))
    return found


def test_demo_runs_to_its_end(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "500", "--workers", "2", **stage)
    assert program.wait(100) == 0
    text = "\n".join(program.seen)
    assert "embedded Valkey at unix://" in text
    assert len(re.findall(r"worker process \d is \d+", text)) == 2
    assert re.search(r"^ +\d+\.\d s  scheduled \d", text, re.MULTILINE)
    for words in ("jobs/s", "retries", "wait p50 / p99", "run p50 / p99"):
        assert words in text
    assert left_behind(stage) == []
    wait_until(lambda: processes_of(stage) == [], "no process left")


def test_json_summary_has_the_planned_outcomes(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "250", "--json", **stage)
    assert program.wait(100) == 0
    summary = json.loads("\n".join(program.seen))
    assert summary["as_expected"] is True
    assert summary["completed"] + summary["failed"] == summary["jobs"] == 250
    assert summary["failed"] == shop.failing(250)
    assert summary["retries"] == sum(
        data["failures"] for name, data, _ in shop.orders(0, 250) if name == "payment"
    )
    assert summary["stalled"] == 0
    assert sum(summary["workers"].values()) == summary["completed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_everything(
    start: Start, stage: dict[str, str], number: signal.Signals
) -> None:
    program = start("demo", "--no-report", "--jobs", "20000", **stage)  # it must not end by itself
    program.wait_for("worker process 1 is")
    program.wait_for("running")
    assert program.end(number) == 130
    assert left_behind(stage) == []
    wait_until(lambda: processes_of(stage) == [], "no process left")


def test_a_killed_demo_leaves_no_process(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "20000", **stage)  # it must not end by itself
    program.wait_for("worker process 1 is")
    program.wait_for("running")
    program.kill()
    wait_until(lambda: processes_of(stage) == [], "no process left")
