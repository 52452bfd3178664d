"""A worker's entry in a namespace's registry: who it is, what it can do, and that it lives.

A heartbeat every 10 s keeps a key of 30 s; whoever finds it gone takes the worker's jobs back. The renewer
process beats too with every renewal (``lua/extend.lua``), so that a handler that holds the worker's process
does not make it look dead while it holds jobs.

May touch: the server, through a broker's caller.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec

from oxcart.broker.bridge import records
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.model.errors import ValidationError
from oxcart.model.target import Abilities

#: Seconds between heartbeats, and the life of one.
BEAT_EVERY = 10.0
LIFE = 30
#: Ms after its last sign of life at which the entry of a worker of ours goes, its jobs being long back.
FORGOTTEN = 300_000


class WorkerEntry(msgspec.Struct, frozen=True):
    """A registered worker as the registry shows it.

    Attributes:
        id: Its id, the document's ``serverId``.
        alive: Whether it was heard of within 30 s.
        stack: What it is made of.
        region: Where it is.
        capabilities: What it can do.
        last_seen: When it last said so, in ms.
        pid: Its process.
        hostname: Its machine.
        queues: The job types that it takes, where it is one of ours.
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
        keys, now = self._broker.keys, self._broker.clock()
        record: dict[str, Any] = {
            "serverId": self._name,
            "stack": _one(abilities.stack),
            "region": _one(abilities.region),
            "capabilities": abilities.capabilities,
            "lastSeen": now,
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "ox": {"stack": abilities.stack, "region": abilities.region, "queues": self._queues},
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


async def registered(broker: BridgeBroker) -> list[WorkerEntry]:
    """The workers of a namespace, by their ids."""
    keys = broker.keys
    names = sorted(
        raw.decode("utf-8", "replace") for raw in await broker.caller.command("SMEMBERS", keys.workers())
    )
    commands: list[tuple[str, str]] = []
    for name in names:
        commands += [("GET", keys.worker(name)), ("EXISTS", keys.heartbeat(name))]
    answers = iter(await broker.caller.pipeline(commands))
    return [
        _entry(name, record, alive == 1) for name, record, alive in zip(names, answers, answers, strict=True)
    ]


async def unroutable(broker: BridgeBroker) -> dict[str, int]:
    """How many jobs of a type wait whose targets no living worker of the namespace fits, by the targets.

    A worker of another client does not say which types it takes: it may take any.
    """
    lanes = [
        raw.decode("utf-8", "surrogateescape")
        for raw in await broker.caller.command("SMEMBERS", broker.keys.lanes())
    ]
    asked = [lane for lane in lanes if lane]
    if not asked:
        return {}
    waiting = await broker.caller.pipeline([("ZCARD", broker.keys.lane(lane)) for lane in asked])
    able = [
        Abilities(one.id, one.stack, one.capabilities, one.region)
        for one in await registered(broker)
        if one.alive and (not one.queues or broker.queue in one.queues)
    ]
    now = broker.clock()
    return {
        lane: count
        for lane, count in sorted(zip(asked, waiting, strict=True))
        if count and not any(records.matches(lane, one, now) for one in able)
    }


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


def _entry(name: str, raw: bytes | None, alive: bool) -> WorkerEntry:
    try:
        read = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeError):
        read = {}
    if not isinstance(read, dict):
        read = {}
    ours = read.get("ox")
    more = ours if isinstance(ours, dict) else {}
    return WorkerEntry(
        name,
        alive,
        _words(more.get("stack", read.get("stack"))),
        _words(more.get("region", read.get("region"))),
        _words(read.get("capabilities")),
        _int(read.get("lastSeen")),
        _int(read.get("pid")),
        str(read.get("hostname") or ""),
        _words(more.get("queues")),
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _int(value: Any) -> int:
    return value if type(value) is int else 0
