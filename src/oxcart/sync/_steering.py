"""Schedules and limits of a queue, without ``await``.

May touch: the server, through the queue they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from oxcart import limits as _limits
from oxcart import schedulers as _schedulers
from oxcart.model.duration import Duration
from oxcart.model.options import OptionKwargs
from oxcart.model.schedule import Instant, Missed, Overlap, Scheduler
from oxcart.sync._handle import JobHandle

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue


class Schedulers:
    """What ``queue.schedulers`` is; see ``oxcart.schedulers``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._inner = _schedulers.Schedulers(queue.asynchronous)

    def upsert(
        self,
        scheduler_id: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = "UTC",
        offset: Duration | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
        immediately: bool = False,
        name: str | None = None,
        data: Any = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        **options: Unpack[OptionKwargs],
    ) -> JobHandle[Any]:
        """Makes a schedule, or changes the one of this id; returns a handle on the next run.

        Raises:
            ValidationError: Something is wrong, or the schedule would never fire; nothing was written.
            JobError: A run of that time exists already.
        """
        doing = self._inner.upsert(
            scheduler_id,
            every=every,
            cron=cron,
            tz=tz,
            offset=offset,
            start=start,
            end=end,
            limit=limit,
            immediately=immediately,
            name=name,
            data=data,
            missed=missed,
            overlap=overlap,
            **options,
        )
        return JobHandle(self._queue, self._queue.run(doing))

    def get(self, scheduler_id: str) -> Scheduler | None:
        """A schedule as it is now, or None."""
        return self._queue.run(self._inner.get(scheduler_id))

    def list(self, *, first: int = 0, limit: int = 100, latest: bool = False) -> Sequence[Scheduler]:
        """A page of schedules, those whose next run is soonest first unless ``latest``."""
        return self._queue.run(self._inner.list(first=first, limit=limit, latest=latest))

    def count(self) -> int:
        """How many schedules there are."""
        return self._queue.run(self._inner.count())

    def remove(self, scheduler_id: str) -> bool:
        """Removes a schedule and the run that waits for its time; False if there is none."""
        return self._queue.run(self._inner.remove(scheduler_id))


class Limits:
    """What ``queue.limits`` is; see ``oxcart.limits``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._inner = _limits.Limits(queue.asynchronous)

    def set_concurrency(self, most: int) -> None:
        """Lets at most so many jobs of the queue run at once."""
        self._queue.run(self._inner.set_concurrency(most))

    def concurrency(self) -> int | None:
        """How many jobs may run at once, or None for any number."""
        return self._queue.run(self._inner.concurrency())

    def remove_concurrency(self) -> None:
        """Lets any number of jobs run at once."""
        self._queue.run(self._inner.remove_concurrency())

    def set_rate(self, most: int, *, per: Duration) -> None:
        """Lets at most so many jobs of the queue start in a time."""
        self._queue.run(self._inner.set_rate(most, per=per))

    def rate(self) -> _limits.Rate | None:
        """How many jobs may start in a time, or None for any number."""
        return self._queue.run(self._inner.rate())

    def remove_rate(self) -> None:
        """Lets jobs start at any rate."""
        self._queue.run(self._inner.remove_rate())

    def hold(self, duration: Duration) -> None:
        """Lets no job start for a time. Running jobs go on."""
        self._queue.run(self._inner.hold(duration))

    def release(self) -> None:
        """Ends a hold, and begins the present window of a rate anew."""
        self._queue.run(self._inner.release())

    def wait_ms(self, most: int | None = None) -> int:
        """For how many ms the rate or a hold lets no job start; 0 where one may."""
        return self._queue.run(self._inner.wait_ms(most))

    def set_type_limit(
        self, name: str, *, concurrent: int | None = None, per_minute: int | None = None
    ) -> None:
        """Lets at most so many jobs of a type run at once, and start in a minute."""
        self._queue.run(self._inner.set_type_limit(name, concurrent=concurrent, per_minute=per_minute))

    def type_limits(self) -> dict[str, _limits.Limit]:
        """The limits of types."""
        return self._queue.run(self._inner.type_limits())

    def remove_type_limit(self, name: str) -> None:
        """Lets any number of jobs of a type run; those held back are let in."""
        self._queue.run(self._inner.remove_type_limit(name))

    def type_usage(self, name: str) -> _limits.Usage:
        """What the limit of a type does at this moment."""
        return self._queue.run(self._inner.type_usage(name))

    def set_key_limit(self, *, concurrent: int | None = None, per_minute: int | None = None) -> None:
        """Lets at most so many jobs of each ``limit_key`` run at once, and start in a minute."""
        self._queue.run(self._inner.set_key_limit(concurrent=concurrent, per_minute=per_minute))

    def key_limit(self) -> _limits.Limit | None:
        """The limit of each key, or None."""
        return self._queue.run(self._inner.key_limit())

    def remove_key_limit(self) -> None:
        """Lets any number of jobs of a key run; those held back are let in."""
        self._queue.run(self._inner.remove_key_limit())

    def key_usage(self, key: str | None = None) -> _limits.Usage:
        """What the limit does to one key at this moment, or to all of them together."""
        return self._queue.run(self._inner.key_usage(key))
