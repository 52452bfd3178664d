"""Writes Bridge's JSON records.

A job becomes its record, and the facts that a claim needs. Our records begin with the number of attempts, so
that a claim can count a run without reading the rest. A record of another client has that number elsewhere,
and its facts contain the offset. No script ever decodes a record: it may be large, and Lua does not write
back what it read (``[]`` becomes ``{}``).

Values without a field of Bridge go to an object ``ox`` in the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from oxcart.broker.bridge.members import decoded, members_of
from oxcart.broker.bridge.records import (
    FRONT,
    JITTER,
    MAX_DELAY,
    NORMAL_PRIORITY,
    Facts,
    added_fields,
    pack,
    read_backoff,
)
from oxcart.broker.capabilities import BRIDGE
from oxcart.broker.ids import new_id
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.model import payload
from oxcart.model.backoff import Backoff
from oxcart.model.duration import MAX_MS
from oxcart.model.errors import PayloadError, ValidationError
from oxcart.model.names import check_job_name
from oxcart.model.options import JobOptions
from oxcart.model.priority import Priority
from oxcart.model.retention import Retention
from oxcart.model.state import formal_state
from oxcart.model.target import Target

if TYPE_CHECKING:
    from oxcart.broker.sealing import Sealer

Encoded = tuple[str, list[bytes | str | int]]
"""A job ready to be sent: its id, and its arguments for ``add.lua``."""

#: Bridge's numbers of the formal priorities.
FORMAL = {
    Priority.CRITICAL: 10,
    Priority.HIGH: 8,
    Priority.NORMAL: 5,
    Priority.LOW: 3,
    Priority.BULK: 1,
}
#: Jobs per add call, and their bytes.
ADD_CHUNK = 100
ADD_BYTES = 1_048_576
#: How long a job's keys stay after its end, in seconds.
KEPT = 86_400
#: The text before the time of creation in a record; strings of JSON cannot contain it.
CREATED = b',"createdAt":'
#: The placeholder of that time until the server writes it: it has as many digits.
NO_TIME = 1_000_000_000_000
#: Characters of a stack that an event carries for a pipeline.
LONGEST_STACK = 4000

#: The category by which ``finish.lua`` recognizes a cancelled job.
CANCELLED = "x"

#: Why a job fails whose handler wants to wait for children.
NO_CHILDREN = "the bridge protocol has no place for children, for which the handler wants to wait"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_json = msgspec.json.Encoder()


def encode_job(
    job_type: str,
    name: str,
    data: Any,
    options: JobOptions,
    now: int | str,
    *,
    formal: bool = False,
    sealer: Sealer | None = None,
) -> Encoded:
    """Checks and encodes a job.

    Args:
        job_type: Its type: the queue.
        name: The name of its handler; stored if it is not the type.
        data: Its payload.
        options: Its options.
        now: The time in ms, or empty for the server's.
        formal: Whether its priority is one of the formal ones.
        sealer: Seals the payload for this job.

    Raises:
        ValidationError: A value cannot be stored.
        NotSupported: Bridge cannot express an option.
        PayloadTooLarge: It is over the limit.
    """
    check_job_name(name)
    check_options(options)
    body = payload.encode({} if data is None else data)
    job_id = options.job_id or new_id()
    if sealer is not None:
        body = sealer.seal("payload", job_id, body)
    created = now if options.timestamp is None else options.timestamp
    at_ms = NO_TIME if isinstance(created, str) else created
    record, facts = make_record(job_type, name, body, options, at_ms, job_id, formal=formal)
    payload.check_size(record, b"", options.size_limit)
    due: int | str = 0
    if options.delay:
        due = f"+{options.delay}" if isinstance(created, str) else created + options.delay
    return job_id, [
        job_id,
        record,
        facts.packed(),
        due,
        "L" if options.lifo else "",
        added_fields(name, options.correlation_id, options.tags),
        record.rindex(CREATED) + len(CREATED) if isinstance(created, str) else "",
        len(options.after),
        *options.after,
    ]


def make_record(
    job_type: str,
    name: str,
    body: bytes,
    options: JobOptions,
    now_ms: int,
    job_id: str,
    *,
    formal: bool = False,
    schedule: Mapping[str, Any] | None = None,
) -> tuple[bytes, Facts]:
    """Returns a job's record, and its facts."""
    number = priority_of(options.priority, formal=formal)
    ox: dict[str, Any] = {}
    if name != job_type:
        ox["name"] = name
    if options.timeout is not UNSET:
        ox["timeout"] = options.timeout
    if options.correlation_id is not None:
        ox["corr"] = options.correlation_id
    if options.trace_context is not None:
        ox["tm"] = options.trace_context
    if options.stack_trace_limit is not None:
        ox["traces"] = options.stack_trace_limit
    if not (options.retry_timeout and options.retry_system):
        unwanted = {"timeout": options.retry_timeout, "system": options.retry_system}
        ox["noretry"] = ",".join(word for word, wanted in unwanted.items() if not wanted)
    for ox_name, kept in (("completed", options.remove_on_complete), ("failed", options.remove_on_fail)):
        if kept is not None:
            ox[ox_name] = kept.wire()
    backoff, exact = _wire_backoff(options.backoff)
    if exact is not None:
        ox["backoff"] = exact
    retry: dict[str, Any] = {"attempts": options.attempts, "backoff": backoff}
    if options.skip_on:
        retry["skipOn"] = options.skip_on
    if options.reroute_on:
        retry["rerouteOn"] = options.reroute_on
    rate = options.rate_limit
    record: dict[str, Any] = {
        "attempts": 0,
        "jobId": job_id,
        "type": job_type,
        "payload": msgspec.Raw(body),
        "schedule": schedule if schedule is not None else {"delay": options.delay} if options.delay else {},
        "retry": retry,
        "priority": number,
        "dependsOn": options.after,
        "target": _wire_target(options.target),
        "metadata": options.tags or {},
        "createdAt": now_ms,
    }
    if rate is not None:
        limits = {"maxConcurrent": rate.max_concurrent, "maxPerMinute": rate.max_per_minute}
        record["rateLimit"] = {key: limit for key, limit in limits.items() if limit}
    if ox:
        record["ox"] = ox
    lane = str(options.target) if options.target else ""
    facts = Facts(
        job_type,
        lane,
        number,
        rate.max_concurrent or 0 if rate else 0,
        rate.max_per_minute or 0 if rate else 0,
        len(FRONT),
    )
    return _json.encode(record), facts


