"""Re-seals the stored values of a queue under the current key of its ring, in bounded steps.

The walk goes over keys, not over states: a job that moves meanwhile keeps its key, so none is missed. A value
is replaced only while it is still what was read, so workers and producers may run beside it. What is sealed
with the current key is left alone: the walk may be repeated, and goes on where one was broken off.

Not re-sealed are events in the stream, which age by themselves.

May touch: the server, through a queue's broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import msgspec

from oxcart.broker.bridge import codec, records
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.scripts import load as load_bridge
from oxcart.broker.bullmq import flows
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import split_own
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import glob_escape
from oxcart.broker.keyring import SEALED, Bond, KeyRing, Purpose, purpose_of
from oxcart.broker.port import ServedBroker
from oxcart.broker.progress import Progress, Told, silent
from oxcart.broker.sealing import FIELDS, Sealer, data_of, schedule_of
from oxcart.model.errors import DecryptionError, OxcartError
from oxcart.model.names import HIDDEN
from oxcart.model.target import base_of

#: Keys that one step of the scan looks at.
SCAN = 500
#: Jobs that are read at once.
READ = 25
#: Bytes and values that one call writes at most.
WRITE_BYTES, WRITE = 1_048_576, 50
#: What is said of plaintext that may not be sealed without being asked.
PLAINTEXT = "in plaintext: seal it with --migrate"

_JOB_FIELDS = (*FIELDS, b"jid", b"timestamp")


class Resealed(msgspec.Struct):
    """What a walk over a queue's sealed values found and did.

    Attributes:
        resealed: Values that are now sealed with the current key; with a dry run, those that would be.
        current: Values that were already.
        changed: Values that somebody changed between reading and writing; another walk finds them.
        unopened: Values that stay as they are, counted by the reason.
    """

    resealed: int = 0
    current: int = 0
    changed: int = 0
    unopened: dict[str, int] = {}


class _Value(msgspec.Struct):
    """A stored value and where it is.

    Attributes:
        raw: The value, sealed or plain.
        bond: What it belongs to.
        kind: ``h`` in a hash, ``s`` a string, ``r`` in a job's record on Bridge.
        key: The key that holds it; with ``r`` the job's id.
        field: The field of a hash.
        held: What the key or field holds as a whole.
        put: Puts a new value into that.
    """

    raw: bytes
    bond: Bond
    kind: Literal["h", "s", "r"]
    key: str
    field: bytes
    held: bytes
    put: Callable[[bytes], bytes]


async def reseal(broker: ServedBroker, *, dry_run: bool = False, told: Told = silent) -> Resealed:
    """Re-seals payloads, checkpoints, results, progress and schedules of a queue and its lanes.

    A ring with ``migrating=True`` also re-seals version 1, and seals payloads and checkpoints in plaintext.

    Args:
        broker: The queue; it must have keys.
        dry_run: Only counts.
        told: Receives how many keys the scan has seen, after every step.

    Raises:
        OxcartError: The queue has no keys.
    """
    sealer = broker.sealer
    if sealer is None:
        raise OxcartError(f"queue {broker.queue!r} was given no keys")
    done = Resealed()
    batch: list[tuple[_Value, bytes]] = []
    async for value in _values(broker, sealer, told):
        new = _judge(value, sealer.ring, done)
        if new is None:
            continue
        if dry_run:
            done.resealed += 1
            continue
        batch.append((value, value.put(new)))
        if len(batch) >= WRITE or sum(len(written) for _, written in batch) >= WRITE_BYTES:
            await _write(broker, batch, done)
            batch = []
    if batch:
        await _write(broker, batch, done)
    return done


def _judge(value: _Value, ring: KeyRing, done: Resealed) -> bytes | None:
    """The value under the current key; None where it stays as it is."""
    try:
        if value.raw.startswith(SEALED):
            if ring.is_current(value.raw):
                done.current += 1
                return None
            return ring.seal(ring.open(value.raw, value.bond), value.bond)
    except DecryptionError as error:
        reason = error.reason if error.key_id is None else f"key {error.key_id}: {error.reason}"
        reason = reason.replace(f" of job {value.bond.job_id}", "")
        done.unopened[reason] = done.unopened.get(reason, 0) + 1
        return None
    if value.bond.purpose not in ring.required:
        return None
    if not ring.migrating:
        done.unopened[PLAINTEXT] = done.unopened.get(PLAINTEXT, 0) + 1
        return None
    return ring.seal(value.raw, value.bond)


async def _write(broker: ServedBroker, batch: Sequence[tuple[_Value, bytes]], done: Resealed) -> None:
    args: list[bytes | str] = []
    codes: list[int] = []
    for value, new in batch:
        if value.kind == "r":
            at = records.attempts_at(new)
            script = load_bridge("replace_record")
            first = broker.keys.base + ":jobs:waiting"
            codes.append(await broker.caller.once(script, first, value.key, value.held, new, at))
        else:
            args += (value.kind, value.key, value.field, value.held, new)
    if args:
        native = isinstance(broker, BullMQBroker)
        first = f"{broker.keys.base}:meta" if native else f"{broker.keys.base}:jobs:waiting"
        script = load("reseal") if native else load_bridge("reseal")
        codes += await broker.caller.again(script, first, *args)
    replaced = sum(code == 1 for code in codes)
    done.resealed += replaced
    done.changed += len(codes) - replaced


async def _values(broker: ServedBroker, sealer: Sealer, told: Told) -> AsyncIterator[_Value]:
    if isinstance(broker, BridgeBroker):
        async for ids in _scan(broker, f"{glob_escape(broker.keys.data(''))}*", "string", told):
            for value in await _of_records(broker, sealer, [one[len(broker.keys.data("")) :] for one in ids]):
                yield value
        return
    assert isinstance(broker, BullMQBroker)
    async for keys in _scan(broker, f"{glob_escape(broker.keys.base)}*", "hash", told):
        jobs = []
        for key, rest in await _own(broker, keys):
            if rest.endswith(":processed"):
                async for value in _of_children(broker, sealer, key):
                    yield value
            else:
                jobs.append((key, rest))
        for value in await _of_hashes(broker, sealer, jobs):
            yield value


async def _scan(broker: ServedBroker, pattern: str, kind: str, told: Told) -> AsyncIterator[list[str]]:
    """The keys of a pattern, some at a time."""
    cursor, seen = b"0", 0
    total = int(await broker.caller.command("DBSIZE"))
    while True:
        cursor, keys = await broker.caller.command(
            "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN, "TYPE", kind
        )
        seen += SCAN
        for at in range(0, len(keys), READ):
            yield [key.decode("utf-8", "surrogateescape") for key in keys[at : at + READ]]
        told(Progress("keys", min(seen, total), total))
        if cursor == b"0":
            return


async def _own(broker: BullMQBroker, keys: Sequence[str]) -> list[tuple[str, str]]:
    """The keys of a queue and its lanes among some, each with its end.

    Keys of a queue ``r`` with the prefix ``bull:q`` begin as those of ``q`` with the prefix ``bull`` do.
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


