"""Turns the keys of a Bridge job into the model's values: its options, and the job as a snapshot.

Our workers record a job's runs in a hash beside the record (`BridgeKeys.job`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from oxcart.broker.bridge.members import decoded, dump, fault_of, text_bytes
from oxcart.broker.bridge.records import PLACES, Record, read_number, read_object, read_record
from oxcart.broker.faults import fault_in, json_fault, name_fault, number_fault
from oxcart.broker.sealed_steps import open_steps
from oxcart.broker.stored import MOST, count_of, decode_tags, int_of, json_of, reason_of, recorded, text_of
from oxcart.model.errors import DecryptionError
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention
from oxcart.model.state import State, formal_state

if TYPE_CHECKING:
    from oxcart.broker.keyring import Purpose
    from oxcart.broker.sealing import Sealer


def options_of(record: Record) -> JobOptions:
    """Returns the options in a record."""
    ox = record.ox
    unwanted = ox.get("noretry")
    unwanted = unwanted if isinstance(unwanted, str) else ""
    return JobOptions(
        attempts=record.attempts,
        backoff=record.backoff,
        delay=record.delay,
        priority=record.priority,
        remove_on_complete=Retention.from_wire(ox.get("completed")),
        remove_on_fail=Retention.from_wire(ox.get("failed")),
        timeout=int_of(ox["timeout"], None) if "timeout" in ox else UNSET,
        stack_trace_limit=int_of(ox.get("traces"), None),
        retry_system="system" not in unwanted,
        retry_timeout="timeout" not in unwanted,
        tags=tags_of(record) or None,
        correlation_id=correlation_of(record),
        skip_on=record.skip_on,
        reroute_on=record.reroute_on,
        trace_context=as_text(record.ox.get("tm")),
    )


def tags_of(record: Record) -> dict[str, str]:
    """Returns the texts in a record's metadata."""
    return decode_tags(dump(record.metadata)) if record.metadata else {}


def correlation_of(record: Record) -> str | None:
    """Returns the correlation id that our producer set."""
    return as_text(record.ox.get("corr"))


def schedule_of(record: Record) -> str | None:
    """Returns the schedule that a job is a run of."""
    return as_text(record.ox.get("schedule"))


def as_text(value: Any) -> str | None:
    """Returns text from JSON as it is after encoding and decoding: half a surrogate pair is escaped."""
    return text_of(text_bytes(value)) if isinstance(value, str) else None


def faults_of(record: Record, run: Mapping[bytes, bytes]) -> str:
    """Returns why a readable record, or the record of its runs, cannot be decoded; empty if it can."""
    name, timeout = record.name, record.ox.get("timeout")
    if not name.isascii() and (why := name_fault(text_bytes(name))):
        return why
    if isinstance(timeout, int) and abs(timeout) > MOST:
        return number_fault(b"ox:timeout", b"%d" % timeout)
    return fault_in(run)


def traces_of(run: Mapping[bytes, bytes]) -> list[str]:
    """Returns the stack traces of earlier attempts."""
    found = json_of(run.get(b"stacktrace"))
    return [str(trace) for trace in found] if isinstance(found, list) else []


