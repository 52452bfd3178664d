"""A worker's entry in a namespace's registry: who it is, what it can do, and that it lives.

A heartbeat every 10 s keeps a key of 30 s; whoever finds it gone takes the worker's jobs back. The renewer
process beats too with every renewal (``lua/extend.lua``), so that a handler that holds the worker's process
does not make it look dead while it holds jobs.

May touch: the server, through a broker's caller.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bridge import records
from oxcart.broker.bullmq.registry import WorkerRecord
from oxcart.model.errors import ValidationError
from oxcart.model.target import Abilities

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker
    from oxcart.broker.bridge.looking import Looking

#: Seconds between heartbeats, and the life of one.
BEAT_EVERY = 10.0
LIFE = 30
#: Ms after its last sign of life at which the entry of a worker of ours goes, its jobs being long back.
FORGOTTEN = 300_000


class WorkerEntry(msgspec.Struct, frozen=True):
    """A registered worker as the registry shows it.

    Attributes:
        id: Its id, the document's ``serverId``.
        alive: Whether it has beaten, or written its record, within 30 s.
        stack: What it is made of.
        region: Where it is.
        capabilities: What it can do.
        last_seen: When it last said so, in ms; of a worker of ours by the server's clock.
        pid: Its process.
        hostname: Its machine.
        queues: The job types that it takes, where it is one of ours.
        clock: The same by the clock of its machine; None where nothing is known.
    """

    id: str
    alive: bool
    stack: tuple[str, ...] = ()
    region: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    last_seen: int = 0
    pid: int = 0
    hostname: str = ""
    queues: tuple[str, ...] = ()
    clock: int | None = None

    @property
    def skew_ms(self) -> int | None:
        """How far the clock of its machine is ahead of the server's, in ms; None where nothing is known."""
        return None if self.clock is None else self.clock - self.last_seen

    def may_take(self, job_type: str) -> bool:
        """Whether it takes jobs of a type; a worker of another client does not say, and may take any."""
        return not self.queues or job_type in self.queues


class Presence:
    """One worker's entry in one namespace.

    Args:
        broker: Any broker of the namespace.
        name: The worker's id.
        queues: The job types that it takes.

    Raises:
        ValidationError: The id would be one of the registry's own keys.
    """

    def __init__(self, broker: BridgeBroker, name: str, queues: tuple[str, ...]) -> None:
        if name == "active" or name.startswith("heartbeat:"):
            raise ValidationError("name", "other than the registry's own keys", name)
        self._broker = broker
        self._name = name
        self._queues = queues

    async def beat(self, abilities: Abilities) -> None:
        """Says that the worker lives and what it can do; enters it where it is not there."""
        keys, now = self._broker.keys, await self._broker.now()
        record: dict[str, Any] = {
            "serverId": self._name,
            "stack": _one(abilities.stack),
            "region": _one(abilities.region),
            "capabilities": abilities.capabilities,
            "lastSeen": now,
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "ox": {
                "stack": abilities.stack,
                "region": abilities.region,
                "queues": self._queues,
                "clock": now + self._broker.clock.skew_ms,
            },
        }
        await self._broker.caller.pipeline(
            [
                ("SET", keys.worker(self._name), msgspec.json.encode(record)),
                ("SET", keys.heartbeat(self._name), now, "EX", LIFE),
                ("SADD", keys.workers(), self._name),
            ]
        )

    async def leave(self) -> None:
        """Takes the worker out of the registry."""
        keys = self._broker.keys
        await self._broker.caller.pipeline(
            [
                ("SREM", keys.workers(), self._name),
                ("DEL", keys.heartbeat(self._name)),
                ("DEL", keys.worker(self._name)),
            ]
        )


async def registered(broker: Looking) -> list[WorkerEntry]:
    """The workers of a namespace, by their ids."""
    keys = broker.keys
    names = sorted(
        raw.decode("utf-8", "surrogateescape")
        for raw in await broker.caller.command("SMEMBERS", keys.workers())
    )
    commands: list[tuple[str, ...]] = [("TIME",)]
    for name in names:
        commands += [("GET", keys.worker(name)), ("EXISTS", keys.heartbeat(name))]
    (seconds, _), *rest = await broker.caller.pipeline(commands)
    answers = iter(rest)
    return [
        _entry(name, record, beats == 1, int(seconds) * 1000)
        for name, record, beats in zip(names, answers, answers, strict=True)
    ]


async def workers(broker: Looking) -> list[WorkerRecord]:
    """The living workers of a namespace that may take jobs of the broker's type."""
    return [
        WorkerRecord(
            id=one.id,
            server=one.id,
            name=one.id,
            stack=one.stack,
            region=one.region,
            capabilities=one.capabilities,
            routed=True,
            pid=one.pid,
            hostname=one.hostname,
            queues=one.queues,
            last_seen=one.last_seen,
            clock=one.clock,
        )
        for one in await registered(broker)
        if one.alive and one.may_take(broker.queue)
    ]


async def unroutable(broker: Looking) -> dict[str, int]:
    """How many jobs of a type wait, now or for their time, whose targets no living worker fits."""
    waiting: Counter[str] = Counter()
    if await broker.census.is_indexed():
        raw = await broker.caller.command("SMEMBERS", broker.keys.lanes())
        lanes = [lane.decode("utf-8", "surrogateescape") for lane in raw]
        counted = await broker.caller.pipeline([("ZCARD", broker.keys.lane(lane)) for lane in lanes])
        waiting.update(dict(zip(lanes, counted, strict=True)))
    else:
        waiting.update(_of_type(await broker.census.count("waiting"), broker.queue))
    waiting.update(_of_type(await broker.census.count("delayed"), broker.queue))
    asked: Counter[str] = Counter()
    for lane, count in waiting.items():
        asked[records.target_of(lane)] += count
    asked.pop("", None)
    if not asked:
        return {}
    able = [one.abilities for one in await workers(broker)]
    return {
        target: count
        for target, count in sorted(asked.items())
        if count and not any(records.matches(target, one) for one in able)
    }


def _of_type(counted: Counter[tuple[str, str]], job_type: str) -> dict[str, int]:
    return {lane: count for (kind, lane), count in counted.items() if kind == job_type}


async def sweep(broker: BridgeBroker) -> int:
    """Drops entries of workers of ours that are long gone; those of other clients are theirs."""
    dropped = 0
    for entry in await registered(broker):
        if entry.queues and not entry.alive and entry.last_seen < broker.clock() - FORGOTTEN:
            await Presence(broker, entry.id, ()).leave()
            dropped += 1
    return dropped


def _one(words: tuple[str, ...]) -> str:
    """The document has one stack and one region per worker."""
    return words[0] if words else ""


def _entry(name: str, raw: bytes | None, beats: bool, now_ms: int) -> WorkerEntry:
    try:
        read = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        read = {}
    if not isinstance(read, dict):
        read = {}
    ours = read.get("ox")
    more = ours if isinstance(ours, dict) else {}
    # A client may beat for the first time ten seconds after it has registered; see lua/parts/holders.lua.
    seen = abs(_int(read.get("lastSeen")) - now_ms) < LIFE * 1000
    return WorkerEntry(
        name,
        beats or seen,
        _words(more.get("stack", read.get("stack"))),
        _words(more.get("region", read.get("region"))),
        _words(read.get("capabilities")),
        _int(read.get("lastSeen")),
        _int(read.get("pid")),
        str(read.get("hostname") or ""),
        _words(more.get("queues")),
        _int(more.get("clock")) or None,
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _int(value: Any) -> int:
    return value if type(value) is int else 0
