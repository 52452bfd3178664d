"""The lifecycle of a queue on a server of every kind: the same operations work everywhere."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import oxcart.sync
from oxcart import Queue, RunningJob, Worker
from tests.cli.conftest import Commands, Program

LIMIT = 60.0

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A queue that no test has used yet."""
    return f"queue-{next(_numbers)}"


async def test_a_producer_and_a_worker(kind_of_server: str, name: str) -> None:
    async with Queue(name, url=kind_of_server) as queue, queue.events() as events:

        @queue.fallback
        async def double(job: RunningJob) -> int:
            await job.update_progress(50)
            await job.log("at work")
            return int(job.data) * 2

        async with Worker(queue, concurrency=5).running():
            rows = [("double", n, {"priority": n % 3, "delay": 0.05 * (n % 2)}) for n in range(30)]
            handles = await queue.add_many(rows)
            assert [await handle.result(LIMIT) for handle in handles] == [2 * n for n in range(30)]
            # An idle worker is woken by its marker: the blocking wait is at the right server.
            await asyncio.sleep(0.3)
            assert await (await queue.add("double", 50)).result(LIMIT) == 100
        assert await handles[0].logs() == ["at work"]
        assert (await queue.counts())["completed"] == 31
        seen = 0
        async for event in events:
            seen += event.name == "completed"
            if seen == 31:
                break
        await queue.pause()
        assert await queue.is_paused()
        await queue.resume()


async def test_leases_are_renewed_by_the_process_that_does_so(kind_of_server: str, name: str) -> None:
    async with Queue(name, url=kind_of_server) as queue:
        renewed = asyncio.Event()

        @queue.fallback
        async def slow(job: RunningJob) -> int:
            await renewed.wait()
            return job.fencing

        async with Worker(queue, lock_duration=3, stalled_interval=0.5).running() as worker:
            worker._leases._renewed = lambda *args: renewed.set()
            # It ends when its lease was renewed. On a busy machine that may be the lease of a second run.
            assert await (await queue.add("slow")).result(LIMIT) >= 1


def test_sync_queue_works_on_every_kind_of_server(kind_of_server: str, name: str) -> None:
    with oxcart.sync.Queue(name, url=kind_of_server) as queue:
        handle = queue.add("later", {"n": 1}, delay="1h")
        assert handle.state() == "delayed"
        handle.promote()
        assert handle.state() == "waiting"
        assert queue.counts()["waiting"] == 1
        assert [event.name for event in queue.events(since="0").read(block=1)][:1] == ["added"]
        handle.remove()


APP = """
from oxcart import Queue

mail = Queue({name!r})

@mail.job
async def hello(who: str) -> str:
    return "hello " + who
"""


def test_the_commands(kind_of_server: str, name: str, start: Callable[..., Program], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(name=name))
    program = start("--url", kind_of_server, "work", "app:mail", "--processes", "2")
    with oxcart.sync.Queue(name, url=kind_of_server) as queue:
        assert queue.add("hello", {"who": "Ada"}).result(LIMIT) == "hello Ada"
    assert program.end() == 0, program.seen
    ox = Commands(kind_of_server)
    found = ox("queues", "--json")
    assert found.code == 0, found
    assert {row["queue"]: row["counts"]["completed"] for row in found.json}[name] == 1
    shown = ox("jobs", name, "--state", "completed", "--json")
    assert shown.code == 0, shown
    doctor = ox("doctor", "--json")
    assert doctor.code in (0, 1), doctor
    assert "secret" not in found.out + found.err + doctor.out + "".join(program.seen)


async def test_no_output_contains_the_password(
    kind_of_server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Queue(name, url=kind_of_server) as queue:
        queue.fallback(_nothing)
        async with Worker(queue).running():
            await (await queue.add("job")).result(LIMIT)
        shown = repr(queue._core.server) + queue._core.server.name + caplog.text
    assert "secret" not in shown
    assert "p@ss" not in shown
    assert "p%40ss" not in shown


async def _nothing() -> None: ...
