"""Four kinds of worker and producer on one set of queues, while our workers are killed.

`make mixed-fleet` runs it with 20 000 jobs. `OXCART_MIXED=5000` sets the number here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.interop.mixed.fleet import run
from tests.interop.mixed.plan import PLENTY, make_plan
from tests.nodes import VERSION_VARIABLE, node_missing

pytestmark = [pytest.mark.node]

JOBS = int(os.environ.get("OXCART_MIXED", "2000"))


@pytest.mark.parametrize("seed", range(5))
def test_killed_workers_cannot_use_up_a_job_that_must_complete(seed: int) -> None:
    """With us a stall uses an attempt, so a planned job needs attempts to spare for kills."""
    jobs = make_plan(seed, JOBS).jobs().values()
    few = [job.id for job in jobs if job.fate == "completed" and job.options["attempts"] < PLENTY]
    assert few == []


@pytest.mark.timeout(240)
@pytest.mark.skipif(VERSION_VARIABLE in os.environ, reason="it is about the pinned versions")
async def test_a_mixed_fleet_finishes_every_job_though_our_workers_are_killed(tmp_path: Path) -> None:
    """Every job ends as planned, every parent is released once, no schedule fires twice or stops.

    A job has extra runs only if a killed worker held it, and never runs twice at once.
    """
    missing = node_missing()
    if missing is not None:
        pytest.skip(missing)
    result = await run(tmp_path, JOBS, kills=3)
    print(result)
    assert result.faults == []
    assert result.kills == 3
    assert result.stalled > 0, "workers were killed at work"
    # Every worker took part; their shares depend on their speed.
    assert set(result.runs) == {"node5", "node6", "pypi", "oxcart"}
    assert min(result.runs.values()) >= result.jobs / 100, result.runs
