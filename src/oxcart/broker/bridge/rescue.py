"""Finds jobs of a Bridge namespace that are in no list, and puts them back.

A record whose id is in none of ``waiting``, ``active``, ``delayed``, ``cron`` and ``deadletter`` is a job
that no worker will ever run. The TypeScript client leaves one behind whenever it dies: it removes an id from
the list and puts it nowhere.

The search goes through all records in bounded steps. A job that is in no list and not locked is a suspect.
The script that puts a job back decides in the same step whether it is really lost. The search also
records jobs that other clients have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from oxcart.broker.bridge import records
from oxcart.broker.bridge.bulk import remove
from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.port.parts import Rescue
from oxcart.broker.port.results import Rescued
from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.broker.replies import text, texts
from oxcart.model.errors import AccessDenied, ReplyCode

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker

log = logging.getLogger("oxcart.recovery")

#: Keys that one step reads, records of one pipeline, and steps of one check.
STEP = 1000
PAGE = 200
STEPS = 5
#: Ms between the end of one pass of maintenance and the next.
REST = 30_000
#: Ms that a job must be in no list before maintenance puts it back. A client that takes a job in steps, or
#: runs it for longer than its lock lasts, has the time of two locks.
GRACE = 60_000
#: Seconds between the two checks of an operator's rescue.
SECOND_LOOK = 1.0
#: Suspects per call, and entries of lists that one call may search: about 5 ms of server time.
FEW = 50
WALK = 500_000
#: Job types up to which ends of other clients are recorded.
MOST_TYPES = 50


class Rescuer:
    """The rescue by maintenance, a bounded step per check.

    All workers of a namespace continue where the last one stopped.

    Args:
        broker: Any broker of the namespace.
        grace_ms: For how long a job must be in no list.
        rest_ms: Time between two passes.
    """

    def __init__(self, broker: BridgeBroker, *, grace_ms: int = GRACE, rest_ms: int = REST) -> None:
        self._broker = broker
        self._grace_ms = grace_ms
        self._rest_ms = rest_ms
        self._denied = False

    async def step(self) -> list[str]:
        """Checks some records; returns the jobs that were put back."""
        if self._denied:
            return []
        try:
            await self._look()
            return await self._bring_back()
        except AccessDenied as error:
            self._denied = True
            log.warning(
                "namespace %s: could not search for lost jobs: %s", self._broker.keys.namespace, error
            )
            return []

    async def _look(self) -> None:
        keys, caller = self._broker.keys, self._broker.caller
        cursor, done = await caller.command("HMGET", keys.survey(), "cursor", "done")
        if not cursor and done and await _now(self._broker) - int(done) < self._rest_ms:
            return
        cursor = cursor or b"0"
        for _ in range(STEPS):
            cursor, ids = await _scan(self._broker, cursor)
            for start in range(0, len(ids), PAGE):
                suspects, ended = await _sort(self._broker, ids[start : start + PAGE])
                await _note(self._broker, ended)
                if suspects:
                    now = await _now(self._broker)
                    scored = [part for one in suspects for part in (now, one)]
                    await caller.write("ZADD", keys.missing(), "NX", *scored)
            if cursor == b"0":
                await caller.write("HDEL", keys.survey(), "cursor")
                await caller.write("HSET", keys.survey(), "done", await _now(self._broker))
                return
        await caller.write("HSET", keys.survey(), "cursor", cursor)

    async def _bring_back(self) -> list[str]:
        before = await _now(self._broker) - self._grace_ms
        ids = await self._broker.caller.command(
            "ZRANGEBYSCORE", self._broker.keys.missing(), "-inf", before, "LIMIT", 0, FEW
        )
        back: list[str] = []
        async for one in _rescue(self._broker, ids, counts=True):
            if one.is_back:
                back.append(one.id)
        if back:
            log.warning(
                "namespace %s: brought back %d lost jobs: %s",
                self._broker.keys.namespace,
                len(back),
                ", ".join(back[:10]),
                extra={"job_ids": back[:100]},
            )
        return back


class TypeRescue(TypePart, Rescue):
    """The search for lost jobs of one type."""

    async def run(self, *, dry_run: bool = False, progress: OnProgress = silent) -> Rescued:
        queue = self._broker.queue
        return (await rescue(self._broker, [queue], dry_run=dry_run, progress=progress))[queue]

    async def remove_orphans(self, *, dry_run: bool = False, progress: OnProgress = silent) -> list[str]:
        ids = (await self.run(dry_run=True, progress=progress)).rescued
        if dry_run:
            return ids
        return [
            one
            for one, code in zip(ids, await remove(self._broker, ids), strict=True)
            if code == ReplyCode.DONE
        ]


class _Suspect(NamedTuple):
    """A job that may be lost, and the judgement of ``lua/rescue.lua``."""

    raw: bytes
    type: str
    code: int

    @property
    def id(self) -> str:
        """The job's id as text."""
        return text(self.raw)

    @property
    def is_back(self) -> bool:
        """Whether the job was lost and is in a list again."""
        return self.code >= ReplyCode.DONE

    @property
    def is_leased(self) -> bool:
        """Whether a worker may still run the job."""
        return self.code == ReplyCode.LEASE_GONE

    @property
    def losses(self) -> int:
        """How often a running job was lost within a day; 0 for a job that waited."""
        return max(0, self.code - ReplyCode.DONE)


