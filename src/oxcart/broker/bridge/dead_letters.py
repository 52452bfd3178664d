"""Dead letters of a job type on Bridge: the specification's list, of all clients.

Every job that failed for good is a dead letter there, even one that would fail again. This module reads and
selects them page by page; replays and removals are separate calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxcart.broker.bridge import records
from oxcart.broker.bridge.part import TypePart
from oxcart.broker.pace import Pace
from oxcart.broker.port.parts import DeadLetters
from oxcart.broker.port.results import DeadDone, DeadVerb, DeadWork
from oxcart.broker.progress import Progress
from oxcart.broker.replies import text
from oxcart.model.errors import JobError
from oxcart.model.job import Job

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker

#: Dead letters that are read at once.
PAGE = 100


class TypeDeadLetters(TypePart, DeadLetters):
    """The dead letters of one job type."""

    async def run(self, work: DeadWork) -> DeadDone:
        ids = [
            text(raw)
            for raw in await self._broker.caller.command("LRANGE", self._broker.keys.dead_letters(), 0, -1)
        ]
        if not work.newest:
            ids.reverse()
        pace = Pace(work.rate)
        found = DeadDone(dry_run=work.verb == "list")
        for start in range(0, len(ids), PAGE):
            for job in await _of_type(self._broker, ids[start : start + PAGE]):
                if work.limit is not None and found.matched >= work.limit:
                    return found
                if work.chosen.fits(job, job.finished_on or 0):
                    found.matched += 1
                    found.ids.append(job.id)
                    found.done += await _do(self._broker, work.verb, job.id, work.reset)
                    await pace.wait(found.done)
            work.progress(Progress("dead letters", min(start + PAGE, len(ids)), len(ids)))
        return found

    async def apply(
        self, verb: DeadVerb, ids: Sequence[str], *, reset: bool = False, permanent: bool = False
    ) -> list[str]:
        broker = self._broker
        status = await broker.caller.command("MGET", *(broker.keys.status(one) for one in ids))
        dead = [one for one, state in zip(ids, status, strict=True) if state == b"dead"]
        return [one for one in dead if verb == "list" or await _do(broker, verb, one, reset)]


async def _of_type(broker: BridgeBroker, ids: Sequence[str]) -> list[Job]:
    raws = await broker.caller.command("MGET", *(broker.keys.data(one) for one in ids))
    mine = [
        one
        for one, raw in zip(ids, raws, strict=True)
        if raw is not None
        and records.read_record(raw).type in (broker.queue, "")  # without a type: it belongs to every type
    ]
    return [job for job in await broker.look(mine, lenient=True) if job is not None] if mine else []


async def _do(broker: BridgeBroker, verb: DeadVerb, job_id: str, reset: bool) -> int:
    """Replays or removes a job; 0 if there is nothing to do, or another client was faster."""
    try:
        if verb == "replay":
            await broker.retry_job(job_id, "failed", reset=reset)
        elif verb == "purge":
            await broker.remove_job(job_id)
        else:
            return 0
    except JobError:
        return 0
    return 1
