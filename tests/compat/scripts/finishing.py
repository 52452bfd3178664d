"""Ending attempts by hand: what each call returns, and the job afterwards."""

from __future__ import annotations

from typing import Any

from seen import Ends, error, ids, seen, until


def claimed(answer: Any) -> Any:
    """Returns the reply of a call that may claim the next job: id, name, and whether times are set."""
    if answer is None:
        return None
    fields, job_id, limited, due = answer
    return [fields and fields["name"], job_id, _time(limited), _time(due)]


def _time(value: Any) -> Any:
    return "a time" if value else value


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("finishing", {"connection": connection})
    worker = bullmq.Worker("finishing", None, {"connection": connection, "drainDelay": 1})
    found: dict[str, Any] = {}

    async def take(token: str, name: str, opts: Any = None) -> Any:
        await queue.add(name, {}, opts or {})
        worker.drained = False
        return await worker.getNextJob(token)

    # The queue is empty behind the job that ends.
    job = await take("t1", "alone")
    found["completed, nothing next"] = claimed(await job.moveToCompleted("r", "t1", True))
    job = await take("t2", "alone")
    found["completed, no next asked for"] = claimed(await job.moveToCompleted("r", "t2"))
    job = await take("t3", "alone")
    found["failed, nothing next"] = claimed(await job.moveToFailed(ValueError("no"), "t3", True))
    job = await take("t4", "alone")
    found["failed, no next asked for"] = claimed(await job.moveToFailed(ValueError("no"), "t4"))
    twice = {"attempts": 2}
    job = await take("t5", "again", twice)
    found["retried, no next asked for"] = claimed(await job.moveToFailed(ValueError("no"), "t5"))
    found["retried"] = [seen(job), seen(await queue.getJob(job.id))]
    worker.drained = False
    job = await worker.getNextJob("t6")
    await job.moveToFailed(ValueError("no"), "t6")

    # There is a next job.
    job = await take("t7", "again", twice)
    await queue.add("next", {})
    found["retried with a next"] = claimed(await job.moveToFailed(ValueError("no"), "t7", True))
    found["and it is not taken"] = await queue.getJobCounts("active", "waiting")
    await queue.drain()
    job = await take("t8", "later", {"attempts": 2, "backoff": 60_000})
    await queue.add("next", {})
    found["delayed with a next"] = claimed(await job.moveToFailed(ValueError("no"), "t8", True))
    found["and it is taken"] = await queue.getJobCounts("active", "waiting", "delayed")
    await queue.obliterate(True)
    job = await take("t9", "later", {"attempts": 2, "backoff": 60_000})
    found["delayed, no next asked for"] = claimed(await job.moveToFailed(ValueError("no"), "t9"))
    await queue.obliterate(True)

    job = await take("t10", "first")
    await queue.add("next", {})
    found["completed with a next"] = claimed(await job.moveToCompleted("r", "t10", True))
    await queue.obliterate(True)
    job = await take("t11", "first")
    await queue.add("due", {}, {"delay": 60_000})
    found["completed, one is due later"] = claimed(await job.moveToCompleted("r", "t11", True))
    await queue.obliterate(True)
    job = await take("t12", "first")
    await queue.add("next", {})
    await queue.pause()
    found["completed, paused"] = claimed(await job.moveToCompleted("r", "t12", True))
    await queue.obliterate(True)

    # Attempts and starts that count from the beginning again.
    for case, reset in (
        ("nothing", {}),
        ("attempts", {"resetAttemptsMade": True}),
        ("starts", {"resetAttemptsStarted": True}),
        ("both", {"resetAttemptsMade": True, "resetAttemptsStarted": True}),
    ):
        job = await take("t", "again")
        await job.moveToFailed(ValueError("no"), "t")
        await job.retry("failed", reset)
        stored = await queue.getJob(job.id)
        worker.drained = False
        second = await worker.getNextJob("u")
        await second.moveToCompleted("r", "u")
        ended = await queue.getJob(job.id)
        found[f"reset of {case}"] = [
            [one.attemptsMade, one.attemptsStarted] for one in (job, stored, second, ended)
        ]
    seen_by_processor: list[Any] = []

    async def process(job: Any, token: str) -> None:
        seen_by_processor.append([job.attemptsMade, job.attemptsStarted])
        if len(seen_by_processor) == 1:
            raise ValueError("no")

    running = bullmq.Worker("finishing", process, {"connection": connection})
    ends = Ends(running)
    job = await queue.add("reset while a worker runs", {})
    await ends.wait(1)
    await until(lambda: _has(job.isFailed()))
    failed = await queue.getJob(job.id)
    await failed.retry("failed", {"resetAttemptsMade": True, "resetAttemptsStarted": True})
    await ends.wait(2)
    await running.close()
    found["reset, in a processor"] = seen_by_processor

    # A page is filled up where hashes are missing.
    await queue.obliterate(True)
    for number in range(12):
        await queue.add("page", {"n": number}, {"jobId": f"j{number:02}"})
    for gone in ("j00", "j02", "j05"):
        await queue.client.delete(queue.toKey(gone))
    found["a page with gaps"] = [
        await ids(queue.getJobs(["waiting"], 0, 2, True)),
        await ids(queue.getJobs(["waiting"], 1, 3, True)),
        await ids(queue.getJobs(["waiting"], 9, 11, False)),
        await ids(queue.getJobs(["waiting"], 0, 100, True)),
        await ids(queue.getJobs(["waiting"], 0, -1, True)),
        await ids(queue.getWaiting(8, 20)),
    ]
    for number in range(8):
        await queue.client.zadd(queue.toKey("completed"), {f"c{number}": number})
    record = {"name": "n", "timestamp": 1, "opts": "{}", "data": "{}"}
    await queue.client.hset(queue.toKey("c7"), mapping=record)
    found["few among many gaps"] = [
        await ids(queue.getJobs(["completed"], 0, 0, True)),
        await ids(queue.getJobs(["completed"], 0, 1, True)),
        await ids(queue.getJobs(["completed"], 0, 0, False)),
    ]
    found["ended by hand, unknown"] = await error(job.moveToCompleted("r", "nobody's token"))
    await worker.close()
    await queue.close()
    return found


async def _has(doing: Any) -> bool:
    return bool(await doing)
