"""A job in the hand of code without an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import UNSET, UnsetType

from oxcart import handle as _handle
from oxcart.cancelling import Cancellation
from oxcart.model.duration import Duration
from oxcart.model.flow import DependencyCounts, DependencyPage
from oxcart.model.job import Job

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """A job of a queue, by its id.

    Attributes:
        queue: The queue it is in.
    """

    __slots__ = ("_handle", "queue")

    def __init__(self, queue: Queue, handle: _handle.JobHandle[R_co]) -> None:
        self.queue = queue
        self._handle = handle

    def __repr__(self) -> str:
        return f"sync.JobHandle({self.queue.name}/{self.id})"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._handle.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._handle.name

    @property
    def created(self) -> bool:
        """Whether this add made the job; False when a job of this id existed."""
        return self._handle.created

    @property
    def duplicate(self) -> bool:
        """Whether a job of the same name and idempotency key existed: the handle is on that one."""
        return self._handle.duplicate

    def get(self) -> Job:
        """The job as it is now.

        Raises:
            JobNotFound: It was removed.
        """
        return self.queue.run(self._handle.get())

    def state(self) -> str:
        """The job's state in the words of the wire."""
        return self.queue.run(self._handle.state())

    def result(self, timeout: Duration | None = None) -> R_co:
        """Waits for the job's result; works as well when the job is removed on completion.

        Args:
            timeout: How long to wait; None for ever.

        Raises:
            JobFailed: The job failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It was removed, and no event tells how it ended.
        """
        return self.queue.run(self._handle.result(timeout))

    def logs(self) -> list[str]:
        """The job's log."""
        return self.queue.run(self._handle.logs())

    def log(self, *lines: str) -> int:
        """Appends to the job's log; returns how many lines it has."""
        return self.queue.run(self._handle.log(*lines))

    def clear_logs(self, keep: int = 0) -> None:
        """Drops the job's log but for the newest lines."""
        self.queue.run(self._handle.clear_logs(keep))

    def update_progress(self, progress: Any) -> None:
        """Writes the job's progress: a number from 0 to 100, or an object."""
        self.queue.run(self._handle.update_progress(progress))

    def update_data(self, data: Any) -> None:
        """Replaces the job's payload."""
        self.queue.run(self._handle.update_data(data))

    def change_priority(self, priority: int | str, *, lifo: bool = False) -> None:
        """Changes the priority; ``lifo`` puts the job in front of its equals."""
        self.queue.run(self._handle.change_priority(priority, lifo=lifo))

    def change_delay(self, delay: Duration) -> None:
        """Changes the delay of a delayed job, counted from now."""
        self.queue.run(self._handle.change_delay(delay))

    def promote(self) -> None:
        """Lets a delayed job run now."""
        self.queue.run(self._handle.promote())

    def retry(self, *, reset: bool = False) -> None:
        """Lets a finished job run again; ``reset`` counts its attempts from the beginning."""
        self.queue.run(self._handle.retry(reset=reset))

    def remove(self, *, children: bool = False) -> None:
        """Removes the job, unless a worker holds it."""
        self.queue.run(self._handle.remove(children=children))

    def remove_unprocessed_children(self) -> None:
        """Removes the jobs below this one that have not ended; see ``oxcart.JobHandle``."""
        self.queue.run(self._handle.remove_unprocessed_children())

    def leave_parent(self) -> bool:
        """Lets the parent wait for this job no more; says whether one did."""
        return self.queue.run(self._handle.leave_parent())

    def update(
        self,
        *,
        tags: Mapping[str, str] | UnsetType | None = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
        priority: int | str | UnsetType = UNSET,
    ) -> None:
        """Changes what hangs on the job, as long as it has not ended; see ``oxcart.JobHandle.update``."""
        self.queue.run(
            self._handle.update(
                tags=tags, correlation_id=correlation_id, callback_url=callback_url, priority=priority
            )
        )

    def cancel(self, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels the job; see ``Queue.cancel``."""
        return self.queue.run(self._handle.cancel(reason, force=force))

    def release_deduplication(self) -> bool:
        """Closes the deduplication window that this job owns; says whether it owned one."""
        return self.queue.run(self._handle.release_deduplication())

    # -- children

    def children_values(self) -> dict[str, Any]:
        """The results of the children that completed, by the children's keys (``bull:images:page-1``)."""
        return self.queue.run(self._handle.children_values())

    def ignored_failures(self) -> dict[str, str]:
        """Why children failed whose failure did not fail the job, by the children's keys."""
        return self.queue.run(self._handle.ignored_failures())

    def dependency_counts(self) -> DependencyCounts:
        """How many children the job has, by what became of them."""
        return self.queue.run(self._handle.dependency_counts())

    def dependencies(self, kind: str, *, cursor: str = "0", limit: int = 100) -> DependencyPage:
        """About so many of the job's children of a kind.

        Args:
            kind: ``processed``, ``unprocessed``, ``ignored`` or ``failed``, as in `DependencyCounts`.
            cursor: That of the page before.
            limit: About how many; a small family comes at once.
        """
        return self.queue.run(self._handle.dependencies(kind, cursor=cursor, limit=limit))