async def rescue(
    broker: BridgeBroker,
    types: Iterable[str] = (),
    *,
    dry_run: bool = False,
    progress: OnProgress = silent,
) -> dict[str, Rescued]:
    """Puts back every lost job of a namespace; returns the findings by job type.

    Entries of the list without a record are removed.

    Args:
        broker: Any broker of the namespace.
        types: Only jobs of these types; all by default.
        dry_run: Only return what would be put back.
        progress: Called after every step.
    """
    wanted = set(types)
    found: dict[str, Rescued] = {name: Rescued() for name in wanted}
    suspects: list[bytes] = []
    waiting: set[bytes] = set()
    async for page in broker.census.pages("waiting"):
        waiting.update(page)
    total, seen, cursor = int(await broker.caller.command("DBSIZE")), 0, b""
    while cursor != b"0":
        cursor, ids = await _scan(broker, cursor or b"0")
        for start in range(0, len(ids), PAGE):
            part = ids[start : start + PAGE]
            for kind in await broker.census.kinds(part):
                if kind is not None and (not wanted or kind.type in wanted):
                    found.setdefault(kind.type, Rescued()).looked_at += 1
            unsure, ended = await _sort(broker, part, waiting)
            suspects += unsure
            if not dry_run:
                await _note(broker, ended)
        seen += STEP
        progress(Progress("looking for jobs", min(seen, total), total, len(suspects)))
    if not dry_run:
        await _drop_entries(broker)
    if suspects:
        await asyncio.sleep(SECOND_LOOK)
    async for one in _rescue(broker, suspects, wanted=wanted, dry_run=dry_run):
        of_type = found.setdefault(one.type, Rescued())
        if one.is_back:
            of_type.rescued.append(one.id)
        elif one.is_leased:
            of_type.leased.append(one.id)
    return dict(sorted(found.items()))


