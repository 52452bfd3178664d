"""Random operations on groups give the same claims in the same order as a reference model."""

from __future__ import annotations

import random

import pytest
import redis

from oxcart import Queue
from oxcart.broker.port import ClaimedJob
from tests.queue.group_model import GroupModel, ModelJob
from tests.queue.test_groups import claim, end

GROUPS = ("", "a", "b", "c", "tenant-1")


@pytest.mark.parametrize("seed", range(8))
async def test_random_operations_equal_the_reference_model(
    queue: Queue, store: redis.Redis, seed: int
) -> None:
    rand, model = random.Random(seed), GroupModel()
    running: dict[str, ClaimedJob] = {}
    await queue.add("first", group="a", job_id="first")
    model.add(ModelJob("first", "a", 0))
    number = 0
    for _ in range(120):
        kind = rand.choices(
            ("add", "claim", "complete", "return", "set", "promote", "remove"), (6, 8, 8, 2, 2, 1, 1)
        )[0]
        waiting = sorted(job.id for job in model.jobs.values() if job.waits)
        if kind == "add":
            rows, made = [], []
            for _ in range(rand.choice((1, 1, 2, 30))):
                number += 1
                group, priority = rand.choice(GROUPS), rand.choice((0, 0, 0, 3, 7))
                options = {"job_id": f"j{number:05}", "priority": priority, "group": group or None}
                rows.append(("n", number, options))
                made.append(ModelJob(f"j{number:05}", group, priority))
            await queue.add_many(rows)
            model.add(*made)
        elif kind == "claim":
            count = rand.choice((1, 2, 5, 12))
            jobs = await claim(queue, count)
            assert [job.id for job in jobs] == model.claim(count)
            running |= {job.id: job for job in jobs}
        elif kind in ("complete", "return") and running:
            job = running.pop(rand.choice(sorted(running)))
            await end(queue, job, kind="c" if kind == "complete" else "w")
            model.leave(job.id, returns=kind == "return")
        elif kind == "set":
            group = rand.choice(GROUPS)
            if rand.random() < 0.4:
                concurrent = rand.choice((0, 1, 2, 3))
                await queue.groups.set(group, concurrent=concurrent)
                model.set(group, concurrent=concurrent)
            elif rand.random() < 0.5:
                weight = rand.choice((0.5, 1, 2, 3))
                await queue.groups.set(group, weight=weight)
                model.set(group, weight=weight)
            else:
                paused = rand.random() < 0.4
                await (queue.groups.pause(group) if paused else queue.groups.resume(group))
                model.set(group, paused=paused)
        elif kind == "promote" and waiting:
            name = rand.choice(waiting)
            store.zrem("bull:q:delayed", name)
            store.lpush("bull:q:wait", name)
            model.promote(name)
        elif kind == "remove" and waiting:
            name = rand.choice(waiting)
            await queue.jobs.remove(name)
            model.remove(name)
        assert store.lrange("bull:q:wait", 0, -1) == model.ready[::-1]
        held = store.zrange("bull:q:ox:held", 0, -1)
        assert {str(member).partition("\n")[2] for member in held} == model.places
    for group in GROUPS:
        await queue.groups.set(group, concurrent=0)
        model.set(group, concurrent=0)
        await queue.groups.resume(group)
        model.set(group, paused=False)
    await end(queue, *running.values())
    for _ in range(100):
        jobs = await claim(queue, 50)
        assert [job.id for job in jobs] == model.claim(50)
        await end(queue, *jobs)
        counts = await queue.counts()
        if not counts["waiting"] and not counts["delayed"]:
            break
    assert {state: many for state, many in (await queue.counts()).items() if many}.keys() == {"completed"}
    assert not store.exists("bull:q:ox:turns", "bull:q:ox:parked", "bull:q:ox:held")
