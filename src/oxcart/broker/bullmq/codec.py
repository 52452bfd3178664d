"""Converts between the model's values and BullMQ's hash fields.

Writing: a job becomes the flat arguments of ``add.lua``. Equal options are encoded once, because most
jobs of a queue share them. Reading: records of peers of any age are accepted. A malformed field is shown raw
and never raises, because an operator must be able to look at every job.

Values without a field of BullMQ go to hash fields prefixed ``ox:``. Peers ignore them, and removing a job
removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from oxcart.broker.capabilities import BULLMQ
from oxcart.broker.faults import fault_in, json_fault
from oxcart.broker.ids import new_id
from oxcart.broker.sealed_steps import open_steps
from oxcart.broker.stored import (
    count_of,
    decode_tags,
    encode_tags,
    int_of,
    json_of,
    reason_of,
    recorded,
    text_of,
)
from oxcart.model import payload
from oxcart.model.backoff import Backoff
from oxcart.model.deduplication import Deduplication
from oxcart.model.errors import DecryptionError, PayloadError, ValidationError
from oxcart.model.job import Job
from oxcart.model.names import HIDDEN, check_job_name
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions, check_together
from oxcart.model.retention import Retention
from oxcart.model.state import State, WireState, formal_state
from oxcart.model.target import split_lane

if TYPE_CHECKING:
    from oxcart.broker.keyring import Purpose
    from oxcart.broker.sealing import Sealer

#: The exact retry policy, if ``opts.backoff`` can only hold the nearest.
FIELD_BACKOFF = "ox:backoff"
#: The execution timeout in ms; empty for none.
FIELD_TIMEOUT = "ox:timeout"
#: Why a job failed for good: a category of the model.
FIELD_CATEGORY = "ox:category"

#: Labels, as a JSON object of text.
FIELD_TAGS = "ox:tags"
#: The id that ties a job to others, to logs and traces.
FIELD_CORRELATION = "ox:corr"
#: The address of the webhook that follows the job's end.
FIELD_CALLBACK = "ox:callback"
#: The application's own word for that failure.
FIELD_CODE = "ox:code"
#: Why a job is a dead letter although attempts were left: ``lifetime``, ``dependency``.
FIELD_DEAD = "ox:dead"
#: The job's transitions; they are kept if the field exists, even empty.
FIELD_HISTORY = "ox:history"
#: The idempotency key.
FIELD_IDEMPOTENCY = "ox:idem"
#: The lifetime: ms after its creation by which the job must have ended.
FIELD_LIFETIME = "ox:lifetime"
#: The key whose limits apply, if the queue limits jobs per key.
FIELD_LIMIT = "ox:limit"
FIELD_GROUP = "ox:group"
#: Retryable categories that are not retried.
FIELD_NO_RETRY = "ox:noretry"
#: The checkpoint: what the handler saved for its next attempt, as JSON.
FIELD_CHECKPOINT = "ox:checkpoint"

#: Why a parent could not be notified of a child's end.
FIELD_UNTOLD = "ox:untold"

#: The text before a trace context at the end of ``opts``. Text within strings has its quotes escaped.
_CONTEXT = b',"tm":"{'

_json = msgspec.json.Encoder()

Encoded = tuple[str, list[bytes | str | int]]
"""A job ready to be sent: its id, empty for the queue's next number, and its arguments for ``add.lua``."""

#: The first flag of a job that is tied to a parent, to children or to a deduplication window.
TIED = "T"
#: The index of the flags in a job's arguments.
FLAGS = 7


class ParentLink(msgspec.Struct, frozen=True):
    """The parent as a child's hash names it.

    Attributes:
        id: The parent's id.
        base: The qualified name of its queue, as in its keys.
        flag: The effect of the child's failure, in the wire's words: ``fpof``, ``cpof``, ``idof``, ``rdof``,
            or empty: the parent keeps waiting.
    """

    id: str
    base: str
    flag: str = ""

    @property
    def key(self) -> str:
        """The parent's full key."""
        return f"{self.base}:{self.id}"

    def fields(self) -> tuple[str, str, str, str]:
        """The hash fields of the child, as names and values."""
        known: dict[str, Any] = {"id": self.id, "queueKey": self.base}
        if self.flag:
            known[self.flag] = True
        return "parentKey", self.key, "parent", _json.encode(known).decode()


