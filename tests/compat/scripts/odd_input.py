"""Borderline input: names, numbers, text and objects, and how they are refused."""

from __future__ import annotations

from typing import Any

from seen import Ends, caught, error, seen, wording


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("odd", {"connection": connection})
    found: dict[str, Any] = {}

    found["half an emoji"] = seen(await queue.add("cut", {"s": "cut \ud83d", "list": ["\ude00"]}))
    found["half an emoji, read"] = (await queue.getJob("1")).data
    found["whole emoji"] = (await queue.getJob((await queue.add("whole", {"s": "\U0001f600"})).id)).data
    large = {"up": 2**64, "down": -(2**63) - 1, "much": 10**40, "nested": [{"n": 2**70}]}
    found["integers over 64 bits"] = seen(await queue.add("large", large))
    found["integers over 64 bits, read"] = (await queue.getJob("3")).data
    await queue.client.hset(queue.toKey("3"), "data", '{"n": 123456789012345678901234567890}')
    found["and from a peer"] = (await queue.getJob("3")).data

    found["no job name"] = seen(await queue.add("", {}))
    found["no job name, read"] = (await queue.getJob("4")).name
    found["float backoff"] = seen(await queue.add("float", {}, {"attempts": 2, "backoff": 1500.5}))
    found["float backoff, read"] = (await queue.getJob("5")).opts
    delays = {"type": "fixed", "delay": 10.5}
    found["float backoff.delay"] = seen(await queue.add("float", {}, {"attempts": 2, "backoff": delays}))

    class Thing:
        pass

    found["not JSON"] = {
        "NaN": await error(queue.add("nan", {"x": float("nan")})),
        "infinity": await error(queue.add("inf", [float("inf")])),
        "an object": await caught(queue.add("object", {"x": Thing()}), TypeError),
        "complex": await caught(queue.add("object", {"x": 1j}), TypeError),
        "words": (await wording(queue.add("object", {"x": Thing()}))),
        "an object as a TypeError": await caught(queue.add("object", Thing()), TypeError),
        "NaN as a ValueError": await caught(queue.add("nan", float("nan")), ValueError),
        "a circle as a ValueError": await caught(queue.add("circle", _circle()), ValueError),
        "a tuple as a key": await caught(queue.add("key", {(1, 2): 3}), TypeError),
    }
    bulk = [{"name": "fine", "data": {}}, {"name": "bad", "data": Thing()}]
    found["in bulk"] = [await caught(queue.addBulk(bulk), TypeError), (await queue.getJobCounts("waiting"))]
    job = await queue.getJob("2")
    found["updates"] = {
        "data": await caught(job.updateData(Thing()), TypeError),
        "progress": await caught(job.updateProgress(Thing()), TypeError),
        "progress NaN": await error(job.updateProgress(float("nan"))),
    }

    found["odd keys"] = (await queue.getJob((await queue.add("keys", {None: 1, True: 2, 1.5: 3})).id)).data
    await queue.remove("7")
    every = {"every": 3_600_000}
    found["schedules"] = {
        "bad cron": await caught(queue.upsertJobScheduler("bad", {"pattern": "every now"}), ValueError),
        "bad field": await caught(queue.upsertJobScheduler("bad", {"pattern": "61 * * * *"}), ValueError),
        "name is a number": await caught(queue.upsertJobScheduler("odd", every, 5), Exception),
        "data": await caught(queue.upsertJobScheduler("bad", every, "n", Thing()), TypeError),
        "data NaN": await error(queue.upsertJobScheduler("bad", every, "n", float("nan"))),
    }

    ran: list[Any] = []

    async def process(job: Any, token: str) -> Any:
        ran.append([job.name, job.data])
        if job.name == "large":
            return 2**70
        if job.name == "cut":
            return {"half": job.data["s"][-1]}
        return None

    worker = bullmq.Worker("odd", process, {"connection": connection})
    await Ends(worker).wait(7)
    await worker.close()
    found["run"] = sorted(ran, key=str)
    found["results"] = [(await queue.getJob(id)).returnvalue for id in ("1", "3")]
    await queue.close()
    return found


def _circle() -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return circle
