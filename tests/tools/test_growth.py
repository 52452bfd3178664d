"""`make bench-growth` finds a cost that grows."""

from __future__ import annotations

import pytest
from benchmarks.growth import FLAT, QUESTIONS, judge

QUEUED = next(question for question in QUESTIONS if question.name == "queued")
PAYLOAD = next(question for question in QUESTIONS if question.name == "payload")


@pytest.mark.parametrize("kind", ["add", "process"])
def test_a_cost_that_grows_is_a_fault(kind: str) -> None:
    figures = {1: {"add": 100.0, "process": 100.0}, 1_000: {"add": 100.0, "process": 100.0}}
    assert judge(QUEUED, figures) == []
    figures[1_000][kind] *= FLAT + 0.01
    (fault,) = judge(QUEUED, figures)
    assert f"queued, {kind}: 1 to 1,000" in fault


def by_bytes(*costs: float) -> dict[int, dict[str, float]]:
    return {100 * 10**at: {"add": cost, "process": 100.0} for at, cost in enumerate(costs)}


def test_a_payload_may_cost_by_its_bytes() -> None:
    assert judge(PAYLOAD, by_bytes(60_000, 65_000, 110_000, 560_000)) == []


def test_a_byte_that_costs_more_in_large_payloads_is_a_fault() -> None:
    # 5 instructions a byte, then 6. A cost divided by its bytes would fall from 600 to 7.
    (fault,) = judge(PAYLOAD, by_bytes(60_000, 65_000, 110_000, 650_000))
    assert fault == "payload, add: a byte beyond 10,000 costs 1.20 times as much as one below 10,000"


def test_bytes_that_cost_less_than_the_spread_of_counts_are_not_judged() -> None:
    assert judge(PAYLOAD, by_bytes(60_000, 61_000, 110_000, 600_000)) == []
