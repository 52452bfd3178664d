"""A job of the store for its readers: a snapshot for callers, a claim for workers."""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.broker.memory.record import Record
from oxcart.broker.port import ClaimedJob
from oxcart.broker.replies import text
from oxcart.broker.sealed_steps import open_records
from oxcart.broker.sealing import Sealer
from oxcart.model import payload
from oxcart.model.errors import DecryptionError
from oxcart.model.job import Job
from oxcart.model.masking import masked
from oxcart.model.options import JobOptions


def job_of(queue: str, record: Record, sealer: Sealer | None, *, lenient: bool = False) -> Job:
    """Returns a snapshot of a job.

    Args:
        queue: The queue's name.
        record: The job.
        sealer: Opens sealed values.
        lenient: Whether a value that does not open stays sealed instead of raising.

    Raises:
        DecryptionError: A value does not open.
    """

    def opened(purpose: Any, raw: bytes | None, default: Any = None) -> Any:
        if raw is None:
            return default
        if sealer is not None:
            try:
                raw = sealer.open(purpose, record.id, raw)
            except DecryptionError:
                if not lenient:
                    raise
                return raw.decode()
        return payload.decode(raw)

    steps = record.steps
    if sealer is not None:
        steps = open_records(sealer, record.id, steps, lenient=lenient)
    return Job(
        id=record.id,
        name=record.name,
        queue=queue,
        data=opened("payload", record.body),
        options=record.options,
        timestamp=record.created_ms,
        delay=record.delay,
        priority=record.priority,
        progress=opened("progress", record.progress, 0),
        attempts_made=record.attempts_made,
        attempts_started=record.starts,
        stalled_count=record.stalls,
        processed_on=record.started_ms,
        finished_on=record.finished_ms,
        worker_id=record.worker,
        return_value=opened("result", record.result),
        failed_reason=None if record.state == "completed" else record.reason,
        stacktrace=_traces(record),
        deferred_failure=record.deferred,
        state=record.formal_state,
        idempotency_key=record.options.idempotency_key,
        ready_ms=record.ready_ms,
        moved_ms=record.moved_ms,
        category=record.category or None,
        code=record.code or None,
        dead_reason=record.dead or None,
        unhandled_start=record.unhandled,
        checkpointed=opened("checkpoint", record.checkpoint),
        signals=[name for name, _ in record.signals],
        step_records={name: text(raw) for name, raw in steps.items()},
    )


class MemoryClaim(msgspec.Struct, kw_only=True):
    """A claimed job; the members are those of `oxcart.broker.port.ClaimedJob`."""

    id: str
    token: str
    starts: int
    started_ms: int
    name: str
    payload: bytes
    options: JobOptions
    idempotency_key: str | None
    created_ms: int
    ready_ms: int | None
    attempts_made: int
    stalls: int
    forgiven_starts: int
    excused_starts: int
    expires_ms: int | None
    deferred_failure: str | None
    stacktrace: list[str]
    checkpoint: bytes | None
    steps: dict[str, bytes]
    record: Record
    fault: str = ""
    cancel_reason: str | None = None
    schedule_id: str | None = None
    advances_schedule: bool = False

    def __repr__(self) -> str:
        return masked(self, "payload", "checkpoint", "steps", "record")

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.options.tags or {})

    @property
    def correlation_id(self) -> str | None:
        return self.options.correlation_id

    @property
    def callback_url(self) -> str | None:
        return self.options.callback_url

    @property
    def shared_stalls(self) -> int:
        return 0

    @property
    def has_conditions(self) -> bool:
        return self.expires_ms is not None or self.deferred_failure is not None or self.stalls > 0

    def set_checkpoint(self, body: bytes) -> None:
        self.checkpoint = body

    def to_job(self, queue: str, worker_id: str, sealer: Sealer | None) -> Job:
        return job_of(queue, self.record, sealer)


def claimed_job(record: Record, token: str, now: int) -> ClaimedJob:
    """Returns a job as it was before the claim that starts it."""
    return MemoryClaim(
        id=record.id,
        token=token,
        starts=record.starts + 1,
        started_ms=now,
        name=record.name,
        payload=record.body,
        options=record.options,
        idempotency_key=record.options.idempotency_key,
        created_ms=record.created_ms,
        ready_ms=record.ready_ms,
        attempts_made=record.attempts_made,
        stalls=record.stalls,
        forgiven_starts=record.forgiven,
        excused_starts=record.excused,
        expires_ms=record.expires_ms,
        deferred_failure=record.deferred,
        stacktrace=_traces(record),
        checkpoint=record.checkpoint,
        steps=dict(record.steps),
        record=record,
    )


def _traces(record: Record) -> list[str]:
    return msgspec.json.decode(record.stack, type=list[str]) if record.stack else []
