"""Jobs of Node, of PyPI bullmq and of Bridge on the dashboard: they have all that ours have."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from benchmarks.systems import pypi_environment

from oxcart import Queue, RunningJob, Worker
from oxcart.http.web.page import link
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.nodes import node_driver
from tests.signals import eventually


def text_of(page: str) -> str:
    """The text of a page without its elements."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.mark.node
async def test_a_job_of_node_has_state_trace_log_and_worker(
    url: str, make_queue: MakeQueue, serve: Serve
) -> None:
    queue = make_queue("mixed")
    async with node_driver("v5", url) as node:
        data = {"fail": 9, "message": "the bank is closed", "log": ["one", "two"], "progress": 30}
        await node.call("workerStart", handle="w", queue="mixed", options={"name": "node-1"})
        job_id = await node.call("add", queue="mixed", name="charge", data=data, opts={"attempts": 1})
        job_id = job_id["id"] if isinstance(job_id, dict) else job_id

        async def has_failed() -> bool:
            return await queue.jobs.state(job_id) == "failed"

        await eventually(has_failed, "Node's job has failed")
        client = await serve(queue)
        page = text_of((await client.get(link("/job", queue="mixed", id=job_id))).text)
        for words in ("charge", "Dead letter", "Error: the bank is closed", "driver.js:", "one two", "30 %"):
            assert words in page, words
        workers = text_of((await client.get("/workers")).text)
        assert "Workers of other clients" in workers
        assert "node-1" in workers
        failures = text_of((await client.get("/failures")).text)
        assert "the bank is closed" in failures
        overview = text_of((await client.get("/")).text)
        assert "mixed" in overview


@pytest.mark.node
async def test_a_job_of_pypi_bullmq_has_state_and_failure(
    url: str, make_queue: MakeQueue, serve: Serve
) -> None:
    python = await asyncio.to_thread(lambda: pypi_environment() / "bin" / "python")
    queue = make_queue("snake")
    peer = await asyncio.create_subprocess_exec(
        str(python),
        str(Path(__file__).with_name("pypi_failing.py")),
        *(url, "snake"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    try:
        async with asyncio.timeout(60):
            job_id = (await peer.stdout.readline()).decode().strip()

        async def has_failed() -> bool:
            return await queue.jobs.state(job_id) == "failed"

        await eventually(has_failed, "PyPI's job has failed")
        client = await serve(queue)
        page = text_of((await client.get(link("/job", queue="snake", id=job_id))).text)
        for words in ("charge", "Dead letter", "the bank is closed", "pypi_failing.py", "visa-7", "30 %"):
            assert words in page, words
        for path in ("/failures", "/dead?queue=snake", "/jobs?state=failed&queue=snake"):
            assert "the bank is closed" in text_of((await client.get(path)).text), path
    finally:
        peer.stdin.close()
        await peer.wait()


async def test_a_job_of_bridge_has_state_and_failure(make_queue: MakeQueue, serve: Serve) -> None:
    queue: Queue = make_queue("resize", protocol="bridge", namespace="media")

    async def fails(job: RunningJob) -> None:
        raise RuntimeError("no such picture")

    async def has_failed() -> bool:
        found = await queue.jobs.get(job.id)
        return found is not None and found.finished_on is not None

    queue.fallback(fails)
    job = await queue.add("resize", {"picture": "hat.png"}, attempts=1)
    client = await serve(queue)
    for path in (
        "/",
        "/queue?name=resize",
        "/jobs?state=ready&queue=resize",
        "/schedules",
        "/limits",
        "/workers",
    ):
        assert (await client.get(path)).status_code == 200, path
    async with Worker(queue, name="painter").running():
        await eventually(has_failed, "Bridge's job has failed")

        async def is_shown() -> bool:
            return "painter" in text_of((await client.get("/workers")).text)

        await eventually(is_shown, "the worker is shown")
    page = text_of((await client.get(link("/job", queue="resize", id=job.id))).text)
    for words in ("resize", "Dead letter", "no such picture", "hat.png"):
        assert words in page, words
    for path in ("/failures", "/dead?queue=resize", "/jobs?state=failed&queue=resize"):
        assert "no such picture" in text_of((await client.get(path)).text), path
