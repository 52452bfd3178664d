"""The simulation behind docs/scaling.md agrees with what can be calculated by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.fleet import Costs, Fleet, Plan
from benchmarks.scaling import crews_on_masters, measure, write

COSTS = Costs(server_call=50e-6, server_job=15e-6, server_add=10e-6, worker_call=100e-6, worker_job=30e-6)


def near(value: float) -> object:
    return pytest.approx(value, rel=0.05)


def test_one_slot_takes_turns_with_its_server() -> None:
    found = Fleet(Plan(concurrency=1, way=200e-6), COSTS).run(1.0)
    # Each call ends one job and claims the next.
    assert found.throughput == near(1 / (100e-6 + 200e-6 + 50e-6 + 15e-6 + 30e-6))
    assert found.calls == near(1.0)


def test_handlers_that_wait_limit_a_worker_with_few_slots() -> None:
    found = Fleet(Plan(concurrency=10, handler=0.1), COSTS).run(2.0, warm=0.5)
    assert found.throughput == near(10 / 0.1)


def test_a_worker_is_limited_by_its_processor() -> None:
    found = Fleet(Plan(concurrency=200, way=0.0), COSTS).run(1.0)
    assert found.throughput == near(1 / (30e-6 + 100e-6 / 50))
    assert found.worker_load == near(1.0)


@pytest.mark.parametrize("masters", [1, 4])
def test_masters_are_the_limit_of_many_workers(masters: int) -> None:
    found = Fleet(Plan(workers=10 * masters, masters=masters), COSTS).run(0.5)
    assert found.throughput == pytest.approx(masters / (15e-6 + 50e-6 / 50), rel=0.1)
    assert found.server_load > 0.9


def test_shared_processors_are_a_limit_as_well() -> None:
    found = Fleet(Plan(workers=4, cores=2), COSTS).run(0.5)
    assert found.throughput == near(2 / (15e-6 + 50e-6 / 50 + 30e-6 + 100e-6 / 50))


def test_what_is_added_is_processed_and_waits_longer_under_load() -> None:
    calm = Fleet(Plan(workers=2, rate=1_000), COSTS).run(2.0)
    busy = Fleet(Plan(workers=2, rate=30_000), COSTS).run(2.0)
    assert calm.throughput == near(1_000)
    assert busy.throughput == near(30_000)
    assert 0 < calm.wait_p50 < calm.wait_p99 < busy.wait_p99
    assert busy.calls < calm.calls, "batches grow by themselves"


def test_calls_are_smaller_when_handlers_wait() -> None:
    at_once = Fleet(Plan(handler=0.05, parts=1), COSTS).run(4.0, warm=0.5)
    apart = Fleet(Plan(handler=0.05), COSTS).run(4.0, warm=0.5)
    assert apart.throughput == near(at_once.throughput)
    assert apart.calls > 1.2 * at_once.calls


def test_a_server_with_pauses_does_its_work_with_cold_caches() -> None:
    cold = Costs(50e-6, 15e-6, 10e-6, 100e-6, 30e-6, server_cold=300e-6)
    calm, busy = Plan(concurrency=10, handler=0.1), Plan(workers=10)
    assert Fleet(calm, cold).run(5.0).server_load > 1.5 * Fleet(calm, COSTS).run(5.0).server_load
    assert Fleet(busy, cold).run(0.5).throughput == near(Fleet(busy, COSTS).run(0.5).throughput)


def test_a_run_can_be_repeated() -> None:
    plan = Plan(workers=3, masters=2, rate=5_000)
    assert Fleet(plan, COSTS).run(0.5) == Fleet(plan, COSTS).run(0.5)


def test_parts_of_a_page_are_replaced(tmp_path: object) -> None:

    page = Path(str(tmp_path)) / "page.md"
    page.write_text("before\n<!-- one -->\nold\n<!-- end -->\nafter\n")
    write(page, {"one": "new"})
    assert page.read_text() == "before\n<!-- one -->\nnew\n<!-- end -->\nafter\n"


def test_idle_workers_load_every_master() -> None:
    costs = replace(COSTS, server_idle=1e-3)
    plan = Plan(workers=20, masters=2, handler=1.0, rate=1)
    assert Fleet(plan, costs).run(10.0).server_load == pytest.approx(0.02, abs=0.005)


def test_a_real_run_spreads_its_jobs_over_several_masters() -> None:
    run, added = measure(Plan(workers=1, masters=2, concurrency=10), 400)
    assert run.throughput > 0
    assert 0 < run.calls < 1
    assert run.server > 0
    assert added > 0


def test_crews_on_masters_stay_below_their_bounds() -> None:
    (points,) = crews_on_masters(COSTS, 0.0, [20], [1, 100]).values()
    (_, few), (_, many) = points
    assert few == pytest.approx(1 / (15e-6 + 10e-6 + 50e-6 / 50), rel=0.1), "one master is the limit"
    bound = 20 / (30e-6 + 100e-6 / 50)
    assert 0.5 * bound < many < bound, "the workers are the limit, and wait for their calls in between"
