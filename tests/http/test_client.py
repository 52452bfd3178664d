"""The typed client of the API: what it returns, and its errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from oxcart import PermanentError, Queue, Worker
from oxcart.errors import ApiRefused, BrokerUnavailable, JobFailed, JobNotFound, ResultTimeout
from oxcart.http import Client, SyncClient
from tests.http.conftest import Serve
from tests.servers import free_port


@pytest_asyncio.fixture
async def client(queue: Queue, serve: Serve) -> AsyncIterator[Client]:
    """A client of an API that needs a token."""
    served = await serve(queue, tokens={"the-token-of-a-test": "operator"})
    async with Client(str(served.base_url), token="the-token-of-a-test") as made:
        yield made


async def test_add_get_and_result(queue: Queue, client: Client) -> None:
    @queue.job
    async def welcome(to: str) -> dict[str, str]:
        return {"to": to}

    job = await client.add("welcome", {"to": "ada"}, tags={"tenant": "acme"}, delay="10ms")
    assert (job.type, job.state, job.tags) == ("welcome", "delayed", {"tenant": "acme"})
    assert (await client.get(job.id, payload=True)).payload == {"to": "ada"}
    async with Worker(queue).running():
        assert await client.result(job.id, timeout="1m30s") == {"to": "ada"}
    assert [one.id for one in (await client.list(state="completed")).jobs] == [job.id]


async def test_jobs_continue_the_trace_of_their_request(queue: Queue, client: Client) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    job = await client.add("welcome", 1, trace_context=trace)
    batch = await client.add_many([("welcome", 2)], trace_context=trace)
    (added,) = batch.results
    assert added.job is not None
    flow = {"jobs": [{"ref": "one", "type": "welcome", "payload": 3}]}
    answer = await client.send("POST", "/flows", flow, headers=trace)
    ids = [job.id, added.job.id, answer.json()["jobs"]["one"]["id"]]
    stored = await queue.jobs.get_many(ids)
    contexts = [None if one is None else one.options.trace_context for one in stored]
    assert contexts == [msgspec.json.encode(trace).decode()] * 3


async def test_a_malformed_trace_of_a_request_is_ignored(queue: Queue, client: Client) -> None:
    job = await client.add("welcome", 1, trace_context={"traceparent": "00-zz", "tracestate": "a=b"})
    stored = await queue.jobs.get(job.id)
    assert stored is not None
    assert stored.options.trace_context is None


async def test_add_many_is_atomic_unless_told_otherwise(queue: Queue, client: Client) -> None:
    rows: list[Any] = [("welcome", 1), ("welcome", 2, {"max_attempts": 0})]
    with pytest.raises(ApiRefused, match="1 of 2 jobs are invalid") as caught:
        await client.add_many(rows)
    assert (caught.value.status, caught.value.code) == (400, "validation_error")
    assert caught.value.details[0]["field"] == "jobs[1]"
    assert (await queue.counts())["waiting"] == 0
    done = await client.add_many(rows, atomic=False)
    assert (done.accepted, done.rejected) == (1, 1)


async def test_a_failed_job_raises(queue: Queue, client: Client) -> None:
    @queue.job
    async def bad() -> None:
        raise PermanentError("no such user")

    job = await client.add("bad")
    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="no such user") as caught:
            await client.result(job.id)
    assert caught.value.category == "permanent"
    assert (await client.retry(job.id, reset=True)).state == "scheduled"


async def test_a_wait_that_is_too_short_raises(client: Client) -> None:
    job = await client.add("welcome")
    with pytest.raises(ResultTimeout):
        await client.result(job.id, timeout="10ms")


async def test_cancel_and_remove(client: Client) -> None:
    job = await client.add("welcome")
    assert (await client.cancel(job.id, "withdrawn")).state == "cancelled"
    with pytest.raises(ApiRefused, match="409 conflict"):
        await client.cancel(job.id)
    await client.remove(job.id)
    for call in (client.get, client.cancel, client.retry, client.remove):
        with pytest.raises(JobNotFound):
            await call(job.id)
    with pytest.raises(JobFailed, match="withdrawn"):  # its end is still among the events
        await client.result(job.id)
    with pytest.raises(JobNotFound):
        await client.result("none")


async def test_events_resume(client: Client) -> None:
    seen = []

    async def follow(since: str | None, count: int) -> str:
        async with asyncio.timeout(30):
            stream = client.events(since=since)
            async for event in stream:
                seen.append((event.name, event.job_id))
                if len(seen) == count:
                    return event.id
        raise AssertionError("the stream ended")

    first = await client.add("welcome")
    reading = asyncio.create_task(follow(None, 1))
    while not reading.done():  # the first event that the stream contains is any of these
        other = await client.add("welcome")
        await asyncio.sleep(0.01)
    position = await reading
    await client.remove(first.id)
    while seen[-1] != ("job.deleted", first.id):
        position = await follow(position, len(seen) + 1)
    created = [job_id for name, job_id in seen if name == "job.created"]
    assert created[-1] == other.id
    assert len(set(created)) == len(created)


async def test_a_wrong_token_is_refused(client: Client) -> None:
    async with Client(client._url, token="another-token-of-a-test") as stranger:
        with pytest.raises(ApiRefused, match="401 unauthorized"):
            await stranger.add("welcome")
        with pytest.raises(ApiRefused, match="401 unauthorized"):
            async for _ in stranger.events():
                pass


async def test_an_api_that_is_away_is_unavailable() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}") as nobody:
        with pytest.raises(BrokerUnavailable, match="cannot be reached"):
            await nobody.add("welcome")


async def test_an_answer_of_something_else_is_refused() -> None:
    def page(request: httpx.Request) -> httpx.Response:
        return httpx.Response(502, text="<html>bad gateway</html>")

    async with httpx.AsyncClient(transport=httpx.MockTransport(page)) as http:
        with pytest.raises(ApiRefused, match="502 unknown"):
            await Client("http://proxy", http=http).get("1")


async def test_the_client_for_code_that_blocks(queue: Queue, serve: Serve) -> None:
    served = await serve(queue)

    def use() -> None:
        with SyncClient(str(served.base_url)) as jobs:
            events = jobs.events(since="q=0-0")
            job = jobs.add("welcome", {"to": "ada"})
            assert next(iter(events)).job_id == job.id
            assert jobs.get(job.id, payload=True).payload == {"to": "ada"}
            assert jobs.list(type="welcome").count == 1
            assert jobs.cancel(job.id).state == "cancelled"
            with pytest.raises(JobFailed):
                jobs.result(job.id, "1s")
            jobs.remove(job.id)
            assert jobs.add_many([("welcome", None)]).accepted == 1

    await asyncio.to_thread(use)


#: Methods for what no other method of the client covers; they return answers of an asynchronous library.
ASYNC_ONLY = {"call", "send"}


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert methods(SyncClient) == methods(Client) - ASYNC_ONLY


@pytest.mark.parametrize("name", sorted(methods(SyncClient)))
def test_both_clients_have_the_same_parameters_and_docstrings(name: str) -> None:
    theirs, ours = getattr(Client, name), getattr(SyncClient, name)
    assert list(inspect.signature(ours).parameters.values()) == list(
        inspect.signature(theirs).parameters.values()
    )
    assert not inspect.iscoroutinefunction(ours)
    assert not inspect.isasyncgenfunction(ours)
    assert inspect.getdoc(ours) == (inspect.getdoc(theirs) or "").replace("await ", "")
