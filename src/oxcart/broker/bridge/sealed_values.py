"""The stored values of a Bridge job type that a key ring may seal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bridge import codec, records
from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.scripts import load
from oxcart.broker.discovery import glob_escape, scan_keys
from oxcart.broker.keyring import SEALED, Purpose, sealed_as
from oxcart.broker.port.parts import SealedValues, StoredIn, StoredValue
from oxcart.broker.progress import OnProgress
from oxcart.broker.replies import pairs
from oxcart.broker.sealed_steps import sealed_parts
from oxcart.broker.sealing import Sealer, data_of
from oxcart.model.errors import ReplyCode

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker

#: Jobs that are read at once.
READ = 25


class TypeSealedValues(TypePart, SealedValues):
    """The sealed values of one job type: parts of its records, results and progress, and checkpoints."""

    async def values(self, sealer: Sealer, progress: OnProgress) -> AsyncIterator[StoredValue]:
        broker, begin = self._broker, self._broker.keys.data("")
        async for keys in scan_keys(broker, f"{glob_escape(begin)}*", "string", READ, progress):
            for value in await _of_records(broker, sealer, [key[len(begin) :] for key in keys]):
                yield value

    async def replace(self, batch: Sequence[tuple[StoredValue, bytes]]) -> int:
        caller, first = self._broker.caller, self._broker.keys.waiting()
        args: list[bytes | str] = []
        codes: list[int] = []
        for value, new in batch:
            if value.place is StoredIn.RECORD:
                at = records.attempts_at(new)
                codes.append(
                    await caller.once(load("replace_record"), first, value.key, value.stored, new, at)
                )
            else:
                args += (value.place, value.key, value.field, value.stored, new)
        if args:
            codes += await caller.again(load("reseal"), first, *args)
        return sum(code == ReplyCode.DONE for code in codes)


async def _of_records(broker: BridgeBroker, sealer: Sealer, ids: Sequence[str]) -> list[StoredValue]:
    """Returns the values of jobs and schedules on Bridge."""
    keys, found = broker.keys, []
    commands: list[tuple[str, ...]] = []
    for one in ids:
        commands += [("GET", keys.data(one)), ("GET", keys.result(one)), ("GET", keys.progress(one))]
        commands.append(("HGETALL", keys.job(one)))
    answers = iter(await broker.caller.pipeline(commands)) if ids else iter(())
    for one, raw, result, progress, flat in zip(ids, answers, answers, answers, answers, strict=True):
        record = records.read_record(raw or b"")
        if raw is None or record.type != broker.queue:
            continue
        purpose: Purpose = "payload"
        bound = one
        if "cron" in record.schedule:
            purpose = "schedule"
        elif record.payload.startswith(SEALED) and sealed_as(record.payload) == "schedule":
            purpose, bound = "schedule", str(record.ox.get("schedule", one))
        bond = sealer.bond(purpose, bound)
        found.append(
            StoredValue(record.payload, bond, one, raw, place=StoredIn.RECORD, put=_into(raw, "payload"))
        )
        for key, purpose, held in (
            (keys.result(one), "result", result),
            (keys.progress(one), "progress", progress),
        ):
            inner = data_of(held or b"")
            if inner.startswith(SEALED):
                found.append(
                    StoredValue(
                        inner,
                        sealer.bond(purpose, one),
                        key,
                        held,
                        place=StoredIn.STRING,
                        put=_into(held, "data"),
                    )
                )
        run = pairs(flat)
        if (checkpoint := run.get(b"ox:checkpoint")) is not None:
            bond = sealer.bond("checkpoint", one)
            found.append(StoredValue(checkpoint, bond, keys.job(one), checkpoint, b"ox:checkpoint"))
        for field, value, bond, put in sealed_parts(sealer, one, run):
            found.append(StoredValue(value, bond, keys.job(one), run[field], field, put=put))
    return found


def _into(held: bytes, part: str) -> Callable[[bytes], bytes]:
    """Puts a new value into a part of a JSON object."""
    if part == "payload":
        return lambda new: codec.with_members(held, payload=new)

    def put(new: bytes) -> bytes:
        parts = msgspec.json.decode(held, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**parts, part: msgspec.Raw(new)})

    return put
