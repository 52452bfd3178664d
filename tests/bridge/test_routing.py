"""Targets under chaos: every job that somebody can do runs, on workers that match, none twice at once."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from oxcart.model.target import Abilities, Target
from tests.bridge.conftest import Members
from tests.conftest import MakeQueue
from tests.signals import eventually

JOBS = int(os.environ.get("OXCART_BRIDGE_JOBS", "400"))
#: Seconds that they may take.
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
    able = {
        f"m{n}": {
            "capabilities": rand.sample(CAPABILITIES, rand.randint(1, 3)),
            "region": [rand.choice(REGIONS)],
        }
        for n in range(4)
    }
    able["all"] = {"capabilities": list(CAPABILITIES), "region": list(REGIONS)}
    rows: list[Any] = []
    asked: list[Target | None] = []
    for n in range(JOBS):
        target = target_of(rand)
        rows.append(("email", {"n": n}, {"target": target, "attempts": 20}))
        asked.append(target)
    jobs = await queue.add_many(rows)
    targets = dict(zip((job.id for job in jobs), asked, strict=True))
    for name in ("m0", "m1", "m2"):
        members.start(name, able[name], lock="5s")
    await asyncio.get_running_loop().run_in_executor(None, members.await_ready)
    await eventually(lambda: store.llen("test:ran") > JOBS // 20, "they work", 60)
    members.kill("m0")
    members.start("all", able["all"], lock="5s")
    members.start("m3", able["m3"], lock="5s")
    await eventually(lambda: store.get("bridge:metrics:jobs:processed") == str(JOBS), "all have run", LIMIT)
    for raw in store.lrange("test:ran", 0, -1):
        job_id, name = json.loads(raw)
        target = targets[job_id]
        assert target is None or target.matches(Abilities(name, **able[name])), (target, name)
    states = set(await queue.broker.states(list(targets)))
    assert states == {"completed"}
    # A job of the killed worker may stand as running when another takes it; nobody else's.
    assert set(store.lrange("test:twice", 0, -1)) <= {
        json.loads(raw)[0] for raw in store.lrange("test:ran", 0, -1) if json.loads(raw)[1] == "m0"
    }
