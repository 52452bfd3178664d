"""``queue.groups``: groups of jobs that take turns, however many jobs each of them has.

    await mail.add("welcome", {"to": "…"}, group="tenant-42")
    await mail.groups.set_all(concurrent=5)                   # each group runs at most 5 jobs at once
    await mail.groups.set("tenant-7", weight=3)               # three jobs per round instead of one
    await mail.groups.pause("tenant-42")
    print(await mail.groups.usage("tenant-42"))
    print((await mail.groups.summary()).largest)              # the groups with the most waiting jobs

The jobs without a group are a group of their own, named "". docs/groups.md describes what peers see.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.port import groups as port
from oxcart.broker.port.codes import Code
from oxcart.broker.port.results import CancelCode, GroupSettings, GroupSummary
from oxcart.model.errors import JobError, ValidationError
from oxcart.model.metadata import check_limit_key

if TYPE_CHECKING:
    from oxcart.queue import Queue

#: The highest limit of a group, and the bounds of its weight.
MOST, LIGHTEST, HEAVIEST = 1_000_000_000, 0.001, 1000


class GroupUsage(msgspec.Struct, frozen=True):
    """The present jobs of a group.

    Attributes:
        waiting: Jobs that wait for the group's turn; removed ones count until a worker meets their place.
        running: Jobs that a worker runs.
        started: Jobs that were let through in the present minute; counted if that is limited.
    """

    waiting: int
    running: int
    started: int


class Groups:
    """The groups of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set(
        self,
        group: str,
        *,
        concurrent: int | UnsetType | None = UNSET,
        per_minute: int | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> None:
        """Changes the settings of one group. What is left out stays as it is.

        Args:
            group: The group; "" for the jobs without one.
            concurrent: How many of its jobs may run at once; 0 for unlimited, None for that of all.
            per_minute: How many may start in a minute, in the same way. Minutes are fixed windows.
            weight: How many jobs it may have per round, 0.001 to 1000; None for 1.

        Raises:
            ValidationError: One of them is out of bounds.
        """
        for field, most in (("concurrent", concurrent), ("per_minute", per_minute)):
            _bound(most, field)
        if weight is not UNSET and weight is not None:
            _weight(weight)
        await self._store.set(_group(group), concurrent=concurrent, per_minute=per_minute, weight=weight)

    async def set_all(
        self, *, concurrent: int | UnsetType | None = UNSET, per_minute: int | UnsetType | None = UNSET
    ) -> None:
        """Changes the limits of every group without its own. What is left out stays as it is.

        Args:
            concurrent: How many jobs of a group may run at once; None for unlimited.
            per_minute: How many may start in a minute; None for unlimited.

        Raises:
            ValidationError: One of them is out of bounds.
        """
        for field, most in (("concurrent", concurrent), ("per_minute", per_minute)):
            _bound(most, field)
        await self._store.set(None, concurrent=concurrent, per_minute=per_minute)

    async def settings(self, group: str | None = None) -> GroupSettings:
        """Returns the settings of one group, or for None the limits of every group without its own."""
        return await self._store.settings(None if group is None else _group(group))

    async def pause(self, group: str) -> None:
        """Lets no further job of a group through. Those that run, or that are let through, continue."""
        await self._store.set(_group(group), paused=True)

    async def resume(self, group: str) -> None:
        """Lets a paused group take turns again."""
        await self._store.set(_group(group), paused=False)

    async def usage(self, group: str) -> GroupUsage:
        """Returns how many jobs of a group wait, run, and started in the present minute."""
        return GroupUsage(*await self._store.usage(_group(group)))

    async def summary(self) -> GroupSummary:
        """Returns the waiting groups in a few numbers, and the largest of them.

        The server runs at most about 370 short commands for it, however many groups there are.
        """
        return await self._store.summary()

    async def list(self, *, after: str | None = None, limit: int = 100) -> dict[str, int]:
        """Returns groups with waiting jobs in the order of their names, and how many each has.

        Args:
            after: The group after which to begin: the last one of the page before.
            limit: How many to return, at most 1000.
        """
        if type(limit) is not int or not 1 <= limit <= 1000:
            raise ValidationError("limit", "an integer from 1 to 1000", limit)
        return dict(await self._store.page(None if after is None else _group(after), limit))

    async def clear(self, group: str) -> int:
        """Removes the jobs that wait for a group's turn; returns how many. Running and delayed ones stay."""
        removed, broker = 0, self._queue._core.broker
        async for ids in self._store.jobs(_group(group)):
            done = await asyncio.gather(*map(broker.remove_job, ids), return_exceptions=True)
            for fault in done:
                if fault is None:
                    removed += 1
                elif not isinstance(fault, JobError):  # else the job has gone another way meanwhile
                    raise fault
        return removed

    async def cancel(self, group: str, reason: str = "", *, force: bool = False) -> int:
        """Cancels the waiting and the running jobs of a group; delayed ones stay.

        Args:
            group: The group; "" for the jobs without one.
            reason: The reason, for the jobs' records and their handlers.
            force: Whether to end running jobs at once, whatever their workers do.

        Returns:
            How many were cancelled, or their workers asked to stop them.
        """
        core = self._queue._core
        cancelling = core.part(core.broker.cancelling, "cancelling")
        done = 0
        async for ids in self._store.jobs(_group(group)):
            done += _accepted(await cancelling.cancel(ids, reason, force=force))
        ready = await self._store.ready(group)
        if ready:
            done += _accepted(await cancelling.cancel(ready, reason, force=force))
        return done

    @property
    def _store(self) -> port.Groups:
        core = self._queue._core
        return core.part(core.broker.groups, "groups")


def _accepted(codes: Sequence[Code]) -> int:
    return codes.count(CancelCode.CANCELLED) + codes.count(CancelCode.ASKED)


def _group(group: str) -> str:
    return group if group == "" else check_limit_key(group, "group")


def _bound(most: int | UnsetType | None, field: str) -> None:
    if most is UNSET or most is None:
        return
    if type(most) is not int or not 0 <= most <= MOST:
        raise ValidationError(field, f"an integer from 0 to {MOST}", most)


def _weight(weight: float | UnsetType) -> None:
    numeric = isinstance(weight, (int, float)) and not isinstance(weight, bool) and math.isfinite(weight)
    if not numeric or not LIGHTEST <= weight <= HEAVIEST:  # type: ignore[operator]
        raise ValidationError("weight", f"a number from {LIGHTEST} to {HEAVIEST}", weight)