def check_options(options: JobOptions) -> None:
    """Refuses options that Bridge cannot express, before anything is written.

    Raises:
        NotSupported: There is such an option.
    """
    asked = {
        "deduplication": options.deduplication,
        "idempotency": options.idempotency_key,
        "webhooks": options.callback_url,
        "history": options.history or None,
        "lifetime": options.lifetime,
        "limit_keys": options.limit_key,
        "groups": options.group,
        "logs": options.keep_logs,
    }
    for feature, given in asked.items():
        if given is not None:
            BRIDGE.require(feature)
    if options.job_id is not None and not _UUID.fullmatch(options.job_id):
        BRIDGE.require("custom_ids")
    for kept in (options.remove_on_complete, options.remove_on_fail):
        if kept is not None and (kept.count or 0) > 0:
            BRIDGE.require("retention_by_count")


def priority_of(given: int, *, formal: bool = False) -> int:
    """Returns Bridge's number of a priority: 1 to 10, a higher one runs first; 0 if none is given.

    Raises:
        ValidationError: It is out of range.
    """
    if formal:
        return FORMAL[Priority(given)]
    if given == 0:
        return NORMAL_PRIORITY
    if not 1 <= given <= 10:
        raise ValidationError("priority", "an integer from 1 to 10 (of which 10 runs first)", given)
    return given


def formal_priority(number: int) -> int:
    """Returns the formal priority of Bridge's number; that of normal jobs for a number of another client."""
    named = {known: priority for priority, known in FORMAL.items()}
    return int(named.get(number, Priority.NORMAL))


def retention_seconds(kept: Retention | None) -> int:
    """Returns for how many seconds the keys of an ended job stay; 0 for none."""
    if kept is None:
        return KEPT
    if kept.count == 0:
        return 0
    return KEPT if kept.age is None else min(kept.age, KEPT)


def result_of(value: bytes) -> bytes:
    """Returns the result of a completed job as JSON; the script adds its end and its duration."""
    return _json.encode({"success": True, "data": msgspec.Raw(value or b"null")})


def newest_stack(stack: bytes) -> str:
    """Returns the last stack trace for a pipeline; a long one loses its beginning."""
    traces = decoded(stack)
    return str(traces[-1])[-LONGEST_STACK:] if isinstance(traces, list) and traces else ""


def failure_of(reason: str, stack: bytes, name: str) -> bytes:
    """Returns the result of a failed job as JSON; the script adds its end and its duration."""
    traces = decoded(stack)
    error = {
        "message": reason,
        "stack": str(traces[-1]) if isinstance(traces, list) and traces else "",
        "name": name or "Error",
    }
    return _json.encode({"success": False, "error": error})


