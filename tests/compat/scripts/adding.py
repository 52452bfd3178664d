"""Adding and reading jobs, and changing a queue: every method of Queue that needs no worker."""

from __future__ import annotations

from typing import Any

from seen import error, ids, seen


async def main(bullmq: Any, connection: Any) -> Any:
    options = {"connection": connection, "defaultJobOptions": {"removeOnFail": 7}}
    queue = bullmq.Queue("adding", options)
    found: dict[str, Any] = {"names": [queue.name, queue.prefix, queue.qualifiedName, queue.jobsOpts]}
    found["keys"] = [queue.toKey("wait"), sorted(queue.keys.items())]

    plain = await queue.add("plain", {"a": [1, "ü", None, 1.5]})
    found["plain"] = [seen(plain), seen(await queue.getJob(plain.id))]
    every = {
        "attempts": 5,
        "backoff": {"type": "exponential", "delay": 100},
        "priority": 3,
        "removeOnComplete": {"age": 60, "count": 2},
        "removeOnFail": True,
        "jobId": "my-own",
        "timestamp": 1700000000000,
        "stackTraceLimit": 2,
        "keepLogs": 2,
        "somebodys": {"own": True},
    }
    found["every option"] = [seen(await queue.add("every", None, every)), seen(await queue.getJob("my-own"))]
    found["the same id"] = (await queue.add("other", {}, {"jobId": "my-own"})).id
    found["delayed"] = seen(await queue.add("later", {"b": 1}, {"delay": 60_000, "backoff": 50}))
    found["lifo"] = seen(await queue.add("first", "text", {"lifo": True}))
    bulk = await queue.addBulk(
        [{"name": f"bulk-{i}", "data": {"i": i}, "opts": {"priority": i} if i else None} for i in range(3)]
    )
    found["bulk"] = [seen(job) for job in bulk]
    found["no such job"] = seen(await queue.getJob("nobody"))
    found["no parent"] = await error(queue.add("child", {}, {"parent": {"id": "x", "queue": "bull:nowhere"}}))
    both = {"failParentOnFailure": True, "ignoreDependencyOnFailure": True}
    found["two policies"] = await error(queue.add("both", {}, both))
    found["not JSON"] = (await error(queue.add("nan", {"x": float("nan")})))[0]

    found["waiting"] = await ids(queue.getWaiting())
    found["waiting, a page"] = [await ids(queue.getWaiting(1, 1)), await ids(queue.getWaiting(5, 9))]
    found["prioritized"] = await ids(queue.getPrioritized())
    found["later"] = await ids(queue.getDelayed())
    found["others"] = [
        await ids(queue.getActive()),
        await ids(queue.getCompleted()),
        await ids(queue.getFailed()),
        await ids(queue.getWaitingChildren()),
    ]
    found["newest first"] = await ids(queue.getJobs(["waiting"], 0, -1))
    found["counts"] = await queue.getJobCounts()
    found["some counts"] = await queue.getJobCounts("waiting", "delayed")
    found["sums"] = [
        await queue.getJobCountByTypes("waiting", "prioritized"),
        await queue.getWaitingCount(),
        await queue.getDelayedCount(),
        await queue.getCompletedCount(),
        await queue.getFailedCount(),
    ]
    found["types"] = [sorted(queue.sanitizeJobTypes([])), sorted(queue.sanitizeJobTypes(["a", "b", "a"]))]
    found["priorities"] = await queue.getCountsPerPriority([0, 1, 2, 3, 4])
    found["states"] = [await queue.getJobState(id) for id in (plain.id, "my-own", "4", "nobody")]

    await queue.pause()
    await queue.pause()
    paused = await queue.add("while paused", {})
    found["paused"] = [await queue.isPaused(), await queue.getJobCounts("waiting", "paused"), paused.id]
    found["waiting while paused"] = await ids(queue.getWaiting())
    await queue.resume()
    found["resumed"] = [await queue.isPaused(), await ids(queue.getWaiting())]

    found["no limit"] = await queue.getRateLimitTtl()
    await queue.rateLimit(60_000)
    found["limited"] = 0 < await queue.getRateLimitTtl() <= 60_000
    found["limit removed"] = [await queue.removeRateLimitKey(), await queue.removeRateLimitKey()]
    found["concurrency"] = [
        await queue.getGlobalConcurrency(),
        await queue.setGlobalConcurrency(3),
        await queue.setGlobalConcurrency(4),
        await queue.getGlobalConcurrency(),
        await queue.removeGlobalConcurrency(),
        await queue.removeGlobalConcurrency(),
    ]
    found["rate"] = [
        await queue.getGlobalRateLimit(),
        await queue.setGlobalRateLimit(10, 1000),
        await queue.getGlobalRateLimit(),
        await queue.removeGlobalRateLimit(),
        await queue.getGlobalRateLimit(),
    ]

    window = {"deduplication": {"id": "win"}}
    owner, kept_out = await queue.add("one", {}, window), await queue.add("two", {}, window)
    found["deduplicated"] = [owner.id == kept_out.id, await queue.getDeduplicationJobId("win") == owner.id]
    found["owner"] = seen(await queue.getJob(owner.id))
    found["no window"] = await queue.getDeduplicationJobId("none")
    late = {"deduplication": {"id": "last", "ttl": 60_000, "extend": True, "replace": True}, "delay": 60_000}
    first, last = await queue.add("a", {"n": 1}, late), await queue.add("a", {"n": 2}, late)
    found["replaced"] = [
        await queue.getJobState(first.id),
        await queue.getJobState(last.id),
        first.id == last.id,
    ]

    for row in ("one", "two", "three"):
        await bullmq.Job.addJobLog(queue, plain.id, row)
    found["logs"] = [
        await queue.getJobLogs(plain.id),
        await queue.getJobLogs(plain.id, 0, 1),
        await queue.getJobLogs(plain.id, 0, 1, False),
        await queue.getJobLogs("nobody"),
    ]

    found["removed"] = [
        await queue.remove(plain.id),
        await queue.remove("nobody"),
        await queue.getJobState(plain.id),
    ]
    found["cleaned"] = [
        sorted(await queue.clean(0, 2, "wait")),
        len(await queue.clean(60_000, 0, "wait")),
        sorted(await queue.clean(0, 0, "prioritized")),
        await queue.clean(0, 0, "completed"),
    ]
    await queue.promoteJobs({"count": 1})
    found["promoted"] = await queue.getJobCounts()
    await queue.retryJobs({})
    await queue.drain()
    found["drained"] = await queue.getJobCounts()
    await queue.add("later", {}, {"delay": 1000})
    await queue.drain(True)
    found["all drained"] = await queue.getJobCounts()
    found["no old key"] = await queue.removeDeprecatedPriorityKey()
    found["trimmed"] = type(await queue.trimEvents(0)).__name__
    found["workers"] = [await queue.get_workers(), await queue.get_workers_count()]
    await queue.add("last", {})
    await queue.obliterate()
    found["obliterated"] = await queue.getJobCounts()
    try:  # PyPI's queues cannot have listeners: their base is never made
        listener = queue.on("error", print)
        queue.emit("nothing")
        queue.off("error", listener)
    except AttributeError:
        queue.__dict__["_callbacks"] = {}
        queue.off("error", queue.on("error", print))
        queue.emit("nothing")
    await queue.close()
    return found
