"""Repeated calls: each change is applied once, retries where they help, typed errors elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.keys import journal_key
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.caller import Caller, script_error
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.link import AnswerLost, ReplyError
from oxcart.model.errors import (
    AccessDenied,
    BrokerTimeout,
    BrokerUnavailable,
    CrossSlotError,
    OutcomeUnknown,
    ScriptError,
)
from tests.servers import ValkeyServer
from tests.signals import eventually

META = "bull:q:meta"
QUICK = Reconnect(initial=0.001, held=0.005, idle=0.005)


@pytest_asyncio.fixture
async def caller(url: str) -> AsyncIterator[Caller]:
    made = Caller(Server(url), None, "me", reconnect=QUICK)
    yield made
    await made.close()


class Faults:
    """Breaks the next calls of a caller: before they reach the server, or after they were applied."""

    def __init__(self, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[Any] = []
        self.sent = 0
        real = caller.link.call_packed

        async def call_packed(packed: bytes, *more: Any, **options: Any) -> Any:
            self.sent += 1
            fault = self.plan.pop(0) if self.plan else None
            if fault == "lost answer":
                await real(packed, *more, **options)
                raise AnswerLost("127.0.0.1: the connection was lost")
            if fault is not None:
                raise fault
            return await real(packed, *more, **options)

        def send(packed: bytes, _: float | None = None) -> asyncio.Future[Any] | None:
            return asyncio.ensure_future(call_packed(packed)) if caller.link.is_connected else None

        monkeypatch.setattr(caller.link, "call_packed", call_packed)
        monkeypatch.setattr(caller.link, "send", send)


@contextlib.asynccontextmanager
async def slow_line(port: int, rate: int) -> AsyncIterator[int]:
    """Forwards a client's bytes to a server at a limited rate per second; yields the port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) * pause)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, forth, 1 / rate), pump(back, writer, 0), return_exceptions=True)

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        listener.bind(("127.0.0.1", 0))
        async with await asyncio.start_server(serve, sock=listener):
            yield listener.getsockname()[1]


@pytest.fixture
def faults(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(caller, monkeypatch)


def add_arguments(job_id: str = "a") -> tuple[Any, ...]:
    return (1, 0, job_id, "n", "{}", "{}", 5, 0, 0, "", 0)


class TestOnce:
    async def test_runs_by_sha_and_has_it_compiled_first_where_it_is_unknown(
        self, caller: Caller, store: redis.Redis
    ) -> None:
        store.script_flush()
        assert (await caller.once(load("add"), META, *add_arguments("a")))[0] == 1
        assert (await caller.once(load("add"), META, *add_arguments("b")))[0] == 1
        stats = store.info("commandstats")
        assert (stats["cmdstat_eval"]["calls"], stats["cmdstat_evalsha"]["calls"]) == (2, 2)
        assert stats["cmdstat_lpush"]["calls"] == 2, "each added once"

    async def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
        self, caller: Caller, store: redis.Redis, faults: Faults
    ) -> None:
        faults.plan = ["lost answer", "lost answer"]
        assert (await caller.once(load("add"), META, *add_arguments()))[0] == 1
        assert faults.sent == 3
        assert store.llen("bull:q:wait") == 1
        assert store.xlen("bull:q:events") == 2  # added, waiting
        assert store.get("bull:q:id") == "1"

    async def test_every_call_has_a_number_of_its_own(self, caller: Caller, store: redis.Redis) -> None:
        for number in range(3):
            await caller.once(load("add"), META, *add_arguments(str(number)))
        kept = store.connection_pool.connection_kwargs
        raw = redis.Redis(host="127.0.0.1", port=kept["port"]).get("bull:q:ox:call:me:0")
        assert isinstance(raw, bytes)
        assert raw.startswith(b"3:")
        assert list(store.scan_iter("bull:q:ox:*")) == ["bull:q:ox:call:me:0"]

    async def test_calls_in_flight_together_have_slots_of_their_own(
        self, caller: Caller, store: redis.Redis
    ) -> None:
        await asyncio.gather(*(caller.once(load("add"), META, *add_arguments(str(i))) for i in range(5)))
        await asyncio.gather(*(caller.once(load("add"), META, *add_arguments(f"x{i}")) for i in range(5)))
        assert sorted(map(str, store.scan_iter("bull:q:ox:*"))) == [
            f"bull:q:ox:call:me:{i}" for i in range(5)
        ]

    async def test_the_memory_of_a_slot_is_short(self, caller: Caller, store: redis.Redis) -> None:
        await caller.once(load("add"), META, *add_arguments())
        left = store.ttl("bull:q:ox:call:me:0")
        assert isinstance(left, int)
        assert 0 < left <= 600

    async def test_slot_of_an_abandoned_call_is_not_reused(
        self, caller: Caller, store: redis.Redis, faults: Faults
    ) -> None:
        faults.plan = [ReplyError("ERR no")]
        with pytest.raises(ScriptError, match="add: ERR no"):
            await caller.once(load("add"), META, *add_arguments())
        await caller.once(load("add"), META, *add_arguments())
        assert list(store.scan_iter("bull:q:ox:*")) == ["bull:q:ox:call:me:1"]


