"""Two-way compatibility: a client written from the document's text shares a namespace with Oxcart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.model.errors import JobFailed
from oxcart.model.failure import PermanentError
from tests.broker.bridge.document import DocumentClient
from tests.conftest import MakeQueue
from tests.signals import eventually


@pytest.fixture
def client(store: redis.Redis) -> DocumentClient:
    return DocumentClient(store, "server-1")


@pytest.fixture
def emails(make_queue: MakeQueue) -> Queue:
    return make_queue("email", protocol="bridge", namespace="bridge")


async def off_loop(work: Any, *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


def test_reference_model_is_small_and_independent_of_oxcart() -> None:
    text = Path(__file__).with_name("document.py").read_text()
    assert len(text.splitlines()) < 200
    assert "oxcart" not in text
    assert "ox:" not in text


async def test_our_jobs_run_there(emails: Queue, client: DocumentClient) -> None:
    job = await emails.add("email", {"to": "ada"}, tags={"tenant": "acme"})
    seen: list[dict[str, Any]] = []

    def handle(record: dict[str, Any]) -> Any:
        seen.append(record)
        return {"sent": record["payload"]["to"]}

    assert await off_loop(client.work, handle) == job.id
    assert seen[0]["type"] == "email"
    assert seen[0]["metadata"] == {"tenant": "acme"}
    assert await job.result(timeout=10) == {"sent": "ada"}
    assert await job.state() == "completed"


async def test_their_jobs_run_here(emails: Queue, client: DocumentClient) -> None:
    emails.fallback(lambda job: {"sent": job.data["to"]})
    job_id = client.dispatch("email", {"to": "ada"})
    async with Worker(emails, name="oxcart-1").running():
        await eventually(lambda: client.result(job_id), "the result is there")
    ended = client.result(job_id)
    assert ended is not None
    assert ended["success"] is True
    assert ended["data"] == {"sent": "ada"}
    assert client.store.get(f"bridge:jobs:status:{job_id}") == "completed"
    assert client.store.get(f"bridge:jobs:lock:{job_id}") is None
    assert client.store.smembers("bridge:jobs:active") == set()


async def test_our_worker_is_in_their_registry(emails: Queue, client: DocumentClient) -> None:
    emails.fallback(lambda job: None)
    async with Worker(emails, name="oxcart-1").running():
        assert client.store.smembers("bridge:workers:active") == {"oxcart-1"}
        assert client.store.ttl("bridge:workers:heartbeat:oxcart-1") > 25
    assert client.store.smembers("bridge:workers:active") == set()


async def test_failures_there_are_failures_here(emails: Queue, client: DocumentClient) -> None:
    job = await emails.add("email", {}, attempts=2)

    def fail(record: dict[str, Any]) -> Any:
        raise RuntimeError(f"boom {record['attempts']}")

    assert await off_loop(client.work, fail) == job.id
    assert await job.state() == "delayed"
    await eventually(lambda: client.process_delayed(), "it is due again")
    assert await off_loop(client.work, fail) == job.id
    with pytest.raises(JobFailed, match="boom 2"):
        await job.result(timeout=10)
    assert client.store.lrange("bridge:jobs:deadletter", 0, -1) == [job.id]


async def test_failures_here_are_failures_there(emails: Queue, client: DocumentClient) -> None:
    def fail(job: Any) -> None:
        raise PermanentError("no such address")

    emails.fallback(fail)
    job_id = client.dispatch("email", {})
    async with Worker(emails).running():
        await eventually(lambda: client.result(job_id), "the result is there")
    ended = client.result(job_id)
    assert ended is not None
    assert ended["success"] is False
    assert ended["error"]["message"] == "no such address"
    assert ended["error"]["name"] == "PermanentError"
    assert client.store.lrange("bridge:jobs:deadletter", 0, -1) == [job_id]
    assert client.store.get(f"bridge:jobs:status:{job_id}") == "dead"


async def test_a_retry_here_may_end_there(emails: Queue, client: DocumentClient) -> None:
    tried = asyncio.Event()

    async def fail(job: Any) -> None:
        await emails.pause()
        tried.set()
        raise RuntimeError("not here")

    emails.fallback(fail)
    job_id = client.dispatch("email", {}, retry={"attempts": 3, "backoff": {"type": "fixed", "delay": 1}})
    async with Worker(emails).running():
        async with asyncio.timeout(20):
            await tried.wait()
    await emails.resume()
    await eventually(
        lambda: client.process_delayed() or client.store.llen("bridge:jobs:waiting"), "it is due"
    )
    assert await off_loop(client.work, lambda record: record["attempts"]) == job_id
    ended = client.result(job_id)
    assert ended is not None
    assert ended["data"] == 2


async def test_pausing_holds_on_both_sides(emails: Queue, client: DocumentClient) -> None:
    await emails.pause()
    client.dispatch("email", {})
    assert client.claim() is None
    await emails.resume()
    client.store.sadd("bridge:queues:paused", "email")
    assert await emails.is_paused()


async def test_targets_hold_on_both_sides(emails: Queue, store: redis.Redis) -> None:
    gpu = DocumentClient(store, "gpu-1", capabilities=("gpu",))
    plain = DocumentClient(store, "plain-1")
    job = await emails.add("email", {}, target={"capabilities": "gpu"})
    assert plain.claim() is None
    claimed = gpu.claim()
    assert claimed is not None
    assert claimed["jobId"] == job.id


async def test_the_first_client_promotes_a_delayed_job(emails: Queue, client: DocumentClient) -> None:
    emails.fallback(lambda job: job.data)
    theirs = client.dispatch("email", {"n": 1}, schedule={"delay": 50})
    ours = await emails.add("email", {"n": 2}, delay="50ms")
    await eventually(lambda: client.process_delayed(), "one is due")
    async with Worker(emails).running():
        assert await ours.result(timeout=10) == {"n": 2}
        await eventually(lambda: client.result(theirs), "theirs has run")


async def test_a_dead_worker_of_ours_is_found_by_them(emails: Queue, client: DocumentClient) -> None:
    begun = asyncio.Event()

    async def handle(job: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    emails.fallback(handle)
    job = await emails.add("email", {})
    worker = Worker(emails, name="oxcart-1", shutdown_timeout=0)
    async with worker.running():
        async with asyncio.timeout(20):
            await begun.wait()
        client.store.delete("bridge:workers:heartbeat:oxcart-1")  # as if it were dead for 30 s
        assert client.recover() == [job.id]
        assert await off_loop(client.work, lambda record: record["attempts"]) == job.id
        assert await job.result(timeout=10) == 2


async def test_both_work_off_what_both_produce(emails: Queue, client: DocumentClient) -> None:
    """Every job runs exactly once, and nothing is left behind: no lock, no slot, no entry in a list."""
    ran: list[str] = []

    async def handle(job: Any) -> str:
        ran.append(job.id)
        await asyncio.sleep(0)
        return "here"

    def there(record: dict[str, Any]) -> str:
        ran.append(record["jobId"])
        return "there"

    emails.fallback(handle)
    ids = {client.dispatch("email", {"n": n}, priority=1 + n % 10) for n in range(60)}
    ids |= {job.id for job in await emails.add_many([("email", {"n": n}) for n in range(60)])}
    more = asyncio.Event()

    async def beside() -> None:
        while not more.is_set() or client.store.llen("bridge:jobs:waiting"):
            if await off_loop(client.work, there) is None:
                await asyncio.sleep(0.002)

    async with Worker(emails, concurrency=5).running():
        other = asyncio.create_task(beside())
        for n in range(30):
            ids.add((await emails.add("email", {"n": n}, priority=1 + n % 10)).id)
            ids.add(client.dispatch("email", {"n": n}))
        more.set()
        await other
        await eventually(lambda: len(ran) >= len(ids), "all have run")
        await eventually(lambda: client.store.scard("bridge:jobs:active") == 0, "all have ended")
    assert sorted(ran) == sorted(ids)
    statuses = {client.store.get(f"bridge:jobs:status:{job_id}") for job_id in ids}
    assert statuses == {"completed"}
    assert client.store.keys("bridge:jobs:lock:*") == []
    assert client.store.llen("bridge:jobs:waiting") == 0
    assert int(client.store.get("bridge:ratelimit:concurrent:email")) == 0
    where = {(client.result(job_id) or {})["data"] for job_id in ids}
    assert where == {"here", "there"}
