"""The limits of a partitioned queue: each partition has a share, so that the sum is the limit.

No call crosses servers, and the bound holds whatever a partition does. Partitions that get no new jobs have a
share of one; the others divide the rest. While more jobs run in a partition than its new share, others have
fewer: workers move the places over as jobs end (`settle`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.ids import new_id
from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.partitioned.shares import divided, seeds, shares
from oxcart.broker.port.parts import Limits
from oxcart.broker.port.results import LimitRules
from oxcart.model.partitions import Layout

#: Writes a share in a partition.
Write = Callable[[BullMQBroker, int], Awaitable[object]]
#: Ms after which the mark of a client that changes shares ends by itself.
ALONE_MS = 5000
#: Seconds between attempts to set it.
AGAIN = 0.05


class SpreadLimits(SpreadPart, Limits):
    """The limits of all partitions together."""

    @contextlib.asynccontextmanager
    async def _alone(self, *, waits: bool = True) -> AsyncIterator[bool]:
        """Keeps other clients from changing shares: two at once would change their sum.

        Yields whether it does. A client that was killed keeps others out for five seconds at most.
        """
        first = self._spread.broker(0)
        key, token, end = first.keys.dividing(), new_id(), time.monotonic() + 1.5 * ALONE_MS / 1000
        while True:
            marked = await first.caller.write("SET", key, token, "NX", "PX", ALONE_MS) is not None
            if marked or not waits or time.monotonic() > end:
                break
            await asyncio.sleep(AGAIN)
        try:
            yield marked
        finally:
            if marked:
                await first.caller.write("DEL", key)

    async def _divide(
        self,
        own: Sequence[int],
        present: Sequence[int | None],
        write: Write,
        running: Sequence[int] | None = None,
        least: int = 0,
    ) -> None:
        """Writes the shares of a limit, those that shrink first: the sum is never above both limits."""
        if running is not None:
            own = divided(own, present, running, least)

        def grows(number: int) -> bool:
            now = present[number]
            return now is None or own[number] > now

        for number in sorted(range(len(own)), key=grows):
            if own[number] != present[number]:
                await write(self._spread.broker(number), own[number])

    async def _brokers(self, layout: Layout) -> list[BullMQBroker]:
        """Returns the brokers of the partitions of a new layout and of the present one."""
        many = max(layout.served, self._spread.layout.served)
        return [self._spread.broker(number) for number in range(many)]

    async def prepare(self, layout: Layout) -> None:
        """Divides the present limits for a new layout, before the layout is written.

        Raises:
            ValidationError: A limit is lower than the number of partitions; nothing has changed.
        """
        async with self._alone():
            await self._prepare(layout)

    async def _prepare(self, layout: Layout) -> None:
        brokers = await self._brokers(layout)
        now = self._spread.layout.served

        def known(found: Sequence[int | None]) -> list[int | None]:
            """Without what partitions that were given up still have."""
            return [one if number < now else None for number, one in enumerate(found)]

        def own(total: int, field: str, rest: int) -> list[int]:
            return shares(total, layout, field) + [rest] * (len(brokers) - layout.served)

        present = known(await asyncio.gather(*(one.limits.concurrency() for one in brokers)))
        rates = await asyncio.gather(*(one.limits.rate() for one in brokers))
        most = known([None if one is None else one[0] for one in rates])
        found = await asyncio.gather(*(one.limits.rules() for one in brokers))
        rules, keys = [one.types for one in found], found[0].keys
        concurrency, rate = _total(present), _total(most)
        at_once = None if concurrency is None else own(concurrency, "concurrency", 0)
        starts = None if rate is None else own(rate, "rate", 1)
        types: dict[str, tuple[list[list[int | None]], list[list[int]]]] = {}
        for name in sorted({name for one in rules[:now] for name in one}):
            pairs = [one.get(name) for one in rules]
            before = [known([None if pair is None else pair[at] for pair in pairs]) for at in (0, 1)]
            field = f"limit of type {name}"
            after = [
                own(total, field, 1) if (total := _total(part) or 0) else [0] * len(brokers)
                for part in before
            ]
            types[name] = before, after
        if at_once is not None:
            running = await asyncio.gather(*(one.limits.running() for one in brokers))
            await self._divide(
                at_once, present, lambda one, share: one.limits.set_concurrency(share), running
            )
        if starts is not None:
            per_ms = next(one[1] for one in rates if one is not None)
            await self._seed(brokers, starts, most, None)
            await self._divide(starts, most, lambda one, share: one.limits.set_rate(share, per_ms))
        for name, (before, after) in types.items():
            if any(after[1]):
                await self._seed(brokers, after[1], before[1], name)
            await self._divide_type(name, brokers, after[0], before[0], after[1])
        for number, one in enumerate(found):
            if one.keys != keys:
                await brokers[number].limits.set_keys(*keys)
        await self._clear(brokers[now:] if concurrency is None else brokers[layout.served :], "concurrency")
        await self._clear(brokers[now:] if rate is None else brokers[layout.served :], "rate")
        for number in range(now, len(brokers)):
            for name in rules[number]:
                if name not in types:
                    await brokers[number].limits.set_type(name, 0, 0)

    async def _clear(self, brokers: Sequence[BullMQBroker], field: str) -> None:
        """Removes a limit of partitions that were given up: it would bound them when they are used again."""
        for one in brokers:
            if field == "rate":
                await one.limits.remove_rate()
            else:
                await one.limits.remove_concurrency()

    async def _seed(
        self,
        brokers: Sequence[BullMQBroker],
        own: Sequence[int],
        present: Sequence[int | None],
        name: str | None,
    ) -> None:
        """Counts starts of a window, of a type or of all jobs, in partitions that grow."""
        windows = await asyncio.gather(*(one.limits.window(name) for one in brokers))
        left_ms = max(left for _, left in windows)
        counts = seeds(own, present, [used for used, _ in windows]) if left_ms > 0 else []
        for broker, count in zip(brokers, counts, strict=False):
            if count:
                await broker.limits.count_starts(name, count, left_ms)

    async def _divide_type(
        self,
        name: str,
        brokers: Sequence[BullMQBroker],
        own: Sequence[int],
        present: Sequence[int | None],
        starts: Sequence[int],
    ) -> None:
        """Writes the shares of the limits of a type, those that shrink first.

        A share of zero is no limit: a partition that has to wait for its places gets one of them at once.
        """
        if any(own):
            usage = await asyncio.gather(*(one.limits.usage_of_type(name) for one in brokers))
            own = divided(own, present, [running for running, _, _ in usage], 1)

        def grows(number: int) -> bool:
            before = present[number]
            return bool(before is None or (before and not own[number]) or own[number] > before > 0)

        for number in sorted(range(len(own)), key=grows):
            await brokers[number].limits.set_type(name, own[number], starts[number])

    async def settle(self) -> bool:
        """Moves shares to partitions that lack them, as jobs end; returns whether all have theirs."""
        brokers, layout = await self._spread.current(), self._spread.layout
        if await self._settled(brokers, layout, writes=False):
            return True
        async with self._alone(waits=False) as alone:
            return alone and await self._settled(brokers, layout, writes=True)

    async def _settled(self, brokers: Sequence[BullMQBroker], layout: Layout, *, writes: bool) -> bool:
        present = await asyncio.gather(*(one.limits.concurrency() for one in brokers))
        total, done = _total(present), True
        if total is not None and total >= layout.served:
            own = shares(total, layout)
            done = list(present) == own
            if writes and not done:
                running = await asyncio.gather(*(one.limits.running() for one in brokers))
                await self._divide(
                    own, present, lambda one, share: one.limits.set_concurrency(share), running
                )
        rules = [one.types for one in await asyncio.gather(*(one.limits.rules() for one in brokers))]
        for name in sorted({name for one in rules for name in one}):
            pairs = [one.get(name, (0, 0)) for one in rules]
            at_once: list[int | None] = [pair[0] for pair in pairs]
            most = _total(at_once) or 0
            if most < layout.served or not all(at_once):
                continue
            own = shares(most, layout)
            if at_once != own:
                done = False
                if writes:
                    await self._divide_type(name, brokers, own, at_once, [pair[1] for pair in pairs])
        return done

    async def set_concurrency(self, most: int) -> int:
        brokers, layout = await self._spread.current(), self._spread.layout
        own = shares(most, layout)
        async with self._alone():
            present = await asyncio.gather(*(one.limits.concurrency() for one in brokers))
            running = await asyncio.gather(*(one.limits.running() for one in brokers))
            await self._divide(own, present, lambda one, share: one.limits.set_concurrency(share), running)
        return int(_total(present) is None)

    async def concurrency(self) -> int | None:
        return _total(await self._spread.each(lambda one: one.limits.concurrency()))

    async def remove_concurrency(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.remove_concurrency()))

    async def set_rate(self, most: int, duration_ms: int) -> int:
        brokers, layout = await self._spread.current(), self._spread.layout
        own = shares(most, layout)
        async with self._alone():
            rates = await asyncio.gather(*(one.limits.rate() for one in brokers))
            present = [one[0] if one is not None and one[1] == duration_ms else None for one in rates]
            await self._divide(own, present, lambda one, share: one.limits.set_rate(share, duration_ms))
        return 2 * int(all(one is None for one in rates))

    async def rate(self) -> tuple[int, int] | None:
        rates = [one for one in await self._spread.each(lambda one: one.limits.rate()) if one is not None]
        return (sum(most for most, _ in rates), rates[0][1]) if rates else None

    async def remove_rate(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.remove_rate()))

    async def hold(self, duration_ms: int) -> None:
        await self._spread.each(lambda one: one.limits.hold(duration_ms))

    async def release(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.release()))

    async def ttl_ms(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.ttl_ms()))

    async def wait_ms(self, most: int | None = None) -> int:
        return min(await self._spread.each(lambda one: one.limits.wait_ms(most)))

    async def set_type(self, name: str, concurrent: int, per_minute: int) -> None:
        brokers, layout = await self._spread.current(), self._spread.layout
        none = [0] * layout.served
        at_once = shares(concurrent, layout, "concurrent") if concurrent else none
        starts = shares(per_minute, layout, "per_minute") if per_minute else none
        async with self._alone():
            rules = await asyncio.gather(*(one.limits.rules() for one in brokers))
            present = [pair[0] if (pair := one.types.get(name)) else None for one in rules]
            await self._divide_type(name, brokers, at_once, present, starts)

    async def set_keys(self, concurrent: int, per_minute: int) -> None:
        # Jobs of one key share a partition.
        await self._spread.each(lambda one: one.limits.set_keys(concurrent, per_minute))

    async def rules(self) -> LimitRules:
        parts = await self._spread.each(lambda one: one.limits.rules())
        types: dict[str, tuple[int, int]] = {}
        for part in parts:
            for name, (concurrent, per_minute) in part.types.items():
                before = types.get(name, (0, 0))
                types[name] = before[0] + concurrent, before[1] + per_minute
        return LimitRules(types, parts[0].keys)

    async def usage_of_type(self, name: str) -> tuple[int, int, int]:
        return _sums(await self._spread.each(lambda one: one.limits.usage_of_type(name)))

    async def usage_of_keys(self, key: str | None) -> tuple[int, int, int]:
        return _sums(await self._spread.each(lambda one: one.limits.usage_of_keys(key)))


def _sums(parts: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    running, held_back, started = map(sum, zip(*parts, strict=True))
    return running, held_back, started


def _total(present: Sequence[int | None]) -> int | None:
    known = [one for one in present if one is not None]
    return sum(known) if known else None
