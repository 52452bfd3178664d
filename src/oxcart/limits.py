"""``queue.limits``: limits over all workers of a queue, on jobs at once and on jobs per time.

    await emails.limits.set_concurrency(20)
    await emails.limits.set_rate(100, per="1m")
    await emails.limits.hold("30s")                 # the provider replied: too many requests

Node's workers obey these too, but a hold only if they have a limiter or the queue has a rate. Jobs of
one type, and jobs of one key, can be limited in addition; other jobs overtake them:

    await emails.limits.set_type_limit("digest", concurrent=2, per_minute=100)
    await emails.limits.set_key_limit(concurrent=5)
    await emails.add("welcome", {…}, limit_key="tenant-42")

These limits are ours alone: jobs that Node's workers take are neither held back nor counted
(docs/decisions/56).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.port import parts
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.metadata import check_limit_key
from oxcart.model.names import check_job_name

if TYPE_CHECKING:
    from oxcart.queue import Queue


#: The highest limit per type or key.
MOST = 1_000_000_000


class Rate(msgspec.Struct, frozen=True):
    """A rate limit: how many jobs may start in a time.

    Attributes:
        most: How many.
        per_ms: In how many ms.
    """

    most: int
    per_ms: int


class Limit(msgspec.Struct, frozen=True):
    """A limit of a type, or of a key.

    Attributes:
        concurrent: How many jobs may run at once; None for unlimited.
        per_minute: How many may start in a minute; None for unlimited. Minutes are fixed windows: one begins
            with the first start, so around its end up to twice as many can start within 60 seconds.
    """

    concurrent: int | None = None
    per_minute: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The present effect of a limit.

    Attributes:
        running: Jobs that occupy a place; counted if jobs at once are limited.
        held_back: Jobs that the limit keeps from running; they are among the delayed ones.
        started: Jobs that started in the present minute; counted if that is limited.
    """

    running: int
    held_back: int
    started: int


class Limits:
    """The limits of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set_concurrency(self, most: int) -> None:
        """Sets how many jobs of the queue may run at once."""
        await self._store.set_concurrency(_count(most))

    async def concurrency(self) -> int | None:
        """Returns how many jobs may run at once, or None for unlimited."""
        return await self._store.concurrency()

    async def remove_concurrency(self) -> None:
        """Removes the limit of jobs at once."""
        await self._store.remove_concurrency()

    async def set_rate(self, most: int, *, per: Duration) -> None:
        """Sets how many jobs of the queue may start in a time; overrides a worker's own limiter."""
        await self._store.set_rate(_count(most), parse_ms(per, "per", minimum=1))

    async def rate(self) -> Rate | None:
        """Returns how many jobs may start in a time, or None for unlimited."""
        found = await self._store.rate()
        return None if found is None else Rate(*found)

    async def remove_rate(self) -> None:
        """Removes the rate limit."""
        await self._store.remove_rate()

    async def hold(self, duration: Duration) -> None:
        """Blocks all starts for a time. Running jobs continue.

        A handler does the same with ``RateLimited``, which also returns its job to the queue.
        """
        await self._store.hold(parse_ms(duration, "duration", minimum=1))

    async def release(self) -> None:
        """Ends a hold, and restarts the present window of a rate. Workers notice within five seconds."""
        await self._store.release()

    async def wait_ms(self, most: int | None = None) -> int:
        """Returns for how many ms the rate or a hold blocks the next start; 0 if a job may start.

        Args:
            most: The limit of the workers' own limiter, for a queue without a rate.
        """
        return await self._store.wait_ms(most)

    async def set_type_limit(
        self, name: str, *, concurrent: int | None = None, per_minute: int | None = None
    ) -> None:
        """Sets how many jobs of a type may run at once, and start in a minute.

        Args:
            name: The type: the name of its jobs.
            concurrent: How many at once; None for unlimited.
            per_minute: How many may start in a minute; None for unlimited.

        Raises:
            ValidationError: One of them is out of bounds, or both are None.
        """
        await self._store.set_type(_type(name), *_both(concurrent, per_minute))

    async def type_limits(self) -> dict[str, Limit]:
        """Returns the limits of types."""
        rules = await self._store.rules()
        return {name: _limit(rule) for name, rule in sorted(rules.types.items())}

    async def remove_type_limit(self, name: str) -> None:
        """Removes the limit of a type; jobs that it held back become ready."""
        await self._store.set_type(_type(name), 0, 0)

    async def type_usage(self, name: str) -> Usage:
        """Returns the present effect of a type's limit."""
        return Usage(*await self._store.usage_of_type(_type(name)))

    async def set_key_limit(self, *, concurrent: int | None = None, per_minute: int | None = None) -> None:
        """Sets how many jobs of each ``limit_key`` may run at once, and start in a minute.

        Raises:
            ValidationError: One of them is out of bounds, or both are None.
        """
        await self._store.set_keys(*_both(concurrent, per_minute))

    async def key_limit(self) -> Limit | None:
        """Returns the limit of each key, or None."""
        rules = await self._store.rules()
        return _limit(rules.keys) if any(rules.keys) else None

    async def remove_key_limit(self) -> None:
        """Removes the limit of keys; jobs that it held back become ready."""
        await self._store.set_keys(0, 0)

    async def key_usage(self, key: str | None = None) -> Usage:
        """Returns the present effect of the limit on one key, or on all of them together."""
        return Usage(*await self._store.usage_of_keys(None if key is None else check_limit_key(key, "key")))

    @property
    def _store(self) -> parts.Limits:
        broker = self._queue._core.broker
        return broker.capabilities.part(broker.limits, "queue_limits")


def _count(most: int, field: str = "most") -> int:
    if type(most) is not int or most < 1:
        raise ValidationError(field, "an integer, at least 1", most)
    return most


def _both(concurrent: int | None, per_minute: int | None) -> tuple[int, int]:
    if concurrent is None and per_minute is None:
        raise ValidationError("concurrent", "given, or per_minute, or both", None)
    for field, most in (("concurrent", concurrent), ("per_minute", per_minute)):
        if most is not None and _count(most, field) > MOST:
            raise ValidationError(field, f"at most {MOST}", most)
    return concurrent or 0, per_minute or 0


def _type(name: str) -> str:
    check_job_name(name, "name")
    if not name.isprintable():
        raise ValidationError("name", "of printable characters", name)
    return name


def _limit(rule: tuple[int, int]) -> Limit:
    return Limit(rule[0] or None, rule[1] or None)
