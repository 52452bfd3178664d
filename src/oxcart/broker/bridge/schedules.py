"""Schedules of a Bridge namespace: stored per job type, fired by one leader.

A schedule is a record of its own in ``jobs:cron``. Each run is a new job that names its schedule. The script
that makes it also advances the schedule to its next time, so a second leader makes no second run.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from oxcart.broker.bridge import codec, jobs, members, records
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bridge.scripts import load
from oxcart.broker.caller import Caller
from oxcart.broker.capabilities import BRIDGE
from oxcart.broker.ids import new_id
from oxcart.broker.port import ClaimedJob
from oxcart.broker.port.schedules import Schedules
from oxcart.broker.replies import texts
from oxcart.model.duration import MAX_MS
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.options import JobOptions
from oxcart.model.schedule import PAUSED_MS, Missed, Overlap, Schedule, Scheduler

log = logging.getLogger("oxcart.worker")

MISSED: tuple[Missed, ...] = ("skip", "once", "all")
OVERLAP: tuple[Overlap, ...] = ("beside", "skip", "queue")

#: Ms for which a leader leads without renewing.
LEADS = 30_000
#: A due time is missed after so many ms: longer than another worker needs to become the leader.
LATE = 35_000
#: Ms after which an unreadable schedule is read again.
UNREADABLE = 60_000
#: Schedules per read.
BATCH = 100
#: Firings that one call makes, of one schedule or of many: about 2 ms of server time.
FIRINGS = 40

#: Makes ids of schedules from their names.
_ROOM = uuid.UUID("6c1f2b7e-4c59-4b7e-9d0c-2f6f0b1d5a11")
_json = msgspec.json.Encoder()


class TypeSchedules(Schedules):
    """The schedules of one job type.

    Args:
        broker: The type's broker.
    """

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._keys: BridgeKeys = broker.keys
        self._caller: Caller = broker.caller

    def bound_id(self, schedule_id: str) -> str:
        return str(uuid.uuid5(_ROOM, f"{self._keys.queue}\0{schedule_id}"))

    async def upsert(
        self,
        schedule_id: str,
        schedule: Schedule,
        name: str,
        body: bytes,
        options: JobOptions,
        *,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        declared_by: str | None = None,
    ) -> str | None:
        if schedule.every is not None or schedule.limit is not None or schedule.immediately:
            BRIDGE.require("intervals")
        missed, overlap = missed or "once", overlap or "beside"
        if missed not in MISSED:
            raise ValidationError("missed", "one of " + ", ".join(MISSED), missed)
        if overlap not in OVERLAP:
            raise ValidationError("overlap", "one of " + ", ".join(OVERLAP), overlap)
        codec.check_options(options)
        now = await self._broker.now()
        due = _following(schedule, now)
        if due is None:
            return None
        job_id = self.bound_id(schedule_id)
        times = {"cron": schedule.cron, "timezone": schedule.tz or "UTC"}
        raw, _ = codec.make_record(
            self._keys.queue, name, body, options, now, job_id, schedule=times, formal=self._broker.formal
        )
        kept = {
            **(records.read_record(raw).ox),
            "scheduler": schedule_id,
            "missed": missed,
            "overlap": overlap,
        }
        bounds = {"start": schedule.start, "end": schedule.end, "by": declared_by}
        kept |= {key: value for key, value in bounds.items() if value is not None}
        raw = codec.with_members(raw, ox=_json.encode(kept))
        signature = _json.encode([schedule.cron, times["timezone"], schedule.start, schedule.end])
        await self._caller.again(load("set_cron"), self._keys.waiting(), job_id, raw, due, signature)
        return job_id

    async def get(self, schedule_id: str) -> Scheduler | None:
        for job_id in (self.bound_id(schedule_id), schedule_id):
            raw, score, known = await self._caller.pipeline(
                [
                    ("GET", self._keys.data(job_id)),
                    ("ZSCORE", self._keys.cron(), job_id),
                    ("HGET", self._keys.schedule(job_id), "fired"),
                ]
            )
            if raw is not None and score is not None and records.read_record(raw).type == self._keys.queue:
                return self._scheduler(job_id, raw, score, known)
        return None

    async def page(self, first: int, last: int, *, latest: bool = False) -> list[Scheduler]:
        found = await self._all()
        if latest:
            found.reverse()
        return found[first : last + 1]

    async def count(self) -> int:
        return len(await self._all())

    async def remove(self, schedule_id: str) -> bool:
        for job_id in (self.bound_id(schedule_id), schedule_id):
            raw = await self._caller.command("GET", self._keys.data(job_id))
            if raw is not None and records.read_record(raw).type == self._keys.queue:
                return bool(await self._caller.once(load("remove_cron"), self._keys.waiting(), job_id))
        return False

    async def pause(self, schedule_id: str) -> bool:
        return await self._move(schedule_id, "+inf")  # which the protocol has for "never"

    async def resume(self, schedule_id: str) -> bool:
        found = await self.get(schedule_id)
        if found is None or not found.paused:
            return found is not None
        due = _following(found.schedule, await self._broker.now())
        if due is None:
            raise ValidationError("schedule", "one that fires before its end", schedule_id)
        return await self._move(schedule_id, due)

    async def _move(self, schedule_id: str, due: int | str) -> bool:
        """Sets when a schedule fires next; False if there is none."""
        for job_id in (self.bound_id(schedule_id), schedule_id):
            raw, score = await self._caller.pipeline(
                [("GET", self._keys.data(job_id)), ("ZSCORE", self._keys.cron(), job_id)]
            )
            if raw is not None and score is not None and records.read_record(raw).type == self._keys.queue:
                await self._caller.write("ZADD", self._keys.cron(), "XX", due, job_id)
                return True
        return False

    def leader(self, worker: str) -> CronKeeper:
        """Returns the scheduler of the namespace in a worker."""
        return CronKeeper(self._broker, worker)

    async def advance(self, claims: Sequence[ClaimedJob]) -> list[str | OxcartError]:
        return [""] * len(claims)  # the leader of the namespace makes the runs

    async def _all(self) -> list[Scheduler]:
        found: list[Scheduler] = []
        at = 0
        while True:
            flat = await self._caller.command("ZRANGE", self._keys.cron(), at, at + BATCH - 1, "WITHSCORES")
            ids = texts(flat[::2])
            if not ids:
                return found
            commands: list[tuple[str, ...]] = [("GET", self._keys.data(one)) for one in ids]
            commands += [("HGET", self._keys.schedule(one), "fired") for one in ids]
            answers = await self._caller.pipeline(commands)
            for one, score, raw, fired in zip(
                ids, flat[1::2], answers[: len(ids)], answers[len(ids) :], strict=True
            ):
                if raw is not None and records.read_record(raw).type == self._keys.queue:
                    found.append(self._scheduler(one, raw, score, fired))
            at += len(ids)

    def _scheduler(self, job_id: str, raw: bytes, score: bytes, fired: bytes | None) -> Scheduler:
        record = records.read_record(raw)
        options = jobs.options_of(record)
        if self._broker.formal:
            options = options.replace(priority=codec.formal_priority(record.priority))
        return Scheduler(
            id=_name(job_id, record),
            name=record.name,
            schedule=_schedule(record),
            next_ms=PAUSED_MS if math.isinf(float(score)) else min(_ms(float(score)), PAUSED_MS),
            runs=int(fired or 0),
            data=members.decoded(record.payload),
            options={key: record.ox[key] for key in ("missed", "overlap") if key in record.ox},
            job_options=options,
            names_runs=False,
            declared_by=by if isinstance(by := record.ox.get("by"), str) else None,
        )


class CronKeeper:
    """A worker's scheduler of a namespace: leads or waits to lead, and makes due runs.

    Args:
        broker: Any broker of the namespace.
        name: The scheduler's id.
        leads: Ms for which it leads without renewing.
    """

    def __init__(self, broker: Any, name: str, *, leads: int = LEADS) -> None:
        self._broker = broker
        self._keys: BridgeKeys = broker.keys
        self._caller: Caller = broker.caller
        self._name = name
        self._leads = leads
        #: The number of its term; 0 while another leads.
        self.term = 0

    async def tick(self) -> int:
        """Makes due runs, if it leads; returns how many."""
        if not await self.lead():
            return 0
        made = 0
        while True:
            due = await self._due()
            fired = await self._fire(due)
            if fired < 0:
                self.term = 0
                return made
            made += fired
            if not due or (len(due) < BATCH and not fired):
                return made

    async def lead(self) -> bool:
        """Becomes or stays the leader, if there is no other; returns whether it leads."""
        self.term = await self._caller.again(
            load("lead"), self._keys.waiting(), self._name, self._leads, patient=True
        )
        return self.term > 0

    async def resign(self) -> None:
        """Lets another lead at once."""
        self.term = 0
        await self._caller.again(load("lead"), self._keys.waiting(), self._name, "")

    async def _due(self) -> list[tuple[str, float, bytes]]:
        """Returns due schedules: id, due time as it is stored, record."""
        now = await self._broker.now()
        flat = await self._caller.command(
            *("ZRANGEBYSCORE", self._keys.cron(), "-inf", now),
            *("WITHSCORES", "LIMIT", 0, BATCH),
        )
        if not flat:
            return []
        ids = texts(flat[::2])
        raws = await self._caller.command("MGET", *(self._keys.data(one) for one in ids))
        return [
            (one, float(score), raw or b"") for one, score, raw in zip(ids, flat[1::2], raws, strict=True)
        ]

    async def _fire(self, due: Sequence[tuple[str, float, bytes]]) -> int:
        """Advances schedules and makes their jobs; returns -1 if it no longer leads."""
        made, now = 0, await self._broker.now()
        batch: list[bytes] = []
        firings = 0
        for one, at, raw in due:
            packed, count = _firing(one, at, raw, now, FIRINGS - firings)
            batch.append(packed)
            firings += count
            if firings >= FIRINGS or len(batch) >= FIRINGS:
                fired = await self._call(batch)
                if fired < 0:
                    return -1
                made, batch, firings = made + fired, [], 0
        if batch:
            fired = await self._call(batch)
            if fired < 0:
                return -1
            made += fired
        return made

    async def _call(self, batch: Sequence[bytes]) -> int:
        time = self._broker.clock.argument
        fired: int = await self._caller.once(
            load("fire"), self._keys.waiting(), self._name, self.term, time, *batch, patient=True
        )
        return fired


def due_times(
    schedule: Schedule, first: int, now: int, missed: Missed, most: int = FIRINGS
) -> tuple[list[int], int | None]:
    """Returns the due times for which a schedule makes runs now, and when it is due next.

    Args:
        schedule: When it fires.
        first: The first due time without a run.
        now: The time.
        missed: What to do about due times that are long ago.
        most: How many at most; with more of them the next one is already due.

    Raises:
        ValidationError: The expression cannot be read.
    """
    times: list[int] = []
    late = first < now - LATE
    at: int | None = first
    if late and missed != "all":
        if missed == "once":
            times.append(first)
        at = _following(schedule, now - LATE - 1)
    while at is not None and at <= now and len(times) < most:
        times.append(at)
        at = _following(schedule, at)
    return times, at


@lru_cache(maxsize=16_384)
def _following(schedule: Schedule, after: int) -> int | None:
    """Returns the next time of a schedule; cached, because a search takes milliseconds."""
    return schedule.following(after)


def _firing(one: str, at: float, raw: bytes, now: int, most: int) -> tuple[bytes, int]:
    """Returns at most ``most`` due jobs of a schedule as ``fire.lua`` reads them, and how many there are.

    An unreadable record may be another client's: the worker reads it again later. An entry
    without a record is removed.
    """
    record = records.read_record(raw)
    overlap = record.ox.get("overlap")
    jobs: list[tuple[str, bytes, bytes, bytes, bytes]] = []
    following: int | None = None
    try:
        if raw:
            jobs, following = _runs(one, _ms(at), raw, record, now, most)
    except Exception as error:  # a malformed record must not end this worker, and then the next
        log.warning("could not fire schedule %s, retrying in 60 s: %s", one, error)
        jobs, following = [], now + UNREADABLE
    packed = records.pack(
        (one, at, "" if following is None else following, overlap if overlap in OVERLAP else "beside", jobs)
    )
    return packed, len(jobs)


def _runs(
    one: str, first: int, raw: bytes, record: records.Record, now: int, most: int
) -> tuple[list[tuple[str, bytes, bytes, bytes, bytes]], int | None]:
    """Returns at most ``most`` due jobs of a schedule, and when it is due next.

    Raises:
        ValidationError: It has no cron expression, or an unreadable one.
    """
    schedule, missed = _schedule(record), record.ox.get("missed")
    if not schedule.cron:
        raise ValidationError("schedule", "a cron expression", record.schedule)
    known: Missed = missed if missed in MISSED else "once"
    times, following = due_times(schedule, first, now, known, most)
    jobs = []
    for due in times:
        job_id = new_id()
        ox = {
            key: value
            for key, value in record.ox.items()
            if key not in ("by", "missed", "overlap", "scheduler", "start", "end")
        }
        body = codec.with_members(
            raw,
            attempts=b"0",
            jobId=_json.encode(job_id),
            schedule=b"{}",
            createdAt=b"%d" % now,
            ox=members.dump({**ox, "schedule": one, "due": due}),
        )
        event = records.added_fields(record.name, record.ox.get("corr"), record.metadata)
        rule = {"schedule": _name(one, record), "cron": schedule.cron, "tz": schedule.tz, "due": due}
        counted = members.dump(rule)[:-1] + b',"count":'  # the script appends the number of the run
        jobs.append((job_id, body, records.read_record(body).facts().packed(), event, counted))
    return jobs, following


def _ms(score: float) -> int:
    """Returns the time of a score; other clients write fractions, and infinity for never."""
    return int(min(max(score, 0), MAX_MS))


def _schedule(record: records.Record) -> Schedule:
    cron, zone = record.schedule.get("cron"), record.schedule.get("timezone")
    start, end = record.ox.get("start"), record.ox.get("end")
    return Schedule(
        cron=cron if isinstance(cron, str) else None,
        tz=zone if isinstance(zone, str) and zone else "UTC",
        start=start if type(start) is int else None,
        end=end if type(end) is int else None,
    )


def _name(job_id: str, record: records.Record) -> str:
    """Returns the name of a schedule; a schedule of another client has only its id."""
    name = record.ox.get("scheduler")
    return name if isinstance(name, str) else job_id
