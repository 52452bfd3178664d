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


def test_a_payload_may_cost_by_its_bytes() -> None:
    figures = {100: {"add": 100.0, "process": 100.0}, 1_000: {"add": 1_000.0, "process": 100.0}}
    assert judge(PAYLOAD, figures) == []
    figures[1_000]["add"] *= FLAT + 0.01
    assert len(judge(PAYLOAD, figures)) == 1
