"""docs/performance.md: current with its figures, honest about what is not flat, and checked by a command."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.flames import UNNAMED, Stack, client_stacks, lines, read, server_stacks, tree
from benchmarks.growth import merged
from benchmarks.hottest import functions, joined
from benchmarks.performance import __main__ as command
from benchmarks.performance import counted, timed
from benchmarks.performance.flame import flame
from benchmarks.performance.page import charts, page
from benchmarks.performance.table import Figures
from benchmarks.report import FLOORS, medians, write
from benchmarks.workloads import Round

from oxcart import Worker

ROOT = Path(__file__).parents[2]


def test_page_and_charts_are_current() -> None:
    assert command.outdated() == []


def test_the_table_of_the_readme_is_current() -> None:
    text = (ROOT / "README.md").read_text()
    assert timed.in_readme(text, command.read()) == text


def a_round(number: int, system: str, version: str, jobs_per_s: float) -> dict[str, Any]:
    one = Round(
        "process_c100", system, version, 500, 1.0, jobs_per_s, 20.0, 10.0, 5.0, 1.0, {}, number=number
    )
    return one.facts()


def test_figures_in_time_are_taken_from_a_run(tmp_path: Path) -> None:
    rates = {0: 30.0, 1: 25.0, 2: 40.0}
    rounds = [a_round(number, "oxcart", "0.1.0", rate) for number, rate in rates.items()]
    rounds += [a_round(number, "node-bullmq", "5.62.0", 10.0) for number in rates]
    path = tmp_path / "build" / "bench.json"
    write(path, medians([Round(**row) for row in rounds]), [Round(**row) for row in rounds])
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "m"],
        cwd=tmp_path,
        check=True,
    )
    figures: Figures = {"short": {}}
    command.take(figures, ["time"], "one core", root=tmp_path)
    text = "\n".join(timed.timed(figures))
    assert "500 jobs, 3 rounds." in text
    assert "| process, concurrency 100 (jobs/s) | 30 | 10 | – |" in text
    assert "| process_c100: jobs_per_s ≥ 3.2× node-bullmq 5.62.0 | 3.00 | 2.50 to 4.00 | – |" in text
    assert "server_us_per_job" in text  # as long as Node's
    assert "add_many: jobs_per_s" not in text  # not measured
    figures["time"]["figures"]["floors"] = []
    assert "All bars on time are met." in "\n".join(timed.timed(figures))


def test_every_bar_that_was_missed_has_a_reason() -> None:
    figures = command.read()
    missed = {one["floor"] for one in figures["time"]["figures"]["floors"] if one["met"] is False}
    assert missed == set(figures["short"])
    assert missed <= {floor.words for floor in FLOORS}
    assert all(figures["short"].values())


def test_counted_instructions_are_compared_and_judged() -> None:
    found: Any = {
        "base": "abc",
        "server": {"this": {"process": 140.0}, "base": {"process": 200.0}, "bound": {"process": 100.0}},
        "client": {"this": {"process": 50.0}, "base": {"process": 100.0}},
    }
    part = {"commit": "def", "day": "2026-01-01", "machine": "one core", "figures": found}
    text = "\n".join(counted.counted({"instructions": part}))
    assert "| claim and complete | 140 | 200 (0.70×) | 100 (1.40×) |" in text
    assert "| claim and complete | 50 | 100 (0.50×) |" in text
    assert "| 1.40 times | **not kept** |" in text
    assert "and all kinds of work reach it" in text
    found["client"]["this"]["process"] = 76.0
    assert "these fell short: claim and complete." in "\n".join(counted.counted({"instructions": part}))


def growing(*costs: float) -> Figures:
    sizes = {str(10**at): {"add": cost, "process": 100.0} for at, cost in enumerate(costs)}
    part = {"commit": "abc", "day": "2026-01-01", "machine": "one core"}
    time = {**part, "figures": {"rounds": 1, "jobs": 1, "results": [], "floors": []}}
    return {"time": time, "growth": {**part, "figures": {"queued": {"unit": "jobs", "sizes": sizes}}}}


@pytest.mark.parametrize(
    ("last", "word"), [(109.0, "Flat: "), (120.0, "**Not flat**: adding costs 1.20 times")]
)
def test_the_page_says_whether_a_cost_is_flat(last: float, word: str) -> None:
    assert word in page(growing(100.0, 101.0, last))


def test_charts_are_pictures_with_every_size() -> None:
    (text,) = charts(growing(100.0, 101.0, 102.0)).values()
    drawn = ElementTree.fromstring(text)
    labels = {one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"1", "10", "100"} <= labels


def test_changed_figures_make_the_check_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "performance").mkdir(parents=True)
    for path in (ROOT / "docs" / "performance").glob("*.svg"):
        (tmp_path / "docs" / "performance" / path.name).write_text(path.read_text())
    figures = command.read()
    (tmp_path / "docs" / "performance.json").write_text(json.dumps(figures))
    (tmp_path / "docs" / "performance.md").write_text(page(figures))
    assert command.outdated(tmp_path) == []
    figures["time"]["figures"]["jobs"] = 1
    (tmp_path / "docs" / "performance.json").write_text(json.dumps(figures))
    assert command.outdated(tmp_path) == ["docs/performance.md"]
    monkeypatch.setattr(command, "outdated", lambda: ["docs/performance.md"])
    assert command.main(["--check"]) == 1
    assert "make performance" in capsys.readouterr().out


def test_parts_of_a_growth_run_are_merged() -> None:
    one: Any = {"queued": {"unit": "jobs", "sizes": {"1": {"add": 1.0}, "10": {"add": 2.0}}}}
    other: Any = {
        "queued": {"unit": "jobs", "sizes": {10: {"add": 3.0}}},
        "lanes": {"unit": "lanes", "sizes": {}},
    }
    assert merged(one, other)["queued"]["sizes"] == {"1": {"add": 1.0}, "10": {"add": 3.0}}
    assert set(merged(one, other)) == {"queued", "lanes"}
    assert one["queued"]["sizes"]["10"] == {"add": 2.0}


CALLGRIND = """
fn=(1) lpInsert
16 20
+3 5
cfn=(2) 0x0000000000636bf0
calls=2 40
16 900
* 7
fn=(2)
16 100
fn=(3) 0x0000000000636bf0'2
16 50
"""


def test_functions_are_counted_by_themselves_and_joined_to_things() -> None:
    found = functions(CALLGRIND)
    assert found == Counter({"0x0000000000636bf0": 100, "0x0000000000636bf0'2": 50, "lpInsert": 32})
    assert joined(found) == Counter(
        {"Lua itself: interpreter, tables, strings": 150, "small lists and hashes": 32}
    )


def test_stacks_of_a_server_begin_at_its_loop_and_join_what_has_no_name() -> None:
    found: Counter[str] = Counter()
    found["xaddCommand'0x01'0x02'evalShaCommand'aeMain'main"] = 600
    found["lua_pcall'0x02'evalShaCommand'aeMain'main"] = 300
    found["0x02'evalShaCommand'aeMain'main'2"] = 100
    (script,) = tree(server_stacks(found))
    assert (script["name"], script["cost"]) == ("evalShaCommand", 1000.0)
    (unnamed,) = script["under"]
    assert unnamed["name"] == UNNAMED
    assert [(one["name"], one["cost"]) for one in unnamed["under"]] == [
        ("xaddCommand", 600.0),
        ("lua_pcall", 300.0),
    ]


def test_stacks_of_a_client_are_named_by_file_and_grouped_by_room() -> None:
    stacks = Counter({(tree.__code__, Worker.run.__code__): 2, (tree.__code__,): 1})
    (outer,) = tree(client_stacks(stacks))
    (inner,) = outer["under"]
    assert (outer["name"], outer["group"], outer["cost"]) == ("flames.tree", "the rest", 1000.0)
    assert (inner["name"], inner["group"], inner["cost"]) == ("worker.Worker.run", "engine", 666.7)


def test_a_tree_is_written_and_read_again() -> None:
    stacks: Counter[Stack] = Counter(
        {(("a [0]", "x"), ("b", "y")): 2, (("a [0]", "x"), ("c", "y")): 1, (("d", "x"),): 1}
    )
    frames = tree(stacks)
    assert list(lines(frames)) == ["0 750.0 a [0] [x]", "1 500.0 b [y]", "1 250.0 c [y]", "0 250.0 d [x]"]
    assert read(list(lines(frames))) == frames


def test_small_frames_are_left_out() -> None:
    stacks: Counter[Stack] = Counter({(("a", "x"),): 999, (("b", "x"),): 1})
    assert [frame["name"] for frame in tree(stacks)] == ["a"]


def test_a_flame_graph_is_a_picture_of_frames_as_wide_as_their_costs() -> None:
    drawn = ElementTree.fromstring(flame("F", read(["0 500.0 a [x]", "1 250.0 <b> [y]"])))
    rects = {
        one[0].text: one
        for one in drawn.iter("{http://www.w3.org/2000/svg}rect")
        if len(one)  # with a tooltip
    }
    lower, upper = rects["a: 50.0 %"], rects["<b>: 25.0 %"]
    assert float(lower.attrib["width"]) == 2 * float(upper.attrib["width"]) == 480
    assert float(lower.attrib["y"]) > float(upper.attrib["y"])


def test_every_listed_thing_says_what_was_done_about_it() -> None:
    rows = re.findall(r"^\| (.+?) \| [\d,]+ \| \d+% \| (.+) \|$", page(command.read()), re.MULTILINE)
    assert len(rows) == 10
    assert all(done != "–" for _, done in rows)
