"""``oxcart demo``: plays to its end and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oxcart.cli import demo_app
from oxcart.cli.demo_story import Story, percentile
from oxcart.model.event import Event
from tests.cli.conftest import Program
from tests.cli.test_work import is_gone
from tests.servers import wait_until

Start = Callable[..., Program]


@pytest.fixture
def stage() -> Iterator[dict[str, str]]:
    """Where the demo puts its folder: a path that leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="ox", ignore_cleanup_errors=True) as place:
        yield {"TMPDIR": place, "OXCART_URL": ""}


def left_behind(stage: dict[str, str]) -> list[str]:
    return os.listdir(stage["TMPDIR"])


def processes_of(stage: dict[str, str]) -> list[int]:
    """Processes whose environment or command names the demo's folder."""
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


def test_it_plays_to_its_end(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "500", "--workers", "2", **stage)
    assert program.wait(100) == 0
    text = "\n".join(program.seen)
    assert "embedded Valkey at unix://" in text
    assert len(re.findall(r"worker process \d is \d+", text)) == 2
    assert re.search(r"^ +\d+\.\d s  waiting \d", text, re.MULTILINE)
    for words in ("jobs/s", "retries", "wait p50 / p99", "run p50 / p99"):
        assert words in text
    assert left_behind(stage) == []
    wait_until(lambda: processes_of(stage) == [], "no process left")


def test_the_summary_as_json(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "250", "--json", **stage)
    assert program.wait(100) == 0
    told = json.loads("\n".join(program.seen))
    assert told["as_expected"] is True
    assert told["completed"] + told["failed"] == told["jobs"] == 250
    assert told["failed"] == demo_app.failing(250)
    assert told["retries"] == sum(
        data["failures"] for name, data, _ in demo_app.orders(0, 250) if name == "payment"
    )
    assert told["stalled"] == 0
    assert sum(told["workers"].values()) == told["completed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_takes_everything_down(
    start: Start, stage: dict[str, str], number: signal.Signals
) -> None:
    program = start("demo", "--no-report", "--jobs", "20000", **stage)  # it must not end by itself
    program.wait_for("worker process 1 is")
    program.wait_for("active")
    assert program.end(number) == 130
    assert left_behind(stage) == []
    wait_until(lambda: processes_of(stage) == [], "no process left")


def test_a_killed_demo_leaves_no_process(start: Start, stage: dict[str, str]) -> None:
    program = start("demo", "--no-report", "--jobs", "20000", **stage)  # it must not end by itself
    program.wait_for("worker process 1 is")
    program.wait_for("active")
    program.kill()
    wait_until(lambda: processes_of(stage) == [], "no process left")


class TestStory:
    def tell(self, *events: tuple[str, str, int]) -> Story:
        story = Story()
        for name, job, at in events:
            fields = {"event": name, "jobId": job, "returnvalue": '{"worker": "w"}'}
            story.tell(Event.parse(f"{at}-0", fields, "q"))
        return story

    def test_a_job_that_was_tried_twice(self) -> None:
        story = self.tell(
            ("added", "1", 1000),
            ("waiting", "1", 1000),
            ("active", "1", 1010),
            ("delayed", "1", 1030),
            ("waiting", "1", 1530),
            ("active", "1", 1535),
            ("completed", "1", 1540),
        )
        assert (story.completed, story.failed, story.retries) == (1, 0, 1)
        assert story.waits == [10, 5]
        assert story.runs == [20, 5]
        assert story.by_worker == {"w": 1}
        assert story.rate(2000) == 1

    def test_percentiles(self) -> None:
        assert percentile([], 50) == 0
        assert percentile([7], 99) == 7
        assert percentile(list(range(1, 101)), 50) == 50
        assert percentile(list(range(1, 101)), 99) == 99