class TestJournal:
    """The remembered answers of a caller, which are keys of the queue."""

    @pytest_asyncio.fixture
    async def caller(self, url: str) -> AsyncIterator[Caller]:
        made = Caller(Server(url), None, "me", journal=journal_key, reconnect=QUICK)
        yield made
        await made.close()

    async def test_close_deletes_the_keys_of_answered_calls(self, caller: Caller, store: redis.Redis) -> None:
        lane = "bull:q@all;c=gpu:meta"
        for key in (META, lane):
            adding = [caller.once(load("add"), key, *add_arguments(job_id)) for job_id in "abc"]
            assert [answer[0] for answer in await asyncio.gather(*adding)] == [1] * 3
        assert len(store.keys("*:ox:call:*")) == 6
        await caller.close()
        assert store.keys("*:ox:call:*") == []

    async def test_close_leaves_the_key_of_a_call_that_a_dead_connection_may_deliver_late(
        self, caller: Caller, faults: Faults, store: redis.Redis
    ) -> None:
        faults.plan = ["lost answer"]
        assert (await caller.once(load("add"), META, *add_arguments("a")))[0] == 1
        await caller.close()
        (kept,) = store.keys("*:ox:call:*")
        assert 0 < store.ttl(kept) <= 600
        store.delete("bull:q:a", "bull:q:wait")
        late: Any = store.eval(load("add").text.decode(), 1, META, "me:0", 1, *add_arguments("a"))
        assert (late[0], store.exists("bull:q:a")) == (1, 0), "answered, and not applied again"

    async def test_close_leaves_the_key_of_a_call_that_was_given_up(
        self, caller: Caller, faults: Faults, store: redis.Redis
    ) -> None:
        # Connecting and compiling may take longer than the timeout.
        await caller.once(load("add"), META, *add_arguments("b"))
        faults.plan = ["lost answer", *[BrokerUnavailable("cannot reach it")] * 1000]
        with pytest.raises(OutcomeUnknown):
            await caller.once(load("add"), META, *add_arguments("a"), timeout=0.05)
        faults.plan = []
        await caller.close()
        assert len(store.keys("*:ox:call:*")) == 1

    async def test_refused_calls_take_no_memory(
        self, caller: Caller, faults: Faults, store: redis.Redis
    ) -> None:
        """A producer may try for hours while the server is full."""
        for _ in range(3):
            faults.plan = [ReplyError("OOM command not allowed")]
            with pytest.raises(ScriptError):
                await caller.once(load("add"), META, *add_arguments("a"))
        assert not caller._written
        await caller.once(load("add"), META, *add_arguments("a"))
        await caller.close()
        assert store.keys("*:ox:call:*") == []

    async def test_close_spends_no_time_on_a_server_that_is_away(self, caller: Caller, url: str) -> None:
        await caller.once(load("add"), META, *add_arguments("a"))
        caller.link.drop("cut")
        await caller.close()
        assert caller.link.connections_made == 1, "no new connection for it"


