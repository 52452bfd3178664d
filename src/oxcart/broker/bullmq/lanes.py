"""The lanes of a queue: their names, their jobs and their maintenance.

A lane is a queue of its own, named after the target of its jobs (docs/decisions/60). An add to
a lane registers it with its base queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.event_codec import decode_event
from oxcart.broker.port import Outage
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.lanes import Lanes
from oxcart.broker.port.results import Tended
from oxcart.broker.port.streams import LanePlace
from oxcart.broker.replies import pairs, text, texts
from oxcart.model.target import Abilities, Target, parse_lane, split_lane

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker
    from oxcart.model.event import Event
    from oxcart.model.job import Job

#: Lanes that one step of a tick checks: about half a millisecond of server time.
STEP = 50
#: Ids that one call looks up; with too many lanes for that, ids and keys.
FIND = 100
FIND_FEW, FIND_KEYS = 20, 1_000
#: Entries of custom ids that one step of a sweep checks.
NOTES = 100
#: Lanes that one step of a count reads.
COUNT = 100
#: Events that one read takes of each lane at most.
EVENTS = 500
#: For how many ms a tick keeps others from making one.
GUARD = 950
#: After how many ms an empty lane is removed.
IDLE = 60_000
#: Keys that one step of the scan for lanes of peers looks at.
SCAN = 500


class QueueLanes(Lanes):
    """The lanes of one queue. A lane has none of its own."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._open: dict[str, BullMQBroker] = {}

    def open(self, lane: str) -> BullMQBroker:
        found = self._open.get(lane)
        if found is None:
            found = self._open[lane] = self._broker.open_lane(lane)
        return found

    async def names(self) -> list[str]:
        if self._broker.lane is not None:
            return []
        return texts(await self._broker.caller.command("ZRANGE", self._broker.keys.lanes(), 0, -1))

    async def brokers(self) -> list[BullMQBroker]:
        """Returns the brokers of the queue itself and of all its lanes."""
        return [self._broker, *(self.open(lane) for lane in await self.names())]

    async def look(self) -> tuple[int, list[str], list[str]]:
        broker = self._broker
        version, ready, busy = await broker.caller.pipeline(
            [
                ("GET", broker.keys.lanes_version()),
                ("SMEMBERS", broker.keys.ready_lanes()),
                ("SMEMBERS", broker.keys.busy_lanes()),
            ]
        )
        return int(version or 0), texts(ready), texts(busy)

    async def enter(self, lane: str) -> bool:
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
            done.expired += texts(expired)
            done.gated += texts(gated)
            done.busy += texts(busy)
            if at == -1:
                return done

    async def sweep_ids(self, cursor: str) -> tuple[str, int]:
        broker = self._broker
        raw, dropped = await broker.caller.again(load("sweep_ids"), broker.keys.meta(), cursor, NOTES)
        return raw.decode(), dropped

    def target_of(self, lane: str) -> Target | None:
        """Returns the target of a lane's jobs; None if the name cannot be parsed."""
        read = parse_lane(f"{self._broker.base}@{lane}")
        return None if read is None else read[1]

    def fits(self, lane: str, abilities: Abilities) -> bool:
        """Returns whether a worker may take jobs of a lane; a name that cannot be parsed fits none."""
        target = self.target_of(lane)
        return target is not None and target.matches(abilities)

    def wake_key(self, worker_id: str) -> bytes:
        return self._broker.keys.wake(worker_id).encode()

    async def wake(self, worker_id: str) -> None:
        await self._broker.caller.write("ZADD", self.wake_key(worker_id), 0, "")

    async def versions(self, queues: Sequence[Lanes]) -> list[int]:
        keys = [one.version_key for one in queues if isinstance(one, QueueLanes)]
        return [int(raw or 0) for raw in await self._broker.caller.command("MGET", *keys)]

    @property
    def version_key(self) -> str:
        """The key of the number that grows with every new or removed lane."""
        return self._broker.keys.lanes_version()

    async def scan(self, cursor: str, queues: Sequence[Lanes]) -> tuple[str, list[tuple[int, str]]]:
        keys = self._broker.keys
        start = keys.base if len(queues) == 1 else f"{keys.prefix}:"
        pattern = f"{glob_escape(start)}{'' if len(queues) == 1 else '*'}@*:id"
        raw, found = await self._broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN, "TYPE", "string"
        )
        places = {
            one._broker.keys.base: (place, one._broker.queue)
            for place, one in enumerate(queues)
            if found and isinstance(one, QueueLanes)
        }
        lanes = []
        for key in texts(found):
            name = key.removesuffix(":id")
            at = name.find("@", len(start))
            while at >= 0:
                place, queue = places.get(name[:at], (-1, ""))
                base, lane = (
                    split_lane(f"{queue}{name[at:]}") if queue and ":" not in name[at:] else ("", None)
                )
                if lane is not None and base == queue:
                    lanes.append((place, lane))
                at = name.find("@", at + 1)
        return raw.decode(), lanes

    async def read_events(self, after: LanePlace) -> list[tuple[LanePlace, Event]]:
        queue, sealer = self._broker.queue, self._broker.sealer
        return [
            (place, decode_event(f"{place[0]}-{place[1]}", fields, queue, sealer))
            for place, fields in await self.read_entries(after)
        ]

    async def read_entries(self, after: LanePlace) -> list[tuple[LanePlace, dict[bytes, bytes]]]:
        """As ``read_events``, with events as they are stored."""
        names = await self.names()
        if not names:
            return []
        keys = [self.open(lane).keys.events() for lane in names]
        starts = [_start(after, lane) for lane in names]
        # The time comes first: every event of an earlier ms is there when the streams are read.
        time, streams = await self._broker.caller.pipeline(
            [("TIME",), ("XREAD", "COUNT", EVENTS, "STREAMS", *keys, *starts)]
        )
        present = (int(time[0]) * 1000 + int(time[1]) // 1000, 0, "")
        lane_of = dict(zip(keys, names, strict=True))
        found: list[tuple[LanePlace, dict[bytes, bytes]]] = []
        end: LanePlace = present
        for key, entries in streams or ():
            lane = lane_of[key.decode()]
            places = [_place(entry_id, lane) for entry_id, _ in entries]
            found += ((place, pairs(row[1])) for place, row in zip(places, entries, strict=True))
            if len(entries) == EVENTS:
                end = min(end, (*places[-1][:2], lane + "\0"))  # there is more of this lane
        return sorted((row for row in found if row[0] < end), key=lambda row: row[0])

    async def counts(self) -> dict[str, dict[str, int]]:
        broker, names = self._broker, await self.names()
        found: dict[str, dict[str, int]] = {}
        for at in range(0, len(names), COUNT):
            part = names[at : at + COUNT]
            flat = iter(await broker.caller.again(load("count_lanes"), broker.keys.meta(), *part))
            found |= {lane: dict(zip(STATES, islice(flat, len(STATES)), strict=True)) for lane in part}
        return found

    async def page(self, states: Sequence[str], first: int, limit: int, *, oldest: bool = False) -> list[Job]:
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
        """Drops the registry of lanes, when all of them are gone."""
        keys = self._broker.keys
        notes = (keys.lanes(), keys.ready_lanes(), keys.busy_lanes(), keys.lanes_tended(), keys.lane_ids())
        await self._broker.caller.write("UNLINK", *notes, keys.lanes_version())
        self._open.clear()

    async def holder(self, job_id: str) -> BullMQBroker | None:
        """Returns the lane that has a job, or None."""
        return (await self.holders([job_id]))[0]

    async def holding(self, job_ids: Sequence[str], places: Sequence[int]) -> dict[BullMQBroker, list[int]]:
        """Returns the lanes that have some of the jobs, given by their indexes, with the indexes of each."""
        held: dict[BullMQBroker, list[int]] = {}
        for place, lane in zip(places, await self.holders([job_ids[i] for i in places]), strict=True):
            if lane is not None:
                held.setdefault(lane, []).append(place)
        return held

    async def holders(self, job_ids: Sequence[str]) -> list[BullMQBroker | None]:
        """Returns the lanes that have these jobs."""
        broker = self._broker
        if not job_ids or broker.lane is not None:
            return [None] * len(job_ids)
        script, meta, found = load("find_in_lanes"), broker.keys.meta(), []
        for at in range(0, len(job_ids), FIND):
            part = job_ids[at : at + FIND]
            found += await broker.caller.again(script, meta, len(part), *part)
        lanes: list[str | None] = [text(raw) if raw else None for raw in found]
        left = [place for place, raw in enumerate(found) if raw == 0]
        if left:
            for place, lane in zip(left, await self._search([job_ids[i] for i in left]), strict=True):
                lanes[place] = lane
        return [self.open(lane) if lane else None for lane in lanes]

    async def _search(self, job_ids: Sequence[str]) -> list[str | None]:
        """As ``holders`` with very many lanes: searches some of them at a time."""
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
                found.update((one, text(raw)) for one, raw in zip(left, answer, strict=True) if raw)
                left = [job_id for job_id in left if job_id not in found]
        return [found.get(job_id) for job_id in job_ids]


def _place(entry_id: bytes, lane: str) -> LanePlace:
    ms, _, number = entry_id.decode().partition("-")
    return int(ms), int(number), lane


def _start(after: LanePlace, lane: str) -> str:
    """Returns the id behind which a lane's stream is read, for a place in the order of all lanes."""
    ms, number, at = after
    if lane <= at:
        return f"{ms}-{number}"
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{2**64 - 1}" if ms else "0-0"
