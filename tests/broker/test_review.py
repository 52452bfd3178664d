"""Rare moments in which a call could hang, a server stay unfound, or a job fall between two lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.caller import Caller
from oxcart.broker.connection import Server
from oxcart.broker.link import Link, ReplyError
from oxcart.broker.port import Ask, Outcome
from oxcart.model.errors import BrokerUnavailable, ScriptError
from oxcart.model.options import JobOptions
from tests.broker.test_link import PONG, answering, fake_server, leaving, to
from tests.conftest import MakeQueue


@pytest_asyncio.fixture
async def broker(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "q")
    yield made
    await made.close()


class LoopClock:
    """The clock of the running loop, which goes on only when it is told to, whatever the machine does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def go_on(self, seconds: float) -> None:
        """Lets time pass, and lets the loop do what is due then."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


class TestLink:
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
            assert link._wire is not None
            for byte in b"$20\r\n" + b"x" * 20 + b"\r\n":
                received = link._wire.received
                writer.write(bytes([byte]))
                while link._wire.received == received:
                    await asyncio.sleep(0)
                await clock.go_on(0.9)
            await reader.read()

        async with fake_server(trickle) as port:
            link = Link(to(port), timeout=1)
            assert await link.call("GET", "k") == b"x" * 20
            asked = asyncio.create_task(link.call("GET", "k", timeout=0.5))
            while not link.in_flight:
                await asyncio.sleep(0)
            await clock.go_on(2)
            with pytest.raises(BrokerUnavailable):  # a limit that the caller asked for is kept
                await asked
            await link.close()

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
            assert clock.now > began + 4, "it took longer than a call may that stands still"
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


class TestFindingTheMaster:
    async def test_a_sentinel_that_says_nothing_does_not_hide_the_others(self) -> None:
        named = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6390\r\n"
        async with fake_server(answering()) as dead, fake_server(answering(PONG, named)) as living:
            server = Server(f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{living}/main")
            async with asyncio.timeout(4.5):  # the time that a link gives to the whole search
                assert (await server.endpoint()).port == 6390

    async def test_a_node_that_says_nothing_does_not_hide_the_others(self) -> None:
        slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6391\r\n"
        async with fake_server(answering()) as dead, fake_server(answering(PONG, slots)) as living:
            server = Server(f"redis+cluster://127.0.0.1:{dead},127.0.0.1:{living}")
            async with asyncio.timeout(4.5):
                assert (await server.endpoint(7)).port == 6391

    async def test_whoever_said_nothing_is_asked_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def fill(broker: BullMQBroker, count: int, **options: object) -> list[str]:
    jobs = [broker.encode("n", {}, JobOptions(**options)) for _ in range(count)]  # type: ignore[arg-type]
    return [added.id for added in await broker.add(jobs)]


class TestLargeCalls:
    async def test_a_claim_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 8500)
        claimed = await broker.claim(Ask(count=8500))
        assert claimed.jobs
        assert store.llen("bull:q:active") == len(claimed.jobs)
        assert store.llen("bull:q:active") + store.llen("bull:q:wait") == 8500

    async def test_a_claim_by_priority_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 8500, priority=1)
        claimed = await broker.claim(Ask(count=8500))
        assert store.llen("bull:q:active") == len(claimed.jobs) > 0
        assert store.llen("bull:q:active") + store.zcard("bull:q:prioritized") == 8500

    async def test_a_finish_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 4500)
        outcomes: list[Outcome] = []
        while len(outcomes) < 4500:
            claimed = await broker.claim(Ask(count=900))
            outcomes += [Outcome("c", job.id, job.token, job.starts, 1, b"1") for job in claimed.jobs]
        with pytest.raises(ScriptError, match="at most 1000"):
            await broker.finish(outcomes)
        assert store.llen("bull:q:active") == 4500
        assert len(store.keys("bull:q:*:lock")) == 4500

    async def test_a_claim_passes_a_bounded_number_of_ids_without_a_job(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 1)
        for start in range(0, 20_000, 5000):
            store.rpush("bull:q:wait", *[f"gone-{n}" for n in range(start, start + 5000)])
        store.delete("bull:q:marker")
        claimed = await broker.claim(Ask(count=1))
        assert len(claimed.orphans) <= 2000
        assert store.zscore("bull:q:marker", "0") == 0, "the rest must be asked for"
        for _ in range(30):
            if claimed.jobs:
                return
            claimed = await broker.claim(Ask(count=1))
        pytest.fail("the job behind them was never reached")

    async def test_a_peers_senseless_limit_of_removals_is_no_limit_at_all(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        store.zadd("bull:q:completed", {f"old-{n}": 1 for n in range(9000)})
        await fill(broker, 1)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        codes, _ = await broker.finish(
            [Outcome("c", job.id, job.token, job.starts, 10**12, b"1", retention=":1:-1")]
        )
        assert codes == [1]
        assert store.zcard("bull:q:completed") == 8001


class TestBetweenTwoLists:
    @pytest.mark.parametrize("kind", ["r", "d", "w"])
    async def test_an_event_that_cannot_be_written_does_not_double_a_job(
        self, broker: BullMQBroker, store: redis.Redis, kind: str
    ) -> None:
        await fill(broker, 1)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        store.hset("bull:q:meta", "opts.maxLenEvents", "many")
        await broker.finish([Outcome(kind, job.id, job.token, job.starts, 1, b"no", b"[]", delay_ms=5)])
        places = (
            store.lrange("bull:q:active", 0, -1)
            + store.lrange("bull:q:wait", 0, -1)
            + store.zrange("bull:q:delayed", 0, -1)
        )
        assert len(places) == 1

    async def test_a_stalled_job_that_cannot_be_put_back_stays_where_it_was(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        (job_id,) = await fill(broker, 1)
        await broker.claim(Ask(count=1))
        store.delete(f"bull:q:{job_id}:lock")
        store.sadd("bull:q:stalled", job_id)
        store.set("bull:q:wait", "no list")
        with contextlib.suppress(Exception):
            await broker.recover(interval_ms=1)
        assert store.llen("bull:q:active") == 1

    @pytest.mark.parametrize("priority", [0, 1])
    async def test_a_due_job_that_cannot_be_let_through_stays_where_it_was(
        self, broker: BullMQBroker, store: redis.Redis, priority: int
    ) -> None:
        await fill(broker, 2, delay=1, priority=priority, timestamp=1)
        store.set("bull:q:wait", "no list")
        store.set("bull:q:prioritized", "no set")
        with contextlib.suppress(Exception):
            await broker.promote()
        assert store.zcard("bull:q:delayed") == 2

    async def test_letting_a_delayed_id_without_a_job_run_makes_no_job(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        store.zadd("bull:q:delayed", {"gone": 1})
        with contextlib.suppress(Exception):
            await broker.promote_job("gone")
        assert not store.exists("bull:q:gone")
        assert not store.llen("bull:q:wait")


class TestPauseLists:
    """Whatever is left in the list of the other state is lost when a peer of version 5 renames over it."""

    @pytest.mark.parametrize("paused", [True, False])
    async def test_long_lists_of_two_generations_are_merged_whole(
        self, broker: BullMQBroker, store: redis.Redis, paused: bool
    ) -> None:
        for start in range(0, 6000, 3000):
            store.lpush("bull:q:wait", *[f"w{n}" for n in range(start, start + 3000)])
            store.lpush("bull:q:paused", *[f"p{n}" for n in range(start, start + 3000)])
        if paused:
            await broker.pause()
        else:
            store.hset("bull:q:meta", "paused", 1)
            await broker.resume()
        full, empty = ("paused", "wait") if paused else ("wait", "paused")
        assert store.llen(f"bull:q:{empty}") == 0
        ids = store.lrange(f"bull:q:{full}", 0, -1)
        assert len(ids) == len(set(ids)) == 12_000


class TestWaking:
    async def test_a_job_of_a_priority_that_was_given_back_is_told_of_by_the_tick(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 1, priority=3)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        await broker.finish([Outcome("w", job.id, job.token, job.starts, 1)])
        store.delete("bull:q:marker")  # a worker took it for an earlier job
        await broker.promote()
        assert store.zscore("bull:q:marker", "0") == 0


class TestForeignIds:
    async def test_an_id_that_is_no_text_does_not_stop_its_neighbours(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        (good,) = await fill(broker, 1)
        raw = b"\xff\xfe"
        store.hset(b"bull:q:" + raw, mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": 1})
        store.rpush("bull:q:wait", raw)
        claimed = await broker.claim(Ask(count=5))
        assert [job.id for job in claimed.jobs] == [good]
        assert len(claimed.orphans) == 1
        odd = (await broker.page("active", 0, 9, oldest=True))[0].id
        assert (await broker.states([odd])) == ["active"]
        store.delete(b"bull:q:" + raw + b":lock")
        await broker.recover(interval_ms=1)
        await asyncio.sleep(0.01)
        assert (await broker.recover(interval_ms=1)).ids == [odd]
        await broker.remove_job(odd)
        assert not store.exists(b"bull:q:" + raw)


async def test_a_stalled_check_guard_without_an_end_is_taken_over(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    broker = make_queue("guarded").broker
    store.set("bull:guarded:stalled-check", "1")
    assert (await broker.recover(max_stalled=1, interval_ms=60_000)).ran
    assert 0 < store.pttl("bull:guarded:stalled-check") <= 60_000
    assert not (await broker.recover(max_stalled=1, interval_ms=60_000)).ran
