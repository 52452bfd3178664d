"""Schedules on BullMQ's layout: the sorted set ``repeat``, a record per schedule, a job per run."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.bullmq.codec import encode_options, options_of
from oxcart.broker.bullmq.runs import NextRun, first_run, next_run, read_repeat, resumed_run
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.capabilities import BULLMQ
from oxcart.broker.port import ClaimedJob
from oxcart.broker.port.schedules import Schedules
from oxcart.broker.replies import pairs, texts
from oxcart.broker.stored import count_of
from oxcart.model import payload
from oxcart.model.errors import (
    OxcartError,
    PayloadError,
    ReplyCode,
    ScriptError,
    ValidationError,
    error_for_code,
)
from oxcart.model.options import JobOptions
from oxcart.model.schedule import (
    PAUSED_MS,
    Missed,
    Overlap,
    Schedule,
    Scheduler,
    is_legacy_id,
)

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

_json = msgspec.json.Encoder()

#: The module that declares a schedule; its runs have the field too.
FIELD_DECLARED_BY = "ox:by"

#: A schedule that moves to another partition: whether it fires.
MOVING, FIRES = b"moving", b"fires"

#: How often a later time is tried if one is taken.
LATER = 32


class QueueSchedules(Schedules):
    """The schedules of one queue."""

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker
        self._caller = broker.caller
        self._keys = broker.keys

    def bound_id(self, schedule_id: str) -> str:
        return schedule_id

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
        if missed is not None or overlap is not None:
            BULLMQ.require("missed_policy")
        opts, extras = encode_options(options.without_target("schedules"))
        payload.check_size(body, opts, options.size_limit)
        if declared_by is not None:
            extras = (*extras, FIELD_DECLARED_BY, declared_by)
        run = await self.write(schedule_id, schedule, name, body, msgspec.json.decode(opts), extras)
        return None if run is None else run[0]

    async def write(
        self,
        scheduler_id: str,
        schedule: Schedule,
        name: str,
        data: bytes,
        options: Mapping[str, Any],
        extras: Sequence[str] = (),
        at_ms: int | None = None,
    ) -> tuple[str, int] | None:
        """Makes or changes a schedule; returns id and delay of its next run, or None if it never fires.

        Args:
            scheduler_id: The schedule's id.
            schedule: When it fires.
            name: The name of its jobs.
            data: Their payload, as JSON.
            options: Their options, by their names on the wire.
            extras: Our further fields of every run, as a flat list of names and values.
            at_ms: The time of the first run, if the user's strategy has computed it.

        Raises:
            JobError: A run of that time exists already, or too many slots are taken.
        """
        now = await self._broker.now()
        run = first_run(schedule, options, now, scheduler_id, at_ms)
        if run is None:
            return None
        answer = await self._caller.once(
            load("upsert_scheduler"),
            self._keys.meta(),
            self._broker.clock.argument,
            scheduler_id,
            name,
            data,
            _json.encode(options),
            _json.encode(run.options),
            *map(_argument, (run.at_ms, schedule.every, schedule.offset, schedule.start, schedule.end)),
            *map(_argument, (schedule.limit, schedule.tz, schedule.cron)),
            *extras,
        )
        if isinstance(answer, int):
            raise error_for_code(answer, f"repeat:{scheduler_id}:{_argument(run.at_ms)}", "upsert_scheduler")
        run_id, delay = answer
        return run_id.decode(), int(delay)

    def leader(self, worker: str) -> None:
        """Returns None: the claim of a run makes the next one."""

    async def advance(self, claims: Sequence[ClaimedJob]) -> list[str | OxcartError]:
        made: list[str | OxcartError] = [""] * len(claims)
        clock = self._broker.clock
        now = clock() if clock.is_known else await self._broker.now()
        left = dict.fromkeys(range(len(claims)), now)
        for _ in range(LATER):
            left = await self._advance(claims, left, made)
            if not left:
                return made
        for place in left:
            made[place] = ScriptError(f"advance: {LATER} further runs of the schedule exist already")
        return made

    async def _advance(
        self, claims: Sequence[ClaimedJob], left: Mapping[int, int], made: list[str | OxcartError]
    ) -> dict[int, int]:
        """Advances schedules in one call; returns claims whose time was taken, with that time."""
        args: list[bytes | str | int] = []
        asked = []
        for place, after in left.items():
            try:
                item = self._item(claims[place], after)
            except ValidationError as error:
                made[place] = error
                continue
            except Exception as error:  # a malformed run must not stop runs of other schedules
                made[place] = ScriptError(f"advance: {type(error).__name__}: {error}")
                continue
            if item is not None:
                asked.append(place)
                args += item
        if not asked:
            return {}
        answer = await self._caller.once(
            load("advance"), self._keys.meta(), self._broker.clock.argument, len(asked), *args, patient=True
        )
        taken = {}
        for place, raw in zip(asked, answer, strict=True):
            text = raw.decode("utf-8", "replace")
            if text.startswith("@"):
                taken[place] = int(text[1:])
            elif text.startswith("!"):
                made[place] = ScriptError(f"advance: {text[1:]}")
            else:
                made[place] = text
        return taken

    def _item(self, claim: ClaimedJob, now: int) -> list[bytes | str | int] | None:
        """Returns the script's arguments for a claim, or None if no run follows."""
        assert isinstance(claim, BullMQClaim)
        options, schedule_id = _object(claim.fields.get(b"opts")), claim.schedule_id or ""
        run = next_run(options, now, schedule_id)
        if run is None:
            return None
        data = claim.fields.get(b"data", b"{}")
        if is_legacy_id(schedule_id):
            return _repeatable(claim, options, run, data, now)
        return ["s", schedule_id, claim.id, _argument(run.at_ms), _json.encode(run.options), data, ""]

    async def remove(self, schedule_id: str) -> bool:
        return bool(await self._caller.once(load("remove_scheduler"), self._keys.meta(), schedule_id))

    async def pause(self, schedule_id: str) -> bool:
        if is_legacy_id(schedule_id):
            raise ValidationError("schedule", "no repeatable job of an older version", schedule_id)
        return bool(await self._caller.again(load("pause_scheduler"), self._keys.meta(), schedule_id))

    async def resume(self, schedule_id: str) -> bool:
        found = await self.get(schedule_id)
        if found is None or not found.paused:
            return found is not None
        run = resumed_run(found, await self._broker.now())
        if run is None:
            raise ValidationError("schedule", "one that fires before its end", schedule_id)
        answer: int = await self._caller.again(
            load("resume_scheduler"),
            self._keys.meta(),
            self._broker.clock.argument,
            schedule_id,
            _json.encode(run.options),
            _argument(run.at_ms),
        )
        if answer < 0:
            raise error_for_code(answer, f"repeat:{schedule_id}:{_argument(run.at_ms)}", "resume_scheduler")
        return answer == ReplyCode.DONE

    async def get(self, schedule_id: str) -> Scheduler | None:
        score, flat = await self._caller.pipeline(
            [
                ("ZSCORE", self._keys.schedulers(), schedule_id),
                ("HGETALL", self._keys.scheduler(schedule_id)),
            ]
        )
        return None if score is None else _decode(schedule_id, float(score), flat)

    async def page(self, first: int, last: int, *, latest: bool = False) -> list[Scheduler]:
        command = "ZREVRANGE" if latest else "ZRANGE"
        flat = await self._caller.command(command, self._keys.schedulers(), first, last, "WITHSCORES")
        ids = texts(flat[::2])
        records = await self._caller.pipeline([("HGETALL", self._keys.scheduler(one)) for one in ids])
        return [
            _decode(one, float(score), record)
            for one, score, record in zip(ids, flat[1::2], records, strict=True)
        ]

    async def ids(self) -> list[str]:
        """Returns the ids of all schedules, without repeatable jobs of older versions."""
        found = texts(await self._caller.command("ZRANGE", self._keys.schedulers(), 0, -1))
        return [one for one in found if not is_legacy_id(one)]

    async def take_over(
        self, schedule_id: str, source: QueueSchedules, check: Callable[[], Awaitable[None]]
    ) -> None:
        """Moves a schedule here from another partition. Meanwhile it fires in neither.

        A move that was interrupted is continued by calling this again.

        Args:
            schedule_id: The schedule.
            source: The other partition.
            check: Raises if another client may have changed the schedule meanwhile.
        """
        there, key = source._caller, source._keys.scheduler(schedule_id)
        exists = await self.get(schedule_id) is not None  # also shows that this server answers
        found = await source.get(schedule_id)
        if found is None:
            return
        await there.write("HSETNX", key, MOVING, b"paused" if found.paused else FIRES)
        if not await source.pause(schedule_id):
            await there.write("DEL", key)
            return
        fields = pairs(await there.command("HGETALL", key))
        await check()
        if not exists:
            flat = [part for field in fields.items() for part in field]
            await self._caller.write("HSET", self._keys.scheduler(schedule_id), *flat)
            await self._caller.write("ZADD", self._keys.schedulers(), "NX", PAUSED_MS, schedule_id)
        await self._resume_moved(schedule_id, fields.get(MOVING))
        await source.remove(schedule_id)

    async def finish_move(self, schedule_id: str) -> None:
        """Completes an interrupted move of which only the copy here is left."""
        moving = await self._caller.command("HGET", self._keys.scheduler(schedule_id), MOVING)
        if moving is not None:
            await self._resume_moved(schedule_id, moving)

    async def _resume_moved(self, schedule_id: str, moving: bytes | None) -> None:
        if moving == FIRES:
            try:
                await self.resume(schedule_id)
            except ValidationError:  # it has ended
                await self.remove(schedule_id)
        await self._caller.write("HDEL", self._keys.scheduler(schedule_id), MOVING)

    async def count(self) -> int:
        return int(await self._caller.command("ZCARD", self._keys.schedulers()))


