"""Limits per type: never exceeded, and right again after workers die."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from oxcart import Worker
from oxcart.broker.port import Ask, ClaimedJob
from tests.broker.bridge.conftest import Desk, Members
from tests.conftest import MakeQueue
from tests.signals import eventually


@pytest.mark.parametrize("seed", range(5))
async def test_random_workers_never_exceed_the_limit(desk: Desk, seed: int) -> None:
    """Workers claim, finish, return and lose jobs: the limit holds, and the counter stays exact."""
    rand = random.Random(seed)
    limit = rand.randint(1, 5)
    left = {await desk.add(rate_limit={"max_concurrent": limit}, attempts=100) for _ in range(40)}
    held: dict[str, ClaimedJob] = {}
    for _ in range(400):
        if not left:
            break
        worker = f"w{rand.randrange(4)}"
        step = rand.random()
        if step < 0.5:
            claimed = await desk.broker(worker=worker).claim(Ask(rand.randint(1, 5), worker=worker))
            held |= {job.id: job for job in claimed.jobs}
        elif held:
            job = held.pop(rand.choice(sorted(held)))
            if step < 0.8:
                assert await desk.end(job) == 1
                left.discard(job.id)
            elif step < 0.9:
                assert await desk.end(job, "w") == 1
            else:  # its worker dies, and another worker recovers it
                desk.store.delete(f"bridge:jobs:lock:{job.id}", "bridge:ox:checking")
                assert job.id in (await desk.broker(worker=worker).recover()).ids
        assert desk.store.scard("bridge:jobs:active") == len(held) <= limit
        assert desk.counter() == len(held)
    for job in held.values():
        await desk.end(job)
    assert desk.counter() == 0


@pytest.mark.slow
async def test_the_counter_is_right_after_half_of_the_workers_are_killed(
    make_queue: MakeQueue, members: Members, store: Any
) -> None:
    queue = make_queue("email", protocol="bridge")
    limit = 3
    jobs = await queue.add_many(
        [("email", {"n": n}, {"rate_limit": {"max_concurrent": limit}, "attempts": 9}) for n in range(60)]
    )
    for n in range(4):
        members.start(f"m{n}")
    await asyncio.get_running_loop().run_in_executor(None, members.await_ready)
    most = 0

    def running() -> int:
        nonlocal most
        now = store.scard("bridge:jobs:active")
        most = max(most, now)
        return int(now)

    await eventually(lambda: running() and store.llen("test:ran") > 5, "they work")
    for name in ("m0", "m1"):
        members.kill(name)
    store.delete("test:running")  # entries of the killed workers
    await eventually(
        lambda: (running() or True) and store.get("bridge:metrics:jobs:processed") == "60", "all have run", 60
    )
    assert most <= limit
    await eventually(lambda: store.get("bridge:ratelimit:concurrent:email") == "0", "the counter is right")
    assert store.scard("bridge:jobs:active") == 0
    assert {await job.state() for job in jobs} == {"completed"}


@pytest.mark.slow
async def test_a_dead_workers_job_and_slot_come_back_in_time(
    make_queue: MakeQueue, members: Members, store: Any
) -> None:
    """Within 35 s with leases of 30 s, which only the full length has; in CI the leases last a second."""
    full = os.environ.get("OXCART_CHAOS") == "full"
    queue = make_queue("email", protocol="bridge")
    await queue.add("email", {}, rate_limit={"max_concurrent": 1}, attempts=3)
    second = await queue.add("email", {}, rate_limit={"max_concurrent": 1})
    members.start("dies", lock="30s" if full else "1s", nap=600)
    await asyncio.get_running_loop().run_in_executor(None, members.await_ready)
    await eventually(lambda: store.scard("bridge:jobs:active") == 1, "it runs")
    ran: list[str] = []
    queue.fallback(lambda job: ran.append(job.id))
    async with Worker(queue, name="lives", lock_duration="30s" if full else "1s").running():
        members.kill("dies")
        await eventually(lambda: len(set(ran)) == 2, "both have run", 35 if full else 20)
        await second.result(timeout=20)
    assert store.get("bridge:ratelimit:concurrent:email") == "0"
