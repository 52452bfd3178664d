"""The job lifecycle, batched, on a cluster of three masters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Lease, Outcome, OutcomeKind
from oxcart.broker.slots import slot_of
from oxcart.model.errors import JobFailed
from oxcart.model.options import JobOptions
from tests.chaos.fleet import eventually
from tests.cluster.conftest import Masters
from tests.whole_queue import fill

LIMIT = 60


async def test_jobs_of_every_kind(masters: Masters) -> None:
    queue = Queue("video", url=masters.url)
    ran: Counter[str] = Counter()

    @queue.job
    async def encode(job: RunningJob, n: int) -> int:
        ran[job.id] += 1
        await job.update_progress(50)
        await job.log(f"number {n}")
        if n % 10 == 0 and job.attempt == 1:
            raise RuntimeError("once more")
        if n % 25 == 0:
            raise ValueError("never") if job.attempt > 2 else RuntimeError("again")
        return n

    rows: list[Any] = []
    for n in range(100):
        options: dict[str, Any] = {"attempts": 3, "backoff": 0.01}
        if n % 4 == 1:
            options["delay"] = 0.05
        if n % 4 == 2:
            options["priority"] = 1 + n % 7
        if n % 4 == 3:
            options["lifo"] = True
        rows.append(("encode", {"n": n}, options))
    handles = await queue.add_many(rows)
    async with Worker(queue, concurrency=20).running():
        for n, handle in enumerate(handles):
            if n % 25 == 0:
                with pytest.raises(JobFailed):
                    await handle.result(LIMIT)
            else:
                assert await handle.result(LIMIT) == n
    counts = await queue.counts()
    assert counts == {
        "waiting": 0, "prioritized": 0, "active": 0, "delayed": 0, "waiting-children": 0,
        "completed": 96, "failed": 4,
    }  # fmt: skip
    assert all(
        ran[handle.id] == (3 if n % 25 == 0 else 2 if n % 10 == 0 else 1) for n, handle in enumerate(handles)
    )
    job = await handles[1].get()
    assert (job.progress, await handles[1].logs()) == (50, ["number 1"])
    # All keys of the queue are in one slot.
    assert {slot_of(key) for key in masters.all_keys()} == {slot_of("{video}")}
    # Steering.
    await queue.jobs.retry(handles[0].id, reset=True)
    assert await handles[0].state() == "waiting"
    await queue.jobs.remove(handles[0].id)
    assert await queue.jobs.get(handles[0].id) is None
    assert len(await queue.jobs.list("completed", limit=50)) == 50
    await queue.close()


async def test_pause_delay_priority_and_recovery(masters: Masters) -> None:
    broker = BullMQBroker(Server(masters.url), "steer")
    options = [JobOptions.build(job_id=f"j{n}", delay=60 if n == 0 else 0) for n in range(6)]
    await broker.add([broker.encode("job", None, one) for one in options])
    await broker.pause()
    assert (await broker.claim(Ask(5))).closed
    await broker.resume()
    await broker.promote_job("j0")
    await broker.updates.change_priority("j1", 3)
    await broker.update_data("j2", {"a": 1})
    assert await broker.states(["j0", "j1", "j2"]) == ["waiting", "prioritized", "waiting"]
    claimed = await broker.claim(Ask(10, lock_ms=50))
    assert {job.id for job in claimed.jobs} == {f"j{n}" for n in range(6)}
    leases = [Lease(job.id, job.token, job.starts) for job in claimed.jobs]
    assert await broker.renew(leases, 60_000) == []
    now = broker.clock()
    kinds = {"j0": "c", "j1": "f", "j2": "r", "j3": "d", "j4": "w"}
    outcomes = [
        Outcome(
            OutcomeKind(kinds[job.id]), job.id, job.token, job.starts, now, b'"x"', b"[]", delay_ms=60_000
        )
        for job in claimed.jobs
        if job.id in kinds
    ]
    codes, _ = await broker.finish(outcomes)
    assert codes == [1] * 5
    states = await broker.states([f"j{n}" for n in range(6)])
    assert states == ["completed", "failed", "waiting", "delayed", "waiting", "active"]
    await broker.change_delay("j3", 1000)
    # A lost worker: its lease is gone, and the stalled check recovers the job.
    assert await broker.renew([lease for lease in leases if lease.id == "j5"], 1) == []
    await asyncio.sleep(0.01)
    await broker.recover(interval_ms=1)
    await asyncio.sleep(0.01)
    assert (await broker.recover(interval_ms=1)).ids == ["j5"]
    assert [job.id for job in await broker.page("completed", 0, 9)] == ["j0"]
    await broker.remove_job("j3")
    await broker.retry_job("j1", "failed")
    await broker.close()


async def test_one_worker_over_queues_on_every_master(
    masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits for each queue on its own master, without polling."""
    monkeypatch.setattr("oxcart.engine.waiter.POLL", 600.0)
    names = [masters.queue_on(node) for node in masters.cluster.nodes]
    queues = [Queue(name, url=masters.url) for name in names]
    ran: Counter[str] = Counter()
    for queue in queues:

        @queue.fallback
        async def work(job: RunningJob) -> str:
            ran[job.queue] += 1
            return job.queue

    async with Worker(*queues, concurrency=10).running() as worker:
        handles = []
        for queue in queues:
            handles += await queue.add_many([("job", n) for n in range(100)])
        for handle in handles:
            assert await handle.result(LIMIT) == handle.queue.name
        assert ran == dict.fromkeys(names, 100)
        await asyncio.sleep(0.2)  # the waits begin
        for queue in queues:
            await (await queue.add("job")).result(LIMIT)
        await eventually(lambda: worker.processed == 303, "all counted")
    for queue in queues:
        await queue.close()


