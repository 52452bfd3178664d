"""`make bench-gate`: a job costs the server no more than the baseline that is committed."""

from __future__ import annotations

import shutil

import pytest
from benchmarks import gate

BASELINE = {"add_many": 1_000, "process": 2_000}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("callgrind_control") is None, reason="valgrind, a Debian package, is missing"
)
def test_a_job_costs_the_server_no_more_than_the_baseline() -> None:
    _, faults = gate.gate(gate.read())
    assert faults == []


@pytest.mark.parametrize("kind", gate.KINDS)
def test_over_two_percent_more_is_a_fault(kind: str) -> None:
    found = {name: cost * 1.019 for name, cost in BASELINE.items()}
    assert gate.faults(found, BASELINE) == []
    found[kind] = BASELINE[kind] * 1.021
    (fault,) = gate.faults(found, BASELINE)
    assert fault.startswith(f"{kind}: ")
    assert "1.021 times" in fault
    assert "--renew" in fault


def counting(monkeypatch: pytest.MonkeyPatch, *costs: float) -> None:
    rounds = iter(costs)

    async def measure() -> gate.Figures:
        return {"add_many": 1_000.0, "process": next(rounds)}

    monkeypatch.setattr(gate, "measure", measure)


def test_a_late_client_gets_another_round(monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch, 2_100, 2_010)
    assert gate.gate(BASELINE) == ({"add_many": 1_000.0, "process": 2_010}, [])


def test_costs_that_every_round_shows_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch, *[2_100] * gate.ROUNDS)
    assert len(gate.gate(BASELINE)[1]) == 1
