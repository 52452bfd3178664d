"""What holds a queue back: its concurrency, its rate, a pause of its rate limit; and limits per type and key.

The first are fields of ``meta`` and the counter ``limiter``, obeyed at claim by whoever claims. Those per
type and key are ours alone (decision 56).

May touch: the server, through its queue's broker. Every write may be applied twice without harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bullmq.scripts import load

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: The counter of a queue that is held: no limit is higher.
HELD = 9_007_199_254_740_991


class LimitStore:
    """The limits of one queue."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._caller = broker.caller
        self._keys = broker.keys

    async def set_concurrency(self, most: int) -> int:
        """Lets at most so many jobs be active; returns how many fields are new."""
        return int(await self._caller.command("HSET", self._keys.meta(), "concurrency", most))

    async def concurrency(self) -> int | None:
        """How many jobs may be active, or None."""
        return _number(await self._caller.command("HGET", self._keys.meta(), "concurrency"))

    async def remove_concurrency(self) -> int:
        """Lets any number of jobs be active; returns how many fields there were."""
        return int(await self._caller.command("HDEL", self._keys.meta(), "concurrency"))

    async def set_rate(self, most: int, duration_ms: int) -> int:
        """Lets at most so many jobs start in so many ms; returns how many fields are new."""
        fields = ("max", most, "duration", duration_ms)
        return int(await self._caller.command("HSET", self._keys.meta(), *fields))

    async def rate(self) -> tuple[int, int] | None:
        """How many jobs may start in how many ms, or None."""
        most, duration = await self._caller.command("HMGET", self._keys.meta(), "max", "duration")
        number = _number(most)
        return None if number is None else (number, _number(duration) or 0)

    async def remove_rate(self) -> int:
        """Lets jobs start at any rate; returns how many fields there were."""
        return int(await self._caller.command("HDEL", self._keys.meta(), "max", "duration"))

    async def hold(self, duration_ms: int) -> None:
        """Lets no job start for so many ms."""
        await self._caller.command("SET", self._keys.limiter(), HELD, "PX", duration_ms)

    async def release(self) -> int:
        """Ends a hold, and begins the present window of a rate anew; returns how many keys there were."""
        return int(await self._caller.command("DEL", self._keys.limiter()))

    async def ttl_ms(self) -> int:
        """How long the present window or hold lasts yet; below zero where there is none."""
        return int(await self._caller.command("PTTL", self._keys.limiter()))

    async def wait_ms(self, most: int | None = None) -> int:
        """How many ms the limit lets no job start; 0 where one may.

        Args:
            most: The limit of a worker, where the queue has none of its own.
        """
        return int(await self._caller.again(load("limited"), self._keys.meta(), most or ""))

    # -- per type and key

    async def set_bucket(self, kind: str, name: str, concurrent: int, per_minute: int) -> None:
        """Limits a type (kind ``t``) or every key (kind ``k``); two zeros take the limit away."""
        args = (kind, name, concurrent, per_minute, self._broker.clock.argument)
        await self._caller.again(load("limit"), self._keys.meta(), *args)

    async def rules(self) -> Rules:
        """The limits per type and key."""
        raw = await self._caller.command("HGET", self._keys.meta(), "ox:limits")
        try:
            return Rules() if raw is None else msgspec.json.decode(raw, type=Rules)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return Rules()

    async def usage(self, bucket: str) -> tuple[int, int, int]:
        """How many jobs of a bucket run, are held back, and started in the present minute.

        A bucket that ends with ``*`` stands for all that begin so; their starts are not counted.
        """
        first, last = f"[{bucket}\n", f"({bucket}\x0b"
        if bucket.endswith("*"):
            first, last = f"[{bucket[:-1]}", f"({bucket[:-2]};"
        running, parked, started = await self._caller.pipeline(
            [
                ("ZLEXCOUNT", self._keys.held(), first, last),
                ("ZLEXCOUNT", self._keys.parked(), first, last),
                ("GET", self._keys.starts(bucket)),
            ]
        )
        return running, parked, _number(started) or 0


class Rules(msgspec.Struct, frozen=True):
    """What ``meta`` says of limits per type and key: how many at once and per minute, 0 for any number."""

    t: dict[str, tuple[int, int]] = {}
    k: tuple[int, int] = (0, 0)


def _number(raw: bytes | None) -> int | None:
    try:
        return None if raw is None else int(float(raw))
    except (ValueError, OverflowError):
        return None