class WrittenOptions(JobOptions, frozen=True, kw_only=True):
    """Options in the words of the wire, which are stored unchanged.

    Attributes:
        written: The ``opts`` object as JSON.
    """

    written: str = "{}"


@lru_cache(maxsize=1024)
def _wire_backoff(backoff: Backoff, attempts: int) -> tuple[dict[str, Any], str | None]:
    """Returns the nearest policy that peers understand, and the exact one if it differs."""
    return backoff.wire(), None if backoff.exact_on_wire(attempts) else backoff.to_field()


def wire_options(options: JobOptions) -> tuple[dict[str, Any], list[str]]:
    """Returns the ``opts`` object, and further hash fields as a flat list of names and values."""
    if isinstance(options, WrittenOptions):
        window, written = options.deduplication, msgspec.json.decode(options.written)
        if options.trace_context is not None:
            written.setdefault("tm", options.trace_context)
        return written, [] if window is None else ["deid", window.id]
    _refuse_foreign(options)
    check_together(options)
    wire: dict[str, Any] = {"attempts": options.attempts}
    extras: list[str] = []
    wire["backoff"], exact = _wire_backoff(options.backoff, options.attempts)
    if exact is not None:
        extras += (FIELD_BACKOFF, exact)
    if options.delay:
        wire["delay"] = options.delay
    if options.priority:
        wire["priority"] = options.priority
    if options.lifo:
        wire["lifo"] = True
    if options.remove_on_complete is not None:
        wire["removeOnComplete"] = options.remove_on_complete.wire()
    if options.remove_on_fail is not None:
        wire["removeOnFail"] = options.remove_on_fail.wire()
    if options.job_id is not None:
        wire["jobId"] = options.job_id
    if options.timestamp is not None:
        wire["timestamp"] = options.timestamp
    if options.keep_logs is not None:
        wire["kl"] = options.keep_logs
    if options.stack_trace_limit is not None:
        wire["stackTraceLimit"] = options.stack_trace_limit
    if options.size_limit is not None:
        wire["sizeLimit"] = options.size_limit
    if options.timeout is not UNSET:
        extras += (FIELD_TIMEOUT, "" if options.timeout is None else str(options.timeout))
    if options.deduplication is not None:
        wire["de"] = options.deduplication.wire()
        extras += ("deid", options.deduplication.id)
    if options.tags:
        extras += (FIELD_TAGS, encode_tags(options.tags))
    if options.correlation_id is not None:
        extras += (FIELD_CORRELATION, options.correlation_id)
    if options.limit_key is not None:
        extras += (FIELD_LIMIT, options.limit_key)
    if options.group is not None:
        extras += (FIELD_GROUP, options.group)
    if options.callback_url is not None:
        extras += (FIELD_CALLBACK, options.callback_url)
    if options.history:
        extras += (FIELD_HISTORY, "")
    if options.lifetime is not None:
        extras += (FIELD_LIFETIME, str(options.lifetime))
    if not (options.retry_timeout and options.retry_system):
        unwanted = {"timeout": options.retry_timeout, "system": options.retry_system}
        extras += (FIELD_NO_RETRY, ",".join(name for name, wanted in unwanted.items() if not wanted))
    if options.idempotency_key is not None:
        extras += (FIELD_IDEMPOTENCY, options.idempotency_key)
    if options.trace_context is not None:
        wire["tm"] = options.trace_context
    return wire, extras


def _refuse_foreign(options: JobOptions) -> None:
    """Refuses options that only other protocols can store.

    Raises:
        NotSupported: There is such an option.
    """
    if options.rate_limit is not None:
        BULLMQ.require("type_limits")
    if options.after:
        BULLMQ.require("after_ids")
    if options.skip_on or options.reroute_on:
        BULLMQ.require("error_names")


