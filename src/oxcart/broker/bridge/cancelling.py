"""Cancels jobs of a Bridge type: some by their ids, or all that a filter selects, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oxcart.broker.bridge import codec
from oxcart.broker.bridge.bulk import STEP
from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.scripts import load
from oxcart.broker.port import Code
from oxcart.broker.port.parts import Cancelling
from oxcart.broker.port.results import CancelCode, Cancelled
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.model.errors import ReplyCode
from oxcart.model.filter import JobFilter

#: The error in the result of a cancelled job, as other clients read it.
NAME = "Cancelled"


class TypeCancelling(TypePart, Cancelling):
    """Cancels jobs of one type."""

    async def cancel(self, ids: Sequence[str], reason: str, *, force: bool) -> list[Code]:
        broker = self._broker
        codes: list[Code] = []
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
            codes += [known.get(one, ReplyCode.JOB_NOT_FOUND) for one in part]
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
        found = Cancelled(dry_run=dry_run)
        for state in states:
            ids = await self._broker.ids(state)
            for start in range(0, len(ids), STEP):
                jobs = await self._broker.read_jobs(ids[start : start + STEP])
                fit = [job.id for job in jobs if chosen.fits(job, job.timestamp)]
                fit = fit if limit is None else fit[: limit - found.matched]
                found.matched += len(fit)
                found.ids += fit
                if not dry_run:
                    codes = await self.cancel(fit, reason, force=force)
                    found.cancelled += codes.count(CancelCode.CANCELLED)
                    found.asked += codes.count(CancelCode.ASKED)
                    found.refused += sum(isinstance(code, int) and code < 0 for code in codes)
                progress(Progress(state, min(start + STEP, len(ids)), len(ids)))
                if limit is not None and found.matched >= limit:
                    return found
        return found
