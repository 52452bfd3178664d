"""Maintenance of lanes on the server: recorded ids, the tick, and the registry of workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import redis

from oxcart import Queue
from oxcart.broker.bullmq import lanes as lanes_module
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.broker.workers import Wakes, WorkerRecord
from oxcart.model.retention import REMOVE, Retention
from tests.broker.bullmq.mesh import BIG, EU, GPU, Mesh, age_lanes, q, server_ms
from tests.servers import ValkeyServer

__all__ = ["q"]  # a fixture

#: Ms for which a tick guards against another one: longer than any pause of the machine.
LONG = 60_000


class TestIds:
    """Notes of custom ids are removed with their jobs."""

    async def test_every_removal_of_ours(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "removed", "swept", "kept")
        await q.put(GPU, "other", delay=9)
        assert store.hlen("bull:q:ox:ids") == 4
        await q.broker.remove_job("removed")
        assert set(store.hkeys("bull:q:ox:ids")) == {"swept", "kept", "other"}
        (job, _) = (await q.choose(2, GPU)).jobs
        await q.at(GPU).bulk.clear(delayed=True)
        assert set(store.hkeys("bull:q:ox:ids")) == {"swept", "kept"}
        await q.finish(GPU, [job])
        await q.at(GPU).bulk.clean(["completed"], 2**53)
        assert set(store.hkeys("bull:q:ox:ids")) == {"kept"}

    @pytest.mark.parametrize("retention", [REMOVE, Retention(count=1)])
    async def test_ids_follow_the_retention_of_their_jobs(
        self, q: Mesh, store: redis.Redis, retention: Retention
    ) -> None:
        await q.put(GPU, "a", "b")
        for job in (await q.choose(2, GPU)).jobs:
            outcome = Outcome(
                OutcomeKind.COMPLETED, job.id, job.token, job.starts, q.clock(), b"1", retention=retention
            )
            assert (await q.at(GPU).finish([outcome]))[0] == [1]
        assert store.hkeys("bull:q:ox:ids") == ([] if retention == REMOVE else ["b"])

    async def test_the_note_of_another_lane_stays(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "a")
        store.hset(f"bull:q@{EU}:a", mapping={"name": "n", "data": "{}", "timestamp": "1"})  # of a peer
        store.lpush(f"bull:q@{EU}:wait", "a")
        await q.broker.lanes.enter(EU)
        await q.at(EU).remove_job("a")
        assert store.hgetall("bull:q:ox:ids") == {"a": GPU}

    async def test_sweep_drops_ids_of_jobs_that_peers_removed(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, *(f"j{i}" for i in range(1000)))
        for i in range(0, 1000, 2):
            store.delete(f"bull:q@{GPU}:j{i}")
        cursor, dropped, steps = "0", 0, 0
        while True:
            cursor, some = await q.broker.lanes.sweep_ids(cursor)
            assert some <= 2 * lanes_module.NOTES
            dropped, steps = dropped + some, steps + 1
            if cursor == "0":
                break
        assert (dropped, store.hlen("bull:q:ox:ids")) == (500, 500)
        assert steps > 3

    async def test_many_ids_and_many_lanes(
        self, q: Mesh, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No call looks for more than a bounded number of keys."""
        lanes = [f"all;c=c{i}" for i in range(300)]
        for lane in lanes:
            await q.broker.lanes.enter(lane)
        await q.put(lanes[7], *(f"noted{i}" for i in range(150)))
        for i in range(30):
            store.hset(
                f"bull:q@{lanes[10 * i]}:peer{i}", mapping={"name": "n", "data": "{}", "timestamp": "1"}
            )
        asked = [f"noted{i}" for i in range(150)] + [f"peer{i}" for i in range(30)] + ["nobody"]
        store.config_resetstat()
        found = await q.broker.lanes.holders(asked)
        assert [broker and broker.lane for broker in found] == [
            *[lanes[7]] * 150,
            *(lanes[10 * i] for i in range(30)),
            None,
        ]
        calls = store.info("commandstats")["cmdstat_evalsha"]["calls"]
        # Two calls for all ids. They find three ids of peers; further calls search parts of the lanes.
        assert 2 + 2 <= calls <= 2 + 10
        monkeypatch.setattr(lanes_module, "FIND", 7)
        monkeypatch.setattr(lanes_module, "FIND_KEYS", 90)
        again = await q.broker.lanes.holders(asked)
        assert [broker and broker.lane for broker in again] == [broker and broker.lane for broker in found]


