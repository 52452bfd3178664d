"""The search for the master: silent Sentinels and nodes, nodes without a host name, moved slots."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from oxcart.broker.caller import Caller
from oxcart.broker.connection import Server
from oxcart.broker.link import ReplyError
from tests.broker.test_link import PONG, answering, fake_server


class TestFindingTheMaster:
    async def test_a_silent_sentinel_does_not_hide_the_others(self) -> None:
        named = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6390\r\n"
        async with fake_server(answering()) as dead, fake_server(answering(PONG, named)) as living:
            server = Server(f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{living}/main")
            async with asyncio.timeout(4.5):  # the time that a link gives to the whole search
                assert (await server.endpoint()).port == 6390

    async def test_a_silent_node_does_not_hide_the_others(self) -> None:
        slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6391\r\n"
        async with fake_server(answering()) as dead, fake_server(answering(PONG, slots)) as living:
            server = Server(f"redis+cluster://127.0.0.1:{dead},127.0.0.1:{living}")
            async with asyncio.timeout(4.5):
                assert (await server.endpoint(7)).port == 6391

    async def test_a_silent_sentinel_is_asked_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("oxcart.broker.masters.ASK_TIMEOUT", 0.3)
        named = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6390\r\n"
        async with fake_server(answering()) as dead, fake_server(answering(PONG, named)) as living:
            hosts = ",".join(f"127.0.0.1:{port}" for port in [dead] * 5 + [living])
            server = Server(f"redis+sentinel://{hosts}/main")
            for _ in range(5):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        assert (await server.endpoint()).port == 6390
                        break
            else:
                pytest.fail("the living sentinel was never asked")

    async def test_a_node_that_does_not_name_its_host_is_where_it_was_asked(self) -> None:
        slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$-1\r\n:6391\r\n"
        async with fake_server(answering(PONG, slots)) as port:
            server = Server(f"redis+cluster://localhost:{port}")
            at = await server.endpoint(7)
            assert (at.host, at.port) == ("localhost", 6391)

    async def test_a_slot_that_moved_within_a_host(self) -> None:
        async with fake_server(answering(PONG, b"-ERR unknown command\r\n")) as port:
            server = Server(f"redis+cluster://localhost:{port}")
            server.moved(0, "localhost", port)
            caller = Caller(server, 0, "me")
            await caller.link.connect()
            for answer in ("MOVED 0 :7001", "MOVED 0 ?:7001"):
                caller._judge(ReplyError(answer), "add", False, 1)
                at = await server.endpoint(0)
                assert (at.host, at.port) == ("localhost", 7001)
            await caller.close()
