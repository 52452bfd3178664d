"""The limits of a partitioned queue: each partition has a share, so that the sum is the limit.

No call crosses servers, and the bound holds whatever a partition does. Partitions that get no new jobs have a
share of one; the others divide the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.port.parts import Limits
from oxcart.broker.port.results import LimitRules
from oxcart.model.errors import ValidationError
from oxcart.model.partitions import Layout

#: Writes a share in a partition.
Write = Callable[[BullMQBroker, int], Awaitable[object]]


def shares(total: int, layout: Layout, field: str = "most") -> list[int]:
    """Divides a limit among the partitions of a layout.

    Raises:
        ValidationError: It is lower than the number of partitions.
    """
    if total < layout.served:
        raise ValidationError(field, f"at least {layout.served}, one per partition of the queue", total)
    rest = total - (layout.served - layout.size)
    each, more = divmod(rest, layout.size)
    own = [each + (number < more) for number in range(layout.size)]
    return own + [1] * (layout.served - layout.size)


class SpreadLimits(SpreadPart, Limits):
    """The limits of all partitions together."""

    async def _divide(
        self, total: int, present: Sequence[int | None], write: Write, layout: Layout | None = None
    ) -> None:
        """Writes the shares of a limit, those that shrink first: the sum is never above both limits."""
        own = shares(total, layout or self._spread.layout)
        before = {number: many for number, many in enumerate(present) if many is not None}

        def grows(number: int) -> bool:
            return number in before and own[number] > before[number]

        for number in sorted(range(len(own)), key=grows):
            await write(self._spread.broker(number), own[number])

    async def prepare(self, layout: Layout) -> None:
        """Divides the present limits for a new layout, before the layout is written.

        Raises:
            ValidationError: A limit is lower than the number of partitions; nothing has changed.
        """
        present = await self._spread.each(lambda one: one.limits.concurrency())
        rates = await self._spread.each(lambda one: one.limits.rate())
        rules = await self.rules()
        concurrency = _total(present)
        rate = _total([None if one is None else one[0] for one in rates])
        for total, field in ((concurrency, "concurrency"), (rate, "rate")):
            if total is not None:
                shares(total, layout, field)
        for name, (concurrent, per_minute) in rules.types.items():
            for total in (concurrent, per_minute):
                if total:
                    shares(total, layout, f"limit of type {name}")
        if concurrency is not None:
            await self._divide(concurrency, present, lambda one, own: one.limits.set_concurrency(own), layout)
        if rate is not None:
            per_ms = next(one[1] for one in rates if one is not None)
            most = [None if one is None else one[0] for one in rates]
            await self._divide(rate, most, lambda one, own: one.limits.set_rate(own, per_ms), layout)
        for name, rule in rules.types.items():
            await self._set_type(name, *rule, layout)
        if any(rules.keys):
            for number in range(layout.served):
                await self._spread.broker(number).limits.set_keys(*rules.keys)

    async def set_concurrency(self, most: int) -> int:
        present = await self._spread.each(lambda one: one.limits.concurrency())
        await self._divide(most, present, lambda one, own: one.limits.set_concurrency(own))
        return int(_total(present) is None)

    async def concurrency(self) -> int | None:
        return _total(await self._spread.each(lambda one: one.limits.concurrency()))

    async def remove_concurrency(self) -> int:
        return max(await self._spread.each(lambda one: one.limits.remove_concurrency()))

    async def set_rate(self, most: int, duration_ms: int) -> int:
        rates = await self._spread.each(lambda one: one.limits.rate())
        present = [None if one is None else one[0] for one in rates]
        await self._divide(most, present, lambda one, own: one.limits.set_rate(own, duration_ms))
        return 2 * int(_total(present) is None)

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
        await self._spread.refresh()
        await self._set_type(name, concurrent, per_minute, self._spread.layout)

    async def set_keys(self, concurrent: int, per_minute: int) -> None:
        # Jobs of one key share a partition.
        await self._spread.each(lambda one: one.limits.set_keys(concurrent, per_minute))

    async def _set_type(self, name: str, concurrent: int, per_minute: int, layout: Layout) -> None:
        none = [0] * layout.served
        at_once = shares(concurrent, layout, "concurrent") if concurrent else none
        starts = shares(per_minute, layout, "per_minute") if per_minute else none
        for number in range(layout.served):
            limits = self._spread.broker(number).limits
            await limits.set_type(name, at_once[number], starts[number])

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
