"""Cancelling jobs of a queue: some by their ids, or all that a filter chooses, in bounded steps.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oxcart.broker.bullmq.broker import NOT_FOUND, BullMQBroker
from oxcart.broker.bullmq.operations import STEP
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.caller import script_error
from oxcart.broker.port import Code
from oxcart.broker.progress import Progress, Told, silent
from oxcart.model.errors import OxcartError, error_for_code
from oxcart.model.filter import JobFilter

#: Where jobs are that have not ended, as the wire names it.
PENDING = ("waiting-children", "delayed", "prioritized", "wait", "paused")
RUNNING = "active"

#: A code of the script: it has ended, or its worker was asked.
CANCELLED, ASKED = 1, 2


class Cancelled(msgspec.Struct, kw_only=True):
    """What came of cancelling many jobs.

    Attributes:
        matched: How many jobs the filter chose.
        cancelled: How many have ended as cancelled.
        asked: How many run and were asked to end; they do so in their own time.
        refused: How many run in a worker of a peer, which cannot be asked; they go on.
        ids: The jobs that were chosen.
        dry_run: Whether nothing was done.
    """

    matched: int = 0
    cancelled: int = 0
    asked: int = 0
    refused: int = 0
    ids: list[str] = []
    dry_run: bool = False


async def cancel(broker: BullMQBroker, ids: Sequence[str], reason: str, *, force: bool) -> list[Code]:
    """Cancels jobs; returns a code for each, as ``cancel.lua`` has it."""
    codes: list[Code] = []
    for start in range(0, len(ids), STEP):
        part = ids[start : start + STEP]
        answer = await broker.caller.once(
            load("cancel"), broker.keys.meta(), broker.clock.argument, reason, "1" if force else "", *part
        )
        codes += [code if isinstance(code, int) else code.decode("utf-8", "replace") for code in answer]
    lost = [place for place, code in enumerate(codes) if code == NOT_FOUND]
    for place, lane in zip(lost, await broker.lanes.holders([ids[i] for i in lost]), strict=True):
        if lane is not None:
            (codes[place],) = await cancel(lane, [ids[place]], reason, force=force)
    return codes


def error_of(code: Code, job_id: str) -> OxcartError:
    """The error of a job that was not cancelled."""
    return error_for_code(code, job_id, "cancel") if isinstance(code, int) else script_error("cancel", code)


async def cancel_all(
    broker: BullMQBroker,
    chosen: JobFilter,
    states: Iterable[str],
    reason: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    limit: int | None = None,
    told: Told = silent,
) -> Cancelled:
    """Cancels what a filter chooses of some wire states; a dry run only tells what that would be."""
    found = Cancelled(dry_run=dry_run)
    counts = await broker.counts()
    states = list(states)
    total, looked = sum(counts[state] for state in states), 0
    script, meta, wire = load("cancel_jobs"), broker.keys.meta(), chosen.wire()
    for state in states:
        left, more = 0, 1
        bound = counts[state] + STEP  # a producer that is faster does not keep this from ending
        while more and left < bound:
            most = STEP if limit is None else min(STEP, limit - found.matched)
            if most <= 0:
                return found
            stayed, more, cancelled, asked, refused, *ids = await broker.caller.once(
                script,
                meta,
                *(state, STEP, left, wire, broker.clock.argument, reason),
                *("1" if force else "", "1" if dry_run else "", most),
            )
            left += stayed
            looked += stayed + cancelled
            found.matched += len(ids)
            found.cancelled += cancelled
            found.asked += asked
            found.refused += refused
            found.ids += [job_id.decode("utf-8", "surrogateescape") for job_id in ids]
            told(Progress(state, looked, max(total, looked)))
    return found
