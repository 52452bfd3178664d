"""A short ``make bench-pipeline``: it makes every figure that has a bound, from complete rows.

This checks no speed: ``BENCH=--check`` does, at full size.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from benchmarks import pipeline as bench
from benchmarks import processes

from tests.servers import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_compilers_count_when_another_thread_ends_meanwhile(tmp_path: Path) -> None:
    tasks = tmp_path / "task"
    times = " ".join(["0"] * 9)
    for number, name in (
        (1, None),
        (2, "C2 CompilerThre"),
        (3, None),
        (4, "C1 CompilerThre"),
        (5, "GC Thread#0"),
    ):
        (tasks / str(number)).mkdir(parents=True)
        if name is not None:  # an ended thread has no file any more
            (tasks / str(number) / "stat").write_text(f"{number} ({name}) S {times} 0 300 100 0")
    assert processes._compiling(tmp_path) == 2 * 400 / processes._TICK


def test_every_figure_with_a_bound_is_made(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "WARM_SECONDS", 0.5)
    monkeypatch.setattr(bench, "WARM_MOST", 0.5)
    with ValkeyServer() as server:
        found = bench.measure_ingest(spark, server, tmp_path, 4000)
        found |= bench.measure_sink(spark, server, 500)
        found |= bench.measure_live(spark, server, tmp_path, 3.0, 100)
    assert found.keys() >= bench.FLOORS.keys() | bench.CEILINGS.keys()
    assert [name for name, value in found.items() if value <= 0] == []
