"""Dead letters of a job type on Bridge: those of the document's list, whoever put them there.

Every job that failed for good is one there, also those that would fail again. They are read and chosen here,
page by page; replays and removals are calls of their own.

May touch: the server, through a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oxcart.broker.bridge import records
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.dead import DeadDone, DeadWork, Doing
from oxcart.broker.progress import Progress
from oxcart.model.errors import JobError
from oxcart.model.job import Job

#: Dead letters that are read at once.
PAGE = 100


async def work_off(broker: BridgeBroker, work: DeadWork) -> DeadDone:
    """Goes through the dead letters of a job type, oldest first, and deals with those that fit."""
    ids = [
        raw.decode("utf-8", "surrogateescape")
        for raw in await broker.caller.command("LRANGE", broker.keys.dead_letters(), 0, -1)
    ]
    if not work.newest:
        ids.reverse()
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = DeadDone(dry_run=work.doing == "list")
    for start in range(0, len(ids), PAGE):
        for job in await _of_type(broker, ids[start : start + PAGE]):
            if work.limit is not None and found.matched >= work.limit:
                return found
            if work.chosen.fits(job, job.finished_on or 0):
                found.matched += 1
                found.ids.append(job.id)
                found.done += await _do(broker, work.doing, job.id, work.reset)
                if work.rate is not None:
                    await asyncio.sleep(max(0.0, began + found.done / work.rate - loop.time()))
        work.told(Progress("dead letters", min(start + PAGE, len(ids)), len(ids)))
    return found


async def deal_with(
    broker: BridgeBroker, doing: Doing, ids: Sequence[str], *, reset: bool = False
) -> list[str]:
    """Does something to these jobs, as far as they are dead letters; returns those that are."""
    status = await broker.caller.command("MGET", *(broker.keys.status(one) for one in ids))
    dead = [one for one, state in zip(ids, status, strict=True) if state == b"dead"]
    return [one for one in dead if doing == "list" or await _do(broker, doing, one, reset)]


async def _of_type(broker: BridgeBroker, ids: Sequence[str]) -> list[Job]:
    raws = await broker.caller.command("MGET", *(broker.keys.data(one) for one in ids))
    mine = [
        one
        for one, raw in zip(ids, raws, strict=True)
        if raw is not None
        and records.read_record(raw).type in (broker.queue, "")  # without a type: every type's
    ]
    return [job for job in await broker.look(mine, lenient=True) if job is not None] if mine else []


async def _do(broker: BridgeBroker, doing: Doing, job_id: str, reset: bool) -> int:
    """Replays or removes a job; 0 where nothing is to be done, or somebody else was faster."""
    try:
        if doing == "replay":
            await broker.retry_job(job_id, "failed", reset=reset)
        elif doing == "purge":
            await broker.remove_job(job_id)
        else:
            return 0
    except JobError:
        return 0
    return 1