def decode_job(
    queue: str,
    job_id: str,
    raw: bytes,
    status: str | None,
    *,
    run: Mapping[bytes, bytes] | None = None,
    result: bytes | None = None,
    progress: bytes | None = None,
    pending: bool = False,
    sealer: Sealer | None = None,
    lenient: bool = False,
) -> Job:
    """Returns a snapshot of a job from its keys, with its sealed values opened.

    Raises:
        DecryptionError: A sealed value does not open, unless ``lenient`` leaves it sealed.
    """
    record = read_record(raw)
    run = run or {}

    def opened(purpose: Purpose, held: bytes | None) -> bytes | None:
        if sealer is None or held is None:
            return held
        try:
            return sealer.open(purpose, job_id, held, schedule_of(record))
        except DecryptionError:
            if not lenient:
                raise
            return held

    body = opened("payload", record.payload if record.type else raw)
    assert body is not None
    place = "waiting-children" if pending else PLACES.get(status or "")
    past = read_past(record, status, run, result, place)
    value = opened("result", past.value)
    checkpoint = opened("checkpoint", run.get(b"ox:checkpoint"))
    if sealer is not None:
        run = {**run, **open_steps(sealer, job_id, run, lenient=lenient)}
    unreadable = "" if record.type else fault_of(raw)
    return Job(
        id=job_id,
        name=as_text(record.name) or "",
        queue=queue,
        lane=record.lane or None,
        data=json_of(body),
        options=options_of(record),
        timestamp=record.created_at,
        delay=past.delay,
        priority=record.priority,
        progress=json_of(opened("progress", progress_of(progress)), default=0),
        attempts_made=past.attempts_made,
        attempts_started=count_of(run.get(b"ats")),
        stalled_count=count_of(run.get(b"stc")),
        processed_on=int_of(run.get(b"processedOn"), None),
        finished_on=past.finished_ms,
        worker_id=text_of(run.get(b"pb")),
        return_value=json_of(value),
        failed_reason=None if past.finished_ms is not None and value is not None else reason_of(past.reason),
        stacktrace=past.stacktrace,
        state=past.state,
        fault=unreadable or faults_of(record, run) or json_fault(body, "data") or None,
        checkpointed=json_of(checkpoint),
        **recorded(run),
    )


class Past(msgspec.Struct, frozen=True):
    """The past of a job.

    Attributes:
        state: Its formal state; None if its status is unknown.
        delay: How long it waits now, in ms.
        finished_ms: When it ended.
        value: The result as JSON, perhaps sealed; None unless it completed.
        reason: The latest failure.
        stacktrace: The stack traces, newest last.
    """

    state: State | None
    attempts_made: int
    delay: int
    finished_ms: int | None
    value: bytes | None
    reason: str | None
    stacktrace: list[str]


def read_past(
    record: Record, status: str | None, run: Mapping[bytes, bytes], result: bytes | None, place: str | None
) -> Past:
    """Returns the past of a job in a wire state; its result adds what our workers did not record."""
    ended = read_object(decoded(result)) if result else {}
    finished = read_number(ended.get("completedAt"), 0) if ended else int_of(run.get(b"finishedOn"), None)
    value = dump(ended.get("data")) if ended.get("success") else None
    reason, traces = text_of(run.get(b"failedReason")), traces_of(run)
    if ended and value is None:
        error = read_object(ended.get("error"))
        reason = as_text(str(error.get("message", ""))) if reason is None else reason
        if error.get("stack") and b"stacktrace" not in run:
            traces = [str(error["stack"])]
    made = max(0, record.runs - 1) if status == "active" else record.runs
    delay = 0
    if status == "delayed":
        # A record of another client may lack the delay.
        delay = (int_of(run[b"delay"], 0) if b"delay" in run else record.delay) or 1
    state = None
    if place is not None:
        state = formal_state(
            place,
            attempts_made=made,
            attempts=record.attempts,
            stalled=count_of(run.get(b"stc")),
            category=text_of(run.get(b"ox:category")),
            lifetime_over=b"ox:dead" in run,
            delay=delay,
        )
    return Past(state, made, delay, finished, value, reason, traces)


def progress_of(raw: bytes | None) -> bytes | None:
    """Returns a job's progress as JSON: a percentage alone as a number; None for none."""
    if not raw:
        return None
    held = decoded(raw)
    if isinstance(held, dict) and "percent" in held and not (held.keys() - {"percent", "updatedAt"}):
        held = held["percent"]
    elif isinstance(held, dict) and _is_sealed(held.get("data")):
        held = held["data"]
    return dump(held)


def _is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["$sealed"]
