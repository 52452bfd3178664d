"""An API on a real socket over queues of a real server, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import pytest_asyncio

from oxcart import Queue
from oxcart.http.application import app
from oxcart.http.server import Server
from tests.conftest import MakeQueue

Serve = Callable[..., Awaitable[httpx.AsyncClient]]


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
