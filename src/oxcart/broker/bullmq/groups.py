"""The groups of a queue, which take turns (decision 121): their settings, their jobs, and how many there are.

The scripts that add and claim jobs let them take turns (``lua/parts/groups.lua``).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.groups import Groups
from oxcart.broker.port.results import GroupSettings, GroupSummary
from oxcart.broker.replies import text, texts

#: Notes that one call looks at, and running jobs that one pipeline reads.
STEP = 500
#: Groups that a summary looks at one by one; with more it draws so many waiting jobs at random.
WALKED, DRAWN = 100, 64
#: The largest groups that a summary names.
NAMED = 20
#: How long a job may wait for its turn before a peer promotes it, and the scores of one ms in ``delayed``.
DAY_MS, TICK = 86_400_000, 4096
#: Jobs that go in front of their group count their place down from here.
FRONT = 9_007_199_254_740_991


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
                ("ZLEXCOUNT", keys.parked(), *_range(group)),
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

    async def summary(self) -> GroupSummary:
        broker, parked = self._broker, self._broker.keys.parked()
        before, waiting, turns = await broker.caller.pipeline(
            [
                ("ZLEXCOUNT", parked, "-", "(g:"),
                ("ZLEXCOUNT", parked, "[g:", "(g;"),
                ("ZCARD", broker.keys.turns()),
            ]
        )
        if not waiting:
            return GroupSummary()
        rows = await self.page(None, WALKED + 1)
        if exact := len(rows) <= WALKED:
            groups = len(rows)
        else:
            groups, rows = max(turns, len(rows)), await self._drawn(before, waiting)
        ages = await self._ages(name for name, _ in rows)
        largest = dict(sorted(rows, key=lambda row: (-row[1], row[0]))[:NAMED])
        return GroupSummary(groups, waiting, largest, max(ages, default=0), exact)

    async def _drawn(self, before: int, waiting: int) -> list[tuple[str, int]]:
        """Returns the groups of some random waiting jobs; one with many jobs is likely among them."""
        caller, parked = self._broker.caller, self._broker.keys.parked()
        ranks = [before + rank for rank in random.sample(range(waiting), min(DRAWN, waiting))]
        found = await caller.pipeline([("ZRANGE", parked, rank, rank) for rank in ranks])
        drawn = {note[0].partition(b"\n")[0] for note in found if note}
        names = [text(bucket[2:]) for bucket in drawn if bucket.startswith(b"g:")]
        counts = await caller.pipeline([("ZLEXCOUNT", parked, *_range(name)) for name in names])
        return list(zip(names, counts, strict=True))

    async def _ages(self, names: Iterable[str]) -> list[int]:
        """Returns for how many ms the next job of each group has waited."""
        broker, parked = self._broker, self._broker.keys.parked()
        asked = [("ZRANGEBYLEX", parked, *_range(name), "LIMIT", 0, 1) for name in names]
        now, found = await broker.now(), await broker.caller.pipeline(asked)
        since = [_parked_at(note[0]) for note in found if note]
        return [max(now - at, 0) for at in since if at is not None]

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


def _range(group: str) -> tuple[str, str]:
    """Returns the bounds of a group's notes in ``ox:parked``."""
    return f"[g:{group}\n", f"(g:{group}\x0b"


def _parked_at(note: bytes) -> int | None:
    """Returns since when a job waits, in ms, from the order in its note (``lua/parts/groups.lua``)."""
    order = note.partition(b"\n")[2]
    if not order[11:27].isdigit():
        return None
    place = int(order[11:27])
    return (FRONT - place if order[10:11] == b"0" else place) // TICK - DAY_MS


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
