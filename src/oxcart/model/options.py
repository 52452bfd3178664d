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
from oxcart.model.metadata import check_correlation_id, check_limit_key, check_tags, check_url
from oxcart.model.names import check_job_id
from oxcart.model.payload import MAX_SIZE_LIMIT
from oxcart.model.rate import RateLimit
from oxcart.model.retention import Retention
from oxcart.model.target import Target

#: The largest priority that every generation of the protocol accepts.
MAX_PRIORITY = 2_097_151

#: How many log lines a job keeps that says nothing.
DEFAULT_KEEP_LOGS = 1000

#: How long a job may run that says nothing, in milliseconds.
DEFAULT_TIMEOUT = 30 * 60_000

#: How long an idempotency key keeps doubles out, in milliseconds.
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
    depends_on: Iterable[str]
    history: bool
    idempotency_key: str | None
    idempotency_window: Duration
    job_id: str | None
    keep_logs: int | None
    lifetime: Duration | None
    lifo: bool
    limit_key: str | None
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


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """How a job is to be run and kept.

    `build` reads what a user writes and checks it. Constructing one directly checks nothing: that is how
    a job of a peer is shown as it is, with 0 attempts for instance.

    Attributes:
        attempts: How often the job may be tried, the first time included.
        backoff: How long to wait before each retry.
        delay: Wait before the first attempt, in milliseconds.
        priority: Lower runs first; 0 runs before every other.
        lifo: Put the job at the front of the queue instead of the end.
        remove_on_complete: What is kept of completed jobs; None leaves it to the worker.
        remove_on_fail: What is kept of failed jobs; None leaves it to the worker.
        job_id: A custom id; adding a job of an existing id adds nothing.
        timestamp: When the job was created, in milliseconds; None is now.
        keep_logs: How many log lines are kept; None is 1000.
        timeout: How long an attempt may run, in milliseconds; None is without limit, unset is the
            worker's default.
        stack_trace_limit: How many stack traces are kept, newest last; None is all.
        size_limit: Limit of data and options in bytes; None is 10 MiB.
        deduplication: The window that it shares with others of its kind; None for none.
        tags: Labels by which it can be found; None for none.
        correlation_id: Ties it to jobs, logs and traces of the same undertaking; a job that a handler adds
            has that of the handler's own unless it says another.
        callback_url: Told when the job has ended.
        history: Whether its transitions and attempts are written down in the job itself.
        idempotency_key: A job of this name and key that was added before is this job; None for no key.
        idempotency_window: For how long, in milliseconds.
        lifetime: How long after its creation the job must have ended, in milliseconds; None for no limit.
        limit_key: Whom it is done for, where the queue limits jobs per key; None for nobody.
        retry_system: Whether an attempt that ended by a crash or a lost worker is tried again.
        retry_timeout: Whether one that took too long is.
        target: Which workers may run it; None for all.
        rate_limit: How many jobs of its type may run, at once and in a minute; None for no limit.
        depends_on: Ids of jobs that must have completed before it runs.
        skip_on: Names of errors after which it is not tried again.
        reroute_on: Names of errors after which another worker is to try it.
    """

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
    history: bool = False
    idempotency_key: str | None = None
    idempotency_window: int = DEFAULT_IDEMPOTENCY_WINDOW
    lifetime: int | None = None
    limit_key: str | None = None
    retry_system: bool = True
    retry_timeout: bool = True
    target: Target | None = None
    rate_limit: RateLimit | None = None
    depends_on: tuple[str, ...] = ()
    skip_on: tuple[str, ...] = ()
    reroute_on: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether many jobs are likely to have the very same options."""
        return (
            self.correlation_id is None
            and self.job_id is None
            and self.deduplication is None
            and self.idempotency_key is None
            and self.limit_key is None
            and self.tags is None
            and not self.depends_on
        )

    @classmethod
    def build(cls, **kwargs: Unpack[OptionKwargs]) -> JobOptions:
        """Read options as a user writes them.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.

        Example:
            >>> JobOptions.build(attempts=5, delay="5m").delay
            300000
        """
        return DEFAULT_OPTIONS.replace(**kwargs)

    def replace(self, **kwargs: Unpack[OptionKwargs]) -> JobOptions:
        """These options with some of them changed.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.
        """
        if not kwargs:
            return self
        return msgspec.structs.replace(self, **_parse(kwargs))

    def without_target(self, what: str) -> JobOptions:
        """These options, for jobs that cannot have a target.

        Raises:
            ValidationError: They have one.
        """
        if self.target is not None:
            bound = f"that of a job outside of {what}; give them the lane's queue, Queue.lane(target)"
            raise ValidationError("target", bound, str(self.target))
        return self

    @classmethod
    def merge(cls, defaults: JobOptions | None, **kwargs: Unpack[OptionKwargs]) -> JobOptions:
        """The defaults of a queue or a handler, overruled by what one call says.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.
        """
        return (DEFAULT_OPTIONS if defaults is None else defaults).replace(**kwargs)


#: What a job gets that says nothing; one value for all of them, so `build()` costs nothing.
DEFAULT_OPTIONS = JobOptions()

merge = JobOptions.merge


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
    "attempts": _attempts,
    "backoff": Backoff.parse,
    "callback_url": _optional(check_url),
    "correlation_id": _optional(check_correlation_id),
    "deduplication": _optional(Deduplication.parse),
    "delay": parse_ms,
    "depends_on": _names,
    "history": _flag,
    "idempotency_key": _optional(_idempotency_key),
    "idempotency_window": _positive,
    "job_id": _optional(check_job_id),
    "keep_logs": _optional(_integer(1)),
    "lifetime": _optional(_positive),
    "lifo": _flag,
    "limit_key": _optional(check_limit_key),
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
}
