"""Workers with abilities: which jobs they claim, from which lanes, and changes while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import msgspec
import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask
from oxcart.engine import lanes as engine_lanes
from oxcart.engine import unroutable as engine_unroutable
from oxcart.model.errors import JobFailed, ValidationError
from oxcart.model.target import Abilities, Target
from tests.conftest import MakeQueue
from tests.signals import eventually, waits_for_marker

GPU = Target(capabilities="gpu")
EU = Target(region="eu")


class Runs:
    """Which worker ran which job, in order."""

    def __init__(self, queue: Queue) -> None:
        self.seen: list[tuple[str, str]] = []
        self.gate: asyncio.Event | None = None

        async def run(job: Any) -> str:
            self.seen.append((job.worker_id, job.id))
            if self.gate is not None:
                await self.gate.wait()
            return str(job.queue)

        queue.fallback(run)

    @property
    def ids(self) -> list[str]:
        return [job_id for _, job_id in self.seen]


@pytest.fixture
def runs(queue: Queue) -> Runs:
    return Runs(queue)


class TestRouting:
    async def test_a_job_runs_only_where_it_fits(self, queue: Queue, runs: Runs) -> None:
        plain = Worker(queue)
        gpu = Worker(queue, abilities={"capabilities": "gpu"})
        eu = Worker(queue, abilities=Abilities(region="eu", capabilities=["tpu", "cpu"]), name="eu-1")
        async with plain.running(), gpu.running(), eu.running():
            handles = {
                "gpu": await queue.add("n", target=GPU),
                "eu": await queue.add("n", target={"region": ["eu", "us"]}),
                "any": await queue.add("n", target="any;c=tpu,gpu;r=mars"),
                "id": await queue.add("n", target=Target(server="eu-1")),
                "stack": await queue.add("n", target=Target(stack="python", capabilities="cpu")),
                "none": await queue.add("n"),
            }
            results = {name: await handle.result(20) for name, handle in handles.items()}
        assert set(results.values()) == {"q"}
        where = {job_id: worker for worker, job_id in runs.seen}
        assert where[handles["gpu"].id] == gpu.id
        assert where[handles["eu"].id] == eu.id
        assert where[handles["any"].id] in (gpu.id, eu.id)
        assert where[handles["id"].id] == eu.id
        assert where[handles["stack"].id] == eu.id
        assert len(runs.seen) == 6

    async def test_lanes_that_are_there_when_it_starts(self, queue: Queue, runs: Runs) -> None:
        many = await queue.add_many(
            [("n", None), ("n", None, {"target": GPU}), ("n", None, {"target": EU}), ("n", None)],
        )
        assert [handle.created for handle in many] == [True] * 4
        async with Worker(queue, abilities=Abilities(capabilities="gpu", region="eu")).running():
            for handle in many:
                assert await handle.result(20) == "q"
        assert sorted(runs.ids) == sorted(handle.id for handle in many)

    async def test_priorities_over_lanes(self, queue: Queue, runs: Runs) -> None:
        rows = [
            ("n", None, {"job_id": f"{place}{priority}", "priority": priority, "target": target})
            for place, target in (("base", None), ("gpu", GPU), ("eu", EU))
            for priority in (1, 4, 2, 9, 3)
        ]
        await queue.add_many(rows)
        worker = Worker(queue, abilities=Abilities(capabilities="gpu", region="eu"))
        async with worker.running():
            await eventually(lambda: len(runs.ids) == 15, "all have run")
        # Before the worker knows its lanes, it claims from its queue.
        numbers = [int(job_id[-1]) for job_id in runs.ids[5:] if not job_id.startswith("base")]
        assert numbers == sorted(numbers)

    async def test_a_retry_stays_in_its_lane(self, queue: Queue) -> None:
        tries: list[tuple[str, int]] = []

        @queue.job(attempts=2, backoff=0.01, target=GPU)
        async def flaky(job: Any) -> None:
            tries.append((job.worker_id, job.attempt))
            raise ValueError("no")

        gpu = Worker(queue, abilities=Abilities(capabilities="gpu"))
        async with gpu.running(), Worker(queue).running():
            handle = await flaky.enqueue()
            with pytest.raises(JobFailed, match="no"):
                await handle.result(20)
        assert tries == [(gpu.id, 1), (gpu.id, 2)]
        job = await queue.jobs.get(handle.id)
        assert job is not None
        assert (job.queue, job.lane, job.worker_id) == ("q", "all;c=gpu", gpu.id)

    async def test_a_delayed_job_of_a_lane(self, queue: Queue, runs: Runs) -> None:
        async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
            handle = await queue.add("n", target=GPU, delay=0.3)
            assert await handle.result(20) == "q"

    async def test_more_lanes_than_markers(
        self, queue: Queue, runs: Runs, monkeypatch: pytest.MonkeyPatch, store: redis.Redis
    ) -> None:
        monkeypatch.setattr("oxcart.engine.mesh.MARKERS", 4)
        abilities = Abilities(capabilities=[f"c{i}" for i in range(10)])
        worker = Worker(queue, abilities=abilities, concurrency=2)
        async with worker.running():
            for turn in range(3):
                rows = [("n", None, {"target": f"c=c{i}", "job_id": f"j{turn}-{i}"}) for i in range(10)]
                handles = await queue.add_many(rows)
                for handle in handles:
                    await handle.result(20)
            await eventually(lambda: store.zcard("bull:q:ox:crowded") == 1, "every add wakes it")
            live = worker._stations[0].family
            assert len(live) <= 3
        assert len(runs.ids) == 30

    async def test_lanes_that_always_have_work_keep_none_out(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("oxcart.engine.mesh.MARKERS", 3)
        monkeypatch.setattr(engine_lanes.Lanes, "interval", 0.1)
        ran: Counter[str] = Counter()
        then: dict[str, int] = {}

        async def run(job: Any) -> None:
            ran[job.id[:2]] += 1
            if len(ran) == 5 and not then:
                then.update(ran)
            await asyncio.sleep(0.01)

        queue.fallback(run)
        rows = [
            ("n", None, {"target": f"c=c{i}", "job_id": f"c{i}-{n}"}) for i in range(5) for n in range(400)
        ]
        await queue.add_many(rows)
        abilities = Abilities(capabilities=[f"c{i}" for i in range(5)])
        async with Worker(queue, abilities=abilities, concurrency=1, shutdown_timeout=0).running():
            await eventually(lambda: then, "each had a turn")
        # Two lanes had a place, and work for four seconds each.
        assert max(then.values()) < 400, "not only after another lane was empty"


class TestChanges:
    async def test_abilities_change_while_it_runs(self, queue: Queue, runs: Runs) -> None:
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"))
        async with worker.running():
            eu = await queue.add("n", target=EU)
            assert await (await queue.add("n", target=GPU)).result(20) == "q"
            assert await eu.state() == "waiting"
            worker.abilities = Abilities(region="eu")
            assert await eu.result(20) == "q"
            gpu = await queue.add("n", target=GPU)
            await (await queue.add("n", target=EU)).result(20)
            assert await gpu.state() == "waiting"
            await eventually(lambda: _has_abilities(queue, ("eu",), ()), "its record says so")

    async def test_work_in_a_lane_that_it_has_just_left(
        self, queue: Queue, runs: Runs, store: redis.Redis
    ) -> None:
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"))
        async with worker.running():
            await (await queue.add("n", target=GPU)).result(20)
            (lane,) = worker._stations[0].family
            await eventually(lambda: not lane.ready and not worker._stations[0].ready, "both are idle")
            await eventually(lambda: waits_for_marker(store), "the wait is under way")
            worker.abilities = Abilities(region="eu")
            gpu = await queue.add("n", target=GPU)
            assert await (await queue.add("n", target=EU)).result(20) == "q"
            assert await gpu.state() == "waiting"
            marker = "bull:q@all;c=gpu:marker"
            await eventually(lambda: store.zscore(marker, "0") == 0, "it wakes a fitting worker")

    async def test_lanes_without_a_place_are_considered_again(
        self, queue: Queue, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("oxcart.engine.mesh.MARKERS", 3)
        runs.gate = asyncio.Event()
        names = [f"c{i}" for i in range(6)]
        await queue.add_many([("n", None, {"target": f"c={name}"}) for name in names for _ in range(3)])
        worker = Worker(queue, abilities=Abilities(capabilities=names), concurrency=1, shutdown_timeout=0)
        async with worker.running():
            lanes = worker._mesh._lanes[0]
            await eventually(lambda: runs.ids and lanes._backlog, "some have no place")
            worker.abilities = Abilities(region="eu")
            assert worker._stations[0].family == []

    async def test_running_jobs_of_a_lane_left_still_finish(
        self, queue: Queue, runs: Runs, store: redis.Redis
    ) -> None:
        runs.gate = asyncio.Event()
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"), lock_duration=30, renew_every=0.1)
        async with worker.running():
            handle = await queue.add("n", target=GPU)
            await eventually(lambda: runs.ids == [handle.id], "it runs")
            worker.abilities = Abilities(region="eu")
            await eventually(lambda: not worker._stations[0].family, "the lane is left")
            lock = f"bull:q@all;c=gpu:{handle.id}:lock"
            store.pexpire(lock, 60_000)
            await eventually(lambda: store.pttl(lock) <= 30_000, "its lease is renewed")
            runs.gate.set()
            assert await handle.result(20) == "q"

    async def test_only_a_worker_with_abilities_can_change_them(self, queue: Queue, runs: Runs) -> None:
        worker = Worker(queue)
        async with worker.running():
            with pytest.raises(ValidationError, match="abilities must be set when the worker starts"):
                worker.abilities = Abilities()
        with pytest.raises(ValidationError, match="abilities gpu must be one of"):
            Worker(queue, abilities={"gpu": True})


class TestHolding:
    async def test_leases_in_lanes_are_renewed(self, queue: Queue, runs: Runs, store: redis.Redis) -> None:
        runs.gate = asyncio.Event()
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"), lock_duration=30, renew_every=0.1)
        async with worker.running():
            handle = await queue.add("n", target=GPU)
            await eventually(lambda: runs.ids == [handle.id], "it runs")
            lock = f"bull:q@all;c=gpu:{handle.id}:lock"
            first = store.object("idletime", lock)  # the lock is there
            assert first is not None
            store.pexpire(lock, 60_000)
            await eventually(lambda: store.pttl(lock) <= 30_000, "the lease was renewed")
            runs.gate.set()
            assert await handle.result(20) == "q"
        assert runs.ids == [handle.id]

    @pytest.mark.slow
    async def test_a_check_of_a_lane_after_an_outage_waits_for_renewals(
        self, queue: Queue, runs: Runs, store: redis.Redis
    ) -> None:
        runs.gate = asyncio.Event()
        abilities = Abilities(capabilities="gpu")
        worker = Worker(queue, abilities=abilities, lock_duration=30, renew_every=0.5, stalled_interval=0.1)
        async with worker.running():
            handle = await queue.add("n", target=GPU)
            await eventually(lambda: runs.ids == [handle.id], "it runs")
            lane = "bull:q@all;c=gpu:"
            await eventually(lambda: store.pttl(f"{lane}stalled") > 0, "a check has marked it")
            with store.pipeline() as at_once:  # as after an outage
                at_once.delete(f"{lane}{handle.id}:lock", f"{lane}ox:alive", f"{lane}stalled-check")
                at_once.execute()
            await eventually(
                lambda: store.exists(f"{lane}{handle.id}:lock"), "its worker has renewed the lease"
            )
            runs.gate.set()
            assert await handle.result(20) == "q"
        assert runs.ids == [handle.id]

    async def test_a_running_job_of_a_lane_is_cancelled(self, queue: Queue, runs: Runs) -> None:
        runs.gate = asyncio.Event()
        async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
            handle = await queue.add("n", target=GPU)
            await eventually(lambda: runs.ids == [handle.id], "it runs")
            await queue.jobs.cancel(handle.id, "enough")
            with pytest.raises(JobFailed, match="enough"):
                await handle.result(20)

    @pytest.mark.slow
    async def test_jobs_of_a_lost_worker_come_back(self, queue: Queue, runs: Runs) -> None:
        lost = queue._core.open_broker()
        assert isinstance(lost, BullMQBroker)
        handle = await queue.add("n", target=GPU)
        (job,) = (await lost.lanes.open("all;c=gpu").claim(Ask(1, lock_ms=50))).jobs
        assert job.id == handle.id
        await lost.close()
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"), renew_every=0.2, stalled_interval=0.2)
        async with worker.running():
            assert await handle.result(20) == "q"

    @pytest.mark.slow
    async def test_a_worker_without_recovery_does_not_prevent_it(
        self, queue: Queue, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_lanes.Lanes, "interval", 0.05)
        abilities = Abilities(capabilities="other")
        # It ticks first, and often.
        async with Worker(queue, abilities=abilities, recover=False).running() as first:
            await eventually(lambda: first._mesh._lanes[0].version >= 0, "it tends the lanes")
            lost = queue._core.open_broker()
            assert isinstance(lost, BullMQBroker)
            handle = await queue.add("n", target=GPU)
            assert len((await lost.lanes.open("all;c=gpu").claim(Ask(1, lock_ms=50))).jobs) == 1
            await lost.close()
            worker = Worker(
                queue, abilities=Abilities(capabilities="gpu"), renew_every=0.2, stalled_interval=0.2
            )
            async with worker.running():
                assert await handle.result(20) == "q"

    async def test_a_stopping_worker_returns_jobs_of_lanes(self, queue: Queue, runs: Runs) -> None:
        runs.gate = asyncio.Event()
        worker = Worker(queue, abilities=Abilities(capabilities="gpu"), shutdown_timeout=0)
        async with worker.running():
            handle = await queue.add("n", target=GPU)
            await eventually(lambda: runs.ids == [handle.id], "it runs")
        assert await handle.state() == "waiting"
        job = await handle.get()
        assert (job.attempts_made, job.lane) == (0, "all;c=gpu")


class TestQueue:
    async def test_pause_and_resume(self, queue: Queue, runs: Runs) -> None:
        async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
            await (await queue.add("n", target=GPU)).result(20)
            await queue.pause()
            handle = await queue.add("n", target=GPU)
            assert await handle.state() == "waiting"
            assert (await queue.counts())["waiting"] == 1
            await queue.resume()
            assert await handle.result(20) == "q"

    async def test_the_same_id_in_another_lane_is_the_same_job(self, queue: Queue) -> None:
        first = await queue.add("n", 1, target=GPU, job_id="one")
        second = await queue.add("n", 2, target=EU, job_id="one")
        third = await queue.add("n", 3, job_id="one")
        assert [one.created for one in (first, second, third)] == [True, False, False]
        assert [(await one.get()).data for one in (first, second, third)] == [1, 1, 1]
        assert (await queue.counts())["waiting"] == 1

    async def test_operations_are_those_of_all_lanes(self, queue: Queue) -> None:
        rows = [("n", None, {"target": target, "delay": 60}) for target in (None, GPU, EU)]
        await queue.add_many(rows)
        assert await queue.jobs.promote_all(limit=2) == 2
        assert await queue.jobs.promote_all() == 1
        assert await queue.jobs.counts_per_priority() == {0: 3}
        assert len(await queue.jobs.list("waiting")) == 3
        assert [len(await queue.jobs.list("waiting", first=i, limit=1)) for i in range(4)] == [1, 1, 1, 0]
        assert (await queue.jobs.cancel_all(limit=1)).cancelled == 1
        assert (await queue.jobs.cancel_all()).cancelled == 2
        assert await queue.jobs.retry_all() == 3
        assert await queue.jobs.clear() == 3
        await queue.add_many(rows)
        assert await queue.jobs.obliterate() == 3
        assert await queue.lanes.counts() == {}

    @pytest.mark.parametrize("make", ["flow", "graph", "schedule"])
    async def test_where_a_target_is_refused(self, queue: Queue, make: str, store: redis.Redis) -> None:
        from oxcart import Flow, Graph

        async def do() -> object:
            if make == "flow":
                return Flow(queue, "n", target=GPU)
            if make == "graph":
                return Graph(queue).job("n", target=GPU)
            return await queue.schedules.upsert("s", every=5, name="n", target=GPU)

        with pytest.raises(ValidationError, match="target must be that of a job outside of"):
            await do()
        assert store.keys() == []

    async def test_a_lane_has_no_lanes(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        lane = make_queue("q@all;c=gpu")
        with pytest.raises(ValidationError, match="not itself a lane"):
            await lane.add("n", target=EU)
        assert store.keys() == []


class TestUnroutable:
    async def test_an_unroutable_job_is_listed_and_runs_when_a_worker_appears(
        self,
        queue: Queue,
        runs: Runs,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level(logging.WARNING, "oxcart.lanes")
        monkeypatch.setattr(engine_unroutable.Unroutable, "interval", 0.1)
        gpu = await queue.add("n", target=GPU)
        eu = await queue.add("n", target=EU, delay=0.01)
        assert await queue.workers.unroutable() == {"all;c=gpu": 1, "all;r=eu": 1}
        async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
            await gpu.result(20)
            await eventually(
                lambda: "no registered worker can take the jobs of lane all;r=eu" in caplog.text, "a warning"
            )
            assert await queue.workers.unroutable() == {"all;r=eu": 1}
            async with Worker(queue, abilities=Abilities(region="eu")).running():
                assert await eu.result(20) == "q"
                assert await queue.workers.unroutable() == {}

    async def test_plain_workers_warn_of_a_job_that_none_of_them_can_take(
        self, queue: Queue, runs: Runs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caplog.set_level(logging.WARNING, "oxcart.lanes")
        monkeypatch.setattr(engine_unroutable.Unroutable, "interval", 0.05)
        monkeypatch.setattr(engine_unroutable, "TURN", 1.0)
        warning = "queue q: no registered worker can take the jobs of lane all;c=gpu (1 wait)"

        def warnings() -> int:
            return caplog.text.count(warning)

        await queue.add("n", target=GPU)
        async with contextlib.AsyncExitStack() as stack:
            async with Worker(queue).running():
                await eventually(lambda: warnings() == 1, "a warning")
                await stack.enter_async_context(Worker(queue).running())
                # The next check finds the same job, and the other worker leaves it to the first.
                await queue.add("n", target=EU)
                await eventually(lambda: "lane all;r=eu" in caplog.text, "another look")
                assert warnings() == 1
            await eventually(lambda: warnings() == 2, "the other worker takes its turn")

    async def test_a_worker_that_consumes_a_lane_by_its_name_counts(self, queue: Queue, runs: Runs) -> None:
        job = await queue.add("n", target=GPU, delay="1h")
        assert await queue.workers.unroutable() == {"all;c=gpu": 1}
        lane = queue.lanes.get(GPU)
        async with Worker(lane).running():

            async def is_served() -> bool:
                return await queue.workers.unroutable() == {}

            await eventually(is_served, "the worker's connection is seen")
        await job.remove()

    async def test_a_server_that_lists_no_connections_is_asked_for_active_jobs(
        self, url: str, queue: Queue, store: redis.Redis
    ) -> None:
        await queue.add("n", target=GPU)
        await queue.add("n", target=EU)
        store.lpush("bull:q@all;r=eu:active", "held")
        store.acl_setuser("bare", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|list"])
        try:
            async with Queue("q", url=url.replace("://", "://bare:x@")) as bare:
                assert await bare.workers.unroutable() == {"all;c=gpu": 1}
        finally:
            store.acl_deluser("bare")

    async def test_a_worker_without_abilities_counts_for_nothing(self, queue: Queue, runs: Runs) -> None:
        await queue.add("n", target=Target(stack="python"))
        async with Worker(queue).running():
            await eventually(queue.workers.list, "it is registered")
            assert await queue.workers.unroutable() == {"all;s=python": 1}


class TestRegistry:
    async def test_workers_register_their_abilities(
        self, queue: Queue, runs: Runs, make_queue: MakeQueue
    ) -> None:
        other = make_queue("other")
        other.fallback(lambda: None)
        worker = Worker(
            queue, other, name="w", concurrency=3, abilities=Abilities(capabilities="gpu", region="eu")
        )
        assert await queue.workers.list() == []
        async with worker.running():
            await eventually(other.workers.list, "it is registered")
            (record,) = await queue.workers.list()
            (beside,) = await other.workers.list()
            # Each queue's record shows the time of its server, which goes on between the two.
            times = {name: getattr(record, name) for name in ("started_at", "last_seen", "clock")}
            assert msgspec.structs.replace(beside, **times) == record
            assert abs(beside.last_seen - record.last_seen) < 60_000
            assert (record.id, record.name, record.server) == (worker.id, "w", "w")
            assert (record.stack, record.region, record.capabilities) == (("python",), ("eu",), ("gpu",))
            assert (record.queues, record.concurrency, record.routed) == (("q", "other"), 3, True)
            assert record.pid > 0
            assert record.hostname
            assert record.version
        assert await queue.workers.list() == []

    async def test_a_clean_end_leaves_no_key(self, queue: Queue, runs: Runs, store: redis.Redis) -> None:
        async with Worker(queue, abilities=Abilities()).running():
            await eventually(queue.workers.list, "it is registered")
        ours = {str(key) for key in store.scan_iter("*:ox:*") if ":ox:call" not in str(key)}
        assert ours - {"bull:q:ox:lanes:tended", "bull:q:ox:alive"} == set()
        assert store.pttl("bull:q:ox:alive") != -1, "it runs out by itself"


async def test_a_lane_with_an_invalid_name_matches_no_worker(
    queue: Queue, runs: Runs, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_lanes.Lanes, "interval", 0.05)
    broker = queue._core.broker
    assert isinstance(broker, BullMQBroker)
    for lane in ("base", "broken"):
        assert broker.lanes.target_of(lane) is None
        for server in (lane, "w"):
            assert not broker.lanes.fits(lane, Abilities(server, capabilities=lane))
        await broker.lanes.enter(lane)
        store.lpush(f"bull:q@{lane}:wait", "x")
    # Nor is a worker of such a name confused with the queue itself.
    async with Worker(queue, name="base", abilities=Abilities()).running() as worker:
        assert await (await queue.add("n", target=Target(server="base"))).result(20) == "q"
        assert await (await queue.add("n")).result(20) == "q"
        await eventually(lambda: len(worker._mesh._lanes[0]._names) == 3, "it knows all lanes")
        assert [station.lane for station in worker._stations[0].family] == ["all;id=base"]
    assert await queue.workers.unroutable() == {"base": 1, "broken": 1}


async def _has_abilities(queue: Queue, region: tuple[str, ...], capabilities: tuple[str, ...]) -> bool:
    (record,) = await queue.workers.list()
    return (record.region, record.capabilities) == (region, capabilities)
