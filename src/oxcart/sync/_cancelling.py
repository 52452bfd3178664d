"""How jobs are cancelled, for code without an event loop; see ``oxcart.cancelling``.

May touch: the server, through the queue it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oxcart import cancelling as _cancelling
from oxcart.cancelling import Cancellation, Cancelled
from oxcart.model.duration import Duration
from oxcart.operations import Told
from oxcart.sync._operations import Operations


class Cancelling(Operations):
    """The part of a queue that cancels jobs."""

    asynchronous: _cancelling.Cancelling

    def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels a job: one that waits has ended when this returns, one that runs is asked to end.

        Args:
            job_id: The job.
            reason: Why, for the job's record and its handler.
            force: Whether a job that runs ends here and now, whatever its worker does.

        Raises:
            JobNotFound: There is none.
            WrongState: It has ended.
            CannotCancel: A worker of a peer runs it, which cannot be asked; ``force`` overrules it.
            SchedulerOwned: It is the next run of a schedule: remove the schedule.
        """
        return self.run(self.asynchronous.cancel(job_id, reason, force=force))

    def cancel_all(
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

        See ``oxcart.Queue.cancel_all`` for what each argument means.
        """
        return self.run(
            self.asynchronous.cancel_all(
                state=state,
                name=name,
                tags=tags,
                correlation_id=correlation_id,
                older_than=older_than,
                newer_than=newer_than,
                reason=reason,
                force=force,
                dry_run=dry_run,
                limit=limit,
                progress=progress,
            )
        )