async def _of_hashes(broker: BullMQBroker, sealer: Sealer, keys: Sequence[tuple[str, str]]) -> list[_Value]:
    """The values of jobs, of schedules, and of adds that a deduplication window keeps."""
    answers = await broker.caller.pipeline([("HMGET", key, *_JOB_FIELDS) for key, _ in keys]) if keys else []
    found = []
    for (key, rest), (*raws, kept_id, timestamp) in zip(keys, answers, strict=True):
        for (field, purpose), raw in zip(FIELDS.items(), raws, strict=True):
            if raw is None:
                continue
            if timestamp is not None:
                bond = _bond_of_job(sealer, purpose, rest, raw)
            elif rest.startswith("repeat:"):
                bond = sealer.bond("schedule", rest.removeprefix("repeat:"))
            elif rest.startswith("dn:") and kept_id is not None:
                bond = sealer.bond("payload", kept_id.decode("utf-8", "surrogateescape"))
            else:
                continue
            found.append(_Value(raw, bond, "h", key, field, raw, _as_it_is))
    return found


async def _of_children(broker: BullMQBroker, sealer: Sealer, key: str) -> AsyncIterator[_Value]:
    """The results of children that a parent keeps."""
    cursor = b"0"
    while True:
        cursor, flat = await broker.caller.command("HSCAN", key, cursor, "COUNT", READ)
        for child, raw in zip(flat[::2], flat[1::2], strict=True):
            base, queue, job_id = flows.split(broker, child.decode("utf-8", "surrogateescape"))
            if raw.startswith(SEALED):
                beside = sealer.beside(base.rpartition(":")[0], base_of(queue))
                yield _Value(raw, beside.bond("result", job_id), "h", key, child, raw, _as_it_is)
        if cursor == b"0":
            return


async def _of_records(broker: BridgeBroker, sealer: Sealer, ids: Sequence[str]) -> list[_Value]:
    """The values of jobs and schedules on Bridge."""
    keys, found = broker.keys, []
    commands: list[tuple[str, ...]] = []
    for one in ids:
        commands += [("GET", keys.data(one)), ("GET", keys.result(one)), ("GET", keys.progress(one))]
        commands.append(("HGET", keys.job(one), "ox:checkpoint"))
    answers = iter(await broker.caller.pipeline(commands)) if ids else iter(())
    for one, raw, result, progress, checkpoint in zip(ids, answers, answers, answers, answers, strict=True):
        record = records.read_record(raw or b"")
        if raw is None or record.type != broker.queue:
            continue
        purpose: Purpose = "payload"
        bound = one
        if "cron" in record.schedule:
            purpose = "schedule"
        elif record.payload.startswith(SEALED) and _says(record.payload) == "schedule":
            purpose, bound = "schedule", str(record.ox.get("schedule", one))
        bond = sealer.bond(purpose, bound)
        found.append(_Value(record.payload, bond, "r", one, b"", raw, _into(raw, "payload")))
        for key, purpose, held in (
            (keys.result(one), "result", result),
            (keys.progress(one), "progress", progress),
        ):
            inner = data_of(held or b"")
            if inner.startswith(SEALED):
                found.append(
                    _Value(inner, sealer.bond(purpose, one), "s", key, b"", held, _into(held, "data"))
                )
        if checkpoint is not None:
            bond = sealer.bond("checkpoint", one)
            found.append(
                _Value(checkpoint, bond, "h", keys.job(one), b"ox:checkpoint", checkpoint, _as_it_is)
            )
    return found


def _bond_of_job(sealer: Sealer, purpose: Purpose, job_id: str, raw: bytes) -> Bond:
    if purpose == "payload" and raw.startswith(SEALED) and _says(raw) == "schedule":
        return sealer.bond("schedule", schedule_of(job_id) or job_id)
    return sealer.bond(purpose, job_id)


def _says(raw: bytes) -> str:
    try:
        return purpose_of(raw)
    except DecryptionError:
        return ""


def _as_it_is(new: bytes) -> bytes:
    return new


def _into(held: bytes, part: str) -> Callable[[bytes], bytes]:
    """Puts a new value into a part of a JSON object."""
    if part == "payload":
        return lambda new: codec.with_parts(held, payload=new)

    def put(new: bytes) -> bytes:
        parts = msgspec.json.decode(held, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**parts, part: msgspec.Raw(new)})

    return put