async def _rescue(
    broker: BridgeBroker,
    ids: Sequence[bytes],
    *,
    wanted: Iterable[str] = (),
    dry_run: bool = False,
    counts: bool = False,
) -> AsyncIterator[_Suspect]:
    """Asks the script about suspects, and recovers those that ran.

    Args:
        broker: Any broker of the namespace.
        ids: The suspects.
        wanted: Only jobs of these types; all by default.
        dry_run: Change nothing.
        counts: Whether a job that was lost too often becomes a dead letter, even if its client does not count
            runs.
    """
    keys, caller, only = broker.keys, broker.caller, set(wanted)
    start = 0
    while start < len(ids):
        lengths = await caller.pipeline([("LLEN", keys.waiting()), ("LLEN", keys.dead_letters())])
        part = ids[start : start + max(1, min(FEW, WALK // (sum(lengths) + 1)))]
        start += len(part)
        raws = await caller.command("MGET", *(keys.data(text(one)) for one in part))
        asked: list[tuple[bytes, str, int]] = []
        for one, raw in zip(part, raws, strict=True):
            record = records.read_record(raw or b"")
            # A schedule that is in no list was removed, and a record without a type is no job.
            if record.type and not record.schedule.get("cron") and (not only or record.type in only):
                asked.append((one, record.type, record.created_at + record.delay if record.delay else 0))
            elif not dry_run:
                await caller.write("ZREM", keys.missing(), one)
        if not asked:
            continue
        args = [part for job in asked for part in job]
        codes = await caller.once(load("rescue"), keys.waiting(), "1" if dry_run else "", *args, patient=True)
        judged = [
            _Suspect(raw, job_type, code) for (raw, job_type, _), code in zip(asked, codes, strict=True)
        ]
        ran = {one.raw: one.losses for one in judged if one.losses}
        if ran:
            await broker.take_back(list(ran), ran if counts else None)
        for suspect in judged:
            yield suspect


async def _scan(broker: BridgeBroker, cursor: bytes) -> tuple[bytes, list[bytes]]:
    """Returns the ids of some records."""
    base = broker.keys.data("").encode()
    pattern = glob_escape(base.decode()) + "*"
    cursor, keys = await broker.caller.command("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
    return cursor, [key[len(base) :] for key in keys]


async def _sort(
    broker: BridgeBroker, ids: Sequence[bytes], waiting: Container[bytes] | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Returns which of some jobs are in no list, and which have ended.

    Args:
        broker: Any broker of the namespace.
        ids: The jobs.
        waiting: The ids of the list; leased jobs are then among the first result. By default the index
            decides which jobs wait, and leased jobs are left out.
    """
    if not ids:
        return [], []
    keys = broker.keys
    names = texts(ids)
    answers = await broker.caller.pipeline(
        [
            ("MGET", *map(keys.status, names)),
            ("MGET", *map(keys.lock, names)),
            ("SMISMEMBER", keys.listed(), *ids),
            ("ZMSCORE", keys.delayed(), *ids),
            ("ZMSCORE", keys.cron(), *ids),
            ("ZMSCORE", keys.pending(), *ids),
            ("SMISMEMBER", keys.active(), *ids),
        ]
    )
    suspects: list[bytes] = []
    ended: list[bytes] = []
    for one, status, lock, listed, *places in zip(ids, *answers, strict=True):
        if (status or b"").decode("utf-8", "replace") in records.OVER:
            ended.append(one)
            continue
        waits = one in waiting if waiting is not None else listed and status != b"active"
        held = waiting is None and lock is not None
        if not waits and not held and not any(place is not None and place != 0 for place in places):
            suspects.append(one)
    return suspects, ended


async def _note(broker: BridgeBroker, ended: Sequence[bytes]) -> None:
    """Records jobs that another client has ended, unless a worker has done so."""
    keys, caller = broker.keys, broker.caller
    types = texts(await caller.command("SMEMBERS", keys.types())) if ended else []
    if not ended or len(types) > MOST_TYPES:
        return
    notes = [keys.ended(state, of) for of in types for state in ("completed", "failed", "cancelled")]
    known = await caller.pipeline([("ZMSCORE", note, *ended) for note in notes])
    strange = [one for one, *scores in zip(ended, *known, strict=True) if not any(scores)]
    args: list[bytes | str] = []
    for one, kind in zip(strange, await broker.census.kinds(strange), strict=True):
        if kind is not None and kind.type:
            args += (one, kind.type)
    if args:
        await caller.again(load("note"), keys.waiting(), *args, patient=True)


async def _drop_entries(broker: BridgeBroker) -> None:
    """Removes entries of the list whose records are gone."""
    at = 0
    while ids := await broker.caller.command("LRANGE", broker.keys.waiting(), at, at + PAGE - 1):
        raws = await broker.caller.pipeline([("EXISTS", broker.keys.data(text(one))) for one in ids])
        gone = [one for one, known in zip(ids, raws, strict=True) if not known]
        if gone:
            await broker.caller.again(load("drop"), broker.keys.waiting(), *gone, patient=True)
        at += len(ids) - len(gone)


async def _now(broker: BridgeBroker) -> int:
    """Returns the server's time in ms."""
    seconds, micros = await broker.caller.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
