"""docs/performance.md: current with its figures, honest about what is not flat, and checked by a command."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.flames import UNNAMED, Stack, client_stacks, lines, read, server_stacks, tree
from benchmarks.growth import merged
from benchmarks.hottest import functions, joined
from benchmarks.performance import __main__ as command
from benchmarks.performance.flame import flame
from benchmarks.performance.page import Figures, charts, page

from oxcart import Worker

ROOT = Path(__file__).parents[2]


def test_page_and_charts_are_current() -> None:
    assert command.outdated() == []


def test_the_first_table_is_that_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## Performance") :].split("Why it is fast")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    found = command.read()["time"]
    assert [found["head"], *found["rows"]] == [rows[0], *rows[2:]]


def growing(*costs: float) -> Figures:
    sizes = {str(10**at): {"add": cost, "process": 100.0} for at, cost in enumerate(costs)}
    part = {"commit": "abc", "day": "2026-01-01", "machine": "one core"}
    time: Any = {"method": "By hand.", "head": ["", "x"], "rows": [["add", "1"]]}
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
    figures["time"]["rows"][0][1] = "1"
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
