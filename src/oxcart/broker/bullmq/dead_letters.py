"""Finds, replays and removes the dead letters of a queue in bounded steps.

``parts/dead.lua`` decides from the job's own record whether it is a dead letter, so dead letters of Node's
workers are included. The number of jobs at the beginning bounds an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.bulk import STEP
from oxcart.broker.bullmq.filters import filter_argument
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.pace import Pace
from oxcart.broker.port.parts import DeadLetters
from oxcart.broker.port.results import DeadDone, DeadVerb, DeadWork
from oxcart.broker.progress import Progress
from oxcart.broker.replies import texts
from oxcart.model.filter import JobFilter

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker


class QueueDeadLetters(QueuePart, DeadLetters):
    """The dead letters of one queue and its lanes."""

    async def run(self, work: DeadWork) -> DeadDone:
        found = DeadDone(dry_run=work.verb == "list")
        for one in await self._broker.lanes.brokers():
            if work.limit is not None and found.matched >= work.limit:
                break
            await _run_own(one, work, found)
        return found

    async def apply(
        self, verb: DeadVerb, ids: Sequence[str], *, reset: bool = False, permanent: bool = False
    ) -> list[str]:
        found: list[str] = []
        work = DeadWork(verb, JobFilter(permanent=permanent), reset=reset)
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            _, _, _, dead = await _step(self._broker, work, 0, STEP, 0, part)
            found += dead
        elsewhere = [job_id for job_id in ids if job_id not in found]
        for job_id, lane in zip(elsewhere, await self._broker.lanes.holders(elsewhere), strict=True):
            if lane is not None:
                found += await lane.dead_letters.apply(verb, [job_id], reset=reset, permanent=permanent)
        return found


async def _run_own(broker: BullMQBroker, work: DeadWork, found: DeadDone) -> None:
    until, limit, pace = await broker.now(), work.limit, Pace(work.rate)
    total = int(await broker.caller.command("ZCOUNT", broker.keys.failed(), "-inf", until))
    before, left, more = found.done, 0, 1
    while more:
        most = pace.most(STEP if limit is None else min(STEP, limit - found.matched))
        if most <= 0:
            break
        stayed, more, done, ids = await _step(broker, work, until, most, left)
        left += stayed
        found.matched += len(ids)
        found.done += done
        found.ids += ids
        seen = before + min(left + found.done - before, total)
        work.progress(Progress("dead letters", seen, before + total))
        if more:
            await pace.wait(found.done - before)


async def _step(
    broker: BullMQBroker, work: DeadWork, until: int, most: int, left: int, ids: Sequence[str] = ()
) -> tuple[int, int, int, list[str]]:
    flags = ("1" if work.reset else "", "1" if work.newest else "")
    stayed, more, done, *found = await broker.caller.once(
        load("dead_jobs"),
        broker.keys.meta(),
        *(work.verb, STEP, left, filter_argument(work.chosen), until, most, *flags, *ids),
    )
    return stayed, more, done, texts(found)
