"""The limits of a queue: its concurrency, its rate and holds; and limits per type and key.

The first are fields of ``meta`` and the counter ``limiter``, which peers obey as well. Limits per type and
key are ours alone (decision 56).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.parts import Limits
from oxcart.broker.port.results import LimitRules

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: The counter of a held queue: no limit is higher.
HELD = 9_007_199_254_740_991


#: Kinds of buckets in keys and arguments of scripts.
_TYPE, _KEY = "t", "k"


class _Rules(msgspec.Struct):
    """The limits per type and key as ``ox:limits`` has them."""

    t: dict[str, tuple[int, int]] = {}
    k: tuple[int, int] = (0, 0)


class QueueLimits(Limits):
    """The limits of one queue."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._caller = broker.caller
        self._keys = broker.keys

    async def set_concurrency(self, most: int) -> int:
        return int(await self._caller.write("HSET", self._keys.meta(), "concurrency", most))

    async def concurrency(self) -> int | None:
        return _number(await self._caller.command("HGET", self._keys.meta(), "concurrency"))

    async def remove_concurrency(self) -> int:
        return int(await self._caller.write("HDEL", self._keys.meta(), "concurrency"))

    async def set_rate(self, most: int, duration_ms: int) -> int:
        fields = ("max", most, "duration", duration_ms)
        return int(await self._caller.write("HSET", self._keys.meta(), *fields))

    async def rate(self) -> tuple[int, int] | None:
        most, duration = await self._caller.command("HMGET", self._keys.meta(), "max", "duration")
        number = _number(most)
        return None if number is None else (number, _number(duration) or 0)

    async def remove_rate(self) -> int:
        return int(await self._caller.write("HDEL", self._keys.meta(), "max", "duration"))

    async def hold(self, duration_ms: int) -> None:
        await self._caller.write("SET", self._keys.limiter(), HELD, "PX", duration_ms)

    async def release(self) -> int:
        return int(await self._caller.write("DEL", self._keys.limiter()))

    async def ttl_ms(self) -> int:
        return int(await self._caller.command("PTTL", self._keys.limiter()))

    async def wait_ms(self, most: int | None = None) -> int:
        return int(await self._caller.again(load("limited"), self._keys.meta(), most or ""))

    # -- per type and key

    async def set_type(self, name: str, concurrent: int, per_minute: int) -> None:
        await self._set(_TYPE, name, concurrent, per_minute)

    async def set_keys(self, concurrent: int, per_minute: int) -> None:
        await self._set(_KEY, "", concurrent, per_minute)

    async def _set(self, kind: str, name: str, concurrent: int, per_minute: int) -> None:
        args = (kind, name, concurrent, per_minute, self._broker.clock.argument)
        await self._caller.again(load("limit"), self._keys.meta(), *args)

    async def rules(self) -> LimitRules:
        raw = await self._caller.command("HGET", self._keys.meta(), "ox:limits")
        try:
            stored = _Rules() if raw is None else msgspec.json.decode(raw, type=_Rules)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return LimitRules()
        return LimitRules(stored.t, stored.k)

    async def usage_of_type(self, name: str) -> tuple[int, int, int]:
        return await self._usage(f"{_TYPE}:{name}")

    async def usage_of_keys(self, key: str | None) -> tuple[int, int, int]:
        if key is not None:
            return await self._usage(f"{_KEY}:{key}")
        running, parked, _ = await self._usage(_KEY, f"[{_KEY}:", f"({_KEY};")
        return running, parked, 0

    async def _usage(self, bucket: str, first: str = "", last: str = "") -> tuple[int, int, int]:
        first, last = first or f"[{bucket}\n", last or f"({bucket}\x0b"
        running, parked, started = await self._caller.pipeline(
            [
                ("ZLEXCOUNT", self._keys.held(), first, last),
                ("ZLEXCOUNT", self._keys.parked(), first, last),
                ("GET", self._keys.starts(bucket)),
            ]
        )
        return running, parked, _number(started) or 0

    # -- shares of a partition

    async def shrink(self, share: int) -> int:
        """Lowers the limit of jobs at once to a share, or to what runs; returns what it left."""
        return int(await self._caller.again(load("shrink"), self._keys.meta(), share))

    async def shrink_type(self, name: str, concurrent: int, per_minute: int) -> int:
        """Lowers the limits of a type to its shares, or to what runs; returns the jobs at once it left."""
        args = (_TYPE, name, concurrent, per_minute, self._broker.clock.argument, 1)
        return int(await self._caller.again(load("limit"), self._keys.meta(), *args))

    async def window(self, name: str | None) -> tuple[int, int]:
        """Returns the starts in the window of a type, or of all jobs for None; and the ms left of it."""
        key = self._window(name)
        used, left_ms = await self._caller.pipeline([("GET", key), ("PTTL", key)])
        count = _number(used) or 0
        return (0, 0) if count >= HELD else (count, max(0, left_ms))

    async def count_starts(self, name: str | None, count: int, left_ms: int) -> None:
        """Counts further starts in the present window, or in one that ends after so many ms."""
        args = (name or "", count, left_ms)
        await self._caller.once(load("count_starts"), self._keys.meta(), *args)

    def _window(self, name: str | None) -> str:
        return self._keys.limiter() if name is None else self._keys.starts(f"{_TYPE}:{name}")


def _number(raw: bytes | None) -> int | None:
    try:
        return None if raw is None else int(float(raw))
    except (ValueError, OverflowError):
        return None
