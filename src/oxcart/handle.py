"""A handle on a job that was added: reads its state and result, changes it, removes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import UNSET, UnsetType

from oxcart.broker.port import Broker, parts
from oxcart.engine.children import Parent
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import JobNotFound, ValidationError
from oxcart.model.job import Job
from oxcart.model.options import DEFAULT_KEEP_LOGS, DEFAULT_OPTIONS, OptionKwargs
from oxcart.model.progress import check_progress

if TYPE_CHECKING:
    from oxcart.jobs import Cancellation
    from oxcart.queue import Queue

R = TypeVar("R", covariant=True)


class JobHandle(Parent, Generic[R]):
    """A job of a queue, by its id.

    Attributes:
        id: The job's id.
        name: Its name.
        queue: The queue it is in.
        created: Whether this add made the job. False if a job of this id existed, or if a deduplication
            window or an idempotency key kept it out. Then the handle is on the job that owns it.
        duplicate: Whether a job of the same name and idempotency key existed. Then the handle is on that job.
    """

    __slots__ = ("created", "duplicate", "id", "name", "queue")

    def __init__(self, queue: Queue, job_id: str, name: str, created: bool, duplicate: bool = False) -> None:
        self.queue = queue
        self.id = job_id
        self.name = name
        self.created = created
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"JobHandle({self.queue.name}/{self.id})"

    def _storage(self) -> Broker:
        return self.queue._core.broker

    @property
    def _logs(self) -> parts.Logs:
        return self.queue._core.part(self.queue._core.broker.logs, "logs")

    async def get(self) -> Job:
        """Returns the job as it is now.

        Raises:
            JobNotFound: It was removed.
        """
        job = await self.queue.jobs.get(self.id)
        if job is None:
            raise JobNotFound(self.id)
        return job

    async def state(self) -> str:
        """Returns the job's state in the words of the wire."""
        return await self.queue.jobs.state(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Waits for the job's result; works even if the job is removed on completion.

        Args:
            timeout: How long to wait; None for no limit.

        Raises:
            JobFailed: The job failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It was removed, and no event contains its end.
        """
        seconds = None if timeout is None else parse_ms(timeout, "timeout") / 1000
        value: R = await self.queue._core.results.wait(self.id, seconds)
        return value

    async def logs(self) -> list[str]:
        """Returns the job's log."""
        return await self._logs.read(self.id)

    async def log(self, *lines: str) -> int:
        """Appends to the job's log; returns how many lines it has."""
        return await self._logs.append(self.id, list(lines), DEFAULT_KEEP_LOGS)

    async def clear_logs(self, keep: int = 0) -> None:
        """Drops the job's log except the newest lines."""
        if type(keep) is not int or keep < 0:
            raise ValidationError("keep", "an integer, at least 0", keep)
        await self._logs.clear(self.id, keep)

    async def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Writes the job's progress.

        Args:
            progress: A number from 0 to 100, or an object.
            message: Text beside it; a number is then stored as ``{"percent": 50, "message": "…"}``.

        Raises:
            ValidationError: The progress or the message is out of its bounds; nothing was written.
        """
        await self.queue._core.broker.set_progress(self.id, check_progress(progress, message=message))

    async def update_data(self, data: Any) -> None:
        """Replaces the job's payload."""
        await self.queue._core.broker.update_data(self.id, data)

    async def update(
        self,
        *,
        tags: Mapping[str, str] | UnsetType | None = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
        priority: int | str | UnsetType = UNSET,
    ) -> None:
        """Changes metadata of a job that has not ended. An omitted argument changes nothing; None removes.

        The payload cannot be changed: cancel the job and add another.

        Args:
            tags: Its labels, all of them.
            correlation_id: The id that ties it to others.
            callback_url: The address of the webhook that follows its end.
            priority: Its priority; for a running job it applies from its next wait on.

        Raises:
            ValidationError: A value is outside its bound; nothing was written.
            JobNotFound: The job was removed.
            WrongState: It has ended.
        """
        given: dict[str, Any] = {
            "tags": tags,
            "correlation_id": correlation_id,
            "callback_url": callback_url,
            "priority": priority,
        }
        changes = {name: value for name, value in given.items() if value is not UNSET}
        read = self.queue._core.read_options(cast(OptionKwargs, changes), DEFAULT_OPTIONS)
        metadata = {name: getattr(read, name) for name in changes if name != "priority"}
        updates = self.queue._core.part(self.queue._core.broker.updates, "updates")
        if read.callback_url is not None:
            await self.queue._core.expect_webhooks([self.id])
        await updates.update(self.id, metadata, read.priority if "priority" in changes else None)

    async def change_priority(self, priority: int | str, *, lifo: bool = False) -> None:
        """Changes the priority; ``lifo`` puts the job in front of its equals."""
        checked = self.queue._core.read_options({"priority": priority}, DEFAULT_OPTIONS).priority
        updates = self.queue._core.part(self.queue._core.broker.updates, "change_priority")
        await updates.change_priority(self.id, checked, lifo=lifo)

    async def change_delay(self, delay: Duration) -> None:
        """Changes the delay of a delayed job, counted from now."""
        await self.queue._core.broker.change_delay(self.id, parse_ms(delay, "delay"))

    async def promote(self) -> None:
        """Promotes a delayed job now."""
        await self.queue._core.broker.promote_job(self.id)

    async def retry(self, *, reset: bool = False) -> None:
        """Lets a finished job run again; ``reset`` resets its attempts."""
        await self.queue.jobs.retry(self.id, reset=reset)

    async def cancel(self, reason: str = "", *, force: bool = False) -> Cancellation:
        """Cancels the job; see ``queue.jobs.cancel``."""
        return await self.queue.jobs.cancel(self.id, reason, force=force)

    async def signal(self, signal: str, data: Any = None) -> bool:
        """Sends a signal to the job; see ``queue.jobs.signal``."""
        return await self.queue.jobs.signal(self.id, signal, data)

    async def remove(self, *, children: bool = False) -> None:
        """Removes the job, unless it is leased."""
        await self.queue.jobs.remove(self.id, children=children)

    async def remove_unprocessed_children(self) -> None:
        """Removes the jobs below this one that have not ended.

        Leased jobs and all below them stay, and so do failed jobs. A job that waited for
        nothing else runs.
        """
        await self._flows.remove_unprocessed(self.id)

    async def leave_parent(self) -> bool:
        """Detaches this job from its parent, which no longer waits for it; returns whether one did."""
        return await self._flows.leave_parent(self.id)

    async def release_deduplication(self) -> bool:
        """Closes the deduplication window that this job owns; returns whether it owned one."""
        name = (await self.get()).dedup_id
        if name is None:
            return False
        windows = self.queue._core.part(self.queue._core.broker.deduplication, "deduplication")
        return await windows.release(name, self.id)
