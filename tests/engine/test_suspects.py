"""Suspects that a worker holds: whatever ends their wait frees the worker, and no slot is used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from oxcart import JobHandle, Queue, RunningJob, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.suspects import QueueSuspects
from oxcart.broker.port import Ask, Claimed, Lease
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

LIMIT = 20.0
BESIDE: dict[Any, Any] = {"stc": 1}
ALONE: dict[Any, Any] = {"stc": 1, "ox:shared": 1}


class Gates:
    """Jobs that run until the test lets them end, by their ids."""

    def __init__(self, *queues: Queue) -> None:
        self.started: list[str] = []
        self.limits: dict[str, float | None] = {}
        self._open: dict[str, asyncio.Event] = {}
        for queue in queues:
            queue.fallback(self.hold)

    async def hold(self, job: RunningJob) -> None:
        self.started.append(job.id)
        self.limits[job.id] = job.limit
        await self._gate(job.id).wait()

    def end(self, *ids: str) -> None:
        for job_id in ids:
            self._gate(job_id).set()

    def _gate(self, job_id: str) -> asyncio.Event:
        return self._open.setdefault(job_id, asyncio.Event())

    async def until(self, *ids: str) -> None:
        await eventually(lambda: set(ids) <= set(self.started), f"{ids} run", LIMIT)


async def add(
    queue: Queue, store: redis.Redis, job_id: str, lost: dict[Any, Any] | None = None, **options: Any
) -> JobHandle[Any]:
    """Adds a job that was lost before, if `lost` says how."""
    options = {"attempts": 5} | options
    handle = await queue.add("n", job_id=job_id, delay=300 if lost else 0, **options)
    if lost:
        store.hset(f"bull:{queue.name}:{job_id}", mapping=lost)
        await handle.promote()
    return handle


async def until_held(store: redis.Redis, *ids: str, queue: str = "q") -> None:
    """Waits until a claim has noted that jobs wait in their worker."""

    def held() -> bool:
        notes: list[Any] = [store.hget(f"bull:{queue}:{job_id}", "ox:beside") for job_id in ids]
        return all(note is not None and note.startswith("w") for note in notes)

    await eventually(held, f"{ids} are held", LIMIT)


def steal(store: redis.Redis, *ids: str) -> None:
    """Another worker has the leases of some jobs."""
    for job_id in ids:
        store.set(f"bull:q:{job_id}:lock", "another")


async def test_a_held_suspect_is_returned_by_a_stop_without_an_attempt(
    queue: Queue, store: redis.Redis
) -> None:
    gates = Gates(queue)
    async with Worker(queue, concurrency=2, shutdown_timeout=1).running():
        await add(queue, store, "long")
        await gates.until("long")
        held = await add(queue, store, "held", ALONE)
        await until_held(store, "held")
        gates.end("long")
        # The worker stops before it has found out that nothing runs beside the suspect any more.
    found = await held.get()
    assert await held.state() == "waiting"
    assert (found.attempts_made, found.stalled_count) == (0, 1)
    assert gates.started == ["long"]


async def test_a_job_at_its_last_attempt_is_not_ended_by_one_shared_loss(
    queue: Queue, store: redis.Redis
) -> None:
    """It was lost at attempt 3 of 3, perhaps by a neighbour: it runs alone, and once."""
    gates = Gates(queue)
    async with Worker(queue, concurrency=5).running():
        await add(queue, store, "long")
        await gates.until("long")
        held = await add(queue, store, "held", {"stc": 1, "atm": 2}, attempts=3)
        await until_held(store, "held")
        gates.end("long")
        await gates.until("held")
        await add(queue, store, "next")
        gates.end("held", "next")
        await held.result(LIMIT)
        await gates.until("next")
    assert gates.started == ["long", "held", "next"], "nothing runs beside it"


async def test_a_lone_loss_at_the_last_attempt_ends_a_job(queue: Queue, store: redis.Redis) -> None:
    gates = Gates(queue)
    async with Worker(queue, concurrency=5, max_stalled=9).running():
        guilty = await add(queue, store, "guilty", {"stc": 2, "atm": 2}, attempts=3)
        once = await add(queue, store, "once", {"stc": 1}, attempts=1)
        for handle in (guilty, once):
            await eventually(lambda handle=handle: _is_dead(handle), "it has ended", LIMIT)  # type: ignore[misc]
    assert gates.started == []


async def _is_dead(handle: JobHandle[Any]) -> bool:
    return await handle.state() == "failed"


async def test_a_pause_ends_when_a_held_suspect_has_lost_its_lease(queue: Queue, store: redis.Redis) -> None:
    gates = Gates(queue)
    async with Worker(queue, concurrency=2, shutdown_timeout=1).running() as worker:
        await add(queue, store, "long")
        await gates.until("long")
        await add(queue, store, "held", ALONE)
        await until_held(store, "held")
        pausing = asyncio.create_task(worker.pause())
        steal(store, "held")
        gates.end("long")
        async with asyncio.timeout(20):
            await pausing
    assert gates.started == ["long"]


async def test_a_worker_claims_again_when_all_of_its_suspects_lost_their_leases(
    queue: Queue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, silent = Gates(queue), asyncio.Event()
    original = QueueSuspects.start

    async def late(self: QueueSuspects, leases: Sequence[Lease], *, alone: bool) -> list[str]:
        await silent.wait()
        return await original(self, leases, alone=alone)

    monkeypatch.setattr(QueueSuspects, "start", late)
    lost = [f"lost-{number}" for number in range(4)]
    for job_id in lost:
        await add(queue, store, job_id, BESIDE)
    await add(queue, store, "next")
    async with Worker(queue, concurrency=2, shutdown_timeout=1).running():
        await until_held(store, *lost[:3])
        await eventually(lambda: store.llen("bull:q:active") >= 3, "the worker has suspects")
        await asyncio.sleep(0)
        steal(store, *lost)
        silent.set()
        gates.end("next", *lost)
        await gates.until("next")


async def test_the_slots_of_suspects_that_may_start_are_not_claimed_for_others(
    queue: Queue, store: redis.Redis
) -> None:
    gates = Gates(queue)
    suspects = [f"lost-{number}" for number in range(4)]
    others = [f"other-{number}" for number in range(4)]
    for job_id in suspects:
        await add(queue, store, job_id, BESIDE)
    for job_id in others:
        await add(queue, store, job_id)
    async with Worker(queue, concurrency=4, shutdown_timeout=1).running():
        await gates.until(*suspects[:2], *others[:2])
        gates.end(*suspects[:2])
        await gates.until(*suspects[2:])
        await eventually(lambda: store.zcard("bull:q:completed") == 2, "their ends are committed", LIMIT)
        assert set(store.lrange("bull:q:wait", 0, -1)) == set(others[2:]), "a slot for each claimed job"
        gates.end(*suspects, *others)
        await gates.until(*others)


async def test_suspects_that_run_for_a_lease_let_the_next_ones_start(
    queue: Queue, store: redis.Redis
) -> None:
    gates = Gates(queue)
    suspects = [f"lost-{number}" for number in range(5)]
    for job_id in suspects:
        await add(queue, store, job_id, BESIDE)
    async with Worker(queue, concurrency=4, lock_duration=1, shutdown_timeout=1).running():
        await gates.until(*suspects[:4])
        assert suspects[4] not in gates.started, "never more than its slots"
        gates.end(*suspects)
        await gates.until(*suspects)


async def test_a_suspect_that_waited_for_long_ones_takes_no_slot_of_a_claim_in_flight(
    queue: Queue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, silent, asked = Gates(queue), asyncio.Event(), asyncio.Event()
    original = BullMQBroker.claim

    async def claim(self: BullMQBroker, ask: Ask) -> Claimed:
        if len(gates.started) == 2:
            asked.set()
            await silent.wait()
        return await original(self, ask)

    monkeypatch.setattr(BullMQBroker, "claim", claim)
    suspects = [f"lost-{number}" for number in range(3)]
    for job_id in suspects:
        await add(queue, store, job_id, BESIDE)
    async with Worker(queue, concurrency=4, lock_duration=0.6, shutdown_timeout=1).running():
        await gates.until(*suspects[:2])
        await until_held(store, suspects[2])
        await queue.add_many([("n", None)] * 2)
        await asyncio.wait_for(asked.wait(), LIMIT)
        lease_over = asyncio.get_running_loop().time() + 0.8
        await eventually(
            lambda: len(gates.started) > 2 or asyncio.get_running_loop().time() > lease_over, "a lease", LIMIT
        )
        silent.set()
        await eventually(lambda: len(gates.started) == 4, "the claimed jobs run", LIMIT)
        assert suspects[2] not in gates.started
        gates.end(*gates.started)
        await gates.until(suspects[2])
        gates.end(suspects[2])


async def test_a_held_suspect_is_cancelled_at_once(queue: Queue, store: redis.Redis) -> None:
    gates = Gates(queue)
    async with Worker(queue, concurrency=2, shutdown_timeout=1).running():
        await add(queue, store, "long")
        await gates.until("long")
        held = await add(queue, store, "held", ALONE)
        await until_held(store, "held")
        await held.cancel("not needed")
        await eventually(
            lambda: store.hget("bull:q:held", "ox:category") == "cancelled", "it is cancelled", LIMIT
        )
        await add(queue, store, "next")
        await gates.until("next")
        assert await queue.jobs.handle("long").state() == "active"
        gates.end("long", "next")


async def test_a_suspect_without_its_lease_keeps_no_worker_from_claiming(
    queue: Queue, store: redis.Redis
) -> None:
    gates = Gates(queue)
    async with Worker(queue, concurrency=2, lock_duration=2, shutdown_timeout=1).running():
        await add(queue, store, "long")
        await gates.until("long")
        await add(queue, store, "held", ALONE)
        await until_held(store, "held")
        steal(store, "held")
        await add(queue, store, "next")
        await gates.until("next")
        gates.end("long", "next")
    assert "held" not in gates.started


async def test_a_held_suspect_does_not_outlive_its_lifetime(queue: Queue, store: redis.Redis) -> None:
    gates = Gates(queue)
    now = int(store.time()[0]) * 1000
    clock = [now]
    async with Worker(queue, concurrency=2, clock=lambda: clock[0], shutdown_timeout=1).running():
        await add(queue, store, "long")
        await gates.until("long")
        await add(queue, store, "held", ALONE, lifetime=1000)
        await until_held(store, "held")
        clock[0] += 600_000
        gates.end("long", "held")
        await gates.until("held")
    limit = gates.limits["held"]
    assert limit is not None
    assert limit < 500


async def test_nothing_starts_beside_a_job_that_runs_alone(
    make_queue: MakeQueue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that hung when the suspect started may return jobs while it runs."""
    with ValkeyServer() as second:
        queue, other = make_queue("q"), Queue("other", url=second.url)
        gates, late = Gates(queue, other), asyncio.Event()
        original = BullMQBroker.claim

        async def claim(self: BullMQBroker, ask: Ask) -> Claimed:
            if self.queue == "other":
                await late.wait()
            return await original(self, ask)

        monkeypatch.setattr(BullMQBroker, "claim", claim)
        await add(queue, store, "alone", ALONE)
        beside = await other.add("n", job_id="beside")
        async with other, Worker(other, queue, concurrency=2, lock_duration=2, shutdown_timeout=1).running():
            await gates.until("alone")
            late.set()
            starts = second.client()
            await eventually(
                lambda: starts.hget("bull:other:beside", "ats"), "the late claim has a job", LIMIT
            )
            await eventually(lambda: starts.llen("bull:other:wait") == 1, "it is returned", LIMIT)
            assert gates.started == ["alone"]
            gates.end("alone", "beside")
            await beside.result(timeout=LIMIT)
            assert (await beside.get()).attempts_made == 1


async def test_a_silent_server_keeps_no_jobs_of_another_queue_waiting(
    make_queue: MakeQueue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue("q"), make_queue("other")
    gates, back = Gates(queue, other), asyncio.Event()
    original = QueueSuspects.start

    async def silent(self: QueueSuspects, leases: Sequence[Lease], *, alone: bool) -> list[str]:
        await back.wait()
        return await original(self, leases, alone=alone)

    monkeypatch.setattr(QueueSuspects, "start", silent)
    alone = await add(queue, store, "alone", ALONE)
    async with Worker(queue, other, concurrency=2, lock_duration=2, shutdown_timeout=1).running():
        await until_held(store, "alone")
        await add(other, store, "healthy")
        await gates.until("healthy")
        assert "alone" not in gates.started
        back.set()
        gates.end("healthy", "alone")
        await gates.until("alone")
        await alone.result(timeout=20)
    assert (await alone.get()).stalled_count == 1
