"""Operations on many jobs of a Bridge type: removing, retrying, promoting and counting, in bounded steps.

A step deals with 50 jobs in one call and leaves the server free in between. Jobs that move between states
meanwhile may be missed, as they may have moved just before the call.

May touch: the server, through a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from oxcart.broker.bridge import codec, parts, records
from oxcart.broker.bridge.rescue import rescue
from oxcart.broker.bridge.scripts import load
from oxcart.broker.bullmq.rescue import Progress as Scanned
from oxcart.broker.progress import Progress, Told, silent
from oxcart.model.errors import QueueBusy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxcart.broker.bridge.broker import BridgeBroker
    from oxcart.model.job import Job

#: Jobs that one step deals with.
STEP = 50
#: What of a type is removed in which order when all of it goes.
EVERYTHING = ("active", "delayed", "waiting-children", "wait", "completed", "failed")


async def remove(broker: BridgeBroker, ids: Sequence[str], *, force: bool = False) -> list[int]:
    """Removes jobs; returns a code for each, as ``remove_job.lua`` has it."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args = (broker.queue, "1" if force else "", *ids[start : start + STEP])
        codes += await broker.caller.once(load("remove_job"), broker.keys.waiting(), *args)
    return codes


async def promote(broker: BridgeBroker, ids: Sequence[str]) -> list[int]:
    """Lets delayed jobs run now; returns a code for each, as ``promote_job.lua`` has it."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args: list[bytes | str] = [broker.queue]
        for one, raw in await _records(broker, ids[start : start + STEP]):
            args += (one, records.read_record(raw).facts(broker.queue).packed())
        codes += await broker.caller.once(load("promote_job"), broker.keys.waiting(), *args)
    return codes


async def retry(
    broker: BridgeBroker, ids: Sequence[str], *, lifo: bool = False, reset: bool = False
) -> list[int]:
    """Lets ended jobs run again; returns a code for each, as ``retry_job.lua`` has it."""
    codes: list[int] = []
    for start in range(0, len(ids), STEP):
        args: list[bytes | str] = [broker.queue, "L" if lifo else ""]
        for one, raw in await _records(broker, ids[start : start + STEP]):
            new = codec.with_parts(raw, attempts=b"0") if reset and parts.parts_of(raw) else b""
            args += (one, records.read_record(new or raw).facts(broker.queue).packed(), new)
        codes += await broker.caller.once(load("retry_job"), broker.keys.waiting(), *args)
    return codes


async def _records(broker: BridgeBroker, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    raws = await broker.caller.command("MGET", *map(broker.keys.data, ids))
    return [(one, raw or b"") for one, raw in zip(ids, raws, strict=True)]


async def clean(
    broker: BridgeBroker, state: str, before_ms: int, *, limit: int | None = None, told: Told = silent
) -> int:
    """Removes jobs of a wire state that were last touched before a time, oldest first; returns how many."""
    ids = await broker.ids(state)
    done = 0
    for start in range(0, len(ids), STEP):
        jobs = await broker.read_jobs(ids[start : start + STEP])
        old = [job.id for job in jobs if _touched(job) <= before_ms]
        old = old if limit is None else old[: limit - done]
        done += (await remove(broker, old)).count(1)
        told(Progress(state, min(start + STEP, len(ids)), len(ids)))
        if limit is not None and done >= limit:
            break
    return done


def _touched(job: Job) -> int:
    return job.finished_on or job.processed_on or job.timestamp


async def drain(broker: BridgeBroker, *, delayed: bool = False, told: Told = silent) -> int:
    """Removes every job of the type that waits; with ``delayed`` those whose time has not come as well."""
    return await _remove_all(broker, ("wait", "delayed") if delayed else ("wait",), False, told)


async def obliterate(broker: BridgeBroker, *, force: bool = False, told: Told = silent) -> int:
    """Removes a job type with everything in it, for good; returns how many jobs it had.

    Raises:
        QueueBusy: Workers hold jobs of it, and ``force`` is not set.
    """
    active = len(await broker.ids("active"))
    if active and not force:
        raise QueueBusy(broker.queue, active)
    await broker.pause()
    done = await _remove_all(broker, EVERYTHING, force, told)
    strange = (await broker.census.unnoted_ends()).get(broker.queue, [])
    done += (await remove(broker, strange, force=force)).count(1)
    for schedule in await broker.schedulers.page(0, await broker.schedulers.count()):
        await broker.schedulers.remove(schedule.id)
    await broker.caller.again(load("obliterate"), broker.keys.waiting(), broker.queue)
    return done


async def _remove_all(broker: BridgeBroker, states: Iterable[str], force: bool, told: Told) -> int:
    done = 0
    for state in states:
        ids = await broker.ids(state)
        for start in range(0, len(ids), STEP):
            done += (await remove(broker, ids[start : start + STEP], force=force)).count(1)
            told(Progress(state, min(start + STEP, len(ids)), len(ids)))
    return done


async def retry_all(
    broker: BridgeBroker,
    state: Literal["failed", "completed"],
    *,
    since_ms: int,
    until_ms: int,
    limit: int | None = None,
    reset: bool = False,
    told: Told = silent,
) -> int:
    """Lets jobs run again that ended within a time, oldest end first; returns how many."""
    ids = await broker.ids(state)
    done = 0
    for start in range(0, len(ids), STEP):
        jobs = await broker.read_jobs(ids[start : start + STEP])
        chosen = [job.id for job in jobs if since_ms <= (job.finished_on or 0) <= until_ms]
        chosen = chosen if limit is None else chosen[: limit - done]
        done += (await retry(broker, chosen, reset=reset)).count(1)
        told(Progress(state, min(start + STEP, len(ids)), len(ids)))
        if limit is not None and done >= limit:
            break
    return done


async def promote_all(
    broker: BridgeBroker, *, until_ms: int | None = None, limit: int | None = None, told: Told = silent
) -> int:
    """Lets delayed jobs run now, the earliest due first; returns how many."""
    ids = await broker.ids("delayed")
    if until_ms is not None and ids:
        due = await broker.caller.command("ZMSCORE", broker.keys.delayed(), *ids)
        ids = [one for one, at in zip(ids, due, strict=True) if at is not None and float(at) <= until_ms]
    ids = ids if limit is None else ids[:limit]
    done = 0
    for start in range(0, len(ids), STEP):
        done += (await promote(broker, ids[start : start + STEP])).count(1)
        told(Progress("delayed", min(start + STEP, len(ids)), len(ids)))
    return done


async def remove_orphans(
    broker: BridgeBroker, *, dry_run: bool = False, progress: Callable[[Scanned], None] = lambda _: None
) -> list[str]:
    """Removes jobs of the type that are in no list and that no worker holds; returns their ids."""
    found = await rescue(broker, [broker.queue], dry_run=True, progress=progress)
    ids = found[broker.queue].rescued
    if dry_run:
        return ids
    return [one for one, code in zip(ids, await remove(broker, ids), strict=True) if code == 1]


async def counts_per_priority(
    broker: BridgeBroker, priorities: Iterable[int] | None = None
) -> dict[int, int]:
    """How many jobs of the type wait with each priority, from 1 to 10, of which 10 runs first."""
    counted: dict[int, int] = {}
    async for ids in broker.census.pages("waiting"):
        for kind in await broker.census.kinds(ids):
            if kind is not None and kind.type == broker.queue:
                counted[kind.priority] = counted.get(kind.priority, 0) + 1
    asked = sorted(counted) if priorities is None else priorities
    return {one: counted.get(one, 0) for one in asked}


async def publish(
    broker: BridgeBroker, name: str, fields: Mapping[str, str | bytes], keep: int | None = None
) -> str:
    """Adds an event of the application's own to the type's stream; returns its id."""
    flat = [part for field in fields.items() for part in field]
    event_id: bytes = await broker.caller.once(
        load("publish"), broker.keys.waiting(), broker.queue, "" if keep is None else keep, name, *flat
    )
    return event_id.decode()
