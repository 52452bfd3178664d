"""The checker itself: a short run against real servers holds, and the broken builds fit the source.

`make checker` runs it for minutes. `make checker-mutants` tries out every broken build: whether a short run
meets its fault depends on the machine, so no test here judges it. `test_invariants.py` shows what is noticed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checker import clock, disk
from tests.checker.invariants import INVARIANTS, Violation
from tests.checker.mutants import broken_builds
from tests.checker.nemesis import Fault
from tests.checker.plan import make_plan
from tests.checker.report import broken_in, report, summary
from tests.checker.rounds import Result, run
from tests.nodes import node_missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Every fault that peers survive, each once, in ten seconds.
FAULTS = [
    Fault(0.5, "drop", "ours", count=4),
    Fault(1.0, "kill", "oxcart-1"),
    Fault(2.0, "cut", "theirs"),
    Fault(2.5, "flush", "server"),
    Fault(3.0, "stop", "oxcart-2", 3.0),
    Fault(6.0, "crash", "server"),
    Fault(7.0, "kill", "node5-1"),
    Fault(8.0, "down", "ours", 0.5),
    Fault(9.0, "hold", "theirs", 0.5),
]
#: The others, each once, in twelve seconds.
OWN_FAULTS = [
    Fault(0.5, "fill", "server", 1.0),
    Fault(2.0, "step", "server", 15.0),
    Fault(3.0, "kill", "oxcart-2"),
    Fault(4.0, "disk", "server", 1.0),
    Fault(6.0, "delay", "ours", 0.8),
    Fault(7.0, "freeze", "server", 1.5),
    Fault(9.0, "restart", "server"),
    Fault(10.0, "step", "server", -15.0),
    Fault(11.0, "drop", "ours", count=3),
]
left_out = {"step": clock.missing(), "disk": disk.missing()}


@pytest.mark.node
@pytest.mark.skipif(bool(node_missing()), reason=str(node_missing()))
async def test_a_short_run_with_peers_breaks_nothing(tmp_path: Path) -> None:
    result = await run(tmp_path, 3, 10.0, FAULTS, ("node5", "node6"))
    print(summary(result))
    assert result.violations == []
    assert "oxcart" in result.runs
    assert {"node5", "node6"} & set(result.runs)
    assert result.told["acked"] > 50
    assert "| acknowledged | 0 |" in report([result])


async def test_a_round_without_peers_breaks_nothing_either(tmp_path: Path) -> None:
    """The faults that peers do not survive, and the rest of the server's. Spark would take minutes."""
    faults = [fault for fault in OWN_FAULTS if not left_out.get(fault.kind)]
    result = await run(tmp_path, 6, 12.0, faults, ())
    print(summary(result))
    assert result.violations == []
    assert result.told["acked"] > 50


async def test_acknowledged_jobs_survive_failovers(tmp_path: Path) -> None:
    faults = [
        Fault(1.0, "failover", "server", 0.5),
        Fault(4.0, "kill", "oxcart-1"),
        Fault(5.0, "crash", "server"),
        Fault(7.0, "failover", "server", 1.0),
    ]
    result = await run(tmp_path, 9, 10.0, faults, ())
    print(summary(result))
    assert result.violations == []
    assert result.told["acked"] > 40


def test_every_invariant_has_a_broken_build() -> None:
    """An empty record of events needs none: no product fault trims a stream that keeps a million."""
    builds = broken_builds()
    assert {one.invariant for one in builds} == set(INVARIANTS) - {"whole record"}
    assert len({one.name for one in builds}) == len(builds)
    for one in builds:
        one.changed()  # the snippet is still there
        queue, _, kind = one.only.partition("/")
        rows = make_plan(1, 9.0, (), one.only).tops
        assert {(row.queue, row.kind) for row in rows} == {(queue, kind)}


def test_broken_invariants_are_read_from_the_report_however_many_violations_one_has() -> None:
    violations = [Violation("limits", f"job {n}") for n in range(60)] + [Violation("lake", "gap")]
    result = Result(1, (), 1.0, [], violations=violations, dropped=7, has_lake=True)
    printed = f"{summary(result)}\n{report([result])}"
    assert "lake: gap" not in printed  # the summary is cut
    assert broken_in(printed) == {"limits", "lake"}


def test_a_lake_that_took_no_part_has_no_count() -> None:
    assert "| lake | – |" in report([Result(1, (), 1.0, [])])
    assert "| lake | 0 |" in report([Result(1, (), 1.0, [], has_lake=True), Result(2, (), 1.0, [])])
