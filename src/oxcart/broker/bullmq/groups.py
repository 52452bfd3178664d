"""The groups of a queue, which take turns (decision 121): their settings, their jobs, and how many there are.

The scripts that add and claim jobs let them take turns (``lua/parts/groups.lua``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.groups import Groups
from oxcart.broker.port.results import GroupSettings
from oxcart.broker.replies import text, texts

#: Notes that one call looks at, and running jobs that one pipeline reads.
STEP = 500


class _Stored(msgspec.Struct):
    """A group's settings as scripts store them."""

    c: float | None = None
    r: float | None = None
    w: float | None = None
    p: float | None = None


class _AllStored(msgspec.Struct):
    """The rules in ``ox:limits``, as far as they concern groups."""

    g: list[float] = []


class QueueGroups(QueuePart, Groups):
    """The groups of one queue."""

    async def set(
        self,
        group: str | None,
        *,
        concurrent: int | UnsetType | None = UNSET,
        per_minute: int | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
        paused: bool | UnsetType = UNSET,
    ) -> None:
        broker = self._broker
        given = tuple(map(_argument, (concurrent, per_minute, weight, paused)))
        kind = "a" if group is None else "g"
        meta = broker.keys.meta()
        await broker.caller.again(load("set_group"), meta, kind, group or "", *given, broker.clock.argument)

    async def settings(self, group: str | None) -> GroupSettings:
        broker, keys = self._broker, self._broker.keys
        if group is None:
            raw = await broker.caller.command("HGET", keys.meta(), "ox:limits")
            both = [int(number) for number in _read(raw, _AllStored).g[:2]]
            most, starts = both if len(both) == 2 else (0, 0)
            return GroupSettings(most, starts)
        raw = await broker.caller.command("HGET", keys.groups(), group)
        own = _read(raw, _Stored)
        concurrent, per_minute = (None if bound is None else int(bound) for bound in (own.c, own.r))
        return GroupSettings(concurrent, per_minute, own.w, own.p == 1)

    async def usage(self, group: str) -> tuple[int, int, int]:
        broker, keys, bucket = self._broker, self._broker.keys, f"g:{group}"
        waiting, started = await broker.caller.pipeline(
            [
                ("ZLEXCOUNT", keys.parked(), f"[{bucket}\n", f"({bucket}\x0b"),
                ("GET", keys.starts(bucket)),
            ]
        )
        running = await self._of_group(group, keys.active())
        return waiting, len(running), int(started or 0)

    async def page(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        broker = self._broker
        start = "" if after is None else f"g:{after}"
        found = await broker.caller.again(load("list_groups"), broker.keys.meta(), start, limit)
        return [(text(name), count) for name, count in zip(found[::2], found[1::2], strict=True)]

    async def jobs(self, group: str) -> AsyncIterator[list[str]]:
        broker, after = self._broker, b""
        while True:
            after, *ids = await broker.caller.again(
                load("group_jobs"), broker.keys.meta(), group, after, STEP
            )
            if ids:
                yield texts(ids)
            if not after:
                return

    async def ready(self, group: str) -> list[str]:
        keys = self._broker.keys
        return [
            job_id
            for key in (keys.wait(), keys.paused(), keys.active())
            for job_id in await self._of_group(group, key)
        ]

    async def _of_group(self, group: str, key: str) -> list[str]:
        """Returns the ids of a list whose jobs belong to a group."""
        broker, found = self._broker, []
        for start in range(0, 1_000_000, STEP):
            ids = texts(await broker.caller.command("LRANGE", key, start, start + STEP - 1))
            asked = [("HGET", broker.keys.job(job_id), "ox:group") for job_id in ids]
            groups = await broker.caller.pipeline(asked) if asked else []
            for job_id, own in zip(ids, groups, strict=True):
                if (text(own) if own is not None else "") == group:
                    found.append(job_id)
            if len(ids) < STEP:
                break
        return found


def _argument(value: Any) -> str | int | float:
    """Returns a setting as an argument of the script: empty to keep it, ``-`` to remove it."""
    if value is UNSET:
        return ""
    if value is None:
        return "-"
    return int(value) if isinstance(value, bool) else value


def _read(raw: bytes | None, kind: Any) -> Any:
    """Returns stored settings; the defaults if they cannot be read."""
    try:
        return kind() if raw is None else msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return kind()
