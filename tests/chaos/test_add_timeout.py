"""An add ends within its `add_timeout`, and its error says whether anything may have been applied."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from oxcart import Queue
from oxcart.model.errors import BrokerTimeout, OutcomeUnknown
from oxcart.webhooks import Webhooks
from tests.servers import ValkeyServer, wait_until
from tests.signals import eventually

TIMEOUT = 2.0
#: Seconds beyond the timeout that a busy machine may take. Connecting alone may take 5 s.
MARGIN = 2.0

PROTOCOLS = ["bullmq", "bridge"]


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server
        with contextlib.suppress(ProcessLookupError, AssertionError):
            server.thaw()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("many", [1, 700], ids=["one", "many"])
async def test_an_add_to_a_silent_server_ends_in_time(server: ValkeyServer, protocol: str, many: int) -> None:
    queue = Queue("q", url=server.url, protocol=protocol, add_timeout=TIMEOUT)  # type: ignore[arg-type]
    await queue.add("job")
    server.freeze()
    for error in (OutcomeUnknown, BrokerTimeout):  # the second finds the connection gone, and no other
        began = time.monotonic()
        with pytest.raises(error, match=f"within {TIMEOUT:g} s"):
            await queue.add_many([("job", number) for number in range(many)])
        assert time.monotonic() - began < TIMEOUT + MARGIN
        await eventually(
            lambda: not queue._core.broker.caller.link.is_connected, "the connection is given up"
        )
    server.thaw()
    await queue.close()


async def test_an_add_with_a_webhook_ends_in_time_too(server: ValkeyServer) -> None:
    hooks = Webhooks(secret="s" * 32)
    queue = Queue("q", url=server.url, add_timeout=TIMEOUT, webhooks=hooks)
    await queue.add("job")
    server.freeze()
    began = time.monotonic()
    with pytest.raises((BrokerTimeout, OutcomeUnknown)):
        await queue.add("job", callback_url="https://example.org/done")
    assert time.monotonic() - began < 2 * TIMEOUT + MARGIN
    server.thaw()
    await queue.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_add_waits_until_enough_replicas_listen(server: ValkeyServer, protocol: str) -> None:
    """The setting that docs/connections.md recommends refuses writes while no replica listens."""
    with ValkeyServer(repl_diskless_sync_delay=0) as replica, contextlib.closing(server.client()) as client:
        client.config_set("min-replicas-to-write", 1)
        async with Queue("q", url=server.url, protocol=protocol, add_timeout=60) as queue:  # type: ignore[arg-type]
            adding = asyncio.create_task(queue.add("job"))
            await asyncio.to_thread(_refuses, server)
            assert not adding.done()
            with contextlib.closing(replica.client()) as follower:
                follower.replicaof("127.0.0.1", str(server.port))
            assert (await adding).created


def _refuses(server: ValkeyServer) -> None:
    with contextlib.closing(server.client()) as client:
        wait_until(lambda: client.info("errorstats").get("errorstat_NOREPLICAS"), "a write was refused")
