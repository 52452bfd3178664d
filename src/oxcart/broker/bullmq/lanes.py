"""The lanes of a queue: which there are, what is in them, and what must be looked after.

A lane is a queue of its own, named after what its jobs ask of a worker (docs/decisions/60). Adding to one
notes it with the queue that it belongs to; this is what reads those notes.

May touch: the server, through its queue's broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.port import Outage
from oxcart.model.target import split_lane

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker
    from oxcart.model.job import Job

#: Lanes that one step of a tick looks at: about half a millisecond of the server's time.
STEP = 50
#: Ids that one call looks for; and where there are too many lanes for that, ids and keys.
FIND = 100
FIND_FEW, FIND_KEYS = 20, 1_000
#: Notes of custom ids that one step of a sweep looks at.
NOTES = 100
#: Lanes that one step of a count looks at.
COUNT = 100
#: For how many ms a tick keeps others from making one.
GUARD = 950
#: After how many ms an empty lane is removed.
IDLE = 60_000
#: Keys that one step of the scan for lanes of peers looks at.
SCAN = 500

_STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")


class Tended(msgspec.Struct):
    """What a tick found to do.

    Attributes:
        ran: False where another worker made it just now.
        expired: Lanes with jobs whose lifetimes are over.
        gated: Lanes whose jobs wait for others.
        busy: Lanes with active jobs.
    """

    ran: bool
    expired: list[str] = []
    gated: list[str] = []
    busy: list[str] = []


class LaneStore:
    """The lanes of one queue. A lane has none of its own."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._open: dict[str, BullMQBroker] = {}

    def open(self, lane: str) -> BullMQBroker:
        """The broker of a lane, on the queue's connection."""
        found = self._open.get(lane)
        if found is None:
            found = self._open[lane] = self._broker.open_lane(lane)
        return found

    async def names(self) -> list[str]:
        """The lanes, by their names within the queue."""
        if self._broker.lane is not None:
            return []
        return _texts(await self._broker.caller.command("ZRANGE", self._broker.keys.lanes(), 0, -1))

    async def brokers(self) -> list[BullMQBroker]:
        """The queue itself and all of its lanes."""
        return [self._broker, *(self.open(lane) for lane in await self.names())]

    async def look(self) -> tuple[int, list[str], list[str]]:
        """A number that grows with every lane that comes or goes, the ready lanes, and the busy ones."""
        broker = self._broker
        version, ready, busy = await broker.caller.pipeline(
            [
                ("GET", broker.keys.lanes_version()),
                ("SMEMBERS", broker.keys.ready_lanes()),
                ("SMEMBERS", broker.keys.busy_lanes()),
            ]
        )
        return int(version or 0), _texts(ready), _texts(busy)

    async def enter(self, lane: str) -> bool:
        """Notes a lane that a peer has made; says whether it was not known."""
        broker = self._broker
        return bool(await broker.caller.again(load("enter_lane"), broker.keys.meta(), lane))

    async def tend(
        self,
        *,
        recovers: bool = True,
        guard_ms: int = GUARD,
        idle_ms: int = IDLE,
        outage: Outage | None = None,
    ) -> Tended:
        """Looks after all lanes, in steps, unless another worker did so just now.

        Args:
            recovers: Whether this worker also takes back jobs of lost ones. One that does not keeps none out
                that does.
            guard_ms: For how many ms it keeps others from doing the same.
            idle_ms: After how many ms an empty lane is removed.
            outage: After which silence the server counts as having been away; None to give no sign of life.
        """
        silence: int | str = "" if outage is None else outage.silence_ms
        broker, done = self._broker, Tended(True)
        at: int | str = ""
        while True:
            args = (broker.clock.argument, at, STEP, guard_ms, idle_ms, int(recovers), silence)
            at, expired, gated, busy = await broker.caller.again(
                load("tend_lanes"), broker.keys.meta(), *args
            )
            if at == -2:
                return Tended(False)
            done.expired += _texts(expired)
            done.gated += _texts(gated)
            done.busy += _texts(busy)
            if at == -1:
                return done

    async def sweep_ids(self, cursor: str) -> tuple[str, int]:
        """Drops notes of custom ids whose jobs are gone, in one step.

        Returns:
            The next cursor (``0`` at the end), and how many were dropped.
        """
        broker = self._broker
        raw, dropped = await broker.caller.again(load("sweep_ids"), broker.keys.meta(), cursor, NOTES)
        return raw.decode(), dropped

    async def scan(self, cursor: str) -> tuple[str, list[str]]:
        """One step through the keys of the server: the next cursor (``0`` at the end), and lanes it met."""
        keys = self._broker.keys
        pattern = f"{glob_escape(keys.base)}@*:id"
        raw, found = await self._broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN, "TYPE", "string"
        )
        lanes = []
        for key in _texts(found):
            name = key[len(keys.base) : -len(":id")]
            base, lane = split_lane(f"{self._broker.queue}{name}") if ":" not in name else ("", None)
            if lane is not None and base == self._broker.queue:
                lanes.append(lane)
        return raw.decode(), lanes

    async def counts(self) -> dict[str, dict[str, int]]:
        """How many jobs of each lane are in each wire state."""
        broker, names = self._broker, await self.names()
        found: dict[str, dict[str, int]] = {}
        for at in range(0, len(names), COUNT):
            part = names[at : at + COUNT]
            flat = iter(await broker.caller.again(load("count_lanes"), broker.keys.meta(), *part))
            found |= {lane: dict(zip(_STATES, islice(flat, len(_STATES)), strict=True)) for lane in part}
        return found

    async def page(self, states: Sequence[str], first: int, limit: int, *, oldest: bool = False) -> list[Job]:
        """Reads jobs of some wire states, from lane to lane behind those of the queue itself."""
        names = await self.names()
        if not names:
            return []
        own = await self._broker.counts()
        rows = await self.counts()
        skip = max(0, first - sum(own[state] for state in states))
        found: list[Job] = []
        for lane in names:
            for state in states:
                count = rows.get(lane, {}).get(state, 0)
                if skip < count and len(found) < limit:
                    last = skip + limit - len(found) - 1
                    found += await self.open(lane).page(state, skip, last, oldest=oldest)
                skip = max(0, skip - count)
        return found

    async def forget(self) -> None:
        """Drops the notes of lanes, when all of them are gone."""
        keys = self._broker.keys
        notes = (keys.lanes(), keys.ready_lanes(), keys.busy_lanes(), keys.lanes_tended(), keys.lane_ids())
        await self._broker.caller.command("UNLINK", *notes, keys.lanes_version())
        self._open.clear()

    async def holder(self, job_id: str) -> BullMQBroker | None:
        """The lane that has a job, or None."""
        return (await self.holders([job_id]))[0]

    async def holding(self, job_ids: Sequence[str], places: Sequence[int]) -> dict[BullMQBroker, list[int]]:
        """The lanes that have some of the jobs, given by their places, each with the places of its own."""
        held: dict[BullMQBroker, list[int]] = {}
        for place, lane in zip(places, await self.holders([job_ids[i] for i in places]), strict=True):
            if lane is not None:
                held.setdefault(lane, []).append(place)
        return held

    async def holders(self, job_ids: Sequence[str]) -> list[BullMQBroker | None]:
        """The lanes that have these jobs."""
        broker = self._broker
        if not job_ids or broker.lane is not None:
            return [None] * len(job_ids)
        script, meta, found = load("find_in_lanes"), broker.keys.meta(), []
        for at in range(0, len(job_ids), FIND):
            part = job_ids[at : at + FIND]
            found += await broker.caller.again(script, meta, len(part), *part)
        lanes: list[str | None] = [_text(raw) if raw else None for raw in found]
        left = [place for place, raw in enumerate(found) if raw == 0]
        if left:
            for place, lane in zip(left, await self._search([job_ids[i] for i in left]), strict=True):
                lanes[place] = lane
        return [self.open(lane) if lane else None for lane in lanes]

    async def _search(self, job_ids: Sequence[str]) -> list[str | None]:
        """As ``holders`` where there are very many lanes: looks through some of them at a time."""
        broker, names = self._broker, await self.names()
        found: dict[str, str] = {}
        for at in range(0, len(job_ids), FIND_FEW):
            left, first = list(job_ids[at : at + FIND_FEW]), 0
            while left and first < len(names):
                lanes = names[first : first + FIND_KEYS // len(left)]
                first += len(lanes)
                answer = await broker.caller.again(
                    load("find_in_lanes"), broker.keys.meta(), len(left), *left, *lanes
                )
                found.update((one, _text(raw)) for one, raw in zip(left, answer, strict=True) if raw)
                left = [job_id for job_id in left if job_id not in found]
        return [found.get(job_id) for job_id in job_ids]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _texts(raw: Sequence[Any]) -> list[str]:
    return [_text(one) for one in raw]
