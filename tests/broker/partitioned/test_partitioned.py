"""A partitioned queue by its parts: limits, events, listings, flows, graphs and the layout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Flow, Graph, Queue, Worker
from oxcart.broker.keyring import KeyRing
from oxcart.broker.partitioned.shares import shares
from oxcart.model.errors import NotSupported, ValidationError
from oxcart.model.partitions import Layout, partition_of
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

LIMIT = 60.0


def test_shares_sum_up_to_the_limit() -> None:
    assert shares(10, Layout(1, 4, 4)) == [3, 3, 2, 2]
    assert shares(10, Layout(2, 2, 6)) == [3, 3, 1, 1, 1, 1]
    with pytest.raises(ValidationError, match="most must be at least 6"):
        shares(5, Layout(2, 2, 6))


async def test_a_limit_is_global(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    await queue.limits.set_concurrency(6)
    assert await queue.limits.concurrency() == 6
    most, running = 0, 0
    gate = asyncio.Event()

    async def count() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    queue.job(name="count")(count)
    for number in range(40):
        await queue.add("count", {}, partition_key=f"k{number}")
    async with Worker(queue, concurrency=20).running(), Worker(queue, concurrency=20).running():
        await eventually(lambda: running == 6, "all places are taken")
        gate.set()
        await eventually(lambda: _completed(queue, 40), "all have run")
    assert most == 6


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.counts())["completed"] == count


async def test_limits_and_a_pause_follow_a_resize(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.limits.set_concurrency(9)
    await queue.limits.set_rate(100, per="1m")
    await queue.limits.set_type_limit("n", concurrent=12)
    await queue.pause()
    with pytest.raises(ValidationError, match="concurrency must be at least 10"):
        await queue.partitions.resize(10)
    assert (await queue.partitions.layout()).size == 2
    await queue.partitions.resize(8)
    assert await queue.is_paused()
    assert await queue.limits.concurrency() == 9
    rate = await queue.limits.rate()
    assert rate is not None
    assert (rate.most, rate.per_ms) == (100, 60_000)
    assert (await queue.limits.type_limits())["n"].concurrent == 12


async def test_jobs_of_one_limit_key_share_a_partition(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    handles = [await queue.add("n", limit_key="tenant") for _ in range(5)]
    jobs = await queue.jobs.get_many([one.id for one in handles])
    assert {job.queue for job in jobs if job is not None} == {f"events#{partition_of('tenant', 4)}"}


async def test_ids_and_windows_hold_over_all_partitions(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    for number in range(8):
        first = await queue.add("n", idempotency_key=f"i{number}")
        again = await queue.add("n", idempotency_key=f"i{number}")
        assert (again.id, again.duplicate) == (first.id, True)
        one = await queue.add("n", deduplication=f"d{number}")
        assert (await queue.add("n", deduplication=f"d{number}")).id == one.id
        assert await queue.deduplication.owner(f"d{number}") == one.id
        assert (await queue.add("n", job_id=f"own-{number}")).created
        assert not (await queue.add("n", job_id=f"own-{number}")).created
    await queue.partitions.resize(7)
    for number in range(8):
        assert not (await queue.add("n", job_id=f"own-{number}")).created


async def test_events_are_merged_and_a_position_continues(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    queue.fallback(lambda job: "ok")
    ids = [(await queue.add("n", partition_key=f"k{number}")).id for number in range(12)]
    async with Worker(queue, concurrency=4).running():
        await eventually(lambda: _completed(queue, 12), "all have run")
    async with queue.events("0") as events:
        first: list[Any] = []
        while len([one for one in first if one.name == "completed"]) < 12:
            first += await events.read()
        position = events.position
    # Between partitions, events that are closer than a read come as they arrive.
    assert sorted(one.job_id for one in first if one.name == "added") == sorted(ids)
    for job_id in ids:
        times = [one.timestamp for one in first if one.job_id == job_id]
        assert times == sorted(times)
    later = (await queue.add("n")).id
    async with queue.events(position) as events:
        assert (await events.read())[0].job_id == later
    async with queue.events(first[5].id) as events:
        again: list[Any] = []
        while len(again) < len(first) - 6:
            again += await events.read()
    wanted = {(one.job_id, one.name) for one in first[6:]} | {(later, "added"), (later, "waiting")}
    assert {(one.job_id, one.name) for one in again} <= wanted


async def test_a_tree_is_in_one_partition(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    queue.fallback(lambda job: job.name)
    async with Worker(queue, concurrency=4).running():
        for _ in range(4):
            top = await Flow(queue, "top", children=[Flow(queue, "a"), Flow(queue, "b")]).add()
            assert await top.result(LIMIT) == "top"
            jobs = await queue.jobs.get_many([top.id, *(child.id for child in top.children)])
            assert len({job.queue for job in jobs if job is not None}) == 1


async def test_a_graph_goes_to_the_jobs_that_it_waits_for(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    queue.fallback(lambda job: job.name)
    async with Worker(queue, concurrency=4).running():
        graph = Graph(queue)
        first = graph.job("first")
        graph.job("second", after=[first])
        handles = await graph.add()
        assert await handles[1].result(LIMIT) == "second"
        for number in range(4):
            before = await queue.add("before", partition_key=f"k{number}")
            third = await queue.add("third", after=[before])
            assert await third.result(LIMIT) == "third"


async def test_sealed_payloads_open_in_every_partition(make_queue: MakeQueue) -> None:
    ring = KeyRing({"one": b"k" * 32}, current="one")
    queue = make_queue("events", partitions=4, key_ring=ring)
    seen: list[int] = []

    async def note(n: int) -> int:
        seen.append(n)
        return n

    queue.job(name="note")(note)
    async with Worker(queue, concurrency=4).running():
        for n in range(8):
            assert await (await queue.add("note", {"n": n}, partition_key=f"k{n}")).result(LIMIT) == n


async def test_what_partitions_lack_is_refused(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    with pytest.raises(NotSupported, match="one queue for each kind of worker"):
        await queue.add("n", target={"capabilities": "gpu"})
    with pytest.raises(NotSupported, match="a queue without partitions"):
        await queue.add("n", group="tenant-42")
    with pytest.raises(NotSupported, match="a queue without partitions"):
        await Flow(queue, "n", children=[Flow(queue, "m", group="tenant-42")]).add()
    with pytest.raises(NotSupported, match="a queue without partitions"):
        await queue.schedules.upsert("daily", cron="0 0 * * *", name="n", group="tenant-42")
    with pytest.raises(NotSupported, match="make the queue with partitions="):
        await make_queue("plain").partitions.layout()


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("events#3", {"partitions": 4}, "queue name"),
        ("{events}", {"partitions": 4}, "partitions"),
        ("events", {"partitions": 0}, "partitions"),
        ("events", {"url": ["redis://127.0.0.1:1"]}, "url"),
    ],
)
def test_wrong_places_are_refused(name: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Queue(name, **options)
    assert refused.value.field == field


async def test_two_resizes_at_once_leave_one_layout(make_queue: MakeQueue) -> None:
    queues = [make_queue("events", partitions=4) for _ in range(4)]
    layouts = await asyncio.gather(
        *(one.partitions.resize(size) for one, size in zip(queues, (5, 6, 7, 8), strict=True))
    )
    final = await queues[0].partitions.layout()
    assert final.version == 5
    assert final in layouts
    spread = queues[0]._core.broker.partitions
    assert spread is not None
    stored = [await one._read(0) for one in (spread,)]  # type: ignore[attr-defined]
    assert max(stored[0]) == 5


async def test_the_layout_is_read_from_any_partition(valkey: ValkeyServer, make_queue: MakeQueue) -> None:
    """Partition 0 is on a server that is away; the others know the layout."""
    with ValkeyServer() as other:
        async with Queue("events", url=[other.url, valkey.url], partitions=4) as queue:
            await queue.partitions.resize(6)
        other.kill()
        async with Queue("events", url=[other.url, valkey.url], partitions=4) as late:
            assert (await late.partitions.layout()).size == 6
            key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}", 6) == 1)
            assert (await late.add("n", partition_key=key)).created