def metadata_field(name: str, value: Any) -> tuple[str, str]:
    """Returns the field of tags, correlation id or callback URL, and its text; empty to remove it."""
    if name == "tags":
        return FIELD_TAGS, encode_tags(value) if value else ""
    return {"correlation_id": FIELD_CORRELATION, "callback_url": FIELD_CALLBACK}[name], value or ""


def encode_options(options: JobOptions) -> tuple[bytes, tuple[str, ...]]:
    """As `wire_options`, with the ``opts`` as JSON; options that many jobs share are encoded once."""
    if options.is_shared:
        return _encode_shared(options)
    if options.trace_context is not None and not isinstance(options, WrittenOptions):
        # Every add has its own; the rest is often shared.
        opts, extras = encode_options(msgspec.structs.replace(options, trace_context=None))
        return _with_trace(opts, options.trace_context), extras
    wire, further = wire_options(options)
    return _json.encode(wire), tuple(further)


def _with_trace(opts: bytes, context: str) -> bytes:
    return b'%b,"tm":%b}' % (opts[:-1], _json.encode(context))


@lru_cache(maxsize=1024)
def _encode_shared(options: JobOptions) -> tuple[bytes, tuple[str, ...]]:
    wire, extras = wire_options(options)
    return _json.encode(wire), tuple(extras)


def encode_job(
    name: str,
    data: Any,
    options: JobOptions,
    now: int | str,
    *,
    parent: ParentLink | None = None,
    waits: bool = False,
    keyed: bool = False,
    counted: bool = False,
    trace: str | None = None,
    sealer: Sealer | None = None,
    make_id: Callable[[], str] = new_id,
) -> Encoded:
    """Checks and encodes a job.

    Args:
        name: Its name.
        data: Its payload.
        options: Its options.
        now: The time in ms, or empty for the server's.
        parent: The job that it is a child of.
        waits: Whether it waits for children that are added with it.
        keyed: Whether a tied job may have an idempotency key, as those of graphs may.
        counted: Whether a job without an id gets the next number of the queue, as peers do. Such an id
            is known only after the add.
        trace: The trace context that it carries if its options have none; not for a child of a flow.
        sealer: Seals the payload for this job.
        make_id: Makes the id of a job without one.

    Raises:
        ValidationError: Name or data cannot be stored.
        PayloadTooLarge: Data and options are over the limit.
    """
    if name or not isinstance(options, WrittenOptions):  # peers accept jobs without a name
        check_job_name(name)
    body = payload.encode(data)
    flags = "L" if options.lifo else ""
    if parent is not None:
        wire, further = wire_options(options)
        wire["parent"] = {"id": parent.id, "queue": parent.base}
        if parent.flag:
            wire[parent.flag] = True
        opts, extras = _json.encode(wire), (*parent.fields(), *further)
    else:
        if trace is not None and isinstance(options, WrittenOptions):
            options, trace = options.traced(trace), None
        opts, extras = encode_options(options)
        if trace is not None and options.trace_context is None:
            opts = _with_trace(opts, trace)
    job_id = options.job_id
    if job_id is None:
        job_id = "" if counted else make_id()
    if sealer is not None:
        body = sealer.seal("payload", job_id, body)
    if parent is not None or waits or options.deduplication is not None:
        if options.idempotency_key is not None and not keyed:
            raise ValidationError(
                "idempotency_key", "that of a job outside of flows", options.idempotency_key
            )
        flags = f"{TIED}{flags}{'D' if options.deduplication else ''}{'P' if waits else ''}"
    if options.idempotency_key is not None:
        flags = f"{flags}I{options.idempotency_window}"
    payload.check_size(body, opts, options.size_limit)
    args: list[bytes | str | int] = [
        job_id,
        name,
        body,
        opts,
        now if options.timestamp is None else options.timestamp,
        options.delay,
        options.priority,
        flags,
        len(extras) // 2,
    ]
    if extras:
        args += extras
    return job_id, args