class TestTend:
    async def test_lets_due_jobs_through_and_keeps_the_sets_true(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "later", delay=5)
        await q.put(EU, "now")
        await q.put(BIG, "held")
        await q.choose(1, BIG)
        store.delete(f"bull:q@{EU}:marker")
        tended = await q.broker.lanes.tend(guard_ms=LONG)
        assert (tended.ran, tended.busy) == (True, [BIG])
        assert store.smembers("bull:q:ox:lanes:ready") == {EU}
        assert store.smembers("bull:q:ox:lanes:busy") == {BIG}
        assert store.zrange(f"bull:q@{EU}:marker", 0, -1) == ["0"]
        assert not (await q.broker.lanes.tend()).ran
        store.delete("bull:q:ox:lanes:tended")
        q.clock.now += 5000
        await q.broker.lanes.tend()
        assert store.smembers("bull:q:ox:lanes:ready") == {EU, GPU}
        assert store.lrange(f"bull:q@{GPU}:wait", 0, -1) == ["later"]

    async def test_an_empty_lane_goes_after_a_while(self, q: Mesh, store: redis.Redis) -> None:
        for lane in (GPU, EU, BIG):
            await q.put(lane, lane)
        for lane in (GPU, BIG):
            await q.broker.remove_job(lane)
        await q.at(BIG).limits.set_concurrency(5)
        await q.broker.lanes.tend(guard_ms=1)
        assert len(await q.broker.lanes.names()) == 3
        age_lanes(store)
        await q.broker.lanes.tend()
        assert set(await q.broker.lanes.names()) == {EU, BIG}
        assert [key for key in store.scan_iter(f"bull:q@{GPU}:*") if ":ox:call:" not in str(key)] == []
        await q.broker.remove_job(EU)
        await q.at(BIG).limits.remove_concurrency()
        age_lanes(store)
        await q.broker.lanes.tend()
        assert await q.broker.lanes.names() == []
        assert store.hget("bull:q:meta", "ox:lanes") is None
        assert store.get("bull:q:ox:lanes:version") == "6"

    async def test_a_lane_goes_by_the_servers_clock(self, q: Mesh, store: redis.Redis) -> None:
        q.clock.now = 2**45  # a worker's clock that is far ahead
        await q.put(GPU, "a")
        await q.broker.remove_job("a")
        await q.broker.lanes.enter(EU)
        await q.broker.lanes.tend()
        assert await q.broker.lanes.names() == [GPU, EU]
        noted: Any = store.zrange("bull:q:ox:lanes", 0, -1, withscores=True)
        for _, seen in noted:
            assert abs(seen - server_ms(store)) < 60_000

    async def test_tending_without_recovery_does_not_block_tending_with_it(self, q: Mesh) -> None:
        tend = partial(q.broker.lanes.tend, guard_ms=LONG)
        assert (await tend(recovers=False)).ran
        assert not (await tend(recovers=False)).ran
        assert (await tend(recovers=True)).ran
        assert not (await tend(recovers=True)).ran
        assert not (await tend(recovers=False)).ran

    async def test_the_mark_of_a_queue_with_lanes_comes_back(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "a")
        store.delete("bull:q:meta")  # as a peer's obliterate leaves the base queue
        await q.put(GPU, "b")
        assert await q.broker.states(["a"]) == ["unknown"]
        await q.broker.lanes.tend()
        assert store.hget("bull:q:meta", "ox:lanes") == "+"
        assert await q.broker.states(["a"]) == ["waiting"]

    async def test_a_call_lets_few_jobs_through_and_a_tick_all_lanes(
        self, q: Mesh, store: redis.Redis
    ) -> None:
        lanes = [f"all;c=c{number}" for number in range(6)]
        for lane in lanes:
            await q.put(lane, *(f"{lane} {i}" for i in range(60)), delay=1)
        q.clock.now += 1000
        longest, calls = 0, 0
        again = q.broker.caller.again

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal longest, calls
            before = (await q.broker.counts_over_lanes())["wait"] if args[0].verb == "tend_lanes" else 0
            answer = await again(*args, **more)
            if args[0].verb == "tend_lanes":
                calls += 1
                longest = max(longest, (await q.broker.counts_over_lanes())["wait"] - before)
            return answer

        q.broker.caller.again = counted  # type: ignore[method-assign]
        await q.broker.lanes.tend(guard_ms=1)
        assert (longest, calls) == (50, 6)
        assert [row["wait"] for row in (await q.broker.lanes.counts()).values()] == [50] * 6
        store.delete("bull:q:ox:lanes:tended")
        await q.broker.lanes.tend(guard_ms=1)
        assert [row["wait"] for row in (await q.broker.lanes.counts()).values()] == [60] * 6

    async def test_lanes_registered_again_hide_none(
        self, q: Mesh, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes_module, "STEP", 3)
        for number in range(10):
            await q.put(f"all;c=c{number}", f"j{number}", delay=1)
        age_lanes(store)
        q.clock.now += 1000
        await q.broker.lanes.tend()
        assert store.scard("bull:q:ox:lanes:ready") == 10

    async def test_more_lanes_go_than_one_step_looks_at(
        self, q: Mesh, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes_module, "STEP", 3)
        for number in range(10):
            await q.broker.lanes.enter(f"all;c=c{number}")
        age_lanes(store)
        await q.broker.lanes.tend()
        assert await q.broker.lanes.names() == []

    async def test_a_lane_of_a_peer_is_found(self, q: Mesh, store: redis.Redis) -> None:
        store.incr("bull:q@any;c=x:id")
        store.incr("bull:q@somebody.example:id")
        store.incr("bull:qq@any;c=x:id")
        store.set("bull:q@any;c=y:job:id", "x")
        assert await scanned(q.broker.lanes, [q.broker.lanes]) == [(0, "any;c=x")]
        assert await q.broker.lanes.enter("any;c=x")
        assert not await q.broker.lanes.enter("any;c=x")
        assert await q.broker.lanes.names() == ["any;c=x"]

    async def test_the_tick_reports_lifetimes_and_gates(self, q: Mesh, store: redis.Redis) -> None:
        await q.put(GPU, "short", lifetime=1, delay=1)
        store.sadd(f"bull:q@{EU}:ox:gates", "x")
        await q.put(EU, "e")
        q.clock.now += 2000
        tended = await q.broker.lanes.tend()
        assert (tended.expired, tended.gated) == ([GPU], [EU])
        assert await q.at(GPU).expire() == 1

    async def test_more_lanes_than_one_step(self, q: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lanes_module, "STEP", 3)
        monkeypatch.setattr(lanes_module, "COUNT", 3)
        for number in range(10):
            await q.put(f"all;c=c{number}", f"j{number}", delay=1)
        q.clock.now += 1000
        await q.broker.lanes.tend()
        assert (await q.broker.counts_over_lanes())["wait"] == 10
        assert len(await q.broker.lanes.counts()) == 10


