"""Spark applications as jobs: results, progress, logs, metrics, output, and ends that leave nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from oxcart import Queue, Worker
from oxcart.errors import JobFailed, ValidationError
from oxcart.spark.work.output import MARK
from tests.servers import wait_until
from tests.signals import eventually
from tests.spark.conftest import long
from tests.spark.work.applications import CONF, apps, count, endless, half, reporting

SCRIPT = Path(__file__).with_name("script.py")


@pytest_asyncio.fixture
async def worker(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """A worker that runs two applications at once."""
    monkeypatch.setattr(apps._core, "_urls", [url])
    monkeypatch.setattr(apps._core, "_server", None)
    made = Worker(apps, concurrency=2, lock_duration=30)
    async with made.running():
        yield made
    await apps.close()


def rows(folder: Path) -> int:
    return int(pq.read_table(folder).num_rows)


def left_in(folder: Path, *published: str) -> set[str]:
    return {one.name for one in folder.iterdir()} - set(published)


async def test_an_application_reports_what_it_does_and_publishes_its_output(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = apps.job(run="spark", master="local[1]", conf=CONF, name="script")(SCRIPT)
    written, retried = tmp_path / "out" / "counts", tmp_path / "retried"
    retried.mkdir()
    (retried / "old.parquet").write_text("yesterday's")
    first = await count.enqueue(rows=1000, to=str(written))
    second = await half.enqueue(to=str(retried), how="raise")
    third = await script.enqueue(args=["7", str(tmp_path / "scripted")])
    result = await first.result(200)
    assert result["rows"] == rows(written) == 10
    assert result["pid"] != os.getpid()
    progress = (await first.get()).progress
    assert progress["percent"] == 100
    facts = progress["spark"]
    assert facts["ui"].startswith("http://")
    assert facts["outputs"] == [str(written)]
    metrics = facts["metrics"]
    assert metrics["output_rows"] == 10
    assert metrics["input_rows"] >= 1000
    assert min(metrics[name] for name in ("stages", "output_bytes", "shuffle_write_bytes")) > 0
    text = "\n".join(await first.logs())
    assert "counting 1000" in text
    assert f"WARNING etl: a warning of {first.id}" in text
    assert facts["application"] in text
    # The first attempt had written everything when it failed; only the second one is there.
    assert await second.result(200) == 2
    assert rows(retried) == 10
    assert MARK in {one.name for one in retried.iterdir()}
    assert "old.parquet" not in {one.name for one in retried.iterdir()}
    assert (await third.result(200))["metrics"]["output_rows"] == 7
    assert rows(tmp_path / "scripted") == 7
    assert left_in(tmp_path, "out", "retried", "scripted") == set()
    assert left_in(tmp_path / "out", "counts") == set()


@pytest.mark.parametrize(
    ("own", "message", "kept"),
    [
        (40, "half of it", {"percent": 40, "message": "half of it"}),
        ({"phase": "load", "metrics": 1}, None, {"phase": "load", "metrics": 1}),
    ],
)
async def test_the_progress_of_a_handler_keeps_what_spark_did(
    worker: Worker, tmp_path: Path, own: Any, message: str | None, kept: dict[str, Any]
) -> None:
    job = await reporting.enqueue(to=str(tmp_path / "out"), progress=own, message=message)
    await job.result(200)
    progress = (await job.get()).progress
    facts = progress.pop("spark")
    assert progress == kept
    assert facts["ui"].startswith("http://")
    assert facts["outputs"] == [str(tmp_path / "out")]
    assert facts["metrics"]["output_rows"] == 5
    (line,) = [line for line in await job.logs() if line.startswith("Spark application ended: ")]
    assert json.loads(line.partition(": ")[2]) == facts


def is_gone(pid: str) -> bool:
    return not Path("/proc", pid).exists()


async def stopped(note: Path, target: Path) -> None:
    """Waits until no process of an application is left; nothing of its output is there either."""
    for pid in note.read_text().split():
        await eventually(partial(is_gone, pid), f"process {pid} ends")
    assert not target.exists()
    assert left_in(note.parent, note.name) == set()


async def test_cancelling_ends_the_spark_jobs_and_every_process(worker: Worker, tmp_path: Path) -> None:
    note, target = tmp_path / "note", tmp_path / "never"
    job = await endless.enqueue(note=str(note), to=str(target))
    await eventually(note.exists, "a task of Spark runs", 200)
    await eventually(lambda: _has_stage(job), "a stage is the job's progress", 60)
    await job.cancel("enough")
    with pytest.raises(JobFailed, match="enough"):
        await job.result(60)
    assert (await job.get()).attempts_made == 1
    await stopped(note, target)


async def _has_stage(job: Any) -> bool:
    progress = (await job.get()).progress
    return isinstance(progress, dict) and "of 2 tasks" in progress.get("message", "")


@long
async def test_a_timeout_ends_them_too(worker: Worker, tmp_path: Path) -> None:
    note, target = tmp_path / "note", tmp_path / "never"
    job = await endless.using(attempts=1).enqueue(note=str(note), to=str(target), limited=True)
    with pytest.raises(JobFailed, match=r"longer than 0\.5 s"):
        await job.result(200)
    await stopped(note, target)


@long
async def test_an_application_of_a_stopped_worker_is_returned_and_ended(
    url: str, store: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps._core, "_urls", [url])
    monkeypatch.setattr(apps._core, "_server", None)
    note, target = tmp_path / "note", tmp_path / "never"
    worker = Worker(apps, shutdown_timeout=0.1)
    running = asyncio.create_task(worker.run())
    job = await endless.enqueue(note=str(note), to=str(target))
    await eventually(note.exists, "a task of Spark runs", 200)
    worker.stop()
    await running
    assert (await job.get()).attempts_made == 0
    assert store.llen("bull:apps:wait") == 1
    for pid in note.read_text().split():
        wait_until(partial(is_gone, pid), f"process {pid} ends")
    assert not target.exists()
    await apps.close()


@long
@pytest.mark.parametrize("how", ["driver", "jvm"])
async def test_an_application_whose_processes_die_is_tried_again(
    worker: Worker, tmp_path: Path, how: str
) -> None:
    job = await half.enqueue(to=str(tmp_path / "out"), how=how)
    assert await job.result(200) == 2
    assert left_in(tmp_path, "out") == set()
    assert rows(tmp_path / "out") == 10


class TestRefused:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"master": "nowhere"}, "master"),
            ({"conf": {"driver.memory": "1g"}}, "conf"),
            ({"conf": {"spark.x": []}}, "conf spark.x"),
            ({"conf": "spark.x=1"}, "conf"),
        ],
    )
    def test_a_wrong_setting(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as raised:
            Queue("q").job(run="spark", **settings)(half.__wrapped__)
        assert raised.value.field == field

    def test_a_script_that_is_not_there(self) -> None:
        with pytest.raises(ValidationError, match="script"):
            Queue("q").job(run="spark")("no/such.py")

    def test_a_runner_that_is_not_installed(self) -> None:
        with pytest.raises(ValidationError, match="'process', 'spark'"):
            Queue("q").job(run="dask")(half.__wrapped__)  # type: ignore[call-overload]

    def test_a_script_without_a_runner(self) -> None:
        with pytest.raises(ValidationError, match="runner"):
            Queue("q").job(run="thread", name="n")(str(SCRIPT))  # type: ignore[call-overload]
