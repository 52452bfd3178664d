"""A server that denies access: a wrong password, or TLS on one side only."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.model.errors import AccessDenied
from tests.cli.conftest import Program
from tests.connections.conftest import Certificates, TlsProxy
from tests.servers import ValkeyServer
from tests.signals import eventually

#: Seconds within which a denial must be raised; an absent server is retried without end.
AT_ONCE = 10.0
PROTOCOLS: list[Any] = ["bullmq", "bridge"]


@pytest.fixture
def guarded() -> Iterator[ValkeyServer]:
    with ValkeyServer(requirepass="secret") as server:
        yield server


async def work() -> str:
    return "done"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_worker_with_a_wrong_password_ends_at_once(guarded: ValkeyServer, protocol: Any) -> None:
    async with Queue("q", url=f"redis://:wrong-one@127.0.0.1:{guarded.port}", protocol=protocol) as queue:
        queue.fallback(work)
        with pytest.raises(AccessDenied, match=f"127.0.0.1:{guarded.port} does not let us in") as caught:
            async with asyncio.timeout(AT_ONCE):
                await Worker(queue).run()
    assert "wrong-one" not in str(caught.value)


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one", "fleet"])
def test_oxcart_work_with_a_wrong_password_ends_at_once(
    guarded: ValkeyServer, tmp_path: Path, start: Callable[..., Program], options: tuple[str, ...]
) -> None:
    (tmp_path / "app.py").write_text("from oxcart import Queue\nqueue = Queue('q')\nqueue.fallback(print)\n")
    url = f"redis://:wrong-one@127.0.0.1:{guarded.port}"
    program = start("--url", url, "work", "app:queue", *options)
    program.wait_for("does not let us in")
    assert program.wait() == 3
    assert not any("wrong-one" in line for line in program.seen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_worker_outlives_a_password_that_changes_while_it_runs(
    guarded: ValkeyServer, protocol: Any
) -> None:
    url = f"redis://:secret@127.0.0.1:{guarded.port}"
    with contextlib.closing(guarded.client(password="secret")) as client:
        plain: Any = client
        async with Queue("q", url=url, protocol=protocol) as queue:
            queue.fallback(work)
            async with Worker(queue).running() as worker:
                assert await (await queue.add("job")).result(60) == "done"
                client.config_set("requirepass", "other")
                plain.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await eventually(lambda: not worker.is_connected, "the worker is denied")
                client.config_set("requirepass", "secret")
                await eventually(lambda: worker.is_connected, "the worker is let in again")
                assert await (await queue.add("job")).result(60) == "done"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_tls_to_a_plain_port_is_named(protocol: Any, certificates: Certificates) -> None:
    with ValkeyServer() as server:
        url = f"rediss://localhost:{server.port}/0?{certificates.query}"
        await is_named(url, protocol, f"localhost:{server.port} does not speak TLS: write redis://")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_tls_to_a_port_of_tls_is_named(protocol: Any, certificates: Certificates) -> None:
    with ValkeyServer() as server, contextlib.closing(TlsProxy(server.port, certificates)) as proxy:
        url = f"redis://localhost:{proxy.port}/0"
        await is_named(url, protocol, f"localhost:{proxy.port} speaks TLS: write rediss://")


async def is_named(url: str, protocol: Any, message: str) -> None:
    """An add and a worker fail in time with this message."""
    async with Queue("q", url=url, protocol=protocol) as queue:
        queue.fallback(work)
        for call in (lambda: queue.add("job"), Worker(queue).run):
            began = time.monotonic()
            with pytest.raises(AccessDenied, match=message):
                await call()
            assert time.monotonic() - began < AT_ONCE


async def test_an_unreachable_server_is_not_an_access_error() -> None:
    """A server that closes every connection without a reply may come back."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Queue("q", url=f"redis://127.0.0.1:{port}") as queue:
            queue.fallback(work)
            running = asyncio.create_task(Worker(queue).run())
            done, _ = await asyncio.wait((running,), timeout=1.5)
            assert not done
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
