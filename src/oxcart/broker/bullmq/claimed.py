"""A claimed job of BullMQ: its hash; a field is decoded when the engine reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bullmq import codec
from oxcart.broker.stored import count_of, decode_tags, json_of, ready_of, step_fields, text_of
from oxcart.model.job import Job
from oxcart.model.masking import masked
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from oxcart.broker.sealing import Sealer


class BullMQClaim(msgspec.Struct):
    """A claimed job; the members are those of `oxcart.broker.port.ClaimedJob`.

    Attributes:
        fields: The job's hash before the claim.
    """

    id: str
    token: str
    starts: int
    started_ms: int
    fields: dict[bytes, bytes]
    _options: JobOptions | None = None

    def __repr__(self) -> str:
        return masked(self, "fields")

    @property
    def earlier(self) -> int:
        """Attempts ended so far, as ``finish.lua`` receives them; -1 if the script must read more."""
        fields = self.fields
        if (
            b"deid" in fields
            or b"ox:history" in fields
            or b"ox:lifetime" in fields
            or b"attemptsMade" in fields
        ):
            return -1
        ended = fields.get(b"atm", b"0")
        return int(ended) if ended.isdigit() and len(ended) <= 15 else -1

    @property
    def name(self) -> str:
        return self.fields.get(b"name", b"").decode("utf-8", "replace")

    @property
    def payload(self) -> bytes:
        return self.fields.get(b"data", b"null")

    @property
    def fault(self) -> str:
        return codec.fault_of(self.fields)

    @property
    def options(self) -> JobOptions:
        if self._options is None:
            self._options = codec.options_of(self.fields)
        return self._options

    @property
    def tags(self) -> dict[str, str]:
        return decode_tags(self.fields.get(b"ox:tags"))

    @property
    def correlation_id(self) -> str | None:
        return text_of(self.fields.get(b"ox:corr"))

    @property
    def callback_url(self) -> str | None:
        raw = self.fields.get(b"ox:callback")
        return None if raw is None else raw.decode("utf-8", "replace")

    @property
    def idempotency_key(self) -> str | None:
        return text_of(self.fields.get(b"ox:idem"))

    @property
    def created_ms(self) -> int:
        return count_of(self.fields.get(b"timestamp"))

    @property
    def ready_ms(self) -> int | None:
        return ready_of(self.fields)

    @property
    def attempts_made(self) -> int:
        return codec.attempts_made(self.fields)

    @property
    def stalls(self) -> int:
        return count_of(self.fields.get(b"stc"))

    @property
    def shared_stalls(self) -> int:
        return count_of(self.fields.get(b"ox:shared"))

    @property
    def forgiven_starts(self) -> int:
        return count_of(self.fields.get(b"ox:forgiven"))

    @property
    def excused_starts(self) -> int:
        return count_of(self.fields.get(b"ox:excused"))

    @property
    def has_conditions(self) -> bool:
        fields = self.fields
        return b"ox:lifetime" in fields or b"ox:cancel" in fields or b"defa" in fields or b"stc" in fields

    @property
    def expires_ms(self) -> int | None:
        fields = self.fields
        if b"ox:lifetime" not in fields or (lifetime := self.options.lifetime) is None:
            return None
        return count_of(fields.get(b"ox:since") or fields.get(b"timestamp")) + lifetime

    @property
    def cancel_reason(self) -> str | None:
        raw = self.fields.get(b"ox:cancel")
        return None if raw is None else raw.decode("utf-8", "replace")

    @property
    def deferred_failure(self) -> str | None:
        raw = self.fields.get(b"defa")
        return None if raw is None else raw.decode("utf-8", "replace")

    @property
    def stacktrace(self) -> list[str]:
        found = json_of(self.fields.get(b"stacktrace"))
        return [str(trace) for trace in found] if isinstance(found, list) else []

    @property
    def checkpoint(self) -> bytes | None:
        return self.fields.get(b"ox:checkpoint")

    def set_checkpoint(self, body: bytes) -> None:
        self.fields[b"ox:checkpoint"] = body

    @property
    def steps(self) -> dict[str, bytes]:
        return step_fields(self.fields)

    @property
    def schedule_id(self) -> str | None:
        return text_of(self.fields.get(b"rjk"))

    @property
    def advances_schedule(self) -> bool:
        return b"rjk" in self.fields

    def to_job(self, queue: str, worker_id: str, sealer: Sealer | None) -> Job:
        fields = self.fields | {
            b"ats": b"%d" % self.starts,
            b"processedOn": b"%d" % self.started_ms,
            b"pb": worker_id.encode(),
        }
        if sealer is not None:
            fields = codec.open_fields(sealer, self.id, fields)
        return codec.decode_job(queue, self.id, fields, "active")


class NewClaim(BullMQClaim):
    """A claimed job with the six fields of a new one and no others, as nearly every job has.

    What the engine reads of every job is decoded once, with the reply, and what such a job cannot have is a
    constant: a property per job is not free.
    """

    name: str = ""
    payload: bytes = b"null"
    fault: str = ""
    options: JobOptions = DEFAULT_OPTIONS
    earlier: int = 0
    has_conditions: bool = False
    expires_ms: int | None = None
    callback_url: str | None = None
    advances_schedule: bool = False
