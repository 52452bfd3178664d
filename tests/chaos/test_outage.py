"""Server restarts, network outages, full memory: acknowledged jobs stay, and work resumes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.connection import Reconnect
from oxcart.model.errors import BrokerError, BrokerTimeout, BrokerUnavailable, OutcomeUnknown, ScriptError
from tests.chaos.fleet import Fleet, Store, eventually
from tests.chaos.lengths import FULL, GRACE, LEASE, LIMIT, RENEW, RESUMED
from tests.chaos.proxy import Proxy
from tests.servers import ValkeyServer, free_port

#: Every client must work again so many seconds after an outage of under ten seconds.
BAR = 5.0


class _Load:
    """Producers that never stop beside a worker; records the acknowledged adds and the runs."""

    def __init__(self, url: str, *, size: int = 20, add_timeout: float = 30.0) -> None:
        self.queue = Queue("chaos", url=url, add_timeout=add_timeout)
        self.acknowledged: list[str] = []
        self.refused: list[BrokerError] = []
        self.ran: Counter[str] = Counter()
        self.ends: list[float] = []
        self._payload = "x" * size
        self._stop = False
        self.queue.fallback(self._handle)
        # A job that stalls on a busy machine must run again instead of failing.
        self.worker = Worker(
            self.queue,
            concurrency=20,
            lock_duration=LEASE,
            renew_every=RENEW,
            stalled_interval=LEASE,
            max_stalled=20,
        )

    async def _handle(self, job: RunningJob) -> str:
        self.ran[job.id] += 1
        await asyncio.sleep(0.001)
        self.ends.append(time.monotonic())
        return "done"

    async def _produce(self) -> None:
        while not self._stop:
            try:
                handle = await self.queue.add("job", self._payload)
            except BrokerError as error:
                self.refused.append(error)
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.append(handle.id)
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def running(self, producers: int = 4) -> AsyncIterator[None]:
        async with self.worker.running():
            tasks = [asyncio.create_task(self._produce()) for _ in range(producers)]
            try:
                await self.goes_on()
                yield
            finally:
                self._stop = True
                await asyncio.gather(*tasks)
                await self.settled()
        await self.queue.close()

    async def goes_on(self, limit: float = LIMIT) -> float:
        """Waits until newly acknowledged jobs end. Returns the seconds that it took."""
        started, before = time.monotonic(), len(self.acknowledged)
        await eventually(lambda: len(self.acknowledged) >= before + 5, "adds are acknowledged again", limit)
        new = self.acknowledged[before : before + 5]
        await eventually(lambda: all(self.ran[job_id] for job_id in new), "and run", limit)
        return time.monotonic() - started

    async def settled(self) -> None:
        await eventually(
            lambda: all(self.ran[job_id] for job_id in self.acknowledged),
            "every acknowledged job ran",
            LIMIT + 4 * LEASE,
        )


def _check_all_completed(load: _Load, server: ValkeyServer) -> None:
    with server.client() as client:
        store = Store(client, "chaos")
        completed = set(store.client.zrange(store.prefix + "completed", 0, -1))
        lost = set(load.acknowledged) - completed
        assert not lost, f"{len(lost)} of {len(load.acknowledged)} acknowledged jobs are lost"
        assert store.lengths() == {"completed": len(completed)}


@pytest.mark.parametrize("kill", [False, True], ids=["sigterm", "kill"])
async def test_a_server_restarted_under_load_loses_nothing(kill: bool) -> None:
    """With `appendfsync always`, every acknowledged job is on disk, however the server ends."""
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        load = _Load(server.url)
        async with load.running():
            for _ in range(10 if FULL else 2):
                await asyncio.to_thread(server.restart, kill=kill)
                assert await load.goes_on(RESUMED) <= RESUMED
                await asyncio.sleep(0.2)
        _check_all_completed(load, server)
        assert not load.refused, load.refused[:3]


async def test_a_server_that_stays_away_for_a_while(server: ValkeyServer) -> None:
    """No client can connect for some seconds: adds wait and succeed, and work resumes within five."""
    async with Proxy(server.port) as proxy:
        load = _Load(proxy.url)
        async with load.running():
            await proxy.down()
            await asyncio.sleep(9.0 if FULL else 2.5)
            await proxy.up()
            assert await load.goes_on(RESUMED) <= RESUMED
        _check_all_completed(load, server)
        assert not load.refused


async def test_an_idle_worker_is_back_within_five_seconds(server: ValkeyServer, store: Store) -> None:
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url), Queue("chaos", url=server.url)

        @queue.fallback
        async def work() -> str:
            return "done"

        async with Worker(queue).running():
            assert await (await direct.add("job")).result(LIMIT) == "done"
            await proxy.down()
            handle = await direct.add("job")
            await asyncio.sleep(9.0 if FULL else 1.6)
            await proxy.up()
            assert await handle.result(RESUMED) == "done"
        await queue.close()
        await direct.close()


@pytest.mark.parametrize("holding", [False, True])
@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_every_worker_reconnects_after_its_pause(holding: bool, luck: float) -> None:
    """Whenever an outage of under ten seconds ends, the next attempt is less than five seconds away."""
    policy = Reconnect()
    pauses = (policy.pause(attempt, holding=holding, rand=lambda: luck) for attempt in itertools.count(1))
    attempts = list(itertools.takewhile(lambda at: at < 30, itertools.accumulate(pauses)))
    for before, after in itertools.pairwise([0.0, *attempts]):
        if before < 10:
            assert after - before < BAR
    # And clients do not try a server without pause when it is really gone.
    assert len(attempts) < (40 if holding else 15)


async def test_a_black_hole_hangs_no_client(server: ValkeyServer) -> None:
    """Connections stay open and nothing passes: calls end in time and are repeated on a new connection."""
    async with Proxy(server.port) as proxy:
        load = _Load(proxy.url)
        async with load.running():
            proxy.hold()
            await asyncio.sleep(12.0 if FULL else 2.0)
            proxy.release()
            assert await load.goes_on(RESUMED) <= RESUMED
        _check_all_completed(load, server)


async def test_a_call_without_an_answer_ends_even_on_a_link_that_was_refused_before(
    server: ValkeyServer,
) -> None:
    """The call watchdog must belong to the open connection, not to one whose greeting failed."""
    from oxcart.broker.link import Endpoint, Link

    greetings = 0
    silent: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greetings
        greetings += 1
        silent.append(writer)
        await reader.read(1000)
        # The first connection gets a LOADING error; the second greets and falls silent.
        writer.write(b"-LOADING\r\n" if greetings == 1 else b"+PONG\r\n")
        await writer.drain()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    async def here() -> Endpoint:
        return Endpoint(port=port)

    link = Link(here, timeout=LIMIT)
    with pytest.raises(BrokerUnavailable, match="LOADING"):
        await link.call("GET", "a")
    link._timeout = 1.0
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await asyncio.wait_for(link.call("GET", "a"), LIMIT)
    await link.close()
    listener.close()
    for writer in silent:
        writer.transport.abort()


async def test_connections_cut_for_two_leases_with_jobs_under_way(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """One worker is cut off for two leases. Its jobs run on another, and its late results are refused."""
    async with Proxy(server.port) as proxy, Queue("chaos", url=server.url) as queue:
        cut = await fleet.start(url=proxy.url, concurrency=4)
        handles = await queue.add_many([("nap", {"seconds": 3 * LEASE})] * 4)
        await eventually(lambda: len(fleet.starts()) == 4, "the jobs started")
        await proxy.down()
        other = await fleet.start(concurrency=4)
        await asyncio.sleep(2 * LEASE)
        await proxy.up()
        results = [await handle.result(8 * LEASE + LIMIT) for handle in handles]
        await eventually(lambda: len(fleet.of(cut, "end")) == 4, "the first runs end")
        assert store.lengths() == {"completed": 4}
        assert all(count == 1 for count in store.count_events("completed").values())
        for handle, result in zip(handles, results, strict=True):
            assert result == (await handle.get()).return_value, "one result, and it stays"
            assert (result["pid"], result["fencing"]) in ((other.pid, 2), (cut.pid, 1))
        # Back to normal: the worker that was cut off works again.
        other.kill()
        assert (await (await queue.add("nap", {})).result(RESUMED))["pid"] == cut.pid


async def test_a_lone_worker_cut_off_for_two_leases_ends_its_jobs_itself(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    async with Proxy(server.port) as proxy, Queue("chaos", url=server.url) as queue:
        await fleet.start(url=proxy.url, concurrency=4, recover=False)
        handles = await queue.add_many([("nap", {"seconds": LEASE})] * 4)
        await eventually(lambda: len(fleet.starts()) == 4, "the jobs started")
        await proxy.down()
        await asyncio.sleep(2 * LEASE)
        assert all(store.lock_ms(handle.id) < 0 for handle in handles)
        await proxy.up()
        results = [await handle.result(RESUMED) for handle in handles]
        assert all(result["fencing"] == 1 for result in results)
        assert set(fleet.starts().values()) == {1}


async def test_memory_runs_out_under_load(server: ValkeyServer, store: Store) -> None:
    """Producers get a typed error; nothing acknowledged is lost; work resumes when there is memory again."""
    load = _Load(server.url, size=2_000)
    try:
        async with load.running():
            used = store.client.info("memory")["used_memory"]
            store.client.config_set("maxmemory", used + 200_000)
            await eventually(lambda: len(load.refused) >= 5, "adds are refused")
            assert all(type(error) is ScriptError for error in load.refused)
            assert "OOM" in str(load.refused[0])
            await asyncio.sleep(2 * LEASE)
            store.client.config_set("maxmemory", 0)
            assert await load.goes_on(RESUMED) <= RESUMED
    finally:
        store.client.config_set("maxmemory", 0)
    _check_all_completed(load, server)


async def test_leases_hold_while_memory_is_full(server: ValkeyServer, store: Store, fleet: Fleet) -> None:
    """A renewal needs no new memory, so a full server costs no lease."""
    async with Queue("chaos", url=server.url) as queue:
        worker = await fleet.start(concurrency=4)
        handles = await queue.add_many([("nap", {"seconds": 2.5 * LEASE})] * 4)
        await eventually(lambda: len(fleet.starts()) == 4, "the jobs started")
        try:
            store.client.config_set("maxmemory", 1)
            end = time.monotonic() + 1.5 * LEASE
            while time.monotonic() < end:
                assert all(store.lock_ms(handle.id) > 0 for handle in handles)
                await asyncio.sleep(LEASE / 10)
        finally:
            store.client.config_set("maxmemory", 0)
        results = [await handle.result(2 * LEASE + LIMIT) for handle in handles]
        assert all(result == {"pid": worker.pid, "fencing": 1} for result in results)


async def test_a_job_that_ends_while_memory_is_full_is_held_until_its_end_is_committed(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """Otherwise the first check afterwards could recover the job, and it would run twice."""
    async with Queue("chaos", url=server.url) as queue:
        worker = await fleet.start(concurrency=4)
        handles = await queue.add_many([("nap", {"seconds": LEASE})] * 4)
        await eventually(lambda: len(fleet.starts()) == 4, "the jobs started")
        try:
            store.client.config_set("maxmemory", 1)
            end = time.monotonic() + 3.5 * LEASE
            while time.monotonic() < end:
                assert all(store.lock_ms(handle.id) > 0 for handle in handles)
                await asyncio.sleep(LEASE / 10)
        finally:
            store.client.config_set("maxmemory", 0)
        results = [await handle.result(2 * LEASE + LIMIT) for handle in handles]
        assert all(result == {"pid": worker.pid, "fencing": 1} for result in results)


async def test_a_worker_gives_up_after_its_reconnects(server: ValkeyServer, fleet: Fleet) -> None:
    """`Reconnect(attempts=3)`: the worker ends with an error when the server stays away."""
    async with Proxy(server.port) as proxy:
        worker = await fleet.start(url=proxy.url, attempts=3)
        await proxy.down()
        assert await worker.ended() == 3
        [broken] = fleet.of(worker, "broken")
        assert broken["error"].startswith("BrokerUnavailable: gave up after 3 attempts")


async def test_a_worker_that_gives_up_while_it_runs_jobs(server: ValkeyServer, store: Store) -> None:
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url), Queue("chaos", url=server.url)
        begun = asyncio.Event()

        @queue.fallback
        async def work() -> None:
            begun.set()
            await asyncio.sleep(0.2)

        worker = Worker(queue, lock_duration=LEASE, reconnect=Reconnect(attempts=3))
        running = asyncio.create_task(worker.run())
        await direct.add("job")
        await asyncio.wait_for(begun.wait(), LIMIT)
        await proxy.down()
        with pytest.raises(BrokerUnavailable, match="gave up after 3 attempts"):
            await asyncio.wait_for(running, LIMIT)
        await queue.close()
        await direct.close()


async def test_adds_say_whether_anything_was_sent(server: ValkeyServer) -> None:
    async with Proxy(server.port) as proxy:
        queue, patient = Queue("chaos", url=proxy.url, add_timeout=0.5), Queue("chaos", url=proxy.url)
        await patient.add("job")
        await queue.counts()
        await proxy.down()
        await eventually(lambda: not queue._core.broker.caller.link.is_connected, "the loss is noticed")
        with pytest.raises(BrokerTimeout, match="no connection"):
            await queue.add("job")
        await proxy.up()
        await patient.add("job")
        await queue.counts()  # it is connected
        proxy.cut_if(lambda call: call.verb == "add")
        with pytest.raises(OutcomeUnknown):
            await queue.add("job", job_id="unknown-fate")
        proxy.cut_if(None)
        # The advice of the error: repeat with the same id.
        assert not (await patient.add("job", job_id="unknown-fate")).created
        await queue.close()
        await patient.close()


@pytest.mark.parametrize("url", ["redis+cluster://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/main"])
async def test_an_add_without_a_server_reports_that_nothing_was_sent(url: str) -> None:
    queue = Queue("{chaos}", url=url.format(free_port()), add_timeout=0.3)
    with pytest.raises(BrokerTimeout, match="no connection"):
        await queue.add("job")
    await queue.close()


async def test_a_closed_connection_is_not_waited_for(server: ValkeyServer) -> None:
    """Its owner closed the connection, so it stays closed: a repeat would go on without end."""
    broker = Queue("chaos", url=server.url)._core.open_broker()
    assert await broker.counts()
    await broker.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await asyncio.wait_for(broker.counts(), LIMIT)
    with pytest.raises(BrokerUnavailable, match="closed"):
        await asyncio.wait_for(broker.promote(), LIMIT)


async def test_a_call_that_still_connects_ends_when_its_connection_is_closed(server: ValkeyServer) -> None:
    async with Proxy(server.port) as proxy:
        proxy.hold()
        broker = Queue("chaos", url=proxy.url)._core.open_broker()
        calling = asyncio.create_task(broker.promote())
        await asyncio.sleep(0.05)
        await broker.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(calling, LIMIT)


async def test_a_call_under_way_ends_when_its_connection_is_closed(server: ValkeyServer) -> None:
    async with Proxy(server.port) as proxy:
        broker = Queue("chaos", url=proxy.url)._core.open_broker()
        await broker.counts()
        proxy.hold()
        calling = asyncio.create_task(broker.promote())
        await asyncio.sleep(0.05)
        await broker.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asyncio.wait_for(calling, LIMIT)


async def test_is_connected_follows_the_server(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """`worker.is_connected` follows the server, from the first connection on."""
    caplog.set_level(logging.CRITICAL)
    async with Proxy(server.port) as proxy:
        queue = Queue("chaos", url=proxy.url)

        @queue.fallback
        async def work() -> None: ...

        async with Worker(queue).running() as worker:
            await eventually(lambda: worker.is_connected, "connected")
            await eventually(lambda: proxy.calls["bzpopmin"] > 0, "idle")
            await proxy.down()
            await eventually(lambda: not worker.is_connected, "lost")
            await proxy.up()
            await eventually(lambda: worker.is_connected, "connected again")
        await queue.close()


async def _pending(queue: Queue, job_id: str) -> asyncio.Task[Any]:
    task = asyncio.create_task(queue.jobs.handle(job_id).result(LIMIT))
    await asyncio.sleep(0.1)
    return task


async def test_results_are_awaited_over_a_restart() -> None:
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        queue = Queue("chaos", url=server.url)

        @queue.fallback
        async def work() -> str:
            return "done"

        handle = await queue.add("job", remove_on_complete=True)
        waiting = await _pending(queue, handle.id)
        await asyncio.to_thread(server.restart, kill=True)
        async with Worker(queue).running():
            assert await waiting == "done"
        await queue.close()


def test_grace_is_small_beside_the_bars() -> None:
    assert GRACE < RESUMED


#: Length of an outage in leases: from where one lease can expire to where every lease has.
OUTAGES = (0.6, 0.85, 1.0, 2.0) if FULL else (0.85,)


@pytest.mark.parametrize("way", ["cut", "restart"])
@pytest.mark.parametrize("part", OUTAGES)
@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_an_outage_is_no_reason_to_run_jobs_twice(
    tmp_path: Path, protocol: str, part: float, way: str
) -> None:
    """Leases expire, but all workers are alive: they renew before a check recovers any job."""
    options: dict[str, Any] = {} if protocol == "bullmq" else {"protocol": "bridge", "namespace": "away"}
    lease = max(LEASE, 6.0)
    count = 40 if FULL else 8
    seconds = (2.5 + part) * lease
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        async with Proxy(server.port) as proxy:
            url = proxy.url if way == "cut" else server.url
            with Fleet(url, "chaos", tmp_path) as fleet, server.client() as client:
                settings: dict[str, Any] = {"lease": lease, "renew": None, "options": options}
                settings["stalled_interval"] = lease / 4  # a check is always about to run
                for _ in range(2):
                    await fleet.start(concurrency=count // 2, **settings)
                async with Queue("chaos", url=server.url, **options) as queue:
                    handles = await queue.add_many([("nap", {"seconds": seconds})] * count)
                    await eventually(lambda: len(fleet.starts()) == count, "the jobs started")
                    # The worst moment: a check has noted the jobs, and their renewal is due.
                    lock = "bull:chaos:{}:lock" if protocol == "bullmq" else "away:jobs:lock:{}"
                    locks = [lock.format(handle.id) for handle in handles]

                    def is_due() -> bool:
                        noted = client.scard("bull:chaos:stalled") if protocol == "bullmq" else count
                        return noted == count and min(map(client.pttl, locks)) < 560 * lease

                    await eventually(is_due, "the jobs are noted by a check, and their renewal is due")
                    if way == "restart":
                        await asyncio.to_thread(server.halt)
                    else:
                        await proxy.down()
                    await asyncio.sleep(part * lease)
                    if way == "restart":
                        await asyncio.to_thread(server.start)
                    else:
                        await proxy.up()
                    await fleet.start(concurrency=1, **settings)  # a worker that saw no outage
                    results = [await handle.result(4 * lease + LIMIT) for handle in handles]
                    assert [result["fencing"] for result in results] == [1] * count
                    assert set(fleet.starts().values()) == {1}


async def test_jobs_of_a_fleet_that_was_killed_run_again_within_two_leases(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    """No worker was seen for a while, as in an outage. But none renews either, so recovery starts."""
    async with Queue("chaos", url=server.url) as queue:
        victims = [await fleet.start(concurrency=4) for _ in range(2)]
        handles = await queue.add_many([("nap", {"seconds": 3600})] * 8)
        await eventually(lambda: len(fleet.starts()) == 8, "the jobs started")
        for handle in handles:
            await handle.update_data({"seconds": 0})
        for victim in victims:
            victim.kill()
        killed = time.time()
        await asyncio.sleep(0.7 * LEASE)
        await fleet.start(concurrency=8)
        for handle in handles:
            assert (await handle.result(2 * LEASE + GRACE + LIMIT))["fencing"] == 2
        late = max(line["at"] for line in fleet.facts("start")) - killed
        assert late <= 2 * LEASE + GRACE, f"the last ran again after {late:.2f} s"


async def test_workers_continue_on_a_server_that_lost_its_data(server: ValkeyServer, store: Store) -> None:
    """FLUSHALL and SCRIPT FLUSH under load: the jobs are gone, but worker and producers continue."""
    load = _Load(server.url)
    async with load.worker.running():
        for _ in range(3):
            handles = [await load.queue.add("job", n) for n in range(10)]
            store.client.flushall()
            store.client.script_flush()
            assert len(handles) == 10
            assert await (await load.queue.add("job")).result(RESUMED) == "done"
    await load.queue.close()


async def test_reconnects_stay_frequent_while_outcomes_are_pending(server: ValkeyServer) -> None:
    """A caller may wait for a job that ended in an outage: pauses stay short until it is committed."""
    async with Proxy(server.port) as proxy:
        queue, direct = Queue("chaos", url=proxy.url), Queue("chaos", url=server.url)
        ended = asyncio.Event()

        @queue.fallback
        async def work() -> str:
            while proxy.is_up:
                await asyncio.sleep(0.01)
            ended.set()
            return "done"

        async with Worker(queue).running() as worker:
            handle = await direct.add("job")
            await eventually(lambda: worker._executor.load == 1, "it runs")
            caller = worker._stations[0].broker.caller
            await proxy.down()
            await asyncio.wait_for(ended.wait(), LIMIT)
            await asyncio.sleep(0.1)
            assert caller.holding(), "short pauses"
            await proxy.up()
            assert await handle.result(RESUMED) == "done"
            await eventually(lambda: not caller.holding(), "nothing is held any more")
        await queue.close()
        await direct.close()
