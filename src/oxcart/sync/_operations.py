"""What an operator does with a whole queue, for code without an event loop; see ``oxcart.operations``.

May touch: the server, through the queue it stands for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from oxcart import operations as _operations
from oxcart.model.duration import Duration
from oxcart.operations import Moment, Series, Told

T = TypeVar("T")


class Operations:
    """The part of a queue that deals with many jobs at once."""

    asynchronous: _operations.Operations

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for something async."""
        raise NotImplementedError

    def clean(
        self,
        state: str = "completed",
        *,
        grace: Duration = 0,
        limit: int | None = None,
        progress: Told | None = None,
    ) -> int:
        """Removes old jobs of a state; returns how many.

        Args:
            state: ``completed``, ``failed``, ``waiting``, ``prioritized``, ``delayed`` or ``active``.
            grace: Jobs younger than this stay.
            limit: How many to remove at most, oldest first; None for all.
            progress: Told after every step, in the background thread.
        """
        return self.run(self.asynchronous.clean(state, grace=grace, limit=limit, progress=progress))

    def drain(self, *, delayed: bool = False, progress: Told | None = None) -> int:
        """Removes every job that waits, with ``delayed`` also those whose time has not come."""
        return self.run(self.asynchronous.drain(delayed=delayed, progress=progress))

    def obliterate(self, *, force: bool = False, progress: Told | None = None) -> int:
        """Removes the queue with everything in it, for good; returns how many jobs it had.

        Raises:
            QueueBusy: Workers hold jobs of it, and ``force`` was not said. Nothing has changed.
        """
        return self.run(self.asynchronous.obliterate(force=force, progress=progress))

    def retry_all(
        self,
        state: str = "failed",
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: int | None = None,
        reset: bool = False,
        progress: Told | None = None,
    ) -> int:
        """Lets all failed (or all completed) jobs run again; returns how many."""
        doing = self.asynchronous.retry_all(
            state, since=since, until=until, limit=limit, reset=reset, progress=progress
        )
        return self.run(doing)

    def promote_all(
        self, *, until: Moment | None = None, limit: int | None = None, progress: Told | None = None
    ) -> int:
        """Lets delayed jobs run now, each by its priority; returns how many."""
        return self.run(self.asynchronous.promote_all(until=until, limit=limit, progress=progress))

    def remove_orphans(self, *, dry_run: bool = False, progress: Told | None = None) -> list[str]:
        """Removes jobs that are in no state and so would never run nor be removed; returns their ids."""
        return self.run(self.asynchronous.remove_orphans(dry_run=dry_run, progress=progress))

    def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        """How many jobs wait with each priority; 0 is that of jobs without one."""
        asked = None if priorities is None else list(priorities)  # here: it may be a generator of the caller
        return self.run(self.asynchronous.counts_per_priority(asked))

    def metrics(self, state: str = "completed", *, first: int = 0, last: int = -1) -> Series:
        """How many jobs completed (or failed) per minute, where workers count them."""
        return self.run(self.asynchronous.metrics(state, first=first, last=last))

    def trim_events(self, keep: int, *, progress: Told | None = None) -> int:
        """Drops the oldest events down to about so many; returns how many."""
        return self.run(self.asynchronous.trim_events(keep, progress=progress))

    def publish(self, event: str, /, keep_events: int | None = None, **fields: Any) -> str:
        """Adds an event of your own to the queue's events; returns its id."""
        return self.run(self.asynchronous.publish(event, keep_events, **fields))
