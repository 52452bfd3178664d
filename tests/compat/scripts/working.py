"""Workers: results, failures, retries, events, pause, cancellation, close."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from seen import Ends, error, ids, seen, until


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("working", {"connection": connection})
    found: dict[str, Any] = {}
    runs: dict[str, int] = {}
    traces: list[Any] = []

    async def process(job: Any, token: str) -> Any:
        runs[job.id] = runs.get(job.id, 0) + 1
        if job.name == "echo":
            await job.updateProgress(50)
            await job.updateProgress({"at": "half"})
            rows = [await job.log("first"), await job.log("second"), await job.log("third")]
            await job.updateData({**job.data, "seen": True})
            return {"got": job.data, "rows": rows, "token": token == job.token, "state": await job.getState()}
        if job.name == "twice" and job.attemptsMade == 0:
            raise PermissionError("not the first time")
        if job.name == "never":
            raise ValueError(f"attempt {job.attemptsMade + 1}")
        if job.name == "final":
            raise bullmq.UnrecoverableError("for good")
        if job.name == "later" and job.data.get("step") != 2:
            await job.updateData({"step": 2})
            await job.moveToDelayed(round(time.time() * 1000) + 50, token)
            raise bullmq.DelayedError
        if job.name == "bad result":
            return object()
        if job.name == "trace":
            try:
                raise KeyError("inner")
            except KeyError:
                job.updateStacktrace()
            traces.append([len(job.stacktrace), "KeyError" in job.stacktrace[-1]])
        return job.name

    worker = bullmq.Worker(
        "working", process, {"connection": connection, "autorun": False, "concurrency": 3, "name": "me"}
    )
    found["opts"] = {name: value for name, value in worker.opts.items() if name != "connection"}
    actives: list[Any] = []
    worker.on("active", lambda job, previous: actives.append([job.id, previous]))
    ends = Ends(worker)
    cases = [
        ("echo", {"x": 1}, {"keepLogs": 2}),
        ("twice", {}, {"attempts": 2}),
        ("never", {}, {"attempts": 3, "backoff": {"type": "fixed", "delay": 20}}),
        ("final", {}, {"attempts": 3}),
        ("later", {}, {}),
        ("bad result", {}, {"attempts": 1}),
        ("trace", {}, {"stackTraceLimit": 1}),
        ("gone", {}, {"removeOnComplete": True}),
    ]
    jobs = {name: await queue.add(name, data, opts) for name, data, opts in cases}
    running = asyncio.ensure_future(worker.run())
    ended = await ends.wait(11)
    found["told"] = [one for one in ended if one[1] != jobs["bad result"].id]
    found["bad result"] = [one[:2] for one in ended if one[1] == jobs["bad result"].id]
    found["active"] = sorted(actives)
    found["runs"] = runs
    found["traces"] = traces
    found["twice running"] = await error(worker.run())
    for name, job in jobs.items():
        shown = seen(await queue.getJob(job.id))
        if name == "bad result":
            del shown["failedReason"]
        found[f"job {name}"] = shown
    found["counts"] = await queue.getJobCounts()
    found["ends"] = [sorted(await ids(queue.getCompleted())), sorted(await ids(queue.getFailed()))]
    found["logs"] = await queue.getJobLogs(jobs["echo"].id)
    await until(queue.get_workers_count)
    workers = await queue.get_workers()
    found["workers"] = [workers[0]["name"], workers[0]["rawname"].endswith(":w:me")]

    # operations on ended jobs
    failed = await queue.getJob(jobs["final"].id)
    found["is"] = [await failed.isFailed(), await failed.isCompleted(), await failed.isInZSet("failed")]
    found["a wrong state"] = await error(failed.retry("completed"))
    await worker.pause()
    found["paused"] = [worker.paused, await queue.isPaused()]
    await queue.pause()  # a paused worker may still receive jobs of a pending claim
    await failed.retry("failed", {"resetAttemptsMade": True})
    found["retried"] = [await failed.getState(), failed.failedReason, failed.attemptsMade]
    await queue.resume()
    worker.resume()
    await ends.wait(12)
    found["ran again"] = (await queue.getJob(failed.id)).attemptsMade
    await worker.pause(True)
    await queue.pause()
    await queue.retryJobs({"state": "failed"})
    found["all retried"] = await queue.getJobCounts("failed", "waiting", "paused")
    await queue.resume()
    worker.resume()
    await ends.wait(15)
    completed = await queue.getJob(jobs["twice"].id)
    await completed.retry("completed")
    await ends.wait(16)
    found["again"] = seen(await queue.getJob(completed.id))["attempts"]

    listener = worker.on("mine", lambda *args: found.setdefault("mine", list(args)))
    worker.emit("mine", 1, 2)
    worker.off("mine", listener)
    worker.emit("mine", 3)
    closed: list[str] = []
    worker.on("closed", lambda: closed.append("closed"))
    await worker.close()
    await running
    found["closed"] = [worker.closed, closed]
    await queue.close()
    return found
