"""`durability="replicated"`: an add returns when a replica has the job, and raises if none has it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart import Flow, Queue, sync
from oxcart.model.errors import NotReplicated, ValidationError
from tests.servers import ValkeyServer, wait_until
from tests.signals import eventually

PROTOCOLS: list[Any] = ["bullmq", "bridge"]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    """A master and its replica."""
    with ValkeyServer() as master, ValkeyServer(repl_diskless_sync_delay=0) as replica:
        with contextlib.closing(replica.client()) as client:
            client.replicaof("127.0.0.1", str(master.port))
            wait_until(lambda: client.info("replication").get("master_link_status") == "up", "in step")
        yield master, replica


_numbers = itertools.count()


def queue_of(master: ValkeyServer, protocol: Any, **options: Any) -> Queue:
    name = f"q{next(_numbers)}"
    if protocol == "bridge":
        return Queue("mail", url=master.url, protocol="bridge", namespace=name, **options)
    return Queue(name, url=master.url, **options)


@contextlib.contextmanager
def frozen(server: ValkeyServer) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_add_returns_when_a_replica_has_the_job(
    pair: tuple[ValkeyServer, ValkeyServer], protocol: Any
) -> None:
    master, replica = pair
    async with queue_of(master, protocol, durability="replicated") as queue:
        handle = await queue.add("job")
        with contextlib.closing(replica.client()) as client:
            assert any(handle.id in key for key in client.scan_iter())


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_unconfirmed_add_reports_that_the_master_has_it(
    pair: tuple[ValkeyServer, ValkeyServer], protocol: Any
) -> None:
    master, replica = pair
    async with queue_of(master, protocol, add_timeout=2.5) as queue:
        with frozen(replica):
            with pytest.raises(
                NotReplicated, match=r"add: applied, but not replicated within 2\.5 s"
            ) as caught:
                await queue.add("job", durability="replicated")
            (job_id,) = caught.value.job_ids
            assert await queue.jobs.get(job_id) is not None
            assert (await queue.add("job")).created, "other adds do not wait"
        if protocol == "bullmq":
            again = await queue.add("job", job_id=job_id, durability="replicated")
            assert (again.id, again.created) == (job_id, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_repeat_over_another_connection_does_not_pass_for_replicated(
    pair: tuple[ValkeyServer, ValkeyServer], protocol: Any
) -> None:
    """The repeat only reads its journal, and a server waits for the last write of the connection."""
    master, replica = pair
    async with queue_of(master, protocol, add_timeout=5) as queue:
        await queue.add("job")
        link = queue._core.broker.caller.link
        with frozen(replica):
            adding = asyncio.create_task(queue.add("job", durability="replicated"))
            await eventually(lambda: link.in_flight, "the add is under way")
            await asyncio.sleep(0.1)
            link.drop("cut")
            with pytest.raises(NotReplicated):
                await adding
        assert sum((await queue.counts()).values()) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_add_waits_for_a_replica_that_comes_back_in_time(
    pair: tuple[ValkeyServer, ValkeyServer], protocol: Any
) -> None:
    master, replica = pair
    async with queue_of(master, protocol, durability="replicated") as queue:
        with frozen(replica):
            adding = asyncio.create_task(queue.add("job"))
            done, _ = await asyncio.wait((adding,), timeout=1.5)
            assert not done
        assert (await adding).created
        assert sum((await queue.counts()).values()) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_add_outlasts_a_master_that_is_demoted_while_it_waits(
    pair: tuple[ValkeyServer, ValkeyServer], protocol: Any
) -> None:
    """A demoted server ends the wait with an error; here it is soon master again."""
    master, replica = pair
    async with queue_of(master, protocol, durability="replicated") as queue:
        with contextlib.closing(master.client()) as client:
            with frozen(replica):
                adding = asyncio.create_task(queue.add("job"))
                await eventually(lambda: client.info("clients")["blocked_clients"], "the add waits")
                client.replicaof("127.0.0.1", str(replica.port))
                client.replicaof("NO", "ONE")
            assert (await adding).created
        assert sum((await queue.counts()).values()) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_adds_of_one_turn_share_a_wait(pair: tuple[ValkeyServer, ValkeyServer], protocol: Any) -> None:
    """The cost: one more command in the same round trip, for one job as for a hundred."""
    master, _ = pair
    async with queue_of(master, protocol, durability="replicated") as queue:
        await queue.add("job")
        with contextlib.closing(master.client()) as client:
            client.config_resetstat()
            await queue.add("job")
            assert _calls(client) == {"evalsha": 1, "wait": 1}
            client.config_resetstat()
            await queue.add_many([("job", number) for number in range(100)])
            chunks = _calls(client)
            assert chunks["wait"] == chunks["evalsha"]
            client.config_resetstat()
            await queue.add("job", durability="acknowledged")
            assert _calls(client) == {"evalsha": 1, "wait": 0}


def _calls(client: Any) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "wait")}


async def test_flows_and_graphs_of_a_replicated_queue_wait_too(
    pair: tuple[ValkeyServer, ValkeyServer],
) -> None:
    master, replica = pair
    async with queue_of(master, "bullmq", durability="replicated", add_timeout=4) as queue:
        first = await queue.add("job")
        with frozen(replica):
            with pytest.raises(NotReplicated):
                await queue.add("after", after=[first])
            with pytest.raises(NotReplicated):
                await Flow(queue, "top", children=[Flow(queue, "child")]).add()


def test_without_await(pair: tuple[ValkeyServer, ValkeyServer]) -> None:
    master, replica = pair
    queue = sync.Queue(f"q{next(_numbers)}", url=master.url, add_timeout=1.5)
    assert queue.add("job", durability="replicated").created
    with frozen(replica), pytest.raises(NotReplicated):
        queue.add_many([("job", 1)], durability="replicated")
    queue.close()


async def test_invalid_durability_is_refused_before_any_write(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="embedded server"):
        Queue("q", folder=tmp_path, durability="replicated")
    durability: Any = "eternal"
    with pytest.raises(ValidationError, match="durability must be 'acknowledged' or 'replicated'"):
        await Queue("q", url="redis://127.0.0.1:1").add("job", durability=durability)
