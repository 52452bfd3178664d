"""The registry of a namespace's workers, in the form of Bridge's specification, and targets that no worker
fits.

A heartbeat every 10 s keeps a key of 30 s; another worker that finds it gone recovers the worker's jobs. The
renewer process beats too with every renewal (``lua/renew.lua``), so that a handler that blocks the worker's
process does not make it look dead while it has jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.bridge import records
from oxcart.broker.replies import text, texts
from oxcart.broker.workers import LIFE, Wakes, WorkerRecord, WorkerRegistry
from oxcart.model.errors import ValidationError

if TYPE_CHECKING:
    from oxcart.broker.bridge.reading import Reading

#: Ms after its last sign of life at which the entry of a worker of ours is removed.
FORGOTTEN = 300_000


class NamespaceWorkers(WorkerRegistry):
    """The workers of one namespace, as one job type of it sees them."""

    by_name = True

    def __init__(self, broker: Reading) -> None:
        self._broker = broker

    @property
    def place(self) -> Hashable:
        """All types of a namespace share one registry, however many connections lead to it."""
        server = self._broker.server
        return server.location or server.folder, self._broker.keys.base

    def check_name(self, name: str) -> None:
        """Refuses the names of the registry's own keys.

        Raises:
            ValidationError: The name is one of them.
        """
        if name == "active" or name.startswith("heartbeat:"):
            raise ValidationError("name", "other than the registry's own keys", name)

    async def beat(self, record: WorkerRecord, wakes: Wakes = Wakes.NOTHING, *, life: float = LIFE) -> None:
        """Writes a worker's record, which counts as a sign of life for 30 s."""
        keys = self._broker.keys
        entry: dict[str, Any] = {
            "serverId": record.id,
            "stack": _one(record.stack),
            "region": _one(record.region),
            "capabilities": record.capabilities,
            "lastSeen": record.last_seen,
            "pid": record.pid,
            "hostname": record.hostname,
            "ox": {
                "stack": record.stack,
                "region": record.region,
                "queues": record.queues,
                "clock": record.clock,
            },
        }
        await self._broker.caller.write_all(
            [
                ("SET", keys.worker(record.id), msgspec.json.encode(entry)),
                ("SET", keys.heartbeat(record.id), record.last_seen, "EX", round(LIFE)),
                ("SADD", keys.workers(), record.id),
            ]
        )

    async def leave(self, worker_id: str) -> None:
        """Removes a worker that has stopped."""
        keys = self._broker.keys
        await self._broker.caller.write_all(
            [
                ("SREM", keys.workers(), worker_id),
                ("DEL", keys.heartbeat(worker_id)),
                ("DEL", keys.worker(worker_id)),
            ]
        )

    async def everyone(self) -> list[WorkerRecord]:
        """Returns all registered workers, by their ids, including those that are gone."""
        keys, caller = self._broker.keys, self._broker.caller
        names = sorted(text(raw) for raw in await caller.command("SMEMBERS", keys.workers()))
        commands: list[tuple[str, ...]] = [("TIME",)]
        for name in names:
            commands += [("GET", keys.worker(name)), ("EXISTS", keys.heartbeat(name))]
        (seconds, _), *rest = await caller.pipeline(commands)
        answers = iter(rest)
        return [
            _record(name, raw, beats == 1, int(seconds) * 1000)
            for name, raw, beats in zip(names, answers, answers, strict=True)
        ]

    async def living(self) -> list[WorkerRecord]:
        """Returns the living workers that may take jobs of the type."""
        return [one for one in await self.everyone() if one.alive and one.may_take(self._broker.queue)]

    async def sweep(self) -> int:
        """Removes entries of workers of ours that are long gone; entries of other clients stay."""
        dropped = 0
        for one in await self.everyone():
            if one.queues and not one.alive and one.last_seen < self._broker.clock() - FORGOTTEN:
                await self.leave(one.id)
                dropped += 1
        return dropped

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs of the type wait whose targets no living worker fits."""
        broker = self._broker
        waiting: Counter[str] = Counter()
        if await broker.census.is_indexed():
            raw = await broker.caller.command("SMEMBERS", broker.keys.lanes())
            lanes = texts(raw)
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
        able = [one.abilities for one in await self.living()]
        return {
            target: count
            for target, count in sorted(asked.items())
            if count and not any(records.matches(target, one) for one in able)
        }


def _of_type(counted: Counter[tuple[str, str]], job_type: str) -> dict[str, int]:
    return {lane: count for (kind, lane), count in counted.items() if kind == job_type}


def _one(words: tuple[str, ...]) -> str:
    """Returns one word: the specification has one stack and one region per worker."""
    return words[0] if words else ""


def _record(name: str, raw: bytes | None, beats: bool, now_ms: int) -> WorkerRecord:
    try:
        read = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        read = {}
    if not isinstance(read, dict):
        read = {}
    ours = read.get("ox")
    more = ours if isinstance(ours, dict) else {}
    # A client may send its first heartbeat ten seconds after it has registered; see lua/parts/holders.lua.
    seen = abs(_int(read.get("lastSeen")) - now_ms) < LIFE * 1000
    return WorkerRecord(
        id=name,
        server=name,
        name=name,
        stack=_words(more.get("stack", read.get("stack"))),
        region=_words(more.get("region", read.get("region"))),
        capabilities=_words(read.get("capabilities")),
        routed=True,
        pid=_int(read.get("pid")),
        hostname=str(read.get("hostname") or ""),
        queues=_words(more.get("queues")),
        last_seen=_int(read.get("lastSeen")),
        clock=_int(more.get("clock")) or None,
        alive=beats or seen,
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _int(value: Any) -> int:
    return value if type(value) is int else 0
