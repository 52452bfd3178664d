"""Schedulers: upsert, list, get, remove, and the claim that adds the next run."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from seen import Ends, error, seen

HOUR = 3_600_000


def near(at: Any, expected: float) -> bool:
    return bool(abs(at - expected) < 10_000)


def run(job: Any) -> Any:
    """A run of a scheduler, without its times."""
    if job is None:
        return None
    repeat = {
        name: value
        for name, value in job.opts["repeat"].items()
        if name not in ("offset", "startDate", "endDate")
    }
    return [job.id.rpartition(":")[0], job.name, job.data, job.opts["repeatJobKey"], repeat]


def record(found: Any) -> Any:
    """A scheduler without its times."""
    return found and {
        name: value for name, value in found.items() if name not in ("next", "offset", "startDate", "endDate")
    }


async def main(bullmq: Any, connection: Any) -> Any:
    queue = bullmq.Queue("schedules", {"connection": connection})
    found: dict[str, Any] = {}
    now = time.time() * 1000

    first = await queue.upsertJobScheduler("poll", {"every": HOUR}, "poll-it", {"a": 1}, {"attempts": 3})
    found["every"] = [run(first), record(await queue.getJobScheduler("poll"))]
    found["at once"] = [
        await queue.getJobState(first.id),
        near((await queue.getJobScheduler("poll"))["next"], now),
    ]
    cron = {"pattern": "0 0 12 1 1 *", "tz": "Europe/Berlin", "limit": 5}
    later = await queue.upsertJobScheduler(
        "cron", cron, None, None, {"failParentOnFailure": True, "priority": 2}
    )
    found["cron"] = [run(later), record(await queue.getJobScheduler("cron"))]
    found["noon"] = [
        await queue.getJobState(later.id),
        int(later.id.rpartition(":")[2]) % HOUR,
        later.delay > 0,
    ]
    again = await queue.upsertJobScheduler("cron", cron)
    found["again"] = again.id == later.id
    found["count"] = await queue.getJobSchedulersCount()
    found["soonest first"] = [one["key"] for one in await queue.getJobSchedulers(0, -1, True)]
    found["latest first"] = [one["key"] for one in await queue.getJobSchedulers()]
    found["a page"] = [one["key"] for one in await queue.getJobSchedulers(1, 1, True)]
    found["is"] = [await queue.isJobScheduler("poll"), await queue.isJobScheduler("none")]
    with contextlib.suppress(ValueError):  # PyPI's package cannot report a missing one
        assert await queue.getJobScheduler("none") is None
    found["over"] = [
        await queue.upsertJobScheduler("over", {"every": 1000, "endDate": 1000}),
        await queue.upsertJobScheduler("over", {"every": 1000, "limit": 1, "count": 1}),
    ]
    found["wrong"] = [
        await error(queue.upsertJobScheduler("w", {})),
        await error(queue.upsertJobScheduler("w", {"every": 1, "pattern": "* * * * *"})),
        await error(
            queue.upsertJobScheduler("w", {"pattern": "* * * * *", "immediately": True, "startDate": 5})
        ),
        (await error(queue.upsertJobScheduler("w", {"pattern": "nonsense"})))[0],
    ]
    start = round(now) + HOUR
    starts = await queue.upsertJobScheduler("starts", {"every": HOUR, "startDate": start})
    found["starts"] = [
        await queue.getJobState(starts.id),
        near((await queue.getJobScheduler("starts"))["next"], start),
    ]
    at_once = await queue.upsertJobScheduler(
        "at-once", {"pattern": "0 0 1 1 *", "immediately": True, "tz": "UTC"}
    )
    found["immediately"] = near(int(at_once.id.rpartition(":")[2]), now)

    async def process(job: Any, token: str) -> str:
        return str(job.repeatJobKey)

    worker = bullmq.Worker("schedules", process, {"connection": connection})
    ends = Ends(worker)
    ended = await ends.wait(2)
    found["told"] = sorted(one[2] for one in ended)
    poll = await queue.getJobScheduler("poll")
    found["next"] = [record(poll), near(poll["next"], now + HOUR)]
    found["next run"] = [
        await queue.getJobState(f"repeat:poll:{poll['next']}"),
        seen(await queue.getJob(first.id))["attempts"],
    ]
    found["worker's"] = await worker.jobScheduler.getSchedulersCount()
    await worker.close()

    scheduler = queue.jobScheduler
    found["by itself"] = [
        run(await scheduler.upsertJobScheduler("own", {"every": HOUR}, "own-name")),
        record(await scheduler.getScheduler("own")),
        await scheduler.isJobScheduler("own"),
        await scheduler.getSchedulersCount(),
        [one["key"] for one in await scheduler.getJobSchedulers(0, 0, True)],
        await scheduler.removeJobScheduler("own"),
        await scheduler.removeJobScheduler("own"),
    ]
    strategy = bullmq.JobScheduler(queue, lambda millis, opts: millis + HOUR)
    mine = await strategy.upsertJobScheduler("mine", {"pattern": "whenever", "tz": "UTC"}, "mine")
    found["strategy"] = near(int(mine.id.rpartition(":")[2]), now + HOUR)
    producer = await queue.upsertJobScheduler("hand", {"every": HOUR}, "hand")
    advanced = await queue.upsertJobScheduler(
        "hand", producer.opts["repeat"], "hand", {}, producer.opts, override=False, producer_id=producer.id
    )
    found["by hand"] = near(int(advanced.id.rpartition(":")[2]), now + HOUR)
    found["current"] = await queue.remove(advanced.id)
    found["removed"] = [await queue.removeJobScheduler("cron"), await queue.removeJobScheduler("cron")]
    found["its run is gone"] = await queue.getJobState(later.id)
    await queue.close()
    return found