@lru_cache(maxsize=1024)
def read_options(
    raw: bytes,
    backoff: bytes | None = None,
    timeout: bytes | None = None,
    lifetime: bytes | None = None,
    no_retry: bytes | None = None,
    history: bool = False,
) -> tuple[JobOptions, str]:
    """Reads ``opts`` and our further fields; a missing or malformed value is a default of the wire.

    Returns:
        The options; and why ``opts`` or the policy cannot be decoded at all, empty if they can.
    """
    fault = ""
    wire: Any = {}
    if raw.endswith(b'}"}') and (end := raw.rfind(_CONTEXT)) > 0:
        # A context is unique to its job. The other options are read once for all jobs that share them.
        options, fault = read_options(raw[:end] + b"}", backoff, timeout, lifetime, no_retry, history)
        context = json_of(raw[end + len(_CONTEXT) - 2 : -1])
        if not fault and isinstance(context, str):
            return msgspec.structs.replace(options, trace_context=context), ""
    if raw:
        try:
            wire = payload.read(raw, field="opts")
        except PayloadError:
            fault = json_fault(raw, "opts")
        if not isinstance(wire, dict):
            wire, fault = {}, f"opts: a JSON object is needed, got {type(wire).__name__}"
    exact = None
    if backoff:
        try:
            exact = Backoff.from_field(backoff)
        except (ValidationError, msgspec.MsgspecError):
            exact = None
            fault = fault or json_fault(backoff, "ox:backoff") or "ox:backoff: a policy in JSON is needed"
    options = JobOptions(
        attempts=int_of(wire.get("attempts"), 0),
        backoff=exact or Backoff.from_wire(wire.get("backoff")),
        delay=int_of(wire.get("delay"), 0),
        priority=int_of(wire.get("priority"), 0),
        lifo=bool(wire.get("lifo")),
        remove_on_complete=Retention.from_wire(wire.get("removeOnComplete")),
        remove_on_fail=Retention.from_wire(wire.get("removeOnFail")),
        job_id=wire["jobId"] if isinstance(wire.get("jobId"), str) else None,
        timestamp=int_of(wire.get("timestamp"), None),
        keep_logs=int_of(wire.get("kl"), None),
        timeout=UNSET if timeout is None else int_of(timeout, None),
        stack_trace_limit=int_of(wire.get("stackTraceLimit"), None),
        size_limit=int_of(wire.get("sizeLimit"), None),
        deduplication=Deduplication.from_wire(wire.get("de")),
        history=history,
        lifetime=int_of(lifetime, None),
        retry_system=b"system" not in (no_retry or b""),
        retry_timeout=b"timeout" not in (no_retry or b""),
        trace_context=wire["tm"] if isinstance(wire.get("tm"), str) else None,
    )
    return options, fault


def fault_of(fields: Mapping[bytes, bytes]) -> str:
    """Returns why a job cannot be decoded, beginning with the field; empty if it can.

    The payload is not checked: it is decoded once, for the handler.
    """
    return fault_in(fields) or _stored_options(fields)[1]


def _stored_options(fields: Mapping[bytes, bytes]) -> tuple[JobOptions, str]:
    raw = fields.get(b"opts")
    if raw is None:
        return DEFAULT_OPTIONS, ""
    get = fields.get
    return read_options(
        raw,
        get(b"ox:backoff"),
        get(b"ox:timeout"),
        get(b"ox:lifetime"),
        get(b"ox:noretry"),
        b"ox:history" in fields,
    )


def options_of(fields: Mapping[bytes, bytes]) -> JobOptions:
    """Returns the options in a job's hash."""
    get = fields.get
    options = _stored_options(fields)[0]
    tags, correlation, url = get(b"ox:tags"), get(b"ox:corr"), get(b"ox:callback")
    key, group = get(b"ox:limit"), get(b"ox:group")
    extra = (tags, correlation, url, key, group)
    if b"opts" not in fields or extra == (None, None, None, None, None):
        return options
    return msgspec.structs.replace(
        options,
        tags=decode_tags(tags) or None,
        correlation_id=text_of(correlation),
        callback_url=text_of(url),
        limit_key=text_of(key),
        group=text_of(group),
    )


