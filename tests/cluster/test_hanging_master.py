"""A master hangs, its replica takes over, and the old master wakes: no acknowledged add is lost.

`make chaos` freezes masters more often and for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import Queue
from oxcart.broker.masters import EVERY
from tests.cluster.conftest import Masters
from tests.cluster.hangs import Producers
from tests.servers import Sentinels, ValkeyCluster, ValkeyServer, wait_until
from tests.signals import eventually

FULL = os.environ.get("OXCART_CHAOS") == "full"
#: How often a master of the cluster is frozen.
HANGS = 3 if FULL else 1
#: Seconds for which the old master runs beside the new one: Sentinels demote it after about ten.
BESIDE = 15.0 if FULL else 4.0
LIMIT = 90.0
#: Protocols and durabilities: two of the four combinations in CI.
KINDS = [("bullmq", "acknowledged"), ("bridge", "replicated")]
if FULL:
    KINDS += [("bridge", "acknowledged"), ("bullmq", "replicated")]
#: Jobs that may be lost without a wait for a replica: those of the last moment before the hang.
MOST_LOST = 2


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(replicas=1, node_timeout=2000) as cluster:
        yield cluster


@pytest.fixture
def group() -> Iterator[Sentinels]:
    with Sentinels(password="secret") as group:
        yield group


def queue_of(protocol: str, name: str, url: str, **options: Any) -> Queue:
    """A queue in the slot of a name, on both protocols."""
    if protocol == "bridge":
        return Queue("load", url=url, protocol="bridge", namespace=name, add_timeout=LIMIT, **options)
    return Queue(name, url=url, add_timeout=LIMIT, **options)


def role(server: ValkeyServer, password: str | None = None) -> str:
    with contextlib.suppress(Exception), contextlib.closing(server.client(password=password)) as client:
        return str(client.info("replication")["role"])
    return ""


def in_step(server: ValkeyServer, password: str | None = None) -> bool:
    with contextlib.suppress(Exception), contextlib.closing(server.client(password=password)) as client:
        facts = client.info("replication")
        return bool(facts["role"] == "slave" and facts["master_link_status"] == "up")
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("protocol", "durability"), KINDS)
async def test_a_cluster_loses_no_acknowledged_job_to_a_master_that_wakes(
    cluster: ValkeyCluster, protocol: str, durability: str
) -> None:
    master = cluster.nodes[0]
    heir = cluster.replicas_of(master)[0]
    name = Masters(cluster).queue_on(master)
    producers = Producers(lambda: queue_of(protocol, name, cluster.url, durability=durability))
    async with producers.running():
        for _ in range(HANGS):
            await producers.goes_on()
            master.freeze()
            try:
                await asyncio.to_thread(wait_until, lambda: role(heir) == "master", "taken over", LIMIT)  # noqa: B023
                await asyncio.sleep(1)
            finally:
                master.thaw()
            await producers.goes_on(LIMIT)
            await asyncio.to_thread(wait_until, lambda: in_step(master), "it follows its heir", LIMIT)  # noqa: B023
            master, heir = heir, master
    lost = await producers.lost(f"cluster, {protocol}, {durability}")
    assert not producers.unacknowledged
    assert len(lost) <= (MOST_LOST if durability == "acknowledged" else 0), lost
    await producers.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("protocol", "durability"), KINDS)
async def test_sentinels_lose_no_acknowledged_job_to_a_master_that_wakes(
    group: Sentinels, protocol: str, durability: str
) -> None:
    master, _ = group.servers
    producers = Producers(lambda: queue_of(protocol, "load", group.url, durability=durability))
    async with producers.running():
        await producers.goes_on()
        master.freeze()
        try:
            await asyncio.to_thread(group.fail_over, hangs=True)
        finally:
            master.thaw()
        await asyncio.sleep(BESIDE)
        await producers.goes_on(LIMIT)
    await asyncio.to_thread(wait_until, lambda: in_step(master, "secret"), "it follows its heir", LIMIT)
    lost = await producers.lost(f"Sentinels, {protocol}, {durability}")
    assert not producers.unacknowledged
    assert len(lost) <= (MOST_LOST if durability == "acknowledged" else 0), lost
    await producers.close()


async def test_a_late_answer_of_a_master_that_was_not_replaced_counts(group: Sentinels) -> None:
    master, _ = group.servers
    async with queue_of("bullmq", "late", group.url) as queue:
        await queue.add("job")
        made = queue._core.broker.caller.link.connections_made
        master.freeze()
        adding = asyncio.create_task(queue.add("job"))
        done, _ = await asyncio.wait((adding,), timeout=2.5)
        master.thaw()
        assert not done
        assert (await adding).created
        assert sum((await queue.counts()).values()) == 2
        assert queue._core.broker.caller.link.connections_made == made, "the connection is kept"


async def test_late_answers_do_not_stop_work_while_all_sentinels_are_away(group: Sentinels) -> None:
    master, _ = group.servers
    async with queue_of("bullmq", "alone", group.url) as queue:
        await queue.add("job")
        for sentinel in group.sentinels:
            await asyncio.to_thread(sentinel.kill)
        master.freeze()
        adding = asyncio.create_task(queue.add("job"))
        await asyncio.wait((adding,), timeout=2.5)
        master.thaw()
        assert (await adding).created
        assert sum((await queue.counts()).values()) == 2


async def test_an_idle_connection_to_a_replaced_master_is_dropped(group: Sentinels) -> None:
    """No call notices that the master is gone; the Sentinels are asked once a second."""
    master, heir = group.servers
    async with queue_of("bullmq", "idle", group.url) as queue:
        await queue.add("job")
        link = queue._core.broker.caller.link
        master.freeze()
        try:
            await asyncio.to_thread(group.fail_over, hangs=True)
            await eventually(lambda: not link.is_connected, "dropped")
        finally:
            master.thaw()
        await queue.add("job")
        assert link.endpoint is not None
        assert link.endpoint.port == heir.port


async def test_a_process_whose_loop_was_held_up_confirms_the_master_first(group: Sentinels) -> None:
    """No call hangs, and no client asks the Sentinels; the old master answers as soon as it wakes."""
    master, heir = group.servers
    async with queue_of("bullmq", "held", group.url) as queue:
        await queue.add("job")
        master.freeze()
        try:
            # Not in a thread: it blocks the event loop for longer than replies are trusted.
            trusted = time.monotonic() + 3 * EVERY + 0.5
            group.fail_over(hangs=True)
            time.sleep(max(0.0, trusted - time.monotonic()))
        finally:
            master.thaw()
        handle = await queue.add("job")
        with contextlib.closing(group.client(heir)) as client:
            assert client.exists(f"bull:held:{handle.id}"), "the new master has the job"
