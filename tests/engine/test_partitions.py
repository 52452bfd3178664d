"""A worker consumes the partitions of a queue, on one server and on several, and through a resize."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bullmq.schedules import QueueSchedules
from oxcart.broker.connection import Reconnect
from oxcart.broker.partitioned.spread import Spread
from oxcart.engine import partitions
from oxcart.engine.partitions import Fleet, LayoutWatch
from oxcart.model.errors import BrokerError, BrokerUnavailable, PartitionNotEmpty, ValidationError
from oxcart.model.partitions import partition_of
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

LIMIT = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    with ValkeyServer() as one, ValkeyServer() as other:
        yield one, other


def keys_of(partitions: range | list[int], size: int, count: int) -> list[str]:
    """Returns keys whose jobs go to some partitions."""
    found: list[str] = []
    for number in range(100_000):
        if partition_of(f"k{number}", size) in partitions:
            found.append(f"k{number}")
            if len(found) == count:
                return found
    raise AssertionError


async def test_every_partition_is_consumed(make_queue: MakeQueue, store: redis.Redis) -> None:
    queue = make_queue("events", partitions=8)
    ran: Counter[str] = Counter()

    async def note(job: Any) -> None:
        ran[job.queue] += 1

    queue.fallback(note)
    for key in range(40):
        await queue.add("n", partition_key=f"k{key}")
    async with Worker(queue, concurrency=3).running():
        await eventually(lambda: sum(ran.values()) == 40, "all have run")
        assert set(ran) == {f"events#{number}" for number in range(8)}

        def waits() -> int:
            return sum(one["cmd"] == "bzpopmin" and "b" in one["flags"] for one in store.client_list())

        await eventually(waits, "the worker waits")
        assert waits() == 1, "one wait for all partitions of a server"


async def test_order_of_a_key_is_kept(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    ran: dict[str, list[int]] = {}

    async def note(key: str, n: int) -> None:
        ran.setdefault(key, []).append(n)

    queue.job(name="note")(note)
    for n in range(10):
        for key in ("a", "b", "c"):
            await queue.add("note", {"key": key, "n": n}, partition_key=key)
    async with Worker(queue).running():
        await eventually(lambda: sum(map(len, ran.values())) == 30, "all have run")
    assert ran == {key: list(range(10)) for key in ("a", "b", "c")}


async def test_no_partition_starves_beside_a_full_one(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    order: list[str] = []

    async def note(job: Any) -> None:
        order.append(job.data)

    queue.fallback(note)
    (busy,) = keys_of([0], 4, 1)
    await queue.add_many(("n", "busy", {"partition_key": busy}) for _ in range(600))
    for key in keys_of([1, 2, 3], 4, 6):
        await queue.add("n", "other", partition_key=key)
    async with Worker(queue, concurrency=2).running():
        await eventually(lambda: order.count("other") == 6, "the others have run")
        assert order.index("other") < 300


async def test_a_schedule_fires_once(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    runs: list[str] = []

    @queue.job(every="1h", name="tick")
    async def tick(job: Any) -> None:
        runs.append(job.id)

    async with Worker(queue).running(), Worker(queue).running():
        await eventually(lambda: runs, "it has fired")
        await eventually(lambda: _is_delayed(queue, 1), "the next run waits")
        assert await queue.schedules.count() == 1
        assert (await queue.schedules.list())[0].id == "tick"
    assert len(runs) == 1


async def _is_delayed(queue: Queue, count: int) -> bool:
    return (await queue.counts())["delayed"] == count


async def test_a_silent_server_stops_only_its_part(pair: tuple[ValkeyServer, ValkeyServer]) -> None:
    one, other = pair
    async with Queue("events", url=[one.url, other.url], partitions=4, add_timeout=LIMIT) as queue:
        ran: Counter[int] = Counter()

        async def note(n: int) -> None:
            ran[n] += 1

        queue.job(name="note")(note)
        async with Worker(queue, concurrency=10).running():
            for n in range(20):
                await queue.add("note", {"n": n})
            await eventually(lambda: len(ran) == 20, "both servers work")
            other.freeze()
            try:
                # Partitions 0 and 2 are on the first server. The rest of the queue waits for nothing.
                for n, key in enumerate(keys_of([0, 2], 4, 100), 100):
                    await queue.add("note", {"n": n}, partition_key=key)
                stuck = [
                    asyncio.ensure_future(queue.add("note", {"n": n}, partition_key=key))
                    for n, key in enumerate([*keys_of([1], 4, 3), *keys_of([3], 4, 2)], 200)
                ]
                free = [asyncio.ensure_future(queue.add("note", {"n": n})) for n in range(300, 340)]
                await eventually(lambda: all(n in ran for n in range(100, 200)), "the first server works")
                await eventually(lambda: sum(n in ran for n in range(300, 340)) >= 20, "adds go around it")
                assert not any(task.done() for task in stuck)
            finally:
                other.thaw()
            await asyncio.gather(*stuck, *free)
            wanted = [*range(20), *range(100, 205), *range(300, 340)]
            await eventually(lambda: sorted(ran) == wanted, "everything has run")
            assert set(ran.values()) == {1}
        assert (await queue.counts())["completed"] == len(wanted)
        assert len(await queue.jobs.list("completed", limit=1000)) == len(wanted)


async def test_another_number_of_servers_is_refused(pair: tuple[ValkeyServer, ValkeyServer]) -> None:
    one, other = pair
    async with Queue("events", url=[one.url, other.url], partitions=4) as queue:
        await queue.add("n")
    async with Queue("events", url=[one.url], partitions=4) as wrong:
        with pytest.raises(ValidationError, match="list of 2 servers"):
            await wrong.add("n")


async def test_the_stored_layout_wins_over_the_number_in_the_program(make_queue: MakeQueue) -> None:
    await make_queue("events", partitions=4).add("n")
    later = make_queue("events", partitions=16)
    assert (await later.partitions.layout()).size == 4


async def test_a_running_worker_takes_further_partitions_in(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    ran: Counter[str] = Counter()
    cancelled = asyncio.Event()

    async def note(job: Any) -> None:
        ran[job.queue] += 1
        if job.data == "long":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    queue.fallback(note)
    async with Worker(queue, concurrency=4).running():
        await (await queue.add("n")).result(LIMIT)
        layout = await queue.partitions.resize(8)
        assert (layout.size, layout.served) == (8, 8)
        keys = [keys_of([number], 8, 1)[0] for number in range(8)]
        handles = [await queue.add("n", partition_key=key) for key in keys]
        for handle in handles:
            await handle.result(LIMIT)
        assert set(ran) == {f"events#{number}" for number in range(8)}
        # A job of such a partition can be cancelled, and its worker is listed.
        long = await queue.add("n", "long", partition_key=keys[7])
        await eventually(lambda: _is_active(queue), "it runs")
        await long.cancel("enough")
        await asyncio.wait_for(cancelled.wait(), LIMIT)
        assert len(await queue.workers.list()) == 1


async def _is_active(queue: Queue) -> bool:
    return (await queue.counts())["active"] == 1


async def test_fewer_partitions_are_retired_when_they_are_empty(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    queue.fallback(lambda job: None)
    old = [await queue.add("n", partition_key=key) for key in keys_of([3], 4, 3)]
    layout = await queue.partitions.resize(2)
    assert (layout.size, layout.served) == (2, 4)
    with pytest.raises(PartitionNotEmpty, match="events#3: 3"):
        await queue.partitions.retire()
    new = [await queue.add("n", partition_key=f"k{number}") for number in range(20)]
    async with Worker(queue).running():
        for handle in old + new:
            await handle.result(LIMIT)
    assert [row["completed"] for row in await queue.partitions.counts()][2:] == [0, 3]
    await queue.jobs.clean("completed")
    assert (await queue.partitions.retire()).served == 2


@pytest.mark.slow
async def test_every_job_runs_once_through_resizes_with_kills(
    make_queue: MakeQueue, valkey: ValkeyServer
) -> None:
    """4 to 16 to 2 partitions under load; workers are killed, and a producer stays with the old layout."""
    dice = random.Random(21)
    ended: Counter[int] = Counter()
    queue = make_queue("events", partitions=4)
    stale = make_queue("events", partitions=4)
    for one in (queue, stale):
        await one.partitions.layout()
    numbers = iter(range(100_000))
    added: list[int] = []

    async def note(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def produce(one: Queue, count: int) -> None:
        for _ in range(count):
            n = next(numbers)
            options: Any = {"partition_key": f"k{n % 7}"} if dice.random() < 0.5 else {}
            await one.add("note", {"n": n}, job_id=f"job-{n}", **options)
            added.append(n)

    # The stale producer never reads the layout again.
    spread = stale._core.broker.partitions
    assert spread is not None
    spread._read_at = float("inf")  # type: ignore[attr-defined]
    for one in (queue, stale):
        one.job(name="note")(note)

    def worker() -> Worker:
        return Worker(queue, concurrency=5, lock_duration="2s", stalled_interval="500ms", max_stalled=1000)

    workers = [worker() for _ in range(3)]
    tasks = [asyncio.create_task(one.run()) for one in workers]
    for running in workers:
        await running.started.wait()
    load = asyncio.gather(produce(queue, 150), produce(stale, 150))
    for size in (16, 2):
        await eventually(lambda size=size: len(added) > (60 if size == 16 else 150), "load")  # type: ignore[misc]
        await queue.partitions.resize(size)
        victim = workers.pop(0)
        victim.stop(now=True, abandon=True)
        await tasks.pop(0)
        workers.append(worker())
        tasks.append(asyncio.create_task(workers[-1].run()))
    await load
    await produce(queue, 50)
    total = len(added)
    await eventually(lambda: _completed(queue, total), "all have completed")
    for running in workers:
        running.stop()
    await asyncio.gather(*tasks)
    for job in await queue.jobs.list("completed", limit=2 * total):
        ended[job.data["n"]] += 1
    assert sorted(ended) == sorted(added)
    assert set(ended.values()) == {1}
    counts = await queue.counts()
    assert {state: many for state, many in counts.items() if many} == {"completed": total}
    assert spread.layout.size == 4
    await queue.jobs.clean("completed")
    assert (await queue.partitions.retire()).served == 2


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.counts())["completed"] >= count


async def test_a_worker_leaves_partitions_that_are_not_empty(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    await queue.add("n", partition_key=keys_of([1], 2, 1)[0])
    await queue.partitions.resize(1)
    fleet = Fleet([queue._core], Reconnect())
    try:
        assert [one.name for one in await fleet.expand()] == ["events#0", "events#1"]
        await fleet.retire()
        spread = fleet.whole[0][1].partitions
        assert spread is not None
        assert (await spread.refresh()).served == 2
        await queue.jobs.clear()
        await fleet.retire()
        assert (await spread.refresh()).served == 2, "the last change is not an hour old"
        assert (await spread.retire()).served == 1
    finally:
        await fleet.close()


async def test_a_producer_with_an_old_layout_reads_it_before_it_adds(make_queue: MakeQueue) -> None:
    """It may have been idle for days: nobody consumes the partitions that it knows any more."""
    queue, idle = make_queue("events", partitions=4), make_queue("events", partitions=4)
    for one in (queue, idle):
        await one.partitions.layout()
    await queue.partitions.resize(1)
    assert (await queue.partitions.retire()).served == 1
    spread = idle._core.broker.partitions
    assert isinstance(spread, Spread)
    spread._read_at = spread._known_at = time.monotonic() - 3600
    keys = keys_of([3], 4, 5)
    handles = await asyncio.gather(*(idle.add("n", partition_key=key) for key in keys))
    assert spread.layout.served == 1
    assert [await queue.jobs.state(handle.id) for handle in handles] == ["waiting"] * 5


async def test_partitions_are_taken_back_when_a_producer_still_adds_to_them(make_queue: MakeQueue) -> None:
    queue, node = make_queue("events", partitions=4), make_queue("events#2")
    queue.fallback(lambda job: None)
    await queue.partitions.resize(1)
    assert (await queue.partitions.retire()).served == 1
    late = await node.add("n")
    fleet = Fleet([queue._core], Reconnect())
    try:
        assert len(await fleet.expand()) == 1
        await fleet.retire()
        assert [one.name for one in (await fleet.grown())[0]] == ["events#1", "events#2"]
        layout = await queue.partitions.layout()
        assert (layout.size, layout.served) == (1, 3)
    finally:
        await fleet.close()
    async with Worker(queue).running():
        await late.result(LIMIT)


async def test_a_layout_that_cannot_be_read_hides_no_partitions_of_another_queue(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    queue, broken = make_queue("events", partitions=1), make_queue("other", partitions=1)
    fleet = Fleet([queue._core, broken._core], Reconnect())
    taken: list[str] = []
    watch = LayoutWatch(fleet, lambda further: taken.extend(one.name for one in further))
    try:
        await fleet.expand()
        await queue.partitions.resize(3)
        store.hset("bull:other#0:ox:partitions", "7", "no layout")
        await watch.step()
        await watch.step()
        assert taken == ["events#1", "events#2"]
    finally:
        await fleet.close()


async def test_a_schedule_that_cannot_move_stops_neither_limits_nor_other_queues(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue("events", partitions=4), make_queue("other", partitions=4)
    names = [next(f"s{n}" for n in range(at, 1000) if partition_of(f"s{n}", 4) == 3) for at in (0, 500)]
    take_over = QueueSchedules.take_over

    async def broken(self: QueueSchedules, schedule_id: str, *args: Any) -> None:
        if schedule_id == names[0]:
            raise BrokerUnavailable("lost")
        await take_over(self, schedule_id, *args)

    monkeypatch.setattr(QueueSchedules, "take_over", broken)
    for one in (queue, other):
        for name in names:
            if one is queue or name == names[1]:
                await one.schedules.upsert(name, every="1h", name="tick", offset="7m")
        await one.limits.set_concurrency(8)
        await one.partitions.resize(2)
    brokers: Any = [one._core.broker.partitions for one in (queue, other)]
    for spread in brokers:  # as an interrupted move leaves them
        for number, share in enumerate((2, 2, 2, 2)):
            await spread.broker(number).limits.set_concurrency(share)
    fleet = Fleet([queue._core, other._core], Reconnect())
    try:
        await fleet.expand()
        with pytest.raises(BrokerUnavailable, match="lost"):
            await fleet.arrange(again=True)
    finally:
        await fleet.close()
    for spread in brokers:
        assert [await one.limits.concurrency() for one in spread.brokers()] == [3, 3, 1, 1]
        assert [await one.schedules.ids() for one in spread.brokers()][3] == (
            [names[0]] if spread is brokers[0] else []
        )


async def test_one_worker_arranges_the_partitions_of_a_queue(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=2)
    fleets = [Fleet([queue._core], Reconnect()) for _ in range(3)]
    settled: list[int] = []
    try:
        for number, fleet in enumerate(fleets):
            await fleet.expand()
            spread: Any = fleet.whole[0][1].partitions

            async def note(number: int = number) -> bool:
                settled.append(number)
                return True

            spread.arrange = note
        for fleet in fleets * 2:
            await fleet.arrange(again=True)
        assert settled == [0, 0]
    finally:
        for fleet in fleets:
            await fleet.close()


async def test_a_silent_server_does_not_hold_up_the_arrangement_of_another_queue(
    pair: tuple[ValkeyServer, ValkeyServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    monkeypatch.setattr(partitions, "BOUND", 2.0)
    async with (
        Queue("events", url=[one.url, other.url], partitions=2) as split,
        Queue("whole", url=[one.url], partitions=2) as whole,
    ):
        for queue in (split, whole):
            await queue.limits.set_concurrency(8)
        spread: Any = whole._core.broker.partitions
        for number in range(2):  # as an interrupted move leaves them
            await spread.broker(number).limits.set_concurrency(2)
        fleet = Fleet([split._core, whole._core], Reconnect())
        try:
            await fleet.expand()
            other.freeze()
            try:
                with pytest.raises((BrokerError, TimeoutError)):
                    await asyncio.wait_for(fleet.arrange(again=True), LIMIT)
                assert [await one.limits.concurrency() for one in spread.brokers()] == [4, 4]
            finally:
                other.thaw()
        finally:
            await fleet.close()
