"""A queue without tracing runs no code of traces, neither for adds nor for attempts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oxcart
from oxcart import Queue, Retry, Worker
from tests.conftest import MakeQueue
from tests.observe.spans import Spans

PACKAGE = Path(oxcart.__file__).parent


@contextmanager
def files_run() -> Iterator[set[str]]:
    """Collects the files of the package whose functions run, in every thread."""
    found: set[str] = set()
    start = len(str(PACKAGE)) + 1

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code.co_filename[start:])

    before = sys.getprofile()
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def of_traces(files: set[str]) -> set[str]:
    return {file for file in files if file in ("engine/tracing.py", "engine/spans.py") or "observe/" in file}


async def add_and_process(queue: Queue) -> set[str]:
    """Adds and processes jobs; returns the files of traces whose functions ran meanwhile."""
    tried: list[str] = []

    @queue.job(name="plain")
    async def plain() -> None: ...

    @queue.job(name="thread")
    def thread() -> None: ...

    @queue.job(name="twice")
    async def twice() -> Retry | None:
        tried.append("")
        return Retry(after="1ms") if len(tried) == 1 else None

    async with Worker(queue, concurrency=4).running():  # its start asks once whether there are traces
        with files_run() as files:
            jobs = [await queue.add(name) for name in ("plain", "thread", "twice")]
            jobs += await queue.add_many([("plain", None)] * 3)
            for job in jobs:
                await job.result(timeout=30)
    assert {"queue.py", "engine/claims.py", "engine/executor.py"} <= files
    return of_traces(files)


async def test_untraced_jobs_run_no_code_of_traces(make_queue: MakeQueue) -> None:
    assert await add_and_process(make_queue()) == set()


@pytest.mark.parametrize("file", ["engine/spans.py", "observe/tracing.py", "observe/_spans.py"])
async def test_traced_jobs_show_that_the_same_watch_sees_the_code_of_traces(
    make_queue: MakeQueue, file: str
) -> None:
    assert file in await add_and_process(make_queue(tracing=Spans().tracing))
