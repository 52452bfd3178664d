"""Cancelling jobs of a Bridge type: some by their ids, or all that a filter chooses, in bounded steps.

May touch: the server, through a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oxcart.broker.bridge import codec
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.operations import STEP
from oxcart.broker.bridge.scripts import load
from oxcart.broker.bullmq.cancelling import ASKED, CANCELLED, Cancelled
from oxcart.broker.progress import Progress, Told, silent
from oxcart.model.filter import JobFilter

#: The error in the result of a cancelled job, as other clients read it.
NAME = "Cancelled"
#: What the script answers for an id of no job.
NO_JOB = -1


async def cancel(broker: BridgeBroker, ids: Sequence[str], reason: str, *, force: bool) -> list[int]:
    """Cancels jobs of the type; returns a code for each, as ``cancel.lua`` has it."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        part = ids[start : start + STEP]
        kinds = await broker.census.kinds([one.encode("utf-8", "surrogateescape") for one in part])
        ours = [one for one, kind in zip(part, kinds, strict=True) if kind and kind.type == broker.queue]
        result = codec.failure_of(reason, b"", NAME)
        args: list[bytes | str | int] = [broker.clock.argument, broker.queue, reason]
        args += (msgspec.json.encode(reason), result, "1" if force else "")
        for one in ours:
            args += (one, msgspec.json.encode(one.encode("utf-8", "replace").decode()))
        answer = await broker.caller.once(load("cancel"), broker.keys.waiting(), *args) if ours else []
        known = dict(zip(ours, answer, strict=True))
        codes += [known.get(one, NO_JOB) for one in part]
    return codes


async def cancel_all(
    broker: BridgeBroker,
    chosen: JobFilter,
    states: Iterable[str],
    reason: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    limit: int | None = None,
    told: Told = silent,
) -> Cancelled:
    """Cancels what a filter chooses of some states; a dry run only tells what that would be."""
    found = Cancelled(dry_run=dry_run)
    for state in states:
        ids = await broker.ids(state)
        for start in range(0, len(ids), STEP):
            jobs = await broker.read_jobs(ids[start : start + STEP])
            fit = [job.id for job in jobs if chosen.fits(job, job.timestamp)]
            fit = fit if limit is None else fit[: limit - found.matched]
            found.matched += len(fit)
            found.ids += fit
            if not dry_run:
                codes = await cancel(broker, fit, reason, force=force)
                found.cancelled += codes.count(CANCELLED)
                found.asked += codes.count(ASKED)
                found.refused += sum(code < 0 for code in codes)
            told(Progress(state, min(start + STEP, len(ids)), len(ids)))
            if limit is not None and found.matched >= limit:
                return found
    return found
