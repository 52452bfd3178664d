"""Schedules of faults: a seed reproduces them, and a failing one is shrunk."""

from __future__ import annotations

import pytest

from tests.checker import nemesis
from tests.checker.nemesis import KINDS, Fault, make_faults
from tests.checker.plan import make_plan
from tests.checker.shrinker import shrink

FAULTS = [Fault(float(n), "kill", f"oxcart-{n}") for n in range(12)]


def test_a_seed_reproduces_plan_and_faults() -> None:
    peers = ("node5", "node6")
    assert make_plan(7, 20, peers) == make_plan(7, 20, peers)
    assert make_faults(7, 60, peers) == make_faults(7, 60, peers)
    assert make_plan(7, 20, peers) != make_plan(8, 20, peers)
    assert make_faults(7, 60, peers) != make_faults(8, 60, peers)


def test_faults_survive_the_command_line() -> None:
    made = make_faults(7, 60, ())
    assert nemesis.read(nemesis.dump(made)) == made


def test_every_kind_comes_and_peers_are_spared_a_full_server() -> None:
    assert {fault.kind for fault in make_faults(1, 60, ())} == set(KINDS)
    assert {fault.kind for fault in make_faults(1, 60, ("node5",))} == set(KINDS) - {"fill"}


@pytest.mark.parametrize("needed", [[], [0], [11], [3, 8], [2, 5, 6]])
async def test_shrinking_leaves_the_faults_that_are_needed(needed: list[int]) -> None:
    runs = 0

    async def fails(faults: list[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return {FAULTS[number] for number in needed} <= set(faults)

    assert await shrink(FAULTS, fails) == [FAULTS[number] for number in needed]
    assert runs <= 40


async def test_shrinking_ends_when_its_runs_are_used_up() -> None:
    runs = 0

    async def fails(faults: list[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return False

    assert await shrink(FAULTS, fails, most=5) == FAULTS
    assert runs == 5
