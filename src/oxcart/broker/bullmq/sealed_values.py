"""The stored values of a queue on BullMQ's layout that a key ring may seal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.codec import SEALABLE
from oxcart.broker.bullmq.flows import split
from oxcart.broker.bullmq.keys import split_own
from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape, scan_keys
from oxcart.broker.keyring import SEALED, Bond, Purpose, sealed_as
from oxcart.broker.port.parts import SealedValues, StoredValue
from oxcart.broker.progress import OnProgress
from oxcart.broker.replies import text
from oxcart.broker.sealed_steps import sealed_parts
from oxcart.broker.sealing import Sealer, schedule_of
from oxcart.broker.stored import FIELD_SIGNALS, FIELD_STEP
from oxcart.model.errors import ReplyCode
from oxcart.model.names import HIDDEN
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: Jobs that are read at once.
READ = 25

_JOB_FIELDS = (*SEALABLE, b"jid", b"timestamp")
_STEPS = (FIELD_STEP, FIELD_SIGNALS)


class QueueSealedValues(QueuePart, SealedValues):
    """The sealed values of one queue and its lanes, all of them fields of hashes."""

    async def values(self, sealer: Sealer, progress: OnProgress) -> AsyncIterator[StoredValue]:
        broker = self._broker
        async for keys in scan_keys(broker, f"{glob_escape(broker.keys.base)}*", "hash", READ, progress):
            jobs = []
            for key, rest in await _own(broker, keys):
                if rest.endswith(":processed"):
                    async for value in _of_children(broker, sealer, key):
                        yield value
                else:
                    jobs.append((key, rest))
            for value in await _of_hashes(broker, sealer, jobs):
                yield value

    async def replace(self, batch: Sequence[tuple[StoredValue, bytes]]) -> int:
        args: list[bytes | str] = []
        for value, new in batch:
            args += ("h", value.key, value.field, value.stored, new)
        codes = await self._broker.caller.again(load("reseal"), self._broker.keys.meta(), *args)
        return sum(code == ReplyCode.DONE for code in codes)


async def _own(broker: BullMQBroker, keys: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the keys of a queue and its lanes among some, each with its end.

    Keys of a queue ``r`` with the prefix ``bull:q`` begin like those of ``q`` with the prefix ``bull``.
    """
    found, heads = [], dict[str, list[str]]()
    for key in keys:
        split = split_own(key, broker.keys.base)
        if split is None or split[0].endswith(HIDDEN):
            continue
        begin, end = split
        found.append((key, end))
        heads[key] = [f"{begin}:{end[:at]}" for at, char in enumerate(end) if char == ":"]
    asked = list(dict.fromkeys(head for several in heads.values() for head in several))
    commands = [("EXISTS", f"{head}:meta", f"{head}:events") for head in asked]
    answers = await broker.caller.pipeline(commands) if commands else []
    others = {head for head, known in zip(asked, answers, strict=True) if known}
    return [(key, end) for key, end in found if others.isdisjoint(heads[key])]


async def _of_hashes(
    broker: BullMQBroker, sealer: Sealer, keys: Sequence[tuple[str, str]]
) -> list[StoredValue]:
    """Returns the values of jobs, of schedules, and of adds that a deduplication window keeps."""
    commands: list[tuple[bytes | str, ...]] = []
    for key, _ in keys:
        commands += (("HMGET", key, *_JOB_FIELDS), ("HKEYS", key))
    answers = iter(await broker.caller.pipeline(commands) if keys else ())
    found = []
    for (key, rest), (*raws, kept_id, timestamp), names in zip(keys, answers, answers, strict=True):
        for (field, purpose), raw in zip(SEALABLE.items(), raws, strict=True):
            if raw is None:
                continue
            if timestamp is not None:
                bond = _bond_of_job(sealer, purpose, rest, raw)
            elif rest.startswith("repeat:"):
                bond = sealer.bond("schedule", rest.removeprefix("repeat:"))
            elif rest.startswith("dn:") and kept_id is not None:
                bond = sealer.bond("payload", text(kept_id))
            else:
                continue
            found.append(StoredValue(raw, bond, key, raw, field))
        if steps := [name for name in names if name.startswith(_STEPS)]:
            values = await broker.caller.command("HMGET", key, *steps)
            fields = {name: raw for name, raw in zip(steps, values, strict=True) if raw is not None}
            for field, raw, bond, put in sealed_parts(sealer, rest, fields):
                found.append(StoredValue(raw, bond, key, fields[field], field, put=put))
    return found


async def _of_children(broker: BullMQBroker, sealer: Sealer, key: str) -> AsyncIterator[StoredValue]:
    """Yields the results of children that a parent keeps."""
    cursor = b"0"
    while True:
        cursor, flat = await broker.caller.command("HSCAN", key, cursor, "COUNT", READ)
        for child, raw in zip(flat[::2], flat[1::2], strict=True):
            base, queue, job_id = split(broker, text(child))
            if raw.startswith(SEALED):
                beside = sealer.beside(base.rpartition(":")[0], base_of(queue))
                yield StoredValue(raw, beside.bond("result", job_id), key, raw, child)
        if cursor == b"0":
            return


def _bond_of_job(sealer: Sealer, purpose: Purpose, job_id: str, raw: bytes) -> Bond:
    if purpose == "payload" and raw.startswith(SEALED) and sealed_as(raw) == "schedule":
        return sealer.bond("schedule", schedule_of(job_id) or job_id)
    return sealer.bond(purpose, job_id)
