"""The options of a job, with the same names everywhere: Python, command line, HTTP, Spark columns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.model.backoff import DEFAULT_BACKOFF, Backoff
from oxcart.model.deduplication import Deduplication
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.metadata import (
    check_correlation_id,
    check_limit_key,
    check_partition_key,
    check_tags,
    check_url,
)
from oxcart.model.names import check_job_id
from oxcart.model.payload import MAX_SIZE_LIMIT
from oxcart.model.rate import RateLimit
from oxcart.model.retention import Retention
from oxcart.model.target import Target
from oxcart.model.trace_context import check_trace_context

#: The largest priority that every generation of the protocol accepts.
MAX_PRIORITY = 2_097_151

#: The default number of log lines.
DEFAULT_KEEP_LOGS = 1000

#: The default execution timeout, in milliseconds.
DEFAULT_TIMEOUT = 30 * 60_000

#: The default window of an idempotency key, in milliseconds.
DEFAULT_IDEMPOTENCY_WINDOW = 24 * 3_600_000

#: The longest idempotency key, in characters.
MAX_IDEMPOTENCY_KEY = 256

_MAX_ATTEMPTS = 2**31 - 1
_MAX_TIMESTAMP = 8_640_000_000_000_000  # the last instant of a JavaScript Date

#: When an add returns: once the master has the job, or once a replica has it too.
Durability = Literal["acknowledged", "replicated"]

RetentionLike = bool | int | Mapping[str, Any] | Retention | None


class OptionKwargs(TypedDict, total=False):
    """The keyword arguments of `JobOptions.build`, for signatures that pass them on."""

    attempts: int
    backoff: Backoff | Duration | Mapping[str, Any]
    callback_url: str | None
    correlation_id: str | None
    deduplication: str | Mapping[str, Any] | Deduplication | None
    delay: Duration
    group: str | None
    history: bool
    idempotency_key: str | None
    idempotency_window: Duration
    job_id: str | None
    keep_logs: int | None
    lifetime: Duration | None
    lifo: bool
    limit_key: str | None
    partition_key: str | None
    priority: int | str
    rate_limit: RateLimit | Mapping[str, int] | None
    remove_on_complete: RetentionLike
    remove_on_fail: RetentionLike
    reroute_on: Iterable[str]
    retry_system: bool
    retry_timeout: bool
    size_limit: int | None
    skip_on: Iterable[str]
    stack_trace_limit: int | None
    tags: Mapping[str, str] | None
    target: Target | Mapping[str, Any] | str | None
    timeout: Duration | None
    timestamp: int | None
    trace_context: Mapping[str, str] | str | None


class AllOptions(OptionKwargs, total=False):
    """All options of a job: ``Queue.add`` takes ``after`` as an argument of its own."""

    after: Iterable[str]


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The options of a job.

    `build` parses and checks what a user writes. The constructor checks nothing, because a peer's job may
    have other values, for example 0 attempts. docs/api.md lists the options in tables.

    Attributes:
        after: Ids of jobs that must have completed before it runs. ``Queue.add`` takes it on both protocols;
            only jobs of Bridge store it.
        attempts: How often the job may be tried, the first time included.
        backoff: How long to wait before each retry.
        correlation_id: Ties it to jobs, logs and traces of the same undertaking. A job that a handler adds
            inherits it from the handler's job.
        delay: Wait before the first attempt, in milliseconds.
        job_id: A custom id; adding a job of an existing id adds nothing. A UUID on Bridge.
        lifo: Put the job at the front of the queue instead of the end.
        priority: Lower runs first; 0 runs before every other.
        remove_on_complete: What is kept of completed jobs; None leaves it to the worker.
        remove_on_fail: What is kept of failed jobs; None leaves it to the worker.
        retry_system: Whether an attempt that ended by a crash or a lost worker is tried again.
        retry_timeout: Whether an attempt that took too long is tried again.
        size_limit: Limit of data and options in bytes; None is 10 MiB.
        stack_trace_limit: How many stack traces are kept, newest last; None is all.
        tags: Labels by which it can be found; None for none.
        target: Which workers may run it; None for all.
        timeout: How long an attempt may run, in milliseconds; None is without limit, unset is the
            worker's default.
        timestamp: When the job was created, in milliseconds; None is now.
        trace_context: The trace that it continues, as a W3C carrier (``traceparent``) in JSON. A queue with
            tracing sets it.

        callback_url: BullMQ only: webhook to call when the job has ended.
        deduplication: BullMQ only: the window that keeps duplicates out; None for none.
        group: BullMQ only: group that takes turns with the others, for example a tenant id.
        history: BullMQ only: whether the job keeps its transitions and attempts.
        idempotency_key: BullMQ only: adds of this name and key are one job; None for no key.
        idempotency_window: BullMQ only: how long the key counts, in milliseconds.
        keep_logs: BullMQ only: how many log lines are kept; None is 1000.
        lifetime: BullMQ only: how long after its creation the job must have ended, in milliseconds.
        limit_key: BullMQ only: key whose limits apply, for example a tenant id.
        partition_key: Jobs of one key share a partition of a partitioned queue, and keep their order there.
            Without effect on a queue without partitions. It is not stored.

        rate_limit: Bridge only: how many jobs of its type may run, at once and per minute.
        reroute_on: Bridge only: names of errors after which another worker tries it.
        skip_on: Bridge only: names of errors that end the retries.
    """

    after: tuple[str, ...] = ()
    attempts: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    delay: int = 0
    priority: int = 0
    lifo: bool = False
    remove_on_complete: Retention | None = None
    remove_on_fail: Retention | None = None
    job_id: str | None = None
    timestamp: int | None = None
    keep_logs: int | None = None
    timeout: int | UnsetType | None = UNSET
    stack_trace_limit: int | None = None
    size_limit: int | None = None
    deduplication: Deduplication | None = None
    tags: dict[str, str] | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    group: str | None = None
    history: bool = False
    idempotency_key: str | None = None
    idempotency_window: int = DEFAULT_IDEMPOTENCY_WINDOW
    lifetime: int | None = None
    limit_key: str | None = None
    partition_key: str | None = None
    retry_system: bool = True
    retry_timeout: bool = True
    target: Target | None = None
    rate_limit: RateLimit | None = None
    skip_on: tuple[str, ...] = ()
    reroute_on: tuple[str, ...] = ()
    trace_context: str | None = None

    @property
    def is_shared(self) -> bool:
        """Whether many jobs are likely to have the same options."""
        return (
            self.trace_context is None  # first: a traced job needs no look at the others
            and self.correlation_id is None
            and self.job_id is None
            and self.deduplication is None
            and self.idempotency_key is None
            and self.group is None
            and self.limit_key is None
            and self.partition_key is None
            and self.tags is None
            and not self.after
        )

    def traced(self, context: str | None) -> JobOptions:
        """Returns options that carry a trace context; those with a context of their own stay as they are."""
        if context is None or self.trace_context is not None:
            return self
        return msgspec.structs.replace(self, trace_context=context)

    @classmethod
    def build(cls, **kwargs: Unpack[AllOptions]) -> JobOptions:
        """Parses and checks a user's options.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.

        Example:
            >>> JobOptions.build(attempts=5, delay="5m").delay
            300000
        """
        return DEFAULT_OPTIONS.replace(**kwargs)

    def replace(self, **kwargs: Unpack[AllOptions]) -> JobOptions:
        """Returns a copy with some options changed.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.
        """
        if not kwargs:
            return self
        return msgspec.structs.replace(self, **_parse(kwargs))

    def without_target(self, what: str) -> JobOptions:
        """Returns these options for a job that cannot have a target.

        Raises:
            ValidationError: They have a target.
        """
        if self.target is not None:
            bound = f"that of a job outside of {what}; give them the lane's queue, queue.lanes.get(target)"
            raise ValidationError("target", bound, str(self.target))
        return self

    @classmethod
    def merge(cls, defaults: JobOptions | None, **kwargs: Unpack[AllOptions]) -> JobOptions:
        """Returns the defaults of a queue or a handler, overridden by the options of one call.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.
        """
        return (DEFAULT_OPTIONS if defaults is None else defaults).replace(**kwargs)


