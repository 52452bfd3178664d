"""Dead letters of a queue: found, replayed and removed in bounded steps.

What a dead letter is, is decided by ``parts/dead.lua`` from the job's own record, so those of Node's workers
are among them. What an operation found when it began bounds its work.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.operations import STEP
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.dead import DeadDone, DeadWork, Doing
from oxcart.broker.progress import Progress


async def work_off(broker: BullMQBroker, work: DeadWork) -> DeadDone:
    """Goes through the failed jobs of a queue and of its lanes, oldest first, and deals with dead letters."""
    found = DeadDone(dry_run=work.doing == "list")
    for one in await broker.lanes.brokers():
        if work.limit is not None and found.matched >= work.limit:
            break
        await _work_off(one, work, found)
    return found


async def _work_off(broker: BullMQBroker, work: DeadWork, found: DeadDone) -> None:
    until, limit, rate = await broker.now(), work.limit, work.rate
    total = int(await broker.caller.command("ZCOUNT", broker.keys.failed(), "-inf", until))
    loop = asyncio.get_running_loop()
    began, before = loop.time(), found.done
    left, more = 0, 1
    while more:
        most = STEP if limit is None else min(STEP, limit - found.matched)
        if rate is not None:
            most = min(most, max(1, math.floor(rate)))
        if most <= 0:
            break
        stayed, more, done, ids = await _step(broker, work, until, most, left)
        left += stayed
        found.matched += len(ids)
        found.done += done
        found.ids += ids
        work.told(Progress("dead letters", before + min(left + found.done - before, total), before + total))
        if rate is not None and more:
            await asyncio.sleep(max(0.0, began + (found.done - before) / rate - loop.time()))


async def deal_with(
    broker: BullMQBroker, doing: Doing, ids: Sequence[str], *, reset: bool = False
) -> list[str]:
    """Does something to these jobs, as far as they are dead letters; returns those that are."""
    found: list[str] = []
    for start in range(0, len(ids), STEP):
        part = ids[start : start + STEP]
        found += (await _step(broker, DeadWork(doing, reset=reset), 0, STEP, 0, part))[3]
    elsewhere = [job_id for job_id in ids if job_id not in found]
    for job_id, lane in zip(elsewhere, await broker.lanes.holders(elsewhere), strict=True):
        if lane is not None:
            found += await deal_with(lane, doing, [job_id], reset=reset)
    return found


async def _step(
    broker: BullMQBroker, work: DeadWork, until: int, most: int, left: int, ids: Sequence[str] = ()
) -> tuple[int, int, int, list[str]]:
    flags = ("1" if work.reset else "", "1" if work.newest else "")
    stayed, more, done, *found = await broker.caller.once(
        load("dead_jobs"),
        broker.keys.meta(),
        *(work.doing, STEP, left, work.chosen.wire(), until, most, *flags, *ids),
    )
    return stayed, more, done, [job_id.decode("utf-8", "surrogateescape") for job_id in found]
