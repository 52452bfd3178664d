"""An API on a real socket over queues of a real server, and a client for it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import pytest_asyncio

from oxcart import Queue
from oxcart.broker.access import AccessStore
from oxcart.broker.connection import Server as RedisServer
from oxcart.http.application import app
from oxcart.http.server import Server
from oxcart.model.access import AccessKey, digest, key_text
from tests.conftest import MakeQueue

Serve = Callable[..., Awaitable[httpx.AsyncClient]]
MakeKey = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves queues; returns a client that speaks to the server over a socket."""
    async with AsyncExitStack() as stack:

        async def start(*queues: Queue, token: str | None = None, **options: Any) -> httpx.AsyncClient:
            server = await stack.enter_async_context(Server(app(queues, **options), grace=1))
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            client = httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60)
            return await stack.enter_async_context(client)

        yield start


@pytest.fixture
def formal(make_queue: MakeQueue) -> Queue:
    """A queue with formal priorities, as ``oxcart serve`` makes them."""
    return make_queue("emails", priorities="formal")


@pytest_asyncio.fixture
async def keys(url: str) -> AsyncIterator[AccessStore]:
    store = AccessStore(RedisServer(url), "bull")
    yield store
    await store.close()


@pytest.fixture
def make_key(keys: AccessStore) -> MakeKey:
    async def make(*grants: str, **more: Any) -> str:
        key_id, text = key_text(secrets.token_bytes(6), secrets.token_bytes(32))
        facts: dict[str, Any] = {"name": "a test", "created_ms": 1, **more}
        await keys.put(AccessKey(id=key_id, hash=digest(text).hex(), grants=grants, **facts))
        return text

    return make
