"""The options of a job as the fields of a request to the API."""

from __future__ import annotations

from typing import Any

from oxcart.http.refused import unsupported
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions


def fields_of(options: JobOptions) -> dict[str, Any]:
    """Returns the fields of ``POST /api/v1/jobs`` for a job's options, without its id and priority.

    Raises:
        NotSupported: The API lacks its retry policy, or jobs without a timeout.
    """
    if options.timeout is None:
        raise unsupported("timeout", "timeout=None", "pass a long one")
    row: dict[str, Any] = {
        "max_attempts": options.attempts,
        "delay": f"{options.delay}ms" if options.delay else None,
        "correlation_id": options.correlation_id,
        "idempotency_key": options.idempotency_key,
        "callback_url": options.callback_url,
        "limit_key": options.limit_key,
        "group": options.group,
        "partition_key": options.partition_key,
        "lifo": options.lifo or None,
        "tags": options.tags or None,
        "target": None if options.target is None else str(options.target),
        "lifetime": None if options.lifetime is None else f"{options.lifetime}ms",
        "timeout": f"{options.timeout}ms" if isinstance(options.timeout, int) else None,
        "backoff": _backoff(options),
    }
    return {field: value for field, value in row.items() if value is not None}


def _backoff(options: JobOptions) -> dict[str, Any] | None:
    backoff = options.backoff
    if backoff == DEFAULT_OPTIONS.backoff:
        return None
    if backoff.jitter or backoff.type == "custom":
        raise unsupported("backoff", "backoff with jitter, or of your own", "use a plain one")
    made: dict[str, Any] = {"strategy": backoff.type, "initial_delay": f"{backoff.delay}ms"}
    if backoff.type == "exponential":
        made["multiplier"] = backoff.multiplier
    if backoff.cap is not None and backoff.type != "fixed":
        made["max_delay"] = f"{backoff.cap}ms"
    return made
