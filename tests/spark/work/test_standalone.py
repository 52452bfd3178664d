"""Spark applications as jobs on a standalone cluster: one succeeds, one is cancelled on its executors."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from oxcart import Worker
from oxcart.errors import JobFailed
from tests.signals import eventually
from tests.spark.standalone import Standalone
from tests.spark.work import clustered


@pytest_asyncio.fixture
async def apps(url: str, cluster: Standalone, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModuleType]:
    """The applications of the cluster, with a worker that runs one at a time."""
    monkeypatch.setenv(clustered.MASTER, cluster.url)
    module = importlib.reload(clustered)
    queue = module.clustered
    monkeypatch.setattr(queue._core, "_urls", [url])
    monkeypatch.setattr(queue._core, "_server", None)
    async with Worker(queue, concurrency=1, lock_duration=30).running():
        yield module
    await queue.close()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster"), workers=2) as made:
        yield made


def is_gone(pid: str) -> bool:
    return not Path("/proc", pid).exists()


async def test_applications_run_and_are_cancelled_on_a_cluster(
    apps: ModuleType, cluster: Standalone, tmp_path: Path
) -> None:
    notes, target, never = tmp_path / "notes", tmp_path / "out", tmp_path / "never"
    notes.mkdir()
    endless = await apps.stuck.enqueue(notes=str(notes), to=str(never))
    await eventually(lambda: len(list(notes.iterdir())) == 2, "tasks run on both executors", 300)
    assert len(cluster.executors()) == 2
    await endless.cancel("enough")
    with pytest.raises(JobFailed, match="enough"):
        await endless.result(100)
    for note in notes.iterdir():
        await eventually(partial(is_gone, note.name), f"task {note.name} ends", 60)
    await eventually(lambda: not cluster.executors(), "the cluster has taken its executors back", 60)
    assert {one.name for one in tmp_path.iterdir()} == {"notes"}, "nothing of its output is left"

    job = await apps.spread.enqueue(rows=100, to=str(target))  # the cores are free again
    result = await job.result(300)
    assert result["rows"] == pq.read_table(target).num_rows == 100
    assert len(result["pids"]) == 2, "each executor ran a task"
    progress = (await job.get()).progress["spark"]
    assert progress["application"].startswith("app-"), "an id of the cluster's master"
    assert progress["metrics"]["output_rows"] == 100
    assert {one.name for one in tmp_path.iterdir()} == {"notes", "out"}
    await eventually(lambda: not cluster.executors(), "an ended application has no executor", 60)
