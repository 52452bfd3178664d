"""Shared code of the measured processes: the roles, and how runs of a handler are counted.

A system that runs in an event loop runs in the measured process itself (`work`). A system with a worker
program of its own runs in that program (`serve`), which imports the system's module from here.

Standard library only: every system lives in an environment without Oxcart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import role  # type: ignore[import-not-found]

PAYLOAD = role.payload()
QUEUE = "bench"
WARM = "warm"

#: Where a worker program finds the server's port, and the file in which runs are counted.
_PORT, _TALLY = "OXCART_FIELD_PORT", "OXCART_FIELD_TALLY"
#: How long a worker that was warmed up may take to acknowledge its last jobs, in seconds.
_SETTLE = 0.3

Add = Callable[[str], Awaitable[object]]
AddMany = Callable[[str, int], Awaitable[object]]


def port() -> int:
    """The server's port: from the task, or in a worker program from its environment."""
    given = os.environ.get(_PORT)
    return int(given) if given else int(json.loads(sys.argv[-1])["port"])


def url() -> str:
    return f"redis://127.0.0.1:{port()}/0"


class Runs:
    """Counts the runs of a handler in this process."""

    def __init__(self) -> None:
        self.count = 0

    def mark(self) -> None:
        self.count += 1


def marker() -> Callable[[], object]:
    """Counts a run over processes and threads: each call appends a byte to a file."""
    path = os.environ.get(_TALLY)
    if path is None:
        return lambda: None
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    return lambda: os.write(file, b".")


def main(run: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> None:
    """Runs the task that the parent has given."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(json.loads(sys.argv[-1])))


async def produce(task: dict[str, Any], version: str, add: Add, add_many: AddMany) -> None:
    """Adds jobs: one at a time, or by the system's best way to add many."""
    jobs, warm = task["jobs"], task["warm"]
    match task["role"]:
        case "fill":
            await role.ready(version)
            await role.time_bulk(lambda: add_many(QUEUE, jobs), jobs)
        case "add_many":
            await add_many(WARM, warm)
            await role.ready(version)
            await role.time_bulk(lambda: add_many(QUEUE, jobs), jobs)
        case "add":
            for _ in range(warm):
                await add(WARM)
            await role.ready(version)
            await role.time_adds(lambda: add(QUEUE), jobs)
        case other:
            raise SystemExit(f"no such role: {other}")
    await role.end()


async def work(
    task: dict[str, Any],
    version: str,
    add_many: AddMany,
    run: Callable[[str, int], Coroutine[Any, Any, object]],
    runs: Runs,
) -> None:
    """Works jobs in this process: warm on another queue, then from the construction of the worker.

    `run` makes a worker of a queue with a concurrency and runs it until it is cancelled; the handler counts
    with `runs`.
    """
    warm, concurrency = task["warm"], task["concurrency"]
    await add_many(WARM, warm)
    warming = asyncio.create_task(run(WARM, concurrency))
    while runs.count < warm:
        _must_run(warming)
        await asyncio.sleep(role.LOOK)
    await asyncio.sleep(_SETTLE)
    warming.cancel()
    await asyncio.wait((warming,), timeout=2)
    await role.ready(version)
    count, before = role.Count(task["jobs"]), runs.count
    running = asyncio.create_task(run(QUEUE, concurrency))
    ending = asyncio.create_task(role.end())
    while not ending.done():
        _must_run(running)
        count.seen(runs.count - before)
        await asyncio.sleep(role.LOOK)


def _must_run(worker: asyncio.Task[object]) -> None:
    if worker.done():
        raise SystemExit(f"the worker has ended: {worker.exception()!r}")


async def serve(task: dict[str, Any], version: str, add_many: AddMany, *commands: list[str]) -> None:
    """Works jobs by worker programs: warm and idle when the parent puts the jobs into their queue."""
    warm = task["warm"]
    with tempfile.NamedTemporaryFile(prefix="oxcart-field-") as tally:
        await add_many(QUEUE, warm)
        environ = {**os.environ, _PORT: str(task["port"]), _TALLY: tally.name, "PYTHONWARNINGS": "ignore"}
        programs = [
            subprocess.Popen(
                [str(Path(sys.executable).parent / command[0]), *command[1:]],
                cwd=Path(__file__).parent,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            for command in commands
        ]

        def done() -> int:
            for program in programs:
                if program.poll() is not None:
                    raise SystemExit(f"{program.args!r} has ended with {program.returncode}")
            return os.stat(tally.name).st_size

        try:
            while done() < warm:  # noqa: ASYNC110
                await asyncio.sleep(role.LOOK)
            await asyncio.sleep(_SETTLE)
            role.report(ready=True, version=version)
            await _line()
            count = role.Count(task["jobs"])
            ending = asyncio.create_task(_line())
            while not ending.done():
                count.seen(done() - warm)
                await asyncio.sleep(role.LOOK)
        finally:
            for program in programs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                program.wait()


async def _line() -> str:
    """Returns the next word of the parent, or an empty one if the parent is gone."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