async def scanned(lanes: Any, queues: Any) -> list[tuple[int, str]]:
    """Returns what a scan of all keys finds."""
    found: list[tuple[int, str]] = []
    cursor = "0"
    while True:
        cursor, some = await lanes.scan(cursor, queues)
        found += some
        if cursor == "0":
            return sorted(found)


@pytest.mark.parametrize("tagged", [False, True])
async def test_one_scan_finds_the_lanes_of_many_queues(
    valkey: ValkeyServer, store: redis.Redis, tagged: bool
) -> None:
    names = ("q", "qq", "ada@example.com")
    queues = [Queue(name, url=valkey.url, prefix="{bull}" if tagged else "bull") for name in names]
    bases = [queue._core.broker.keys.base for queue in queues]
    try:
        for key in ("{0}@any;c=x", "{2}@all;c=y", "{1}@somebody.example", "other:q@any;c=z", "{0}x@any;c=z"):
            store.incr(f"{key.format(*bases)}:id")
        stores: Any = [queue._core.broker.lanes for queue in queues]
        assert await scanned(stores[0], stores) == [(0, "any;c=x"), (2, "all;c=y")]
        assert await stores[0].versions(stores) == [0, 0, 0]
        await stores[1].enter("any;c=x")
        assert await stores[0].versions(stores) == [0, 1, 0]
    finally:
        for queue in queues:
            await queue.close()


class TestRegistry:
    async def test_the_registry_lists_live_workers(self, q: Mesh, store: redis.Redis) -> None:
        one = WorkerRecord(id="b", name="b", capabilities=("gpu",), routed=True, queues=("q",), pid=7)
        await q.broker.registry.beat(one, Wakes.EVERY_ADD)
        await q.broker.registry.beat(WorkerRecord(id="a"), Wakes.NOTHING, life=300)
        assert [record.id for record in await q.broker.registry.living()] == ["a", "b"]
        assert (await q.broker.registry.living())[1] == one
        assert (
            9_000 < store.pttl("bull:q:ox:worker:b") <= 30_000 < store.pttl("bull:q:ox:worker:a") <= 300_000
        )
        store.delete("bull:q:ox:worker:a")  # its time was over
        assert [record.id for record in await q.broker.registry.living()] == ["b"]
        await q.broker.registry.leave("b")
        assert await q.broker.registry.living() == []
        assert [key for key in store.scan_iter("*") if "worker:b" in str(key) or "crowded" in str(key)] == []

    async def test_a_silent_worker_is_forgotten(self, q: Mesh, store: redis.Redis) -> None:
        await q.broker.registry.beat(WorkerRecord(id="old"), Wakes.EVERY_ADD)
        for key in ("workers", "listeners", "crowded"):
            store.zincrby(f"bull:q:ox:{key}", -3_600_001 if key == "workers" else -30_001, "old")
        await q.broker.registry.beat(WorkerRecord(id="slow"), Wakes.NEW_LANES, life=300)
        store.zincrby("bull:q:ox:listeners", -290_000, "slow")
        await q.broker.registry.beat(WorkerRecord(id="new"), Wakes.NEW_LANES)
        assert set(store.zrange("bull:q:ox:workers", 0, -1)) == {"slow", "new"}
        assert store.zrange("bull:q:ox:listeners", 0, -1) == ["slow", "new"], "each in its own time"
        assert not store.exists("bull:q:ox:crowded")

    async def test_a_worker_whose_clock_is_ahead_forgets_no_other(self, q: Mesh) -> None:
        await q.broker.registry.beat(WorkerRecord(id="one"), Wakes.NEW_LANES)
        q.clock.now += 10**9
        await q.broker.registry.beat(WorkerRecord(id="ahead"), Wakes.NEW_LANES)
        q.clock.now -= 10**9
        await q.broker.registry.beat(WorkerRecord(id="one"), Wakes.NEW_LANES)
        assert [record.id for record in await q.broker.registry.living()] == ["ahead", "one"]
