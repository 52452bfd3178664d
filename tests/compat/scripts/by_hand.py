"""Processing without a processor, and operations on single jobs."""

from __future__ import annotations

import time
from typing import Any

from seen import Ends, error, seen


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("by-hand", {"connection": connection})
    worker = bullmq.Worker("by-hand", None, {"connection": connection, "drainDelay": 1})
    found: dict[str, Any] = {}

    found["nothing"] = await worker.getNextJob("t1")
    for i in range(3):
        await queue.add("work", {"i": i}, {"attempts": 2})
    job = await worker.getNextJob("t1")
    found["first"] = [seen(job), job.token, await job.isActive(), await job.isWaiting()]
    found["a wrong token"] = await error(job.moveToCompleted("x", "somebody else's"))
    found["completed"] = await job.moveToCompleted({"ok": 1}, "t1")
    found["as it is"] = seen(await queue.getJob(job.id))
    found["twice"] = await error(job.moveToCompleted("x", "t1"))

    job = await worker.moveToActive("t2")
    await job.moveToFailed(ValueError("no"), "t2")
    found["failed once"] = [await job.getState(), job.failedReason, job.attemptsMade]
    third = await worker.getNextJob("t3")
    next_job = await third.moveToCompleted("then", "t3", True)
    found["next"] = [next_job[1], sorted(name for name in next_job[0] if name in ("name", "data", "opts"))]
    job = await worker.nextJobFromJobData(*next_job, "t3")
    await job.moveToFailed(bullmq.UnrecoverableError("never"), "t3")
    found["failed for good"] = seen(await queue.getJob(job.id))

    delayed = await queue.add("later", {"step": 1}, {"delay": 60_000})
    found["delayed"] = [await delayed.isDelayed(), await delayed.isInList("wait")]
    await delayed.promote()
    found["promoted"] = [await delayed.getState(), delayed.delay, await error(delayed.promote())]
    job = await worker.getNextJob("t4")
    await job.moveToDelayed(round(time.time() * 1000) + 60_000, "t4")
    found["put off"] = [
        await job.getState(),
        0 < job.delay <= 60_001,
        (await queue.getJob(job.id)).attemptsMade,
    ]
    found["put off twice"] = await error(job.moveToDelayed(0, "t4"))

    ready = await queue.add("ready", {"a": 1})
    await ready.changePriority({"priority": 5})
    found["priority"] = [ready.priority, await ready.getState(), await queue.getCountsPerPriority([5])]
    await ready.changePriority({"priority": 0, "lifo": True})
    found["none"] = [await ready.isWaiting(), (await queue.getJob(ready.id)).priority]
    await ready.updateData({"a": 2})
    await ready.updateProgress([1, "two"])
    found["changed"] = seen(await queue.getJob(ready.id))
    found["log"] = [await ready.log("a row"), await bullmq.Job.addJobLog(queue, ready.id, "another", 1)]
    found["from id"] = seen(await bullmq.Job.fromId(queue, ready.id))
    found["not from id"] = await bullmq.Job.fromId(queue, "nobody")
    raw = {
        "name": "n",
        "data": '{"x":1}',
        "opts": '{"attempts":3,"kl":5}',
        "atm": "2",
        "parentKey": "bull:p:1",
    }
    made = bullmq.Job.fromJSON(
        queue, {**raw, "timestamp": "5", "returnvalue": "[1]", "stacktrace": '["t"]'}, "7"
    )
    found["from JSON"] = seen(made)
    ready.updateStacktrace()
    found["trace"] = len(ready.stacktrace)
    gone = bullmq.Job(queue, "x", {}, {}, "nobody")
    found["gone"] = [
        await error(gone.updateData({})),
        await error(gone.updateProgress(1)),
        await error(gone.promote()),
        await error(gone.retry()),
        await error(gone.changePriority({"priority": 1})),
        await error(gone.moveToCompleted(1, "t")),
    ]
    found["no children"] = [await ready.getChildrenValues(), await ready.isWaitingChildren()]
    held = await worker.getNextJob("t5")
    found["held"] = [held.id == ready.id, await error(ready.remove()), await queue.remove(ready.id)]
    found["busy"] = await error(queue.obliterate())
    await queue.resume()
    await held.moveToCompleted(None, "t5")
    await ready.remove()
    found["removed"] = [await ready.getState(), seen(await queue.getJob(ready.id))]
    found["none left"] = await error(ready.remove({"removeChildren": False}))

    async def process(job: Any, token: str) -> Any:
        if job.name == "bad":
            raise RuntimeError("bad")
        return job.data

    doing = bullmq.Worker("by-hand", process, {"connection": connection, "autorun": False})
    ends = Ends(doing)
    await queue.drain(True)
    await queue.add("good", 5)
    await queue.add("bad", 6)
    for token in ("t6", "t7"):
        await doing.processJob(await doing.getNextJob(token), token)
    found["processed"] = await ends.wait(2)
    stalled: list[str] = []
    doing.on("stalled", stalled.append)
    await doing.runStalledJobsCheck()
    found["stalled"] = stalled

    found["waits"] = [doing.getBlockTimeout(0), doing.minimumBlockTimeout, doing.maximumBlockTimeout]
    found["a short wait"] = doing.getBlockTimeout(1)
    found["a long wait"] = doing.getBlockTimeout(round(time.time() * 1000) + 3_600_000)
    found["nothing comes"] = await worker.waitForJob() <= time.time() * 1000
    found["connection errors"] = [
        doing.isConnectionError(one)
        for one in (
            ConnectionRefusedError(),
            TimeoutError(),
            OSError("Connection reset"),
            ValueError("x"),
            KeyError(),
        )
    ]
    tries: list[int] = []

    async def third_time() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionResetError("away")
        return "done"

    async def never() -> None:
        raise ValueError("never")

    found["tried"] = [await doing.retryIfFailed(third_time, {"delay_in_ms": 1}), len(tries)]
    found["given up"] = await error(doing.retryIfFailed(never))
    found["swallowed"] = await doing.retryIfFailed(never, {"only_emit_error": True})
    await doing.close()
    await worker.close()
    await queue.close()
    return found