#: The default options: one shared value, so that `build()` costs nothing.
DEFAULT_OPTIONS = JobOptions()

merge = JobOptions.merge


def check_together(options: JobOptions) -> None:
    """Refuses options that contradict each other.

    Raises:
        ValidationError: The delay is longer than the lifetime, or a job has a key and a window.
    """
    if options.lifetime is not None and options.delay > options.lifetime:
        bound = f"within the lifetime of {options.lifetime} ms"
        raise ValidationError("delay", bound, f"{options.delay} ms")
    if options.group is not None and options.target is not None:
        bound = "that of a job without a target, because groups take turns within one queue; use limit_key"
        raise ValidationError("group", bound, options.group)
    if options.idempotency_key is not None and options.deduplication is not None:
        raise ValidationError("idempotency_key", "alone, without deduplication", options.idempotency_key)


def _parse(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {}
    for name, value in kwargs.items():
        reader = _READERS.get(name)
        if reader is None:
            raise _unknown(name, value)
        parsed[name] = reader(value, name)
    return parsed


def _unknown(name: str, value: object) -> ValidationError:
    close = difflib.get_close_matches(name, _READERS, 3, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(_READERS)}"
    return ValidationError(name, "a known option", value, f"unknown option {name!r}: {hint}")


def _integer(low: int, high: int | None = None) -> Callable[[Any, str], int]:
    bound = f"at least {low}" if high is None else f"an integer from {low} to {high}"

    def read(value: Any, field: str) -> int:
        if type(value) is not int:  # bool is a subclass of int, and attempts=True is a mistake
            raise ValidationError(field, f"an integer, {bound}" if high is None else bound, value)
        if value < low or (high is not None and value > high):
            raise ValidationError(field, bound, value)
        return value

    return read


def _optional(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, field: None if value is None else read(value, field)


def _attempts(value: Any, field: str) -> int:
    if type(value) is not int:
        raise ValidationError(field, "an integer, at least 1", value)
    if value < 1:
        raise ValidationError(field, "at least 1", value)
    if value > _MAX_ATTEMPTS:
        raise ValidationError(field, f"at most {_MAX_ATTEMPTS}", value)
    return value


def _priority(value: Any, field: str) -> int:
    if isinstance(value, str):
        bound = f"an integer from 0 to {MAX_PRIORITY} (names need a queue with formal priorities)"
        raise ValidationError(field, bound, value)
    if type(value) is int and value < 0:
        raise ValidationError(field, "at least 0", value)
    return _integer(0, MAX_PRIORITY)(value, field)


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise ValidationError(field, "True or False", value)
    return value


def _tags(value: Any, field: str) -> dict[str, str] | None:
    return None if value is None else check_tags(value, field) or None


def _timeout(value: Any, field: str) -> int | UnsetType | None:
    if value is None or value is UNSET:
        return value
    return parse_ms(value, field, minimum=1)


def _idempotency_key(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_IDEMPOTENCY_KEY:
        raise ValidationError(field, f"a string of 1 to {MAX_IDEMPOTENCY_KEY} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValidationError(field, "text that UTF-8 can hold", value) from error
    return value


def _names(value: Any, field: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValidationError(field, "a list of strings", value)
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValidationError(field, "a list of non-empty strings", name)
    return names


def _target(value: Any, field: str) -> Target | None:
    return Target.read(value, field) or None


def _positive(value: Any, field: str) -> int:
    return parse_ms(value, field, minimum=1)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "after": _names,
    "attempts": _attempts,
    "backoff": Backoff.parse,
    "callback_url": _optional(check_url),
    "correlation_id": _optional(check_correlation_id),
    "deduplication": _optional(Deduplication.parse),
    "delay": parse_ms,
    "group": _optional(check_limit_key),
    "history": _flag,
    "idempotency_key": _optional(_idempotency_key),
    "idempotency_window": _positive,
    "job_id": _optional(check_job_id),
    "keep_logs": _optional(_integer(1)),
    "lifetime": _optional(_positive),
    "lifo": _flag,
    "limit_key": _optional(check_limit_key),
    "partition_key": _optional(check_partition_key),
    "priority": _priority,
    "rate_limit": RateLimit.parse,
    "remove_on_complete": Retention.parse,
    "remove_on_fail": Retention.parse,
    "reroute_on": _names,
    "retry_system": _flag,
    "retry_timeout": _flag,
    "size_limit": _optional(_integer(1, MAX_SIZE_LIMIT)),
    "skip_on": _names,
    "stack_trace_limit": _optional(_integer(0)),
    "tags": _tags,
    "target": _optional(_target),
    "timeout": _timeout,
    "timestamp": _optional(_integer(0, _MAX_TIMESTAMP)),
    "trace_context": _optional(check_trace_context),
}
