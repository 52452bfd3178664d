"""How jobs are cancelled: one, some, or all that a filter chooses. These are methods of ``Queue``.

    await queue.cancel(job.id, "the order was withdrawn")
    await queue.cancel_all(tags={"tenant": "acme"}, dry_run=True)

What waits ends at once. What runs is asked to end, or, by force, is ended whatever its worker does; see
docs/guarantees.md for what each kind of handler can and cannot be made to stop.

May touch: the server, through the queue's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from oxcart.broker.bridge import cancelling as bridge
from oxcart.broker.bullmq import cancelling
from oxcart.broker.bullmq.cancelling import Cancelled
from oxcart.broker.port import Code
from oxcart.model.duration import Duration
from oxcart.model.errors import ValidationError
from oxcart.model.filter import JobFilter
from oxcart.operations import Operations, Told, _after, _limit

__all__ = ["Cancellation", "Cancelled", "Cancelling"]

#: The states whose jobs can be cancelled, and where the wire keeps them.
CANCELLABLE = {
    "waiting": ("wait", "paused"),
    "prioritized": ("prioritized",),
    "delayed": ("delayed",),
    "waiting-children": ("waiting-children",),
    "active": ("active",),
}
#: What a job is told that was cancelled without a reason.
NO_REASON = "cancelled"


class Cancellation(StrEnum):
    """What came of cancelling a job."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"


class Cancelling(Operations):
    """The part of a queue that cancels jobs."""

    async def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels a job.

        A job that waits has ended when this returns. One that runs in a worker of ours is asked to end,
        within a second where it can be reached: an async handler is cancelled, a process is killed with its
        children, a thread is told. What a handler returns all the same stands.

        Args:
            job_id: The job.
            reason: Why, for the job's record and its handler.
            force: Whether a job that runs ends here and now, whatever its worker does: its lease is taken,
                and what the handler still returns is refused.

        Returns:
            ``CANCELLED``, or ``REQUESTED`` where its handler was asked to end.

        Raises:
            JobNotFound: There is none.
            WrongState: It has ended.
            CannotCancel: A worker of a peer runs it, which cannot be asked; ``force`` overrules it.
            SchedulerOwned: It is the next run of a schedule: remove the schedule.
        """
        codes: Sequence[Code]
        if (of_type := self._bridge) is not None:
            codes = await bridge.cancel(of_type, [job_id], _reason(reason), force=force)
        else:
            codes = await cancelling.cancel(self._store, [job_id], _reason(reason), force=force)
        if codes[0] == cancelling.CANCELLED:
            return Cancellation.CANCELLED
        if codes[0] == cancelling.ASKED:
            return Cancellation.REQUESTED
        raise cancelling.error_of(codes[0], job_id)

    async def cancel_all(
        self,
        *,
        state: str | Iterable[str] | None = None,
        name: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        reason: str = "",
        force: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Told | None = None,
    ) -> Cancelled:
        """Cancels all jobs that fit; with ``dry_run`` it only says which those are.

        Args:
            state: Only jobs in these states; all that have not ended unless given: ``waiting``,
                ``prioritized``, ``delayed`` (retries among them), ``waiting-children`` and ``active``.
            name: Only jobs of these names.
            tags: Only jobs that have all of these tags.
            correlation_id: Only jobs of this correlation id.
            older_than: Only jobs that were created so long ago or longer.
            newer_than: Only jobs that were created within this time.
            reason: Why, for the jobs' records.
            force: As in ``cancel``.
            dry_run: Change nothing.
            limit: How many at most.
            progress: Told after every step.
        """
        chosen = JobFilter.build(
            now_ms=await (self._bridge or self._store).now(),
            name=name,
            tags=tags,
            correlation_id=correlation_id,
            older_than=older_than,
            newer_than=newer_than,
        )
        most, found = _limit(limit), Cancelled(dry_run=dry_run)
        if (of_type := self._bridge) is not None:
            return await bridge.cancel_all(
                of_type,
                chosen,
                _states(state),
                _reason(reason),
                force=force,
                dry_run=dry_run,
                limit=most,
                told=_after(0, progress),
            )
        for broker in await self._stores():
            rest = None if most is None else most - found.matched
            if rest == 0:
                break
            part = await cancelling.cancel_all(
                broker,
                chosen,
                _states(state),
                _reason(reason),
                force=force,
                dry_run=dry_run,
                limit=rest,
                told=_after(found.matched, progress),
            )
            found.matched += part.matched
            found.cancelled += part.cancelled
            found.asked += part.asked
            found.refused += part.refused
            found.ids += part.ids
        return found


def _reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise ValidationError("reason", "text", reason)
    return reason or NO_REASON


def _states(state: str | Iterable[str] | None) -> list[str]:
    names = list(CANCELLABLE) if state is None else [state] if isinstance(state, str) else list(state)
    found: list[str] = []
    for name in names:
        if name not in CANCELLABLE:
            raise ValidationError("state", "one of " + ", ".join(CANCELLABLE), name)
        found += CANCELLABLE[name]
    # In the order in which jobs move: one that moves on meanwhile is met again, not missed.
    return [key for key in (*cancelling.PENDING, cancelling.RUNNING) if key in found]
