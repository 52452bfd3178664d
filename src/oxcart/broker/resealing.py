"""Re-seals the stored values of a queue under the current key of its ring, in bounded steps.

The walk goes over keys, not over states: a job that moves meanwhile keeps its key, so none is missed. A value
is replaced only if it is unchanged since it was read, so workers and producers may run meanwhile. A value
under the current key is left alone: the walk may be repeated, and continues where an earlier one stopped.

Events in the stream are not re-sealed: the stream drops them as it ages.
"""

from __future__ import annotations

import msgspec

from oxcart.broker.keyring import SEALED, KeyRing
from oxcart.broker.port import ServedBroker
from oxcart.broker.port.parts import SealedValues, StoredValue
from oxcart.broker.progress import OnProgress, silent
from oxcart.model.errors import DecryptionError, OxcartError

#: Bytes and values that one call writes at most.
WRITE_BYTES, WRITE = 1_048_576, 50
#: The reason for plaintext that the ring does not seal without migration.
PLAINTEXT = "in plaintext: seal it with --migrate"


class Resealed(msgspec.Struct):
    """The result of a walk over a queue's sealed values.

    Attributes:
        resealed: Values that are now sealed with the current key; in a dry run, values that would be.
        current: Values that already were.
        changed: Values that another client changed between reading and writing; another walk finds them.
        unopened: Values that stay as they are, counted by the reason.
    """

    resealed: int = 0
    current: int = 0
    changed: int = 0
    unopened: dict[str, int] = {}


async def reseal(broker: ServedBroker, *, dry_run: bool = False, progress: OnProgress = silent) -> Resealed:
    """Re-seals payloads, checkpoints, results, progress and schedules of a queue and its lanes.

    A ring with ``migrating=True`` also re-seals version 1, and seals payloads and checkpoints in plaintext.

    Args:
        broker: The queue; it must have keys.
        dry_run: Only counts.
        progress: Receives how many keys the scan has seen, after every step.

    Raises:
        NotSupported: The queue is in memory.
        OxcartError: The queue has no keys.
    """
    stored, sealer = broker.capabilities.part(broker.sealed_values, "resealing"), broker.sealer
    if sealer is None:
        raise OxcartError(f"queue {broker.queue!r} was given no keys")
    done = Resealed()
    batch: list[tuple[StoredValue, bytes]] = []
    async for value in stored.values(sealer, progress):
        new = _judge(value, sealer.ring, done)
        if new is None:
            continue
        if dry_run:
            done.resealed += 1
            continue
        batch.append((value, new if value.put is None else value.put(new)))
        if len(batch) >= WRITE or sum(len(written) for _, written in batch) >= WRITE_BYTES:
            await _write(stored, batch, done)
            batch = []
    if batch:
        await _write(stored, batch, done)
    return done


async def _write(stored: SealedValues, batch: list[tuple[StoredValue, bytes]], done: Resealed) -> None:
    replaced = await stored.replace(batch)
    done.resealed += replaced
    done.changed += len(batch) - replaced


def _judge(value: StoredValue, ring: KeyRing, done: Resealed) -> bytes | None:
    """Returns the value under the current key; None if it stays as it is."""
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