class TestAgain:
    async def test_leaves_no_memory(self, caller: Caller, store: redis.Redis) -> None:
        *answer, took_us = await caller.again(load("promote"), META, 5, 250)
        assert (answer, took_us >= 0) == ([0, 0, 0, 5, b""], True)
        assert store.dbsize() == 0


class TestReads:
    async def test_command_and_pipeline_are_repeated_after_a_loss(
        self, caller: Caller, store: redis.Redis
    ) -> None:
        store.set("k", "v")
        assert await caller.command("GET", "k") == b"v"
        caller.link.drop("cut")
        assert await caller.command("GET", "k") == b"v"
        caller.link.drop("cut")
        assert await caller.pipeline([("GET", "k"), ("EXISTS", "k")]) == [b"v", 1]

    async def test_an_error_in_a_pipeline_is_typed(self, caller: Caller, store: redis.Redis) -> None:
        store.set("k", "v")
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await caller.pipeline([("GET", "k"), ("LLEN", "k")])


class TestPatience:
    @pytest.mark.parametrize(
        "code", ["LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS"]
    )
    async def test_refusals_that_pass_are_waited_out(
        self, caller: Caller, faults: Faults, store: redis.Redis, code: str
    ) -> None:
        store.script_load(load("add").text)  # otherwise a server without the script needs its text too
        faults.plan = [ReplyError(f"{code} not now")] * 3
        assert (await caller.once(load("add"), META, *add_arguments()))[0] == 1
        assert faults.sent == 4

    @pytest.mark.parametrize("code", ["OOM", "MISCONF"])
    async def test_only_patient_calls_wait_for_memory_and_disk(
        self, caller: Caller, faults: Faults, code: str
    ) -> None:
        faults.plan = [ReplyError(f"{code} command not allowed")]
        with pytest.raises(ScriptError, match=code):
            await caller.once(load("add"), META, *add_arguments())
        faults.plan = [ReplyError(f"{code} command not allowed")] * 2
        assert (await caller.once(load("add"), META, *add_arguments(), patient=True))[0] == 1

    @pytest.mark.parametrize(
        "refusal", [ReplyError("OOM command not allowed"), ReplyError("NOPERM no"), AccessDenied("no")]
    )
    async def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_applied(
        self, caller: Caller, faults: Faults, store: redis.Redis, refusal: Exception
    ) -> None:
        store.script_load(load("add").text)  # otherwise the first reply is NOSCRIPT
        faults.plan = ["lost answer", refusal]
        with pytest.raises(OutcomeUnknown, match="add: not answered, and its repeat was refused: "):
            await caller.once(load("add"), META, *add_arguments("a"))
        assert store.lrange("bull:q:wait", 0, -1) == ["a"]

    async def test_a_moved_slot_is_followed(
        self, caller: Caller, faults: Faults, valkey: ValkeyServer
    ) -> None:
        faults.plan = [ReplyError(f"MOVED 5 127.0.0.1:{valkey.port}")]
        assert (await caller.once(load("add"), META, *add_arguments()))[0] == 1

    async def test_other_refusals_raise_at_once(self, caller: Caller, store: redis.Redis) -> None:
        store.set("bull:q:events", "not a stream")
        codes = await caller.once(load("add"), META, *add_arguments())
        assert b"WRONGTYPE" in codes[0]
        store.set(META, "not a hash")
        with pytest.raises(ScriptError, match="WRONGTYPE"):
            await caller.once(load("pause"), META)

    def test_a_call_over_several_slots_has_its_own_error(self) -> None:
        for text in (
            "CROSSSLOT Keys in request",
            "Script attempted to access a non local key in a cluster node",
        ):
            assert isinstance(script_error("add", text), CrossSlotError)
        assert not isinstance(script_error("add", "ERR other"), CrossSlotError)


