"""Cancels jobs of a queue: some by their ids, or all that a filter selects, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.bulk import STEP
from oxcart.broker.bullmq.filters import filter_argument
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port import Code
from oxcart.broker.port.parts import Cancelling
from oxcart.broker.port.results import Cancelled
from oxcart.broker.progress import OnProgress, Progress, after, silent
from oxcart.broker.replies import texts
from oxcart.model.errors import ReplyCode
from oxcart.model.filter import JobFilter

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker


class QueueCancelling(QueuePart, Cancelling):
    """Cancels jobs of one queue and its lanes."""

    async def cancel(self, ids: Sequence[str], reason: str, *, force: bool) -> list[Code]:
        broker = self._broker
        codes: list[Code] = []
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            answer = await broker.caller.once(
                load("cancel"), broker.keys.meta(), broker.clock.argument, reason, "1" if force else "", *part
            )
            codes += [code if isinstance(code, int) else code.decode("utf-8", "replace") for code in answer]
        lost = [place for place, code in enumerate(codes) if code == ReplyCode.JOB_NOT_FOUND]
        for place, lane in zip(lost, await broker.lanes.holders([ids[i] for i in lost]), strict=True):
            if lane is not None:
                (codes[place],) = await lane.cancelling.cancel([ids[place]], reason, force=force)
        return codes

    async def cancel_all(
        self,
        chosen: JobFilter,
        states: Iterable[str],
        reason: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress = silent,
    ) -> Cancelled:
        found, wire = Cancelled(dry_run=dry_run), filter_argument(chosen)
        flags = (reason, "1" if force else "", "1" if dry_run else "")
        for broker in await self._broker.lanes.brokers():
            report = after(found.matched, progress)
            if not await _cancel_own(broker, wire, list(states), flags, limit, found, report):
                break
        return found


async def _cancel_own(
    broker: BullMQBroker,
    wire: str | bytes,
    states: Sequence[str],
    flags: tuple[str, str, str],
    limit: int | None,
    found: Cancelled,
    progress: OnProgress,
) -> bool:
    """Cancels in one queue, without its lanes; returns False if the limit is reached."""
    counts = await broker.counts()
    total, looked = sum(counts[state] for state in states), 0
    script, meta, (reason, force, dry_run) = load("cancel_jobs"), broker.keys.meta(), flags
    for state in states:
        left, more = 0, 1
        bound = counts[state] + STEP  # a faster producer does not keep this from ending
        while more and left < bound:
            most = STEP if limit is None else min(STEP, limit - found.matched)
            if most <= 0:
                return False
            stayed, more, cancelled, asked, refused, *ids = await broker.caller.once(
                script,
                meta,
                *(state, STEP, left, wire, broker.clock.argument, reason, force, dry_run, most),
            )
            left += stayed
            looked += stayed + cancelled
            found.matched += len(ids)
            found.cancelled += cancelled
            found.asked += asked
            found.refused += refused
            found.ids += texts(ids)
            progress(Progress(state, looked, max(total, looked)))
    return True
