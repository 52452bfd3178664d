"""The registry of a queue's workers, and the lanes that no worker fits.

A worker writes its record every ten seconds; the key expires after thirty. A worker of many queues does so in
one of them. Its records in the others last longer and name that queue.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bullmq.scripts import load
from oxcart.broker.probe import list_clients
from oxcart.broker.replies import text
from oxcart.broker.workers import LIFE, Wakes, WorkerRecord, WorkerRegistry
from oxcart.model.errors import AccessDenied, ScriptError

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker
    from oxcart.broker.bullmq.keys import Keys
    from oxcart.broker.caller import Caller

#: The wire states in which a job waits for a worker, now or later.
WAITING = ("wait", "paused", "prioritized", "delayed")


async def read_records(
    caller: Caller, queues: Sequence[tuple[Keys, Sequence[str]]]
) -> list[list[WorkerRecord]]:
    """Reads the records of workers that live, for some queues of one server and the ids of their workers."""
    named = [(at, keys, worker) for at, (keys, ids) in enumerate(queues) for worker in ids]
    records = await _read(caller, [keys.worker(worker) for _, keys, worker in named])
    others = {
        replace(keys, queue=record.beats_in).worker(worker)
        for (_, keys, worker), record in zip(named, records, strict=True)
        if record is not None and record.beats_in
    }
    beats: dict[str, WorkerRecord | None] | None = {}
    if others:
        try:
            beats = dict(zip(others, await _read(caller, [*others]), strict=True))
        except (ScriptError, AccessDenied):
            beats = None  # the user may not read that queue: the record stands for itself
    found: list[list[WorkerRecord]] = [[] for _ in queues]
    for (at, keys, worker), record in zip(named, records, strict=True):
        if record is None:
            continue
        if record.beats_in and beats is not None:
            beat = beats[replace(keys, queue=record.beats_in).worker(worker)]
            if beat is None:
                continue
            record = msgspec.structs.replace(record, last_seen=beat.last_seen, clock=beat.clock)
        found[at].append(record)
    return found


async def _read(caller: Caller, keys: Sequence[str]) -> list[WorkerRecord | None]:
    records: list[WorkerRecord | None] = []
    for raw in await caller.pipeline([("GET", key) for key in keys]) if keys else ():
        try:
            records.append(msgspec.json.decode(raw or b"", type=WorkerRecord))
        except (msgspec.MsgspecError, UnicodeError):
            records.append(None)  # the worker stopped, or the record is not ours
    return records


class QueueWorkers(WorkerRegistry):
    """The workers of one queue."""

    by_name = False

    def __init__(self, broker: BullMQBroker) -> None:
        self._broker = broker

    @property
    def place(self) -> Hashable:
        """Each queue has a registry of its own."""
        return id(self._broker.server), self._broker.keys.base

    def check_name(self, name: str) -> None:
        """Accepts any name: records are found by the worker's id."""

    async def beat(self, record: WorkerRecord, wakes: Wakes = Wakes.NOTHING, *, life: float = LIFE) -> None:
        """Writes a worker's record, which counts as a sign of life for so many seconds."""
        fields = msgspec.to_builtins(record)
        del fields["alive"]
        await self._register(record.id, msgspec.json.encode(fields), wakes, life)

    async def leave(self, worker_id: str) -> None:
        """Removes a worker that has stopped."""
        await self._register(worker_id, b"", Wakes.NOTHING, LIFE)

    async def _register(self, worker_id: str, record: bytes, wakes: Wakes, life: float) -> None:
        args = (worker_id, record, round(life * 1000), wakes.value)
        await self._broker.caller.again(load("register"), self._broker.keys.meta(), *args, timeout=5.0)

    async def everyone(self) -> list[WorkerRecord]:
        """Returns the living workers: the server drops the records of others."""
        caller, keys = self._broker.caller, self._broker.keys
        ids = await caller.command("ZRANGE", keys.workers(), 0, -1)
        if not ids:
            return []
        (records,) = await read_records(caller, [(keys, [text(raw) for raw in ids])])
        return sorted(records, key=lambda record: record.id)

    async def living(self) -> list[WorkerRecord]:
        """Returns the living workers, by their ids."""
        return await self.everyone()

    async def sweep(self) -> int:
        """Does nothing: records expire."""
        return 0

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait, ready or delayed, in lanes that no living worker fits."""
        counted = {
            lane: sum(row[state] for state in WAITING)
            for lane, row in (await self._broker.lanes.counts()).items()
        }
        waiting = {lane: count for lane, count in counted.items() if count}
        lost = await self._without_worker(waiting) if waiting else []
        return {lane: waiting[lane] for lane in sorted(lost)}

    async def _without_worker(self, lanes: Iterable[str]) -> list[str]:
        """Returns the lanes that no living worker fits and no connected worker consumes by name."""
        fits = self._broker.lanes.fits
        abilities = [one.abilities for one in await self.living() if one.routed]
        left = [lane for lane in lanes if not any(fits(lane, one) for one in abilities)]
        consumed = await self._consumed(left) if left else set()
        return [lane for lane in left if lane not in consumed]

    async def _consumed(self, lanes: Sequence[str]) -> set[str]:
        """Returns the lanes that a worker consumes as a separate queue, as Node's workers do.

        Such a worker has no record here; BullMQ finds it by the name of its connection. If the server refuses
        to list connections, a lane with active jobs counts as consumed.
        """
        broker = self._broker
        keys = {lane: broker.lanes.open(lane).keys for lane in lanes}
        try:
            listed = await list_clients(broker.caller, "TYPE", "normal")
        except (ScriptError, AccessDenied):
            lengths = await broker.caller.pipeline([("LLEN", one.active()) for one in keys.values()])
            return {lane for lane, length in zip(keys, lengths, strict=True) if length}
        # Without the worker's own name; the name of an event listener matches no queue.
        names = {client.get("name", "").partition(":w:")[0] for client in listed}
        return {lane for lane, one in keys.items() if names.intersection(one.consumer_names())}
