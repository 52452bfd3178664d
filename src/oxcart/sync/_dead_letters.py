"""``queue.dead_letters`` for code without an event loop; see ``oxcart.dead_letters``.

May touch: the server, through the queue it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from oxcart import dead_letters as _dead
from oxcart.dead_letters import DeadDone, Which
from oxcart.model.job import Job
from oxcart.operations import Told

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue


class DeadLetters:
    """The dead letters of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._inner = _dead.DeadLetters(queue.asynchronous)

    def list(self, *, limit: int = 100, oldest: bool = False, **which: Unpack[Which]) -> Sequence[Job]:
        """Dead letters, newest first unless ``oldest``."""
        return self._queue.run(self._inner.list(limit=limit, oldest=oldest, **which))

    def count(self, **which: Unpack[Which]) -> int:
        """How many dead letters there are."""
        return self._queue.run(self._inner.count(**which))

    def get(self, job_id: str) -> Job:
        """A dead letter, with all that is known of its failures."""
        return self._queue.run(self._inner.get(job_id))

    def replay(self, job_id: str, *, reset: bool = True) -> None:
        """Lets a dead letter run again; without ``reset`` it is tried once more."""
        self._queue.run(self._inner.replay(job_id, reset=reset))

    def purge(self, job_id: str) -> None:
        """Removes a dead letter for good."""
        self._queue.run(self._inner.purge(job_id))

    def replay_all(
        self,
        *,
        reset: bool = True,
        rate: float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Told | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Lets all dead letters run again that fit; see ``oxcart.dead_letters``."""
        return self._queue.run(
            self._inner.replay_all(
                reset=reset, rate=rate, dry_run=dry_run, limit=limit, progress=progress, **which
            )
        )

    def purge_all(
        self,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Told | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Removes all dead letters that fit, for good; see ``oxcart.dead_letters``."""
        return self._queue.run(
            self._inner.purge_all(dry_run=dry_run, limit=limit, progress=progress, **which)
        )
