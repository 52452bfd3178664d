"""Runners: ways to run a handler that the engine finds by name and does not have itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.errors import JobFailed, ValidationError
from tests.engine.runner_entries import TestRunner, deaf, number, polite, process
from tests.signals import eventually


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner named ``lamp``, as if a package had brought it."""
    found = SimpleNamespace(name="lamp", load=lambda: TestRunner)
    monkeypatch.setattr("oxcart.engine.runners.entry_points", lambda group: [found])


def is_gone(pid: str) -> bool:
    return not Path("/proc", pid).exists()


def task(queue: Queue, function: Any, **settings: Any) -> Any:
    return queue.job(run="lamp", **settings)(function)  # type: ignore[call-overload]


async def test_a_runner_fills_its_parameters_and_reads_its_settings(queue: Queue) -> None:
    made = task(queue, number, times=3, attempts=1)
    with pytest.raises(ValidationError):
        await made.enqueue(n=1, lamp="dark")
    async with Worker(queue).running():
        assert await (await made.enqueue(n=14)).result(30) == 42
        assert await (await made.enqueue(1)).result(30) == 3


async def test_every_attempt_has_a_process_of_its_own(queue: Queue) -> None:
    made = task(queue, process)
    async with Worker(queue).running():
        pids = [await (await made.enqueue()).result(30) for _ in range(2)]
    assert pids[0] != pids[1]
    assert not any(Path("/proc", str(pid)).exists() for (pid,) in pids)


async def test_a_handler_that_does_not_stop_is_killed_with_processes_that_left_its_group(
    queue: Queue, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    made = task(queue, deaf)
    async with Worker(queue).running():
        job = await made.enqueue(note=str(note))
        await eventually(lambda: note.exists() and note.read_text(), "the handler runs")
        await job.cancel("enough")
        with pytest.raises(JobFailed, match="enough"):
            await job.result(30)
        for pid in note.read_text().split():
            await eventually(partial(is_gone, pid), f"process {pid} ends")


async def test_a_handler_has_time_to_stop_by_itself(queue: Queue, tmp_path: Path) -> None:
    note = tmp_path / "note"
    made = task(queue, polite, timeout="30s")
    async with Worker(queue).running():
        job = await made.enqueue(note=str(note))
        await eventually(note.exists, "the handler runs")
        await job.cancel("enough")
        with pytest.raises(JobFailed, match="enough"):
            await job.result(30)
    assert Path(f"{note}.reason").read_text() == "cancelled"


@pytest.mark.parametrize("kind", ["process", "lamp"])
def test_a_batch_needs_a_kind_within_the_worker(queue: Queue, kind: Any) -> None:
    with pytest.raises(ValidationError, match="'async' or 'thread' for a batch handler"):
        queue.job(batch=5, run=kind)(number)


def test_a_name_without_a_runner_lists_those_there_are(queue: Queue) -> None:
    with pytest.raises(ValidationError, match="one of 'async', 'thread', 'process', 'lamp'"):
        queue.job(run="candle")(number)  # type: ignore[call-overload]


def test_settings_of_a_runner_are_no_options_of_other_handlers(queue: Queue) -> None:
    with pytest.raises((ValidationError, TypeError), match="times"):
        queue.job(run="thread", times=2)(number)  # type: ignore[call-overload]
