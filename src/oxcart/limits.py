"""What holds a whole queue back, over all its workers: how many jobs at once, how many in a time.

    await emails.limits.set_concurrency(20)
    await emails.limits.set_rate(100, per="1m")
    await emails.limits.hold("30s")                 # somebody said: too many requests

Node's workers obey all of it too, but a hold only where they have a limiter or the queue a rate.

May touch: the server, through the queue's broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bullmq.limits import LimitStore
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError

if TYPE_CHECKING:
    from oxcart.queue import Queue


class Rate(msgspec.Struct, frozen=True):
    """At most so many jobs start in a time.

    Attributes:
        most: How many.
        per_ms: In how many ms.
    """

    most: int
    per_ms: int


class Limits:
    """What ``queue.limits`` is."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set_concurrency(self, most: int) -> None:
        """Lets at most so many jobs of the queue run at once."""
        await self._store.set_concurrency(_count(most))

    async def concurrency(self) -> int | None:
        """How many jobs may run at once, or None for any number."""
        return await self._store.concurrency()

    async def remove_concurrency(self) -> None:
        """Lets any number of jobs run at once."""
        await self._store.remove_concurrency()

    async def set_rate(self, most: int, *, per: Duration) -> None:
        """Lets at most so many jobs of the queue start in a time; stands above a worker's own limiter."""
        await self._store.set_rate(_count(most), parse_ms(per, "per", minimum=1))

    async def rate(self) -> Rate | None:
        """How many jobs may start in a time, or None for any number."""
        found = await self._store.rate()
        return None if found is None else Rate(*found)

    async def remove_rate(self) -> None:
        """Lets jobs start at any rate."""
        await self._store.remove_rate()

    async def hold(self, duration: Duration) -> None:
        """Lets no job start for a time. Running jobs go on.

        A handler says the same with ``RateLimited``, which also puts its job back.
        """
        await self._store.hold(parse_ms(duration, "duration", minimum=1))

    async def release(self) -> None:
        """Ends a hold, and begins the present window of a rate anew. Workers notice within five seconds."""
        await self._store.release()

    async def wait_ms(self, most: int | None = None) -> int:
        """For how many ms the rate or a hold lets no job start; 0 where one may.

        Args:
            most: The limit of the workers' own limiter, where the queue has no rate.
        """
        return await self._store.wait_ms(most)

    @property
    def _store(self) -> LimitStore:
        return self._queue.broker.limits


def _count(most: int) -> int:
    if type(most) is not int or most < 1:
        raise ValidationError("most", "an integer, at least 1", most)
    return most
