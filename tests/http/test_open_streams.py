"""Open streams end with the key, the session or the grants of their caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from oxcart import Queue
from oxcart.broker.access import AccessStore
from oxcart.http import credentials, open_streams, sessions
from tests.http.conftest import MakeKey, Serve

STREAMS = ["/api/v1/events", "/events", "/queue/events?name=q"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "FRESH", 0.05)
    monkeypatch.setattr(sessions, "FRESH", 0.05)
    monkeypatch.setattr(open_streams, "EVERY", 0.05)


@asynccontextmanager
async def opened(
    client: httpx.AsyncClient, path: str, key: str | None = None
) -> AsyncIterator[httpx.Response]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        yield answer


async def ends(answer: httpx.Response) -> None:
    async with asyncio.timeout(30):
        async for _ in answer.aiter_bytes():
            pass


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_when_its_key_is_revoked(
    queue: Queue, serve: Serve, make_key: MakeKey, keys: AccessStore, path: str
) -> None:
    client = await serve(queue)
    text = await make_key("observer")
    async with opened(client, path, text) as answer:
        (key,) = await keys.keys()
        await keys.put(msgspec.structs.replace(key, revoked_ms=1))
        await ends(answer)
    again = await client.get(path, headers={"Authorization": f"Bearer {text}"})
    assert again.status_code == 401


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_when_its_key_expires(
    queue: Queue, serve: Serve, make_key: MakeKey, path: str
) -> None:
    client = await serve(queue)
    text = await make_key("observer", expires_ms=int(time.time() * 1000) + 1500)
    async with opened(client, path, text) as answer:
        await ends(answer)


async def test_a_stream_ends_when_the_grants_of_its_key_change(
    queue: Queue, serve: Serve, make_key: MakeKey, keys: AccessStore
) -> None:
    client = await serve(queue)
    text = await make_key("operator")
    async with opened(client, "/api/v1/events", text) as answer:
        (key,) = await keys.keys()
        await keys.put(msgspec.structs.replace(key, grants=("observer@other*",)))
        await ends(answer)


async def test_other_streams_go_on(queue: Queue, serve: Serve, make_key: MakeKey, keys: AccessStore) -> None:
    client = await serve(queue)
    first, second = await make_key("observer"), await make_key("observer", name="stays")
    async with (
        opened(client, "/api/v1/events", first) as one,
        opened(client, "/api/v1/events", second) as two,
    ):
        for key in await keys.keys():
            if key.name != "stays":
                await keys.put(msgspec.structs.replace(key, revoked_ms=1))
        await ends(one)
        await queue.add("t")
        async with asyncio.timeout(30):
            async for line in two.aiter_lines():
                if line == "event: job.created":
                    break
            else:
                pytest.fail("the stream of the other key ended")


@pytest.mark.parametrize("path", STREAMS)
async def test_the_streams_of_a_session_end_by_signing_out(
    queue: Queue, serve: Serve, make_key: MakeKey, path: str
) -> None:
    client = await serve(queue)
    await client.post("/sign-in", data={"key": await make_key("operator")})
    token = (await client.get("/api/v1/session")).json()["csrf_token"]
    async with opened(client, path) as answer:
        assert (await client.post("/sign-out", headers={"X-CSRF-Token": token})).status_code == 303
        await ends(answer)


async def test_the_streams_of_all_sessions_end_by_signing_out_all(
    queue: Queue, serve: Serve, make_key: MakeKey, keys: AccessStore
) -> None:
    client = await serve(queue)
    await client.post("/sign-in", data={"key": await make_key("operator")})
    async with opened(client, "/api/v1/events") as one, opened(client, "/events") as two:
        await keys.renew_session_secret()
        await ends(one)
        await ends(two)


async def test_streams_without_a_key_end_once_keys_are_needed(
    queue: Queue, serve: Serve, make_key: MakeKey
) -> None:
    client = await serve(queue)
    async with opened(client, "/api/v1/events") as answer:
        await make_key("observer")
        await ends(answer)