class TestLimits:
    async def test_gives_up_after_a_number_of_attempts(self) -> None:
        caller = Caller(
            Server("redis://127.0.0.1:1/0"),
            None,
            "me",
            reconnect=Reconnect(initial=0.001, held=0.001, attempts=3),
        )
        with pytest.raises(BrokerUnavailable, match="gave up after 3 attempts: cannot reach"):
            await caller.command("PING")
        await caller.close()

    async def test_a_timeout_reports_that_nothing_was_applied(self) -> None:
        caller = Caller(Server("redis://127.0.0.1:1/0"), None, "me", reconnect=QUICK)
        with pytest.raises(BrokerTimeout, match=r"add: no connection within 0\.02 s: cannot reach"):
            await caller.once(load("add"), META, *add_arguments(), timeout=0.02)
        await caller.close()

    async def test_a_timeout_reports_that_the_call_may_have_been_applied(
        self, caller: Caller, faults: Faults
    ) -> None:
        lost = AnswerLost("127.0.0.1: the connection was lost")
        gone = BrokerUnavailable("cannot reach 127.0.0.1")
        await caller.command("PING")  # connecting may take longer than the timeout
        faults.plan = [lost, *[gone] * 1000]
        with pytest.raises(OutcomeUnknown, match=r"add: no answer within 0\.02 s"):
            await caller.once(load("add"), META, *add_arguments(), timeout=0.02)

    async def test_a_timeout_holds_where_the_server_is_frozen(self) -> None:
        with ValkeyServer() as server:
            caller = Caller(Server(server.url), None, "me", reconnect=QUICK)
            await caller.command("PING")
            server.freeze()
            began = time.monotonic()
            try:
                with pytest.raises(OutcomeUnknown, match="no answer within"):
                    await caller.once(load("add"), META, *add_arguments(), timeout=0.2)
            finally:
                server.thaw()
            assert time.monotonic() - began < 8
            await caller.close()

    @pytest.mark.parametrize("limit", [10.0, 1.0], ids=["own timer", "watch"])
    @pytest.mark.parametrize("connected", [False, True], ids=["connecting", "connected"])
    async def test_a_timeout_holds_for_connections_and_repeats_too(
        self, connected: bool, limit: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A frozen server accepts connections but sends no greeting: connecting alone may take 5 s.

        The link ends the first attempt if the timeout is above its own limit; the repeats have the rest.
        """
        monkeypatch.setattr("oxcart.broker.caller.CALL_TIMEOUT", limit)
        with ValkeyServer() as server:
            caller = Caller(Server(server.url), None, "me", reconnect=QUICK)
            caller.link._timeout = limit
            if connected:
                await caller.command("PING")
            server.freeze()
            began = time.monotonic()
            try:
                with pytest.raises(OutcomeUnknown if connected else BrokerTimeout, match=r"within 1\.5 s"):
                    await caller.once(load("add"), META, *add_arguments(), timeout=1.5)
                assert 1.4 < time.monotonic() - began < 3.5
            finally:
                server.thaw()
            await caller.close()

    @pytest.mark.slow
    async def test_a_call_whose_bytes_move_is_given_up_after_its_timeout(
        self, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The watch of the connection ends the call, and leaves the connection to the others."""
        monkeypatch.setattr("oxcart.broker.caller.CALL_TIMEOUT", 1.0)
        async with slow_line(valkey.port, 100_000) as port:
            caller = Caller(Server(f"redis://127.0.0.1:{port}"), None, "me", reconnect=QUICK)
            caller.link._timeout = 1.0
            wire = await caller.link.connect()
            assert wire.transport is not None
            wire.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            job = ("a", "n", "x" * 3_000_000, "{}", 5, 0, 0, "", 0)
            with pytest.raises(OutcomeUnknown, match="add: no answer within 2 s"):
                await caller.once(load("add"), META, 1, 0, *job, timeout=2)
            assert caller.link.is_connected
            await caller.close()

    @pytest.mark.slow
    async def test_a_refusal_until_the_timeout_reports_that_nothing_was_applied(self) -> None:
        with ValkeyServer(min_replicas_to_write=1) as server:
            caller = Caller(Server(server.url), None, "me", reconnect=Reconnect(initial=60, held=60))
            with pytest.raises(BrokerTimeout, match=r"add: refused for 3 s: NOREPLICAS"):
                await caller.once(load("add"), META, *add_arguments(), timeout=3)
            await caller.close()

    @pytest.mark.slow
    async def test_a_large_job_on_a_slow_line_has_all_of_its_time(
        self, valkey: ValkeyServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection ends after its limit only without progress; here the job's bytes move."""
        monkeypatch.setattr("oxcart.broker.caller.CALL_TIMEOUT", 1.0)
        async with slow_line(valkey.port, 1_000_000) as port:
            caller = Caller(Server(f"redis://127.0.0.1:{port}"), None, "me", reconnect=QUICK)
            caller.link._timeout = 1.0
            wire = await caller.link.connect()
            assert wire.transport is not None
            wire.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            job = ("a", "n", "x" * 3_000_000, "{}", 5, 0, 0, "", 0)
            assert (await caller.once(load("add"), META, 1, 0, *job, timeout=20))[0] == 1
            assert caller.link.connections_made == 1
            await caller.close()
        assert store.hstrlen("bull:q:a", "data") == 3_000_000

    async def test_closing_ends_a_call_that_waits_for_the_server(self) -> None:
        caller = Caller(Server("redis://127.0.0.1:1/0"), None, "me", reconnect=QUICK)
        waiting = asyncio.create_task(caller.command("PING"))
        await asyncio.sleep(0.01)
        await caller.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(waiting, 5)

    async def test_closing_ends_a_call_under_way(self, caller: Caller) -> None:
        await caller.command("PING")
        waiting = asyncio.create_task(caller.command("BLPOP", "nothing", 0))
        await eventually(lambda: caller.link.in_flight == 1, "the call is under way")
        await caller.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(waiting, 5)


class TestHooks:
    async def test_hooks_receive_scripts_and_reconnects(self, caller: Caller, faults: Faults) -> None:
        scripts: list[tuple[str, float]] = []
        reconnects: list[int] = []
        caller.on_script = lambda verb, seconds: scripts.append((verb, seconds))
        caller.on_reconnect = lambda: reconnects.append(1)
        faults.plan = [BrokerUnavailable("cannot reach it")] * 2
        await caller.once(load("add"), META, *add_arguments())
        assert [verb for verb, _ in scripts] == ["add"]
        assert len(reconnects) == 2

    async def test_pauses_are_shorter_while_something_is_held(
        self, caller: Caller, faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr("oxcart.broker.caller.asyncio.sleep", sleep)
        caller.reconnect = Reconnect(initial=0.1, held=2, idle=30, jitter=0)
        gone = BrokerUnavailable("cannot reach it")
        caller.holding = lambda: True
        faults.plan = [gone] * 7
        await caller.once(load("add"), META, *add_arguments())
        assert slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2])
        slept.clear()
        caller.holding = lambda: False
        faults.plan = [gone] * 7
        await caller.once(load("add"), META, *add_arguments("b"))
        assert slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4])

    async def test_the_first_loss_of_a_connection_is_repeated_at_once(
        self, caller: Caller, faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr("oxcart.broker.caller.asyncio.sleep", sleep)
        faults.plan = ["lost answer"]
        await caller.once(load("add"), META, *add_arguments())
        assert slept == []


async def test_warnings_are_few(caller: Caller, faults: Faults, caplog: pytest.LogCaptureFixture) -> None:
    faults.plan = [BrokerUnavailable("cannot reach it")] * 30
    with caplog.at_level("WARNING", logger="oxcart.broker"), contextlib.suppress(BrokerUnavailable):
        await caller.once(load("add"), META, *add_arguments())
    assert len([r for r in caplog.records if re.search(r"attempt \d+ in", r.getMessage())]) == 3
