"""Slots move to another master while jobs run: nothing is lost, and nothing needs a restart."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Lease, Outage, Outcome, OutcomeKind
from oxcart.model.errors import BrokerError
from oxcart.model.options import JobOptions
from tests.chaos.fleet import eventually
from tests.cluster.conftest import Masters
from tests.servers import ValkeyCluster, ValkeyServer, free_port, wait_until

LIMIT = 60


class _Load:
    """A producer and a worker that continue through every fault."""

    def __init__(self, url: str, name: str) -> None:
        self.queue = Queue(name, url=url)
        self.acknowledged: list[str] = []
        self.refused: list[BrokerError] = []
        self.ran: Counter[str] = Counter()
        self.results: list[asyncio.Task[Any]] = []
        self._stop = False
        self.queue.fallback(self._handle)

    async def _handle(self, job: RunningJob) -> str:
        self.ran[job.id] += 1
        await asyncio.sleep(0.001)
        return "done"

    async def _produce(self) -> None:
        count = 0
        while not self._stop:
            count += 1
            delay = 0.05 if count % 3 == 0 else 0.0
            try:
                handle = await self.queue.add("job", count, priority=count % 2 * 5, delay=delay)
            except BrokerError as error:
                self.refused.append(error)
                await asyncio.sleep(0.02)
                continue
            self.acknowledged.append(handle.id)
            if count % 20 == 0:
                self.results.append(asyncio.create_task(handle.result(LIMIT)))
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # Long leases: a slot in migration accepts no calls, which must not cost a lease.
        async with Worker(self.queue, concurrency=10, lock_duration=20, stalled_interval=1).running():
            producer = asyncio.create_task(self._produce())
            try:
                await self.goes_on()
                yield
                await self.goes_on()
            finally:
                self._stop = True
                await producer
            await eventually(
                lambda: all(self.ran[job_id] for job_id in self.acknowledged), "every job ran", LIMIT
            )
            assert await asyncio.gather(*self.results) == ["done"] * len(self.results)
            counts: dict[str, int] = {}
            for _ in range(1000):
                counts = {state: count for state, count in (await self.queue.counts()).items() if count}
                if counts == {"completed": len(self.acknowledged)}:
                    break
                await asyncio.sleep(0.05)
            assert counts == {"completed": len(self.acknowledged)}
        assert set(self.ran.values()) == {1}, "no job ran twice"
        assert not self.refused, Counter(str(error) for error in self.refused)
        await self.queue.close()

    async def goes_on(self) -> None:
        before = len(self.acknowledged)
        await eventually(lambda: len(self.acknowledged) > before + 20, "adds go on", LIMIT)
        new = self.acknowledged[before : before + 20]
        await eventually(lambda: all(self.ran[job_id] for job_id in new), "and run", LIMIT)


def _node_id(node: ValkeyServer) -> str:
    with node.client() as client:
        found: Any = client.execute_command("CLUSTER", "MYID")
        return str(found.decode() if isinstance(found, bytes) else found)


def _is_replica(node: ValkeyServer, replica: str) -> bool:
    with node.client() as client:
        known: Any = client.execute_command("CLUSTER", "NODES")
        if isinstance(known, dict):
            return any(facts["node_id"] == replica and "slave" in facts["flags"] for facts in known.values())
        return any(line.startswith(replica) and "slave" in line for line in str(known).splitlines())


def take_over(replica: Any) -> None:
    end = time.monotonic() + LIMIT
    while replica.info("replication")["role"] != "master":
        assert time.monotonic() < end, "the replica did not take over"
        replica.execute_command("CLUSTER", "FAILOVER")  # the server gives up without enough votes
        for _ in range(30):
            time.sleep(0.1)
            if replica.info("replication")["role"] == "master":
                break


def _other(masters: Masters, source: ValkeyServer) -> ValkeyServer:
    return next(node for node in masters.cluster.nodes if node is not source)


def _move_at_once(source: ValkeyServer, target: ValkeyServer, slot: int) -> None:
    """Moves a slot as Valkey 9 does: all keys in one step."""
    with source.client() as client:
        plain: Any = client
        plain.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", _node_id(target))

        def done() -> bool:
            jobs = plain.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
            return "success" in str(jobs[0])

        wait_until(done, "the slot moved")


def _move_by_keys(source: ValkeyServer, target: ValkeyServer, slot: int, pause: float = 0.0) -> None:
    """Moves a slot as older servers do: key by key, so that for a while it is in two places."""
    with source.client() as one, target.client() as other:
        here: Any = one
        there: Any = other
        source_id, target_id = _node_id(source), _node_id(target)
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(pause)
        there.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        here.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


@pytest.mark.parametrize("move", [_move_at_once, _move_by_keys])
async def test_a_slot_moves_while_jobs_run(masters: Masters, move: Any) -> None:
    source = masters.cluster.nodes[0]
    target = _other(masters, source)
    name = masters.queue_on(source)
    slot = Keys(name, tagged=True).slot()
    load = _Load(masters.url, name)
    async with load.running():
        await asyncio.to_thread(move, source, target, slot)
        assert masters.owner(slot) is target
        await load.goes_on()
        await asyncio.to_thread(move, target, source, slot)


async def test_a_slot_that_stays_between_two_masters_for_a_while(masters: Masters) -> None:
    """A slot that is half moved can run no script: every call waits, and none is half applied."""
    source = masters.cluster.nodes[1]
    name = masters.queue_on(source)
    slot = Keys(name, tagged=True).slot()
    load = _Load(masters.url, name)
    async with load.running():
        await asyncio.to_thread(_move_by_keys, source, _other(masters, source), slot, 0.05)


_CALLS: dict[str, Callable[[BullMQBroker, ClaimedJob], Awaitable[Any]]] = {
    "add": lambda broker, _: broker.add([broker.encode("job", 1, JobOptions.build())]),
    "add-delayed": lambda broker, _: broker.add([broker.encode("job", 1, JobOptions.build(delay=1))]),
    "claim": lambda broker, _: broker.claim(Ask(5)),
    "complete": lambda broker, held: broker.finish([_outcome("c", held)], Ask(5)),
    "fail": lambda broker, held: broker.finish([_outcome("f", held)]),
    "retry": lambda broker, held: broker.finish([_outcome("r", held)]),
    "put-off": lambda broker, held: broker.finish([_outcome("d", held)]),
    "give-back": lambda broker, held: broker.finish([_outcome("w", held)]),
    "renew": lambda broker, held: broker.renew([Lease(held.id, held.token, held.starts)], 90_000),
    "recover": lambda broker, _: broker.recover(interval_ms=1),
    "check after an outage": lambda broker, _: broker.recover(interval_ms=1, outage=Outage(60_000, 1)),
    "appear": lambda broker, _: broker.appear(Outage(60_000, 1)),
    "promote": lambda broker, _: broker.promote(),
    "pause": lambda broker, _: broker.pause(),
    "resume": lambda broker, _: broker.resume(),
    "set_progress": lambda broker, held: broker.set_progress(held.id, 5),
    "add_log": lambda broker, held: broker.logs.append(held.id, ["line"], 5),
    "update_data": lambda broker, held: broker.update_data(held.id, 5),
    "change_priority": lambda broker, _: broker.updates.change_priority("waiting", 5),
    "change_delay": lambda broker, _: broker.change_delay("later", 5000),
    "promote_job": lambda broker, _: broker.promote_job("later"),
    "retry_job": lambda broker, _: broker.retry_job("done", "completed"),
    "remove_job": lambda broker, _: broker.remove_job("waiting"),
}


def _outcome(kind: str, held: ClaimedJob) -> Outcome:
    return Outcome(
        OutcomeKind(kind), held.id, held.token, held.starts, 1_700_000_000_000, b'"x"', b"[]", delay_ms=1000
    )


@pytest.mark.parametrize("verb", _CALLS)
async def test_a_slot_on_its_way_is_left_alone_until_it_has_arrived(masters: Masters, verb: str) -> None:
    """While a slot moves key by key, a script fails at the first missing key, best before any change.

    A key that never existed is as missing as a key that has moved: setting the slot's state is enough.
    """
    source = masters.cluster.nodes[0]
    broker = BullMQBroker(Server(masters.url), masters.queue_on(source))
    slot = broker.keys.slot()
    for name, options in (("done", {}), ("held", {}), ("waiting", {}), ("later", {"delay": 60})):
        await broker.add([broker.encode("job", 1, JobOptions.build(job_id=name, **options))])  # type: ignore[arg-type]
    done, held = (await broker.claim(Ask(2))).jobs
    await broker.finish([_outcome("c", done)])
    with source.client(decode_responses=False) as client:
        here: Any = client

        def dump() -> dict[bytes, tuple[bytes, bool]]:
            keys = here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            return {key: here.dump(key) for key in keys}

        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", _node_id(_other(masters, source)))
        before = dump()
        calling = asyncio.ensure_future(_CALLS[verb](broker, held))
        try:
            await asyncio.sleep(0.15)
            if verb != "renew":  # which changes nothing that could be half applied
                assert dump() == before
                assert not calling.done()
        finally:
            here.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        answer = await asyncio.wait_for(calling, LIMIT)
        if verb == "renew":
            assert answer == [], "a lease that cannot be seen is not lost"
        elif verb not in ("promote", "appear"):  # no job was due, and there was no heartbeat to renew
            assert dump() != before
    await broker.close()


async def test_a_replica_takes_over_while_jobs_run() -> None:
    with ValkeyCluster(repl_diskless_sync_delay=0) as cluster:
        masters = Masters(cluster)
        source = cluster.nodes[0]
        replica = ValkeyServer(
            cluster_enabled=True,
            cluster_port=free_port(),
            cluster_node_timeout=3000,
            cluster_announce_ip="127.0.0.1",
        )
        try:
            with replica.client() as client:
                plain: Any = client
                bus = source.options["cluster_port"]
                plain.execute_command("CLUSTER", "MEET", "127.0.0.1", source.port, bus)
                wait_until(lambda: _node_id(source) in str(plain.execute_command("CLUSTER", "NODES")), "met")
                plain.execute_command("CLUSTER", "REPLICATE", _node_id(source))
                wait_until(lambda: client.info("replication")["master_link_status"] == "up", "in step")
                for node in cluster.nodes:  # these must vote for it
                    wait_until(partial(_is_replica, node, _node_id(replica)), "known as a replica")
                load = _Load(masters.url, masters.queue_on(source))
                async with load.running():
                    await asyncio.to_thread(take_over, plain)
        finally:
            replica.stop()


async def test_a_master_that_dies_and_returns_stops_only_its_own_queues() -> None:
    """One worker has queues on all masters. One is killed: the others continue, then its own queues."""
    options: dict[str, Any] = {
        "appendonly": True,
        "appendfsync": "always",
        "cluster_require_full_coverage": False,
    }
    with ValkeyCluster(**options) as cluster:
        masters = Masters(cluster)
        queues = [Queue(masters.queue_on(node), url=masters.url) for node in cluster.nodes]

        async def work(job: RunningJob) -> int:
            return job.fencing

        for queue in queues:
            queue.fallback(work)
        async with Worker(*queues, concurrency=6, lock_duration=20).running():
            for queue in queues:
                assert await (await queue.add("job")).result(LIMIT) == 1
            dead = cluster.nodes[0]
            await asyncio.to_thread(dead.kill)
            for queue in queues[1:]:
                handles = await queue.add_many([("job", n) for n in range(50)])
                assert [await handle.result(LIMIT) for handle in handles] == [1] * 50
            waiting = asyncio.create_task(queues[0].add("job"))
            await asyncio.sleep(1)
            assert not waiting.done(), "an add waits for its master"
            await asyncio.to_thread(dead.start)
            assert await (await waiting).result(LIMIT) == 1
        for queue in queues:
            await queue.close()
