"""One connection: replies in order, a loss fails every waiting call, no read hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.link import Endpoint, Link, ReplyError, pack
from oxcart.model.errors import AccessDenied, BrokerUnavailable
from tests.servers import ValkeyServer
from tests.signals import eventually

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def to(port: int, **endpoint: Any) -> Callable[[], Awaitable[Endpoint]]:
    async def resolve() -> Endpoint:
        return Endpoint(port=port, **endpoint)

    return resolve


@pytest_asyncio.fixture
async def link(valkey: ValkeyServer, store: redis.Redis) -> AsyncIterator[Link]:
    made = Link(to(valkey.port), client_name="test-link")
    yield made
    await made.close()


@asynccontextmanager
async def fake_server(*behaviours: Behaviour) -> AsyncIterator[int]:
    """A server with one behaviour per connection, in turn; the last behaviour repeats."""
    coming = list(behaviours)
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        behave = coming.pop(0) if len(coming) > 1 else coming[0]
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in writers:
        writer.transport.abort()


def answering(*answers: bytes) -> Behaviour:
    """Answers one command after another, then reads without replying."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(1000)
            writer.write(answer)
            await writer.drain()
        await reader.read()

    return behave


def leaving(*answers: bytes) -> Behaviour:
    """Answers a number of commands, then closes the connection."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(1000)
            writer.write(answer)
            await writer.drain()

    return behave


PONG = b"+PONG\r\n"


class TestCalls:
    async def test_connects_when_first_called(self, link: Link) -> None:
        before = link.is_connected
        assert await link.call("PING") == b"PONG"
        assert (before, link.is_connected, link.connections_made) == (False, True, 1)

    async def test_any_argument(self, link: Link) -> None:
        await link.call("HSET", "h", "text", "ü", b"raw", b"\x00\xff", "int", 5, "float", 1.5)
        assert await link.call("HMGET", "h", "text", b"raw", "int", "float") == [
            "ü".encode(),
            b"\x00\xff",
            b"5",
            b"1.5",
        ]

    async def test_many_calls_at_once_on_one_connection(self, link: Link) -> None:
        answers = await asyncio.gather(*(link.call("ECHO", number) for number in range(500)))
        assert answers == [str(number).encode() for number in range(500)]
        assert link.connections_made == 1
        assert link.in_flight == 0

    async def test_an_error_is_the_answer_of_its_call_alone(self, link: Link) -> None:
        commands = [("SET", "k", "v"), ("LPUSH", "k", "v"), ("GET", "k")]
        answers = await asyncio.gather(*(link.call(*words) for words in commands), return_exceptions=True)
        assert answers[0::2] == [b"OK", b"v"]
        assert isinstance(answers[1], ReplyError)
        assert answers[1].code == "WRONGTYPE"

    async def test_pipeline(self, link: Link) -> None:
        answers = await link.pipeline(
            [pack(("SET", "k", "v")), pack(("LPUSH", "k", "v")), pack(("GET", "k"))]
        )
        assert answers[0::2] == [b"OK", b"v"]
        assert isinstance(answers[1], ReplyError)

    async def test_a_cancelled_call_does_not_shift_the_answers(self, link: Link) -> None:
        await link.call("PING")
        waiting = asyncio.create_task(link.call("BLPOP", "nothing", "0.05", timeout=5))
        await asyncio.sleep(0)
        following = asyncio.create_task(link.call("ECHO", "next"))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await following == b"next"

    async def test_a_large_answer(self, link: Link) -> None:
        big = b"x" * 5_000_000
        await link.call("SET", "big", big)
        assert await link.call("GET", "big") == big


class TestGreeting:
    async def test_name(self, link: Link, store: redis.Redis) -> None:
        await link.call("PING")
        assert "test-link" in {client["name"] for client in store.client_list()}

    async def test_database(self, valkey: ValkeyServer, store: redis.Redis) -> None:
        link = Link(to(valkey.port, db=3))
        await link.call("SET", "k", "v")
        await link.close()
        assert store.dbsize() == 0
        assert valkey.client(db=3).get("k") == "v"

    async def test_password_and_user(self) -> None:
        with ValkeyServer(requirepass="secret") as server:
            client = server.client(password="secret")
            client.acl_setuser("ada", enabled=True, passwords=["+lovelace"], keys="*", commands=["+@all"])
            for endpoint in ({"password": "secret"}, {"username": "ada", "password": "lovelace"}):
                link = Link(to(server.port, **endpoint))
                assert await link.call("PING") == b"PONG"
                await link.close()
            wrong = Link(to(server.port, password="guess"))
            with pytest.raises(AccessDenied, match=r"does not let us in: WRONGPASS") as caught:
                await wrong.call("PING")
            assert "guess" not in str(caught.value)
            await wrong.close()

    async def test_unix_socket(self) -> None:
        with ValkeyServer(unixsocket="s.sock", unixsocketperm=700) as server:
            link = Link(to(0, path=str(server.folder / "s.sock")))
            assert await link.call("PING") == b"PONG"
            await link.close()

    def test_an_endpoint_does_not_show_its_password(self) -> None:
        assert "secret" not in repr(Endpoint(password="secret"))


class TestLoss:
    async def test_refused_connection_raises_broker_unavailable(self) -> None:
        link = Link(to(1))
        with pytest.raises(BrokerUnavailable, match=r"cannot reach 127\.0\.0\.1:1: "):
            await link.call("PING")
        await link.close()

    async def test_every_waiting_call_fails(self, link: Link, store: redis.Redis) -> None:
        await link.call("PING")
        calls = [asyncio.create_task(link.call("BLPOP", "nothing", 0, timeout=60)) for _ in range(3)]
        await eventually(lambda: link.in_flight == 3, "the calls are under way")
        await eventually(lambda: store.info("clients")["blocked_clients"] == 1, "the server blocks")
        store.client_kill_filter(_type="normal", skipme=True)
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, BrokerUnavailable)
        assert await link.call("PING") == b"PONG"
        assert link.connections_made == 2

    async def test_drop_cuts_and_the_next_call_connects_again(self, link: Link) -> None:
        await link.call("PING")
        waiting = asyncio.create_task(link.call("BLPOP", "nothing", 0, timeout=60))
        await eventually(lambda: link.in_flight == 1, "the call is under way")
        link.drop("for a test")
        with pytest.raises(BrokerUnavailable, match="for a test"):
            await waiting
        assert await link.call("PING") == b"PONG"

    async def test_close_is_for_good(self, link: Link) -> None:
        await link.call("PING")
        await link.close()
        with pytest.raises(BrokerUnavailable, match="was closed"):
            await link.call("PING")
        await link.close()

    async def test_concurrent_calls_share_one_attempt_to_connect(self) -> None:
        asked = 0

        async def resolve() -> Endpoint:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return Endpoint(port=1)

        link = Link(resolve)
        answers = await asyncio.gather(*(link.call("PING") for _ in range(10)), return_exceptions=True)
        assert all(isinstance(answer, BrokerUnavailable) for answer in answers)
        assert asked == 1
        await link.close()

    async def test_a_caller_that_gives_up_does_not_end_the_attempt_of_others(self, link: Link) -> None:
        first = asyncio.create_task(link.call("ECHO", 1))
        second = asyncio.create_task(link.call("ECHO", 2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"2"

    async def test_a_server_that_hangs_up_in_mid_answer(self) -> None:
        async with fake_server(leaving(PONG, b"$100\r\nhalf")) as port:
            link = Link(to(port))
            with pytest.raises(BrokerUnavailable):
                await link.call("GET", "k")
            await link.close()

    async def test_an_unexpected_reply_ends_the_connection(self) -> None:
        async with fake_server(answering(PONG, b"+ONE\r\n+TWO\r\n")) as port:
            link = Link(to(port))
            assert await link.call("GET", "k") == b"ONE"
            await eventually(lambda: not link.is_connected, "the connection is given up")
            await link.close()

    async def test_bytes_that_are_no_answer(self) -> None:
        async with fake_server(answering(PONG, b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
            link = Link(to(port))
            with pytest.raises((BrokerUnavailable, ReplyError)):
                await asyncio.wait_for(link.call("GET", "k"), 10)
            await link.close()


class TestNoReadHangs:
    async def test_a_silent_server_at_the_greeting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("oxcart.broker.link.CONNECT_TIMEOUT", 0.05)
        async with fake_server(answering()) as port:
            link = Link(to(port))
            with pytest.raises(BrokerUnavailable, match="cannot reach"):
                await asyncio.wait_for(link.call("PING"), 10)
            await link.close()

    async def test_a_server_that_stops_answering(self) -> None:
        async with fake_server(answering(PONG)) as port:
            link = Link(to(port), timeout=0.05)
            with pytest.raises(BrokerUnavailable, match="no answer in time"):
                await asyncio.wait_for(link.call("GET", "k"), 10)
            await link.close()

    async def test_a_call_may_have_a_limit_of_its_own(self) -> None:
        async with fake_server(answering(PONG)) as port:
            link = Link(to(port), timeout=600)
            with pytest.raises(BrokerUnavailable, match="no answer in time"):
                await asyncio.wait_for(link.call("GET", "k", timeout=0.05), 10)
            await link.close()

    async def test_after_a_greeting_that_failed(self) -> None:
        loading = answering(b"-LOADING the dataset\r\n")
        async with fake_server(loading, answering(PONG)) as port:
            link = Link(to(port), timeout=0.05)
            with pytest.raises(BrokerUnavailable, match="LOADING"):
                await link.call("PING")
            with pytest.raises(BrokerUnavailable, match="no answer in time"):
                await asyncio.wait_for(link.call("GET", "k"), 10)
            await link.close()

    async def test_a_frozen_server(self) -> None:
        with ValkeyServer() as server:
            link = Link(to(server.port))
            await link.call("PING")
            server.freeze()
            try:
                with pytest.raises(BrokerUnavailable, match="no answer in time"):
                    await asyncio.wait_for(link.call("PING", timeout=0.1), 10)
            finally:
                server.thaw()
            assert await link.call("PING") == b"PONG"
            await link.close()


class LoopClock:
    """The clock of the running loop, which advances only on request and not with the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def go_on(self, seconds: float) -> None:
        """Advances the clock and runs the callbacks that are due."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


class TestSlowServers:
    async def test_a_server_that_hangs_up_right_after_the_greeting(self) -> None:
        async with fake_server(leaving(PONG)) as port:
            for _ in range(20):
                link = Link(to(port), timeout=0.05)
                with pytest.raises(BrokerUnavailable):
                    await asyncio.wait_for(link.call("GET", "k"), 5)
                await link.close()

    async def test_a_connection_that_was_lost_takes_no_more_calls(self) -> None:
        async with fake_server(answering(PONG)) as port:
            link = Link(to(port), timeout=0.05)
            wire = await link.connect()
            link.drop("the slot moved")
            await asyncio.sleep(0)
            with pytest.raises(BrokerUnavailable):
                await asyncio.wait_for(link._send(wire, b"*1\r\n$4\r\nPING\r\n", None), 5)
            await link.close()

    async def test_an_answer_that_is_still_coming_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = LoopClock(monkeypatch)

        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(PONG)
            await reader.read(1000)
            assert client._wire is not None
            for byte in b"$20\r\n" + b"x" * 20 + b"\r\n":
                received = client._wire.received
                writer.write(bytes([byte]))
                while client._wire.received == received:
                    await asyncio.sleep(0)
                await clock.go_on(0.9)
            await reader.read()

        async with fake_server(trickle) as port:
            client = Link(to(port), timeout=1)
            assert await client.call("GET", "k") == b"x" * 20
            asked = asyncio.create_task(client.call("GET", "k", timeout=0.5))
            while not client.in_flight:
                await asyncio.sleep(0)
            await clock.go_on(2)
            with pytest.raises(BrokerUnavailable):  # a limit that the caller asked for is kept
                await asked
            await client.close()

    async def test_a_call_that_is_still_going_out_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = LoopClock(monkeypatch)

        async def sip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(PONG)
            left = 24_000_000
            while left > 0:
                left -= len(await reader.read(1_000_000))
                await clock.go_on(0.06)
            writer.write(b"+OK\r\n")
            await reader.read()

        async with fake_server(sip) as port:
            link = Link(to(port), timeout=2)
            began = clock.now
            assert await link.call("SET", "k", b"x" * 24_000_000) == b"OK"
            assert clock.now > began + 4, "it took longer than the limit of a silent call"
            await link.close()

    async def test_a_server_that_repeats_the_password_in_its_refusal(self) -> None:
        refusal = b"-ERR unknown command 'AUTH', with args beginning with: 'ada' 'hush-hush' \r\n"
        async with fake_server(answering(refusal)) as port:
            link = Link(to(port, username="ada", password="hush-hush"))
            with pytest.raises(BrokerUnavailable) as caught:
                await link.call("PING")
            await link.close()
        error: BaseException | None = caught.value
        while error is not None:
            assert "hush-hush" not in str(error)
            error = error.__cause__ or error.__context__
