"""A claimed job of Bridge: its record, and the hash in which our workers record its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.bridge import jobs, members, records
from oxcart.broker.port import Claimed, ClaimedJob
from oxcart.broker.stored import count_of, ready_of, step_fields
from oxcart.model.job import Job
from oxcart.model.masking import masked
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from oxcart.broker.sealing import Sealer


class ClaimReply(msgspec.Struct, gc=False):
    """The reply of ``lua/claim.lua`` and ``lua/finish.lua``, as the server sends it.

    Attributes:
        codes: Finish: a code per outcome.
        jobs: The claimed jobs, as MessagePack.
        limited_ms: For how long a limit blocks the next start.
        due_ms: When the next delayed job is due.
        closed: 1 if the type is paused.
        active: How many jobs of the type are active.
        orphans: Ids without a job.
        repeated: 1 if the reply came from the journal.
        unknown: Jobs of other clients that no client of ours has indexed.
        more: 1 until the scan for such jobs reaches the end of the list.
        lanes: Lanes with work that the caller did not name.
        awaited: Finish: ended jobs that have dependents.
        now_ms: The server's time.
    """

    codes: list[int]
    jobs: bytes
    limited_ms: int
    due_ms: int
    closed: int
    active: int
    orphans: list[bytes]
    repeated: int
    unknown: list[bytes]
    more: int
    lanes: list[bytes]
    awaited: list[bytes]
    now_ms: int

    def claimed(self, jobs: list[ClaimedJob], orphans: list[str], repeated: bool, more: bool) -> Claimed:
        """Returns the claim of several calls of which this was the last."""
        closed = self.closed == 1
        return Claimed(jobs, self.limited_ms, self.due_ms, closed, self.active, orphans, repeated, more)


class BridgeClaim(msgspec.Struct):
    """A claimed job; the members are those of `oxcart.broker.port.ClaimedJob`.

    Attributes:
        raw: The job's record.
        run: The fields of its runs that our workers recorded before the claim.
        record: The record, decoded; None if it cannot be.
        unreadable: Why it cannot be; empty if it can.
    """

    id: str
    token: str
    starts: int
    started_ms: int
    raw: bytes
    run: dict[bytes, bytes]
    record: records.Record | None
    unreadable: str = ""

    def __repr__(self) -> str:
        return masked(self, "raw", "run", "record")

    @property
    def name(self) -> str:
        return "" if self.record is None else self.record.name

    @property
    def payload(self) -> bytes:
        return self.raw if self.record is None else self.record.payload

    @property
    def fault(self) -> str:
        return self.unreadable if self.record is None else jobs.faults_of(self.record, self.run)

    @property
    def options(self) -> JobOptions:
        return DEFAULT_OPTIONS if self.record is None else jobs.options_of(self.record)

    @property
    def tags(self) -> dict[str, str]:
        return {} if self.record is None else jobs.tags_of(self.record)

    @property
    def correlation_id(self) -> str | None:
        return None if self.record is None else jobs.correlation_of(self.record)

    @property
    def callback_url(self) -> str | None:
        return None

    @property
    def idempotency_key(self) -> str | None:
        return None

    @property
    def created_ms(self) -> int:
        return 0 if self.record is None else self.record.created_at

    @property
    def ready_ms(self) -> int | None:
        return ready_of(self.run)

    @property
    def attempts_made(self) -> int:
        # The record counts starts, this one included.
        return 0 if self.record is None else max(0, self.record.runs - 1)

    @property
    def stalls(self) -> int:
        return count_of(self.run.get(b"stc"))

    @property
    def shared_stalls(self) -> int:
        return 0

    @property
    def forgiven_starts(self) -> int:
        return count_of(self.run.get(b"ox:forgiven"))

    @property
    def excused_starts(self) -> int:
        return count_of(self.run.get(b"ox:excused"))

    @property
    def has_conditions(self) -> bool:
        return b"ox:cancel" in self.run or b"stc" in self.run

    @property
    def expires_ms(self) -> int | None:
        return None

    @property
    def cancel_reason(self) -> str | None:
        raw = self.run.get(b"ox:cancel")
        return None if raw is None else raw.decode("utf-8", "replace")

    @property
    def deferred_failure(self) -> str | None:
        return None

    @property
    def stacktrace(self) -> list[str]:
        return jobs.traces_of(self.run)

    @property
    def checkpoint(self) -> bytes | None:
        return self.run.get(b"ox:checkpoint")

    def set_checkpoint(self, body: bytes) -> None:
        self.run[b"ox:checkpoint"] = body

    @property
    def steps(self) -> dict[str, bytes]:
        return step_fields(self.run)

    @property
    def schedule_id(self) -> str | None:
        return None if self.record is None else jobs.schedule_of(self.record)

    @property
    def advances_schedule(self) -> bool:
        return False

    def to_job(self, queue: str, worker_id: str, sealer: Sealer | None) -> Job:
        run = self.run | {
            b"ats": b"%d" % self.starts,
            b"processedOn": b"%d" % self.started_ms,
            b"pb": worker_id.encode(),
        }
        return jobs.decode_job(queue, self.id, self.raw, "active", run=run, sealer=sealer)


def read_claim(
    job_id: str, token: str, starts: int, started_ms: int, raw: bytes, run: dict[bytes, bytes]
) -> BridgeClaim:
    """Returns a claimed job; an unreadable record becomes its fault and raises no error."""
    record, why = None, ""
    try:
        record = records.read_record(raw)
        if not record.type:
            record, why = None, members.fault_of(raw)
    except Exception as error:  # a malformed record must not cost the other jobs of the claim
        why = f"record: {type(error).__name__}: {error}"
    return BridgeClaim(job_id, token, starts, started_ms, raw, run, record, why)