async def test_leases_are_renewed_on_a_cluster(masters: Masters) -> None:
    names = [masters.queue_on(node) for node in masters.cluster.nodes[:2]]
    queues = [Queue(name, url=masters.url) for name in names]
    renewed: Counter[int] = Counter()
    enough = asyncio.Event()

    def note(station: int, leases: int, seconds: float) -> None:
        renewed[station] += leases == 2
        if len(renewed) == 2 and min(renewed.values()) > 1:
            enough.set()

    for queue in queues:

        @queue.fallback
        async def work(job: RunningJob) -> int:
            await enough.wait()
            return job.fencing

    lease: dict[str, Any] = {"lock_duration": 20, "renew_every": 0.2, "stalled_interval": 1}
    async with Worker(*queues, concurrency=4, **lease).running() as worker:
        worker._leases._renewed = note
        handles = [await queue.add("job") for queue in queues for _ in range(2)]
        assert [await handle.result(LIMIT) for handle in handles] == [1, 1, 1, 1]
    for queue in queues:
        await queue.close()


async def test_a_shared_tag_puts_queues_into_one_slot(masters: Masters) -> None:
    one, two = Queue("one", url=masters.url, prefix="{bull}"), Queue("two", url=masters.url, prefix="{bull}")
    await one.add("job")
    await two.add("job")
    assert {slot_of(key) for key in masters.all_keys()} == {slot_of("{bull}")}
    assert "{bull}:one:wait" in masters.all_keys(), "no second tag"
    await one.close()
    await two.close()


async def test_obliterate_leaves_no_key(masters: Masters) -> None:
    queue, other = (Queue(name, url=masters.url, prefix="{ox}") for name in ("video", "other"))
    jobs = await fill(queue, other)
    assert sum(key.startswith("{ox}:video") for key in masters.all_keys()) > 50
    assert await queue.jobs.obliterate() == jobs
    assert [key for key in masters.all_keys() if key.startswith("{ox}:video")] == []
    await queue.close()
    await other.close()
