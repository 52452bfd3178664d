"""Every page of the dashboard and every read of the API over spoiled keys: no answer is an internal error.

`OXCART_FUZZ=1000` sets how many rounds are made (`make fuzz`).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
import pytest_asyncio

from oxcart import Flow, PermanentError, Queue, RunningJob, TemporaryError, Worker
from oxcart.http.application import app
from oxcart.http.server import Server
from tests.fuzz.hostile import Hostile
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 20 * int(os.environ.get("OXCART_FUZZ", "6")))]

ROUNDS = int(os.environ.get("OXCART_FUZZ", "6"))
QUEUE = "mail"
EVIL = "<script>alert(1)</script>'\"`{{7*7}}\u202e\u2028"
PAGES = (
    *("/", f"/queue?name={QUEUE}", f"/jobs?queue={QUEUE}&state=ready", f"/jobs?queue={QUEUE}&state=failed"),
    *(f"/jobs?queue={QUEUE}&state=completed", f"/jobs?queue={QUEUE}&state=delayed", "/failures", "/dead"),
    *(f"/failures?queue={QUEUE}", f"/dead?queue={QUEUE}", "/schedules", "/workers", "/limits", "/audit"),
    *("/search?q=evil", "/job?id=ok-0", "/job?id=bad-0", "/job?id=parent", "/flow?id=parent"),
    *(
        "/api/v1/stats",
        "/api/v1/queues",
        f"/api/v1/queues/{QUEUE}",
        "/api/v1/jobs/ok-0",
        "/api/v1/jobs/bad-0",
    ),
    *("/api/v1/jobs?state=failed", "/api/v1/jobs?state=scheduled", "/api/v1/workers", "/health", "/metrics"),
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest_asyncio.fixture
async def queue(server: ValkeyServer) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, url=server.url) as made:
        yield made


async def fill(server: ValkeyServer, queue: Queue) -> None:
    """Leaves jobs of all states, a flow, a schedule, limits and groups."""
    with server.client() as client:
        client.flushall()

    async def run(job: RunningJob) -> Any:
        if job.name == "bad":
            raise PermanentError(EVIL, code="E_EVIL")
        if job.name == "again":
            raise TemporaryError(EVIL)
        await job.log(EVIL)
        return {EVIL: EVIL}

    queue.fallback(run)
    await queue.limits.set_key_limit(concurrent=1)
    for number in range(3):
        await queue.add("ok", {EVIL: EVIL}, job_id=f"ok-{number}", tags={"evil": EVIL}, limit_key="evil")
        await queue.add("bad", EVIL, job_id=f"bad-{number}")
    await queue.add("again", 1, backoff={"type": "fixed", "delay": 3_600_000})
    await Flow(queue, "parent", {}, children=[Flow(queue, "ok", {})], job_id="parent").add()
    async with Worker(queue, concurrency=10).running():
        async with asyncio.timeout(60):
            await queue.jobs.handle("parent").result()
    await queue.add("later", EVIL, delay="1h", group="evil")
    await queue.add_many([("ok", EVIL)] * 3)
    await queue.schedules.upsert("tick", every="1h", name="ok", data=EVIL)


async def test_spoiled_keys_make_no_page_fail(server: ValkeyServer, queue: Queue) -> None:
    faults: dict[str, str] = {}
    async with (
        Server(app([queue]), grace=1) as served,
        httpx.AsyncClient(base_url=served.url, timeout=60) as client,
    ):
        for seed in range(ROUNDS):
            await fill(server, queue)
            with server.client(decode_responses=False) as raw:
                for path, fault in await look(client, Hostile(raw, random.Random(seed))):
                    faults.setdefault(path, f"seed {seed}: {fault}")
    assert faults == {}


async def look(client: httpx.AsyncClient, hostile: Hostile) -> list[tuple[str, str]]:
    """Spoils a key before each page; returns pages that failed or run a script of a job."""
    spoils: list[str] = []
    found = []
    for path in PAGES:
        spoils.append(hostile.spoil())
        answer = await client.get(path, headers={"accept": "text/html"})
        if answer.status_code == 500:  # 503 names the key that the server refused to read
            found.append((path, f"{answer.status_code} {answer.text[-300:]} after {spoils[-5:]}"))
        if "html" in answer.headers.get("content-type", ""):
            tags = _Tags()
            tags.feed(answer.text)
            if any("alert(1)" in text for text in tags.scripts):
                found.append((path, "a script of a job is part of the page"))
    return found


def test_a_script_in_a_page_is_noticed() -> None:
    tags = _Tags()
    tags.feed(f"<p>{EVIL}</p>")
    assert "alert(1)" in tags.scripts
