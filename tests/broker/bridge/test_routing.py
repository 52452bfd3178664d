"""Targets under chaos: every routable job runs on a matching worker, and none runs twice at once."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest

from oxcart import Worker
from oxcart.engine import unroutable
from oxcart.model.target import Abilities, Target
from tests.broker.bridge.conftest import Members
from tests.conftest import MakeQueue
from tests.signals import eventually

pytestmark = pytest.mark.slow

JOBS = int(os.environ.get("OXCART_BRIDGE_JOBS", "400"))
#: Workers in each process, and how many processes there are at once: `make bridge-mesh` has 50 in 5.
CREW = int(os.environ.get("OXCART_BRIDGE_CREW", "1"))
AT_ONCE = 3 if CREW == 1 else 5
#: How long a lease lasts: long enough that none runs out on a busy machine with all these processes.
LEASE = "5s" if CREW == 1 else "10s"
#: Seconds within which all jobs must have run.
LIMIT = 90 + JOBS / 20
CAPABILITIES = ("gpu", "email", "sms", "pdf")
REGIONS = ("eu", "us", "asia")


def target_of(rand: random.Random) -> Target | None:
    if rand.random() < 0.2:
        return None
    return Target(
        capabilities=rand.sample(CAPABILITIES, rand.randint(0, 2)),
        region=rand.sample(REGIONS, rand.randint(0, 1)),
        mode=rand.choice(("any", "all")),
    )


async def test_every_routable_job_runs_where_it_may(
    make_queue: MakeQueue,
    members: Members,
    store: Any,
) -> None:
    rand = random.Random(7)
    queue = make_queue("email", protocol="bridge")
    crews = {
        f"m{n}": {
            f"m{n}-{k}": {
                "capabilities": rand.sample(CAPABILITIES, rand.randint(1, 3)),
                "region": [rand.choice(REGIONS)],
            }
            for k in range(CREW)
        }
        for n in range(AT_ONCE + 2)
    }
    *first, joins, joins_later = crews  # two of the first are killed, and two others come
    crews[joins]["all"] = {"capabilities": list(CAPABILITIES), "region": list(REGIONS)}
    able = {name: abilities for crew in crews.values() for name, abilities in crew.items()}
    rows: list[Any] = []
    asked: list[Target | None] = []
    for n in range(JOBS):
        target = target_of(rand)
        rows.append(("email", {"n": n}, {"target": target, "attempts": 20}))
        asked.append(target)
    jobs = await queue.add_many(rows)
    targets = dict(zip((job.id for job in jobs), asked, strict=True))
    loop = asyncio.get_running_loop()
    for name in first:
        members.start(name, lock=LEASE, crew=crews[name])
    await loop.run_in_executor(None, members.await_ready)
    await eventually(lambda: store.llen("test:ran") > JOBS // 20, "they work", 60)
    members.kill(first[0])
    members.start(joins, lock=LEASE, crew=crews[joins])
    await eventually(lambda: store.llen("test:ran") > JOBS // 5, "others go on", LIMIT)
    members.kill(first[1])
    members.start(joins_later, lock=LEASE, crew=crews[joins_later])
    await eventually(lambda: store.get("bridge:metrics:jobs:processed") == str(JOBS), "all have run", LIMIT)
    ran = [json.loads(raw) for raw in store.lrange("test:ran", 0, -1)]
    for job_id, name in ran:
        target = targets[job_id]
        assert target is None or target.matches(Abilities(name, **able[name])), (target, name)
    states = set(await queue._core.broker.states(list(targets)))
    assert states == {"completed"}
    # Only a job of a killed worker may still be marked as running when another worker claims it.
    killed = {job_id for job_id, name in ran if name in crews[first[0]] or name in crews[first[1]]}
    assert set(store.lrange("test:twice", 0, -1)) <= killed


async def test_a_job_that_no_worker_of_the_namespace_fits_is_unroutable(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroutable.Unroutable, "interval", 0.05)
    queue = make_queue("email", protocol="bridge", namespace="b1")

    @queue.fallback
    async def run() -> str:
        return "done"

    job = await queue.add("n", target=Target(capabilities="gpu"))
    assert await queue.workers.unroutable() == {"all;c=gpu": 1}
    async with Worker(queue).running():
        await eventually(lambda: "take the jobs of lane all;c=gpu (1 wait)" in caplog.text, "a warning")
        assert await queue.workers.unroutable() == {"all;c=gpu": 1}
        async with Worker(queue, abilities={"capabilities": "gpu"}).running():
            assert await job.result(20) == "done"
            assert await queue.workers.unroutable() == {}
