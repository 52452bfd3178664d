"""Three Sentinels, a master and a replica: the master is killed under load, and work continues."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart import Queue
from oxcart.broker.connection import Server
from oxcart.model.errors import BrokerUnavailable
from tests.cluster.losses import Losses
from tests.servers import Sentinels
from tests.signals import eventually

LIMIT = 60.0


@pytest.fixture
def group() -> Iterator[Sentinels]:
    with Sentinels(password="secret") as group:
        yield group


async def test_a_failover_under_load(group: Sentinels) -> None:
    master, replica = group.servers
    with contextlib.closing(group.client(master)) as old, contextlib.closing(group.client(replica)) as new:
        losses = Losses(Queue("load", url=group.url, add_timeout=60), old, new)
        async with losses.running():
            await losses.goes_on()
            await losses.replicated()
            await asyncio.to_thread(master.kill)
            await asyncio.to_thread(group.fail_over)
            await losses.goes_on(LIMIT)
            assert await asyncio.to_thread(group.masters) == {replica}
        await losses.judge()


async def test_the_group_replaces_no_master_that_is_only_slow(group: Sentinels) -> None:
    """Otherwise a busy machine could promote the empty server that has just restarted."""
    master, replica = group.servers
    await asyncio.to_thread(master.kill)
    await asyncio.to_thread(group.fail_over)
    await asyncio.to_thread(master.start)
    replica.freeze()
    try:
        await eventually(lambda: min(_silences(group)) > 3 * group.HASTY, "every Sentinel misses the master")
        assert not any("s_down" in opinion["flags"] for opinion in group.opinions())
    finally:
        replica.thaw()
    await eventually(lambda: max(_silences(group)) < group.HASTY, "heard by all")
    assert group.masters() == {replica}


async def test_a_master_that_comes_back_as_a_replica_is_not_read_from(group: Sentinels) -> None:
    """A Sentinel may name a former master: the greeting detects this, also for readers of events."""
    master, replica = group.servers
    async with Queue("q", url=group.url, add_timeout=60) as queue, queue.events(since="0") as events:
        first = await queue.add("job")
        assert (await events.read(block=30))[0].job_id == first.id
        with contextlib.closing(group.client(replica)) as client:
            await eventually(lambda: client.exists(f"bull:q:{first.id}"), "replicated")
        await asyncio.to_thread(master.kill)
        failing = asyncio.create_task(asyncio.to_thread(group.fail_over))
        second = await queue.add("job")
        await failing
        await asyncio.to_thread(master.start)
        with contextlib.closing(group.client(master)) as client:
            await eventually(lambda: _role(client) == "slave", "the old master follows the new one", LIMIT)
        end = time.monotonic() + LIMIT
        seen: set[str | None] = set()
        while second.id not in seen and time.monotonic() < end:
            seen |= {event.job_id for event in await events.read(block=1)}
        assert second.id in seen
        # A Sentinel without the news names the old master: the connection is refused, not used.
        stale = Server(f"redis://:secret@127.0.0.1:{master.port}")
        endpoint = await stale.endpoint()
        link = queue._core.server.link()
        link._resolve = _named(endpoint)
        with pytest.raises(BrokerUnavailable, match="is no master"):
            await link.connect()


def _silences(group: Sentinels) -> list[int]:
    """Returns the ms since each Sentinel's last reply from the master."""
    return [int(opinion["last-ok-ping-reply"]) for opinion in group.opinions()]


def _role(client: Any) -> str:
    with contextlib.suppress(Exception):
        return str(client.info("replication")["role"])
    return ""


def _named(endpoint: Any) -> Any:
    from dataclasses import replace

    async def resolve() -> Any:
        return replace(endpoint, alone=False, master=True)

    return resolve
