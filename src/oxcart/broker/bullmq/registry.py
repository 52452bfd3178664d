"""The registry of a queue's workers: who lives, where, and what each of them can do.

A worker writes a record of itself every ten seconds; it lives for thirty. What no worker has renewed is gone.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from oxcart.broker.bullmq.scripts import load
from oxcart.model.errors import AccessDenied, ScriptError
from oxcart.model.target import Abilities, Target, parse_lane

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: How often a worker says that it lives, and for how long it is believed to, in seconds.
EVERY = 10.0
LIFE = 30.0

#: The wire states in which a job waits for a worker, now or later.
WAITING = ("wait", "paused", "prioritized", "delayed")

_NAME = re.compile(rb" name=(\S+)")

#: What a worker is told of lanes: nothing, new ones, or every add.
Told = Literal["", "1", "2"]


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself.

    Attributes:
        id: Its id.
        server: What ``Target(server=…)`` names it by: its name, unless its abilities say another.
        name: Its name, as peers see it.
        stack: What it is made of.
        region: Where it is.
        capabilities: What it can do.
        routed: Whether it takes jobs with a target; one that was not told its abilities does not.
        pid: Its process.
        hostname: Its machine.
        queues: The queues that it consumes.
        concurrency: How many jobs it runs at once.
        version: That of Oxcart.
        started_at: When it started, in ms by the server's clock.
        last_seen: When this was written, in ms by the server's clock.
        clock: The same by the clock of its machine; None where an older worker wrote the record.
    """

    id: str
    server: str = ""
    name: str = ""
    stack: tuple[str, ...] = ()
    region: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    routed: bool = False
    pid: int = 0
    hostname: str = ""
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    version: str = ""
    started_at: int = 0
    last_seen: int = 0
    clock: int | None = None

    @property
    def skew_ms(self) -> int | None:
        """How far the clock of its machine is ahead of the server's, in ms; None where nothing is known."""
        return None if self.clock is None else self.clock - self.last_seen

    @property
    def abilities(self) -> Abilities:
        """What it can do, as a value of the model."""
        return Abilities(self.server or None, self.stack, self.capabilities, self.region)


async def beat(broker: BullMQBroker, record: WorkerRecord, *, told: Told, life: float = LIFE) -> None:
    """Writes down that a worker lives."""
    await _register(broker, record.id, msgspec.json.encode(record), told, life)


async def leave(broker: BullMQBroker, worker_id: str) -> None:
    """Forgets a worker that has ended."""
    await _register(broker, worker_id, b"", "", LIFE)


async def _register(broker: BullMQBroker, worker_id: str, record: bytes, told: Told, life: float) -> None:
    args = (worker_id, record, round(life * 1000), told)
    await broker.caller.again(load("register"), broker.keys.meta(), *args, timeout=5.0)


async def workers(broker: BullMQBroker) -> list[WorkerRecord]:
    """The workers of a queue that live, by their ids."""
    ids = await broker.caller.command("ZRANGE", broker.keys.workers(), 0, -1)
    if not ids:
        return []
    names = [broker.keys.worker(raw.decode("utf-8", "surrogateescape")) for raw in ids]
    found = await broker.caller.pipeline([("GET", name) for name in names])
    records = []
    for raw in found:
        try:
            records.append(msgspec.json.decode(raw or b"", type=WorkerRecord))
        except (msgspec.MsgspecError, UnicodeError):
            continue  # it ended, or is none of ours
    return sorted(records, key=lambda record: record.id)


def target_of(broker: BullMQBroker, lane: str) -> Target | None:
    """What the jobs of a lane ask for; None where nobody can read its name."""
    read = parse_lane(f"{broker.base}@{lane}")
    return None if read is None else read[1]


def fits(broker: BullMQBroker, lane: str, abilities: Abilities) -> bool:
    """Whether a worker may take jobs of a lane; one whose name nobody can read fits nobody."""
    target = target_of(broker, lane)
    return target is not None and target.matches(abilities)


async def lanes_without_workers(broker: BullMQBroker, lanes: Iterable[str]) -> list[str]:
    """Those lanes of a queue that no living worker fits, and that no connected worker consumes by name."""
    abilities = [one.abilities for one in await workers(broker) if one.routed]
    left = [lane for lane in lanes if not any(fits(broker, lane, one) for one in abilities)]
    if not left:
        return []
    consumed = await _consumed(broker, left)
    return [lane for lane in left if lane not in consumed]


async def _consumed(broker: BullMQBroker, lanes: Sequence[str]) -> set[str]:
    """The lanes that a worker consumes as a queue of its own, as Node's workers do.

    Such a worker has no record here. BullMQ finds it by the name of its connection, and so do we. Where the
    server refuses to list connections, a lane with active jobs counts as consumed.
    """
    keys = {lane: broker.lanes.open(lane).keys for lane in lanes}
    try:
        listed: bytes = await broker.caller.command("CLIENT", "LIST", "TYPE", "normal")
    except (ScriptError, AccessDenied):
        lengths = await broker.caller.pipeline([("LLEN", one.active()) for one in keys.values()])
        return {lane for lane, length in zip(keys, lengths, strict=True) if length}
    names = {_worker_queue(raw.decode("utf-8", "replace")) for raw in _NAME.findall(listed)}
    return {lane for lane, one in keys.items() if names.intersection(one.consumer_names())}


def _worker_queue(name: str) -> str:
    """A connection's name without the worker's own; that of a listener to events matches no queue."""
    return name.partition(":w:")[0]


async def unroutable(broker: BullMQBroker) -> dict[str, int]:
    """How many jobs wait, now or for their time, in lanes that no living worker fits."""
    counted = {
        lane: sum(row[state] for state in WAITING) for lane, row in (await broker.lanes.counts()).items()
    }
    waiting = {lane: count for lane, count in counted.items() if count}
    lost = await lanes_without_workers(broker, waiting) if waiting else []
    return {lane: waiting[lane] for lane in sorted(lost)}