def outcome_of(o: Outcome, facts: bytes, version: str = "") -> bytes:
    """Returns an outcome as ``finish.lua`` reads it; ``facts`` if it goes to another worker.

    ``version`` is that of the worker's program.
    """
    kind: str = o.kind
    value, category, state = o.value, o.category, ""
    if kind == OutcomeKind.AWAIT_CHILDREN:
        kind, value, category = OutcomeKind.FAILED, NO_CHILDREN.encode(), "permanent"
    result = b""
    if kind == OutcomeKind.COMPLETED:
        result = result_of(value)
    elif kind == OutcomeKind.FAILED:
        reason = value.decode("utf-8", "replace")
        result = failure_of(reason, o.stack, o.code)
        state = _failed_into(o, category)
        if category == "cancelled":
            kind = CANCELLED
    return pack(
        (
            kind,
            o.id,
            o.token,
            o.starts if o.starts >= 0 else "",
            o.at_ms or "",
            result,
            value,
            o.stack,
            category,
            o.code,
            o.delay_ms,
            o.counts,
            o.lifo,
            retention_seconds(o.retention),
            facts,
            state,
            newest_stack(o.stack),
            o.dead,
            o.waits,
            version,
            o.unhandled,
        )
    )


def _failed_into(o: Outcome, category: str) -> str:
    """Returns the formal state in which a failed job ends."""
    ended = o.attempts if o.claim is None else o.claim.attempts_made + 1
    return str(
        formal_state(
            "failed",
            attempts_made=ended,
            attempts=o.attempts,
            category=category,
            lifetime_over=bool(o.dead),
        )
    )


def progress_of(progress: Any, now_ms: int) -> bytes:
    """Returns progress as JSON: a number is a percentage; an object is data, percent and message."""
    written: dict[str, Any] = {"percent": 0}
    if isinstance(progress, dict):
        rest = dict(progress)
        for name in ("percent", "message"):
            if name in rest:
                written[name] = rest.pop(name)
        if rest:
            written["data"] = rest
    else:
        written["percent"] = progress
    written["updatedAt"] = now_ms
    return payload.encode(written, field="progress")


def _wire_backoff(backoff: Backoff) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the policy as the specification has it, and the exact one if it differs."""
    kind = backoff.type if backoff.type != "custom" else "fixed"
    cap = backoff.cap if backoff.cap is not None else MAX_MS
    if kind == "fixed":
        cap = max(backoff.delay, MAX_DELAY)
    wire = {"type": kind, "delay": backoff.delay, "maxDelay": cap, "jitter": backoff.jitter > 0}
    if read_backoff(wire).delay_ms(1, lambda: 0.3) == backoff.delay_ms(1, lambda: 0.3) and (
        backoff.multiplier == 2 and backoff.type != "custom" and backoff.jitter in (0, JITTER)
    ):
        return wire, None
    exact: dict[str, Any] = json.loads(backoff.to_field())
    return wire, exact


def _wire_target(target: Target | None) -> dict[str, Any]:
    if not target:
        return {}
    if target.server is not None:
        return {"server": target.server}
    wire: dict[str, Any] = {
        name: list(words)
        for name, words in (
            ("stack", target.stack),
            ("capabilities", target.capabilities),
            ("region", target.region),
        )
        if words
    }
    return {**wire, "mode": target.mode}


def with_members(raw: bytes, **parts: bytes) -> bytes:
    """Returns a record with some parts replaced, each as JSON; the others stay byte for byte.

    The number of attempts goes to the front, where our scripts find it at once.

    Raises:
        PayloadError: It is no record at all. Not `Undecodable`: the handler that reads it is not at fault.
    """
    if not members_of(raw):
        raise PayloadError("record", "a JSON object", f"{len(raw)} bytes of something else")
    old = {name: msgspec.Raw(bytes(part)) for name, part in members_of(raw).items()}
    new = {name: msgspec.Raw(part) for name, part in parts.items()}
    first = {"attempts": new.get("attempts", old.get("attempts", msgspec.Raw(b"0")))}
    return _json.encode(
        {**first, **{name: part for name, part in {**old, **new}.items() if name not in first}}
    )


def parts(jobs: Sequence[Encoded]) -> Iterable[Sequence[Encoded]]:
    """Splits jobs into the batches of the add calls."""
    start = 0
    while start < len(jobs):
        size = count = 0
        for _, job in jobs[start : start + ADD_CHUNK]:
            weight = len(job[1])  # type: ignore[arg-type]
            if count and size + weight > ADD_BYTES:
                break
            size += weight
            count += 1
        yield jobs[start : start + count]
        start += count