def decode_job(queue: str, job_id: str, fields: Mapping[bytes, bytes], place: str | None = None) -> Job:
    """Returns a snapshot from a job's hash, and from its wire state if that is known."""
    get = fields.get
    finished = get(b"finishedOn")
    return_value = json_of(get(b"returnvalue"))
    reason = text_of(get(b"failedReason"))
    completed = finished is not None and get(b"returnvalue") is not None
    parent, parent_key = json_of(get(b"parent")), text_of(get(b"parentKey"))
    if parent_key and f"{HIDDEN}:" in parent_key:
        parent = parent_key = None  # a gate: other jobs wait for this one
    stack = json_of(get(b"stacktrace"))
    base, lane = split_lane(queue)
    return Job(
        id=job_id,
        name=text_of(get(b"name")) or "",
        queue=base,
        lane=lane,
        data=json_of(get(b"data")),
        options=options_of(fields),
        timestamp=int_of(get(b"timestamp"), 0),
        delay=int_of(get(b"delay"), 0),
        priority=int_of(get(b"priority"), 0),
        progress=json_of(get(b"progress"), default=0),
        attempts_made=attempts_made(fields),
        attempts_started=int_of(get(b"ats"), 0),
        stalled_count=int_of(get(b"stc"), 0),
        processed_on=int_of(get(b"processedOn"), None),
        finished_on=int_of(finished, None),
        worker_id=text_of(get(b"pb")),
        return_value=return_value,
        failed_reason=None if completed else reason_of(reason),
        stacktrace=[str(item) for item in stack] if isinstance(stack, list) else [],
        parent_key=parent_key,
        parent=parent if isinstance(parent, dict) else None,
        deferred_failure=text_of(get(b"defa")),
        scheduler_id=text_of(get(b"rjk")),
        dedup_id=text_of(get(b"deid")),
        state=None if place is None else state_of(fields, place),
        fault=fault_of(fields) or json_fault(get(b"data", b"null"), "data") or None,
        idempotency_key=text_of(get(b"ox:idem")),
        unreported=text_of(get(b"ox:untold")),
        checkpointed=json_of(get(b"ox:checkpoint")),
        **recorded(fields),
    )


def state_of(fields: Mapping[bytes, bytes], place: str) -> State | None:
    """Returns the formal state of a job in this wire state; None if it has none."""
    if place not in _PLACES:
        return None
    get = fields.get
    return formal_state(
        _PLACES[place],
        attempts_made=attempts_made(fields),
        attempts=options_of(fields).attempts,
        stalled=count_of(get(b"stc")),
        category=text_of(get(b"ox:category")),
        lifetime_over=b"ox:dead" in fields,
        delay=None if get(b"delay") is None else count_of(get(b"delay")),
    )


_PLACES = {state.value: state for state in WireState if state is not WireState.UNKNOWN} | {
    "wait": WireState.WAITING
}


def attempts_made(fields: Mapping[bytes, bytes]) -> int:
    """Returns how many attempts have ended: the larger of ``atm`` and the field of older peers."""
    ended = count_of(fields.get(b"atm"))
    return max(ended, count_of(fields[b"attemptsMade"])) if b"attemptsMade" in fields else ended


#: The fields of a job's hash that may be sealed, and the purpose of each.
SEALABLE: Mapping[bytes, Purpose] = {
    b"data": "payload",
    b"ox:checkpoint": "checkpoint",
    b"returnvalue": "result",
    b"progress": "progress",
}


def open_fields(
    sealer: Sealer, job_id: str, fields: Mapping[bytes, bytes], *, lenient: bool = False
) -> dict[bytes, bytes]:
    """Returns a job's hash with its sealed values opened.

    Args:
        sealer: Opens values of the queue.
        job_id: The job.
        fields: Its hash.
        lenient: Whether a value that does not open stays sealed: in a list, one such job must not hide the
            others.

    Raises:
        DecryptionError: A value does not open.
    """
    opened = dict(fields)
    for name, purpose in SEALABLE.items():
        raw = fields.get(name)
        if raw is None:
            continue
        try:
            opened[name] = sealer.open(purpose, job_id, raw)
        except DecryptionError:
            if not lenient:
                raise
    return opened | open_steps(sealer, job_id, fields, lenient=lenient)
