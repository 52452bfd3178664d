"""Converts jobs and calls to values that are equal in every run."""

from __future__ import annotations

import asyncio
from typing import Any

#: Options whose values are times.
TIMES = ("timestamp", "prevMillis")


def seen(job: Any) -> Any:
    """Returns a job with its times replaced by whether they are set."""
    if job is None:
        return None
    opts = {
        name: "a time" if name in TIMES else value for name, value in job.opts.items() if value is not None
    }
    return {
        "id": job.id,
        "name": job.name,
        "data": job.data,
        "opts": opts,
        "progress": job.progress,
        "delay": job.delay,
        "priority": job.priority,
        "attempts": [job.attempts, job.attemptsMade, job.attemptsStarted],
        "stalls": job.stalledCounter,
        "returnvalue": job.returnvalue,
        "failedReason": job.failedReason,
        "deferredFailure": job.deferredFailure,
        "repeatJobKey": job.repeatJobKey,
        "parent": [job.parentKey, job.parent],
        "deduplication": job.deduplication_id,
        "remove": [job.removeOnComplete, job.removeOnFail],
        "has": [bool(job.timestamp), bool(job.processedOn), bool(job.finishedOn)],
        "traces": len(job.stacktrace),
        "queue": job.queueQualifiedName,
        "discarded": job.discarded,
    }


async def ids(doing: Any) -> list[str]:
    return [job.id for job in await doing]


async def error(doing: Any) -> list[str]:
    """Returns the class and the text of the error of a call."""
    try:
        await doing
    except Exception as raised:
        return [
            next(kind.__name__ for kind in type(raised).__mro__ if kind.__module__ == "builtins"),
            str(raised),
        ]
    return ["nothing", ""]


async def caught(doing: Any, kind: type[BaseException]) -> Any:
    """Returns True if the error of a call is an instance of a class, otherwise the class of the error."""
    try:
        await doing
    except kind:
        return True
    except Exception as raised:
        return type(raised).__name__
    return "nothing"


async def wording(doing: Any) -> str:
    """Returns the text of the error of a call."""
    return (await error(doing))[1]


async def until(condition: Any, limit: float = 20.0) -> None:
    """Waits until a call (async or not) returns a true value."""
    end = asyncio.get_running_loop().time() + limit
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError("not in time")
        await asyncio.sleep(0.01)


class Ends:
    """Collects the events of a worker and waits for a number of them."""

    def __init__(self, worker: Any) -> None:
        self.events: list[Any] = []
        worker.on("completed", lambda job, result: self.events.append(["completed", job.id, result]))
        worker.on("failed", lambda job, error: self.events.append(["failed", job.id, str(error)]))
        worker.on("error", lambda *args: self.events.append(["error", type(args[0]).__name__]))

    async def wait(self, count: int) -> list[Any]:
        await until(lambda: len(self.events) >= count)
        return sorted(self.events, key=str)
