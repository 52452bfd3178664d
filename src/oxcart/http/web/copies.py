"""The calls that add a job like another one: in Python, and over HTTP with curl."""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec

from oxcart.http.rows import fields_of
from oxcart.model.backoff import Backoff
from oxcart.model.errors import NotSupported
from oxcart.model.job import Job
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions
from oxcart.model.target import Target

#: Options that a copy must not have: they make it the same job, or belong to the first add.
_OWN = ("job_id", "idempotency_key", "deduplication", "timestamp", "trace_context")
#: Options in ms.
_SPANS = ("delay", "lifetime", "timeout")


def as_python(job: Job, data: Any, queue: str) -> str:
    """Returns the call that adds such a job in Python."""
    options, extra = _options(job), ""
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if name in _OWN or value == getattr(DEFAULT_OPTIONS, name) or value is msgspec.UNSET:
            continue
        if name in _SPANS and isinstance(value, int):
            value = f"{value}ms"
        elif isinstance(value, Backoff):
            value = {field: one for field, one in msgspec.structs.asdict(value).items() if one is not None}
        elif isinstance(value, Target):
            value = str(value)
        elif isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value)
        extra += f", {name}={value!r}"
    return f"from oxcart import Queue\n\nawait Queue({queue!r}).add({job.name!r}, {data!r}{extra})"


def as_curl(job: Job, data: Any, queue: str) -> str:
    """Returns the call that adds such a job over HTTP, quoted for a shell."""
    options = _options(job)
    try:
        fields = fields_of(options)
    except NotSupported:  # the nearest that the API has
        timeout = msgspec.UNSET if options.timeout is None else options.timeout
        nearest = msgspec.structs.replace(options, backoff=DEFAULT_OPTIONS.backoff, timeout=timeout)
        fields = fields_of(nearest)
    fields.pop("idempotency_key", None)
    body = {"type": job.name, "queue": queue, "payload": data, "priority": options.priority, **fields}
    text = json.dumps({k: v for k, v in body.items() if v is not None}, ensure_ascii=False, default=repr)
    return (
        "curl -X POST \"$OXCART_HTTP/api/v1/jobs\" -H 'content-type: application/json' "
        f'-H "authorization: Bearer $OXCART_TOKEN" -d {shlex.quote(text)}'
    )


def _options(job: Job) -> JobOptions:
    """Returns the options of a job with those that changed after its add."""
    target = job.options.target if job.lane is None else Target.parse(job.lane)
    return msgspec.structs.replace(
        job.options,
        priority=job.priority,
        tags=job.tags or None,
        correlation_id=job.correlation_id,
        target=target,
    )
