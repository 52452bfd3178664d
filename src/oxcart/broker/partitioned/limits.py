"""The limits of a partitioned queue: each partition has a share, so that the sum is the limit.

Partition 0 stores the limits themselves. One client at a time divides them, and any can continue. A claim
asks no other server, and the bound holds whatever a partition does. Partitions without new jobs have a share
of one; the others divide the rest. While more jobs run in a partition than its new share, others have fewer:
workers move the places over as jobs end (`settle`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.partitioned.marks import Mark, alone
from oxcart.broker.partitioned.shares import granted, seeds, shares
from oxcart.broker.port.parts import Limits
from oxcart.broker.port.results import LimitRules
from oxcart.broker.replies import pairs
from oxcart.model.partitions import Layout

#: The fields of the stored limits: that of a type begins with the last. A value is two numbers: how many at
#: once and 0, how many in how many ms, or how many at once and per minute. "0 0" is a limit under removal.
CONCURRENCY, RATE, TYPE = "concurrency", "rate", "t:"


class SpreadLimits(SpreadPart, Limits):
    """The limits of all partitions together."""

    def alone(self, *, waits: bool = True) -> AbstractAsyncContextManager[Mark | None]:
        """Keeps other clients from dividing limits and changing the layout; yields None if it does not."""
        return alone(self._spread, "ox:dividing", waits=waits)

    # -- the limits before they are divided

    async def _totals(self) -> dict[str, tuple[int, int]]:
        first = self._spread.broker(0)
        stored = pairs(await first.caller.command("HGETALL", first.keys.totals()))
        found = {}
        for field, value in stored.items():
            most, other = value.split()
            found[field.decode("utf-8", "surrogateescape")] = int(most), int(other)
        return found

    async def _store(self, field: str, most: int, other: int = 0) -> None:
        first = self._spread.broker(0)
        await first.caller.write("HSET", first.keys.totals(), field, f"{most} {other}")

    async def _forget(self, field: str) -> None:
        first = self._spread.broker(0)
        await first.caller.write("HDEL", first.keys.totals(), field)

    # -- division

    async def prepare(self, layout: Layout, *, strict: bool = True) -> None:
        """Divides the present limits for a new layout, before the layout is written. Called while `alone`.

        Args:
            layout: The new layout.
            strict: Refuse a limit that is too low. Otherwise each partition gets a share of one then: it has
                jobs that must run.

        Raises:
            ValidationError: A limit is lower than the number of partitions; nothing has changed.
        """
        many = max(layout.served, self._spread.layout.served)
        brokers = [self._spread.broker(number) for number in range(many)]
        await self._divide(brokers, layout, strict=strict)

    async def dismiss(self, layout: Layout, served: int) -> None:
        """Removes the shares of partitions that were given up, so that they can be used again."""
        for number in range(layout.served, served):
            limits = self._spread.broker(number).limits
            await limits.remove_concurrency()
            await limits.remove_rate()
            rules = await limits.rules()
            for name in rules.types:
                await limits.set_type(name, 0, 0)
            if any(rules.keys):
                await limits.set_keys(0, 0)

    async def settle(self) -> bool:
        """Moves shares to partitions that lack them, as jobs end; returns whether all have theirs."""
        brokers = await self._spread.current()
        if await self._divide(brokers, self._spread.layout, strict=False, writes=False):
            return True
        async with self.alone(waits=False) as mark:
            if mark is None:
                return False
            brokers = await self._spread.current()  # it may have changed before the mark
            return await self._divide(brokers, self._spread.layout, strict=False)

    async def _divide(
        self, brokers: Sequence[BullMQBroker], layout: Layout, *, strict: bool, writes: bool = True
    ) -> bool:
        """Gives the partitions their shares of all limits; returns whether all had them.

        A limit that only partitions have, because a peer set it there, is their sum.
        """
        served = self._spread.layout.served
        stored = await self._totals()
        present = await asyncio.gather(*(one.limits.concurrency() for one in brokers))
        rates = await asyncio.gather(*(one.limits.rate() for one in brokers))
        rules = await asyncio.gather(*(one.limits.rules() for one in brokers))
        types = [one.types for one in rules]
        wanted = {
            field: total for field, total in _sums_of(present, rates, types, served).items() if any(total)
        }
        wanted |= stored

        def own(total: int, field: str, rest: int = 1) -> list[int]:
            if not total:
                return [0] * len(brokers)
            found = shares(total if strict else max(total, layout.served), layout, field)
            return found + [rest] * (len(brokers) - layout.served)

        at_once = own(wanted.get(CONCURRENCY, (0, 0))[0], "concurrency", 0)
        starts, per_ms = own(wanted.get(RATE, (0, 0))[0], "rate"), wanted.get(RATE, (0, 0))[1]
        names = {field[len(TYPE) :] for field in wanted if field.startswith(TYPE)}
        names |= {name for one in types for name in one}
        of_type = {
            name: [own(one, f"limit of type {name}") for one in wanted.get(TYPE + name, (0, 0))]
            for name in sorted(names)
        }
        is_bounded, is_rated = any(at_once), any(starts)
        pending = [
            list(present) != (at_once if is_bounded else [None] * len(brokers)),
            list(rates) != ([(one, per_ms) for one in starts] if is_rated else [None] * len(brokers)),
            *(
                [one.get(name, (0, 0)) for one in types] != list(zip(*both, strict=True))
                for name, both in of_type.items()
            ),
            any(one.keys != rules[0].keys for one in rules),
            any(not any(total) for total in stored.values()),
        ]
        if not writes:
            return not any(pending)
        for field, total in wanted.items():
            if field not in stored:
                await self._store(field, *total)
        if pending[0]:
            await self._divide_concurrency(brokers, at_once, present)
        if pending[1]:
            await self._divide_rate(brokers, starts, per_ms, rates)
        for waits, (name, both) in zip(pending[2:], of_type.items(), strict=False):
            if waits:
                await self._divide_type(name, brokers, both[0], both[1], types)
        for broker, rule in zip(brokers, rules, strict=True):
            if rule.keys != rules[0].keys:
                await broker.limits.set_keys(*rules[0].keys)
        for field, total in stored.items():
            if not any(total):
                await self._forget(field)
        return not any(pending)

    async def _divide_concurrency(
        self, brokers: Sequence[BullMQBroker], own: Sequence[int], present: Sequence[int | None]
    ) -> None:
        """Writes shares of the jobs at once. Partitions shrink first, others get what that leaves.

        So the sum of shares, and of what runs, is never above the limit.
        """
        if not any(own):
            for broker, share in zip(brokers, present, strict=True):
                if share is not None:
                    await broker.limits.remove_concurrency()
            return
        left = await asyncio.gather(
            *(broker.limits.shrink(share) for broker, share in zip(brokers, own, strict=True))
        )
        found = granted(own, left)
        for number in sorted(range(len(own)), key=lambda number: found[number] > left[number]):
            if found[number] != left[number]:
                await brokers[number].limits.set_concurrency(found[number])

    async def _divide_rate(
        self,
        brokers: Sequence[BullMQBroker],
        own: Sequence[int],
        per_ms: int,
        rates: Sequence[tuple[int, int] | None],
    ) -> None:
        """Writes shares of the starts per time, those that shrink first."""
        if not any(own):
            for broker, rate in zip(brokers, rates, strict=True):
                if rate is not None:
                    await broker.limits.remove_rate()
            return
        present = [one[0] if one is not None and one[1] == per_ms else None for one in rates]
        await self._seed(brokers, own, present, None)
        for number in sorted(range(len(own)), key=lambda number: _grows(own[number], present[number])):
            if own[number] != present[number]:
                await brokers[number].limits.set_rate(own[number], per_ms)

    async def _seed(
        self,
        brokers: Sequence[BullMQBroker],
        own: Sequence[int],
        present: Sequence[int | None],
        name: str | None,
    ) -> None:
        """Counts starts of a window, of a type or of all jobs, in partitions that grow."""
        if not any(present):
            return  # a new limit: nothing was counted yet
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
        starts: Sequence[int],
        types: Sequence[dict[str, tuple[int, int]]],
    ) -> None:
        """Writes shares of the limits of a type. Partitions shrink first, others get what that leaves.

        A share of zero is no limit: a partition that has to wait for its places gets one of them at once.
        """
        before = [one.get(name) for one in types]
        if any(starts):
            await self._seed(brokers, starts, [one[1] if one else None for one in before], name)
        if any(own):
            least = [
                await broker.limits.shrink_type(name, *both)
                for broker, *both in zip(brokers, own, starts, strict=True)
            ]
            found = [max(1, share) for share in granted(own, least)]
        else:
            least = found = [0] * len(brokers)
        for number in sorted(range(len(own)), key=lambda number: found[number] > least[number]):
            if any(own) or before[number] is not None or starts[number]:
                await brokers[number].limits.set_type(name, found[number], starts[number])

    # -- settings

    async def set_concurrency(self, most: int) -> int:
        async with self.alone():
            brokers, layout = await self._spread.current(), self._spread.layout
            own = shares(most, layout)
            present = await asyncio.gather(*(one.limits.concurrency() for one in brokers))
            await self._store(CONCURRENCY, most)
            await self._divide_concurrency(brokers, own, present)
        return int(_total(present) is None)

    async def concurrency(self) -> int | None:
        most = (await self._totals()).get(CONCURRENCY)
        if most is not None:
            return most[0] or None
        return _total(await self._spread.each(lambda one: one.limits.concurrency()))

    async def remove_concurrency(self) -> int:
        async with self.alone():
            await self._store(CONCURRENCY, 0)
            found = await self._spread.anywhere(lambda one: one.limits.remove_concurrency())
            await self._forget(CONCURRENCY)
        return max(found.values())

    async def set_rate(self, most: int, duration_ms: int) -> int:
        async with self.alone():
            brokers, layout = await self._spread.current(), self._spread.layout
            own = shares(most, layout)
            rates = await asyncio.gather(*(one.limits.rate() for one in brokers))
            await self._store(RATE, most, duration_ms)
            await self._divide_rate(brokers, own, duration_ms, rates)
        return 2 * int(all(one is None for one in rates))

    async def rate(self) -> tuple[int, int] | None:
        stored = (await self._totals()).get(RATE)
        if stored is not None:
            return stored if stored[0] else None
        rates = [one for one in await self._spread.each(lambda one: one.limits.rate()) if one is not None]
        return (sum(most for most, _ in rates), rates[0][1]) if rates else None

    async def remove_rate(self) -> int:
        async with self.alone():
            await self._store(RATE, 0)
            found = await self._spread.anywhere(lambda one: one.limits.remove_rate())
            await self._forget(RATE)
        return max(found.values())

    async def hold(self, duration_ms: int) -> None:
        await self._spread.each(lambda one: one.limits.hold(duration_ms))

    async def release(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.release()))

    async def ttl_ms(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.ttl_ms()))

    async def wait_ms(self, most: int | None = None) -> int:
        return min(await self._spread.each(lambda one: one.limits.wait_ms(most)))

    async def set_type(self, name: str, concurrent: int, per_minute: int) -> None:
        async with self.alone():
            brokers, layout = await self._spread.current(), self._spread.layout
            none = [0] * layout.served
            at_once = shares(concurrent, layout, "concurrent") if concurrent else none
            starts = shares(per_minute, layout, "per_minute") if per_minute else none
            types = [one.types for one in await asyncio.gather(*(one.limits.rules() for one in brokers))]
            await self._store(TYPE + name, concurrent, per_minute)
            await self._divide_type(name, brokers, at_once, starts, types)
            if not concurrent and not per_minute:
                await self._forget(TYPE + name)

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
        for field, total in (await self._totals()).items():
            if field.startswith(TYPE):
                types[field[len(TYPE) :]] = total
        types = {name: total for name, total in types.items() if any(total)}
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


def _grows(share: int, present: int | None) -> bool:
    return present is None or share > present


def _sums_of(
    present: Sequence[int | None],
    rates: Sequence[tuple[int, int] | None],
    types: Sequence[dict[str, tuple[int, int]]],
    served: int,
) -> dict[str, tuple[int, int]]:
    """Returns the limits as the sums of the shares of the partitions that are served."""
    known = [one for one in rates[:served] if one is not None]
    found = {
        CONCURRENCY: (_total(present[:served]) or 0, 0),
        RATE: (sum(most for most, _ in known), known[0][1]) if known else (0, 0),
    }
    for name in {name for one in types[:served] for name in one}:
        both = [one.get(name, (0, 0)) for one in types[:served]]
        found[TYPE + name] = sum(one for one, _ in both), sum(one for _, one in both)
    return found
