"""Dead letters of a queue: found, replayed and removed in bounded steps.

What a dead letter is, is decided by ``parts/dead.lua`` from the job's own record, so those of Node's workers
are among them. What an operation found when it began bounds its work.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.operations import STEP, Progress, Told, _silent
from oxcart.broker.bullmq.scripts import load
from oxcart.model.filter import JobFilter

Doing = Literal["list", "replay", "purge"]


class DeadDone(msgspec.Struct, kw_only=True):
    """What came of an operation on dead letters.

    Attributes:
        matched: How many dead letters the filter chose.
        done: How many were replayed or removed; none in a dry run.
        ids: Those that were chosen.
        dry_run: Whether nothing was done.
    """

    matched: int = 0
    done: int = 0
    ids: list[str] = []
    dry_run: bool = False


async def work_off(
    broker: BullMQBroker,
    doing: Doing,
    chosen: JobFilter,
    *,
    reset: bool = False,
    newest: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    told: Told = _silent,
) -> DeadDone:
    """Goes through the failed jobs, oldest end first, and does something to the dead letters that fit.

    Args:
        broker: The queue; its lanes come behind it.
        doing: What.
        chosen: Which.
        reset: Whether replayed ones count their attempts from the beginning.
        newest: Go from the newest end.
        limit: How many at most.
        rate: How many per second at most.
        told: Told after every step.
    """
    found = DeadDone(dry_run=doing == "list")
    for one in await broker.lanes.brokers():
        rest = None if limit is None else limit - found.matched
        if rest is not None and rest <= 0:
            break
        await _work_off(one, doing, chosen, found, reset, newest, limit, rate, told)
    return found


async def _work_off(
    broker: BullMQBroker,
    doing: Doing,
    chosen: JobFilter,
    found: DeadDone,
    reset: bool,
    newest: bool,
    limit: int | None,
    rate: float | None,
    told: Told,
) -> None:
    until = broker.clock()
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
        stayed, more, done, ids = await _step(broker, doing, chosen, until, most, left, reset, newest)
        left += stayed
        found.matched += len(ids)
        found.done += done
        found.ids += ids
        told(Progress("dead letters", before + min(left + found.done - before, total), before + total))
        if rate is not None and more:
            await asyncio.sleep(max(0.0, began + (found.done - before) / rate - loop.time()))


async def deal_with(
    broker: BullMQBroker, doing: Doing, ids: Sequence[str], *, reset: bool = False
) -> list[str]:
    """Does something to these jobs, as far as they are dead letters; returns those that are."""
    found: list[str] = []
    for start in range(0, len(ids), STEP):
        part = ids[start : start + STEP]
        found += (await _step(broker, doing, JobFilter(), 0, STEP, 0, reset, False, part))[3]
    elsewhere = [job_id for job_id in ids if job_id not in found]
    for job_id, lane in zip(elsewhere, await broker.lanes.holders(elsewhere), strict=True):
        if lane is not None:
            found += await deal_with(lane, doing, [job_id], reset=reset)
    return found


async def _step(
    broker: BullMQBroker,
    doing: Doing,
    chosen: JobFilter,
    until: int,
    most: int,
    left: int,
    reset: bool,
    newest: bool,
    ids: Sequence[str] = (),
) -> tuple[int, int, int, list[str]]:
    stayed, more, done, *found = await broker.caller.once(
        load("dead_jobs"),
        broker.keys.meta(),
        *(doing, STEP, left, chosen.wire(), until, most, "1" if reset else "", "1" if newest else "", *ids),
    )
    return stayed, more, done, [job_id.decode("utf-8", "surrogateescape") for job_id in found]