def _argument(value: int | str | None) -> int | str:
    return "" if value is None else value


def _object(raw: bytes | None) -> dict[str, Any]:
    try:
        value = payload.read(raw or b"{}")
    except PayloadError:
        return {}
    return value if isinstance(value, dict) else {}


def _decode(scheduler_id: str, next_ms: float, flat: list[bytes]) -> Scheduler:
    """Decodes the record of any client; a repeatable job has no count, and an old one only its key."""
    fields = pairs(flat)

    def text(name: bytes) -> str | None:
        raw = fields.get(name)
        return None if raw is None else raw.decode("utf-8", "replace")

    if not fields and is_legacy_id(scheduler_id):
        name, _, end, tz, pattern = scheduler_id.split(":", 4)
        repeat: dict[str, Any] = {"endDate": end, "tz": tz or None}
        repeat["every" if pattern.isdigit() else "pattern"] = pattern
        schedule = read_repeat(repeat)
        return Scheduler(
            id=scheduler_id, name=name, schedule=schedule, next_ms=count_of(next_ms), legacy=True
        )
    named = {one: text(one.encode()) for one in ("every", "pattern", "tz", "startDate", "endDate", "limit")}
    schedule = read_repeat(named)
    if b"every" in fields and (offset := text(b"offset")) is not None:
        schedule = msgspec.structs.replace(schedule, offset=count_of(offset))
    runs = text(b"ic")
    try:
        data = payload.decode(fields[b"data"]) if b"data" in fields else {}
    except PayloadError:
        data = text(b"data")
    return Scheduler(
        id=scheduler_id,
        name=text(b"name") or "",
        schedule=schedule,
        next_ms=min(count_of(next_ms), PAUSED_MS),
        runs=None if runs is None else count_of(runs),
        data=data,
        options=_object(fields.get(b"opts")),
        job_options=options_of(fields),
        legacy=runs is None,
        declared_by=text(FIELD_DECLARED_BY.encode()),
    )


def _repeatable(
    claim: BullMQClaim, options: dict[str, Any], run: NextRun, data: bytes, now: int
) -> list[bytes | str | int]:
    """Returns the next run of a repeatable job (older than schedulers), from its key and its options."""
    schedule_id, at_ms = claim.schedule_id or "", run.at_ms
    if at_ms is None:
        every = read_repeat(run.options["repeat"]).every or 1
        at_ms = max(now, int(options.get("prevMillis") or 0)) // every * every + every
    own_id = _object(data).get("id") or ""
    space = hashlib.md5(schedule_id.encode(), usedforsecurity=False).hexdigest()
    digest = hashlib.md5(f"{claim.name}{own_id}{space}".encode(), usedforsecurity=False).hexdigest()
    job_id = f"repeat:{digest}:{at_ms}"
    own = run.options | {"prevMillis": at_ms, "jobId": job_id, "delay": max(1, at_ms - now)}
    return ["r", schedule_id, claim.id, at_ms, _json.encode(own), data, job_id]
