"""Seals the values of one queue's jobs when they are written, and opens them when they are read.

A broker has a ``Sealer`` if its queue has keys. Each value is bound to its protocol, prefix, queue, job id
and purpose. Ids of single jobs are made before the write, so a payload is bound to its job. The runs of a
schedule get their ids from the server: they share a payload that is bound to the schedule.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

import msgspec

from oxcart.broker.keyring import SEALED, Bond, KeyRing, Purpose, purpose_of
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.model.errors import DecryptionError, SealError

_RUN = re.compile(r"repeat:(.+):\d+", re.DOTALL)


class Sealer:
    """Seals and opens values of one queue.

    Args:
        ring: The queue's keys.
        protocol: ``bullmq`` or ``bridge``.
        prefix: The queue's prefix, or its namespace.
        queue: The queue; for a lane its base queue.
    """

    __slots__ = ("_protocol", "prefix", "queue", "ring")

    def __init__(self, ring: KeyRing, protocol: str, prefix: str, queue: str) -> None:
        self.ring = ring
        self._protocol = protocol
        self.prefix = prefix
        self.queue = queue

    @classmethod
    def of(cls, ring: KeyRing | None, protocol: str, prefix: str, queue: str) -> Sealer | None:
        """Returns the sealer of a queue; None if it has no keys."""
        return None if ring is None else cls(ring, protocol, prefix, queue)

    def beside(self, prefix: str, queue: str) -> Sealer:
        """Returns the sealer of another queue with the same keys."""
        return Sealer(self.ring, self._protocol, prefix, queue)

    def seals(self, purpose: Purpose) -> bool:
        """Returns whether this queue seals values of this kind."""
        return purpose in self.ring.required

    def seal(self, purpose: Purpose, job_id: str, body: bytes, part: str = "") -> bytes:
        """Seals a value, as JSON, if the queue seals values of this kind."""
        if purpose not in self.ring.required:
            return body
        return self.ring.seal(body, self.bond(purpose, job_id, part))

    def open(
        self, purpose: Purpose, job_id: str, raw: bytes, schedule: str | None = None, part: str = ""
    ) -> bytes:
        """Opens a value.

        Args:
            purpose: What it must be.
            job_id: The job that it must belong to.
            raw: The value as it is stored.
            schedule: The schedule that the job is a run of; a payload may be bound to it instead.
            part: The step or signal of the job that it must belong to.

        Raises:
            SealError: It is in plaintext, was altered, or belongs to something else.
            DecryptionError: The ring lacks its key.
        """
        if not raw.startswith(SEALED):
            if purpose in self.ring.required and not self.ring.migrating:
                raise SealError(f"the {purpose} of job {job_id} is in plaintext, and this queue is sealed")
            return raw
        if purpose == "payload" and purpose_of(raw) == "schedule":
            of = schedule if self._protocol == "bridge" else schedule_of(job_id)
            if of is None:
                raise SealError(f"the payload of job {job_id} is that of a schedule, and it is no run of one")
            return self.ring.open(raw, self.bond("schedule", of))
        return self.ring.open(raw, self.bond(purpose, job_id, part))

    def open_event(self, job_id: str, fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Returns the fields of an event with sealed values opened; others stay sealed."""
        opened = dict(fields)
        sealed: dict[bytes, Purpose] = {b"returnvalue": "result"}
        if fields.get(b"event") == b"progress":
            sealed[b"data"] = "progress"
        for name, purpose in sealed.items():
            raw = fields.get(name, b"")
            if self._protocol == "bridge" and purpose == "progress":
                raw = data_of(raw)
            if raw.startswith(SEALED):
                with contextlib.suppress(DecryptionError):
                    opened[name] = self.open(purpose, job_id, raw)
        return opened

    def seal_result(self, outcome: Outcome) -> Outcome:
        """Returns an outcome with a sealed result; an outcome without a result is returned as it is."""
        if outcome.kind != OutcomeKind.COMPLETED:
            return outcome
        return msgspec.structs.replace(outcome, value=self.seal("result", outcome.id, outcome.value))

    def bond(self, purpose: Purpose, job_id: str, part: str = "") -> Bond:
        """Returns the context to which a value of this queue is bound."""
        return Bond(self._protocol, self.prefix, self.queue, job_id, purpose, part)


def open_value(
    sealer: Sealer | None,
    purpose: Purpose,
    job_id: str,
    raw: bytes,
    schedule: str | None = None,
    part: str = "",
) -> bytes:
    """Opens a value of a queue that may have keys; without keys a plain value stays as it is.

    Raises:
        DecryptionError: It does not open, or it is sealed and the queue has no keys.
    """
    if sealer is not None:
        return sealer.open(purpose, job_id, raw, schedule, part)
    if raw.startswith(SEALED):
        raise DecryptionError(
            f"the {purpose} is sealed, and this queue was given no keys: Queue(…, key_ring=…)"
        )
    return raw


def data_of(held: bytes) -> bytes:
    """Returns the data in the result or progress of a job of Bridge, as JSON; empty if it has none."""
    try:
        return bytes(msgspec.json.decode(held, type=dict[str, msgspec.Raw]).get("data", b""))
    except (msgspec.MsgspecError, UnicodeError):
        return b""


def schedule_of(job_id: str) -> str | None:
    """Returns the schedule that a job of BullMQ is a run of, from its id."""
    found = _RUN.fullmatch(job_id)
    return found[1] if found else None
