"""The categories of failures, and the rules that assign them.

A table maps exceptions to categories: the first rule of a `Classifier` that matches decides. A queue may add
rules in front, or replace the table. An error without a rule is TEMPORARY: a useless retry costs seconds, a
job that failed because of a hiccup costs an operator's time.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor
from enum import StrEnum
from typing import Any

import msgspec

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import (
    AccessDenied,
    BrokerError,
    MissingExtra,
    OxcartError,
    ScriptError,
    SealError,
    ValidationError,
)


class Category(StrEnum):
    """The category of a failure; every failure has exactly one."""

    TEMPORARY = "temporary"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SYSTEM = "system"

    @property
    def retryable(self) -> bool:
        """Whether the worker retries a failure of this category while attempts are left."""
        return self not in (Category.PERMANENT, Category.CANCELLED)


class TemporaryError(OxcartError):
    """A handler raises it for a failure that a retry may solve.

    Attributes:
        message: What went wrong.
        cause: The original error, if any.
        retry_after: When to retry; None uses the job's backoff.
        code: The application's code for the kind of failure.
    """

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        retry_after: Duration | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, cause, retry_after, code)
        self.message = message
        self.cause = self.__cause__ = cause
        self.retry_after = retry_after
        self.retry_after_ms = None if retry_after is None else parse_ms(retry_after, "retry_after")
        self.code = code

    def __str__(self) -> str:
        return self.message


class PermanentError(OxcartError):
    """A handler raises it for a failure that no retry can solve. The job fails.

    Attributes:
        message: What went wrong.
        cause: The original error, if any.
        code: The application's code for the kind of failure.
    """

    def __init__(self, message: str, cause: BaseException | None = None, code: str | None = None) -> None:
        super().__init__(message, cause, code)
        self.message = message
        self.cause = self.__cause__ = cause
        self.code = code

    def __str__(self) -> str:
        return self.message


class JobCancelled(OxcartError):
    """A handler raises it to end its job as cancelled. The job is not retried.

    ``job.raise_if_cancelled()`` raises it after a cancellation request.

    Attributes:
        reason: Why, for the job's record.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "cancelled"


class RateLimited(OxcartError):
    """A handler raises or returns it when a service refuses more requests for a time.

    The job returns to the front of its queue without using an attempt, and no Oxcart worker starts a job of
    the queue during that time.

    Attributes:
        after: How long.
        reason: The reason, for the log.
    """

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after = after
        self.after_ms = parse_ms(after, "after", minimum=1)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"rate limited for {self.after_ms} ms"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. It matches an error if any of its conditions does.

    Attributes:
        category: The category of a matching error.
        types: Exception classes, subclasses included.
        names: Classes of packages that need not be installed, as ``"package.ClassName"``; the package is
            the first part of the module's name, ``"*"`` any. Subclasses included.
        statuses: Ranges of HTTP status codes, both ends included.
        errnos: Numbers of operating system errors.
        why: The reason for the rule.
    """

    category: Category
    types: tuple[type[BaseException], ...] = ()
    names: tuple[str, ...] = ()
    statuses: tuple[tuple[int, int], ...] = ()
    errnos: tuple[int, ...] = ()
    why: str = ""

    def fits(self, error: BaseException) -> bool:
        """Returns whether the rule matches an error."""
        if self.types and isinstance(error, self.types):
            return True
        if self.errnos and isinstance(error, OSError) and error.errno in self.errnos:
            return True
        if self.statuses:
            status = http_status(error)
            if status is not None and any(low <= status <= high for low, high in self.statuses):
                return True
        return bool(self.names) and any(name in self.names for name in _class_names(error))


#: The default table, in order.
DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(category=Category.TEMPORARY, types=(TemporaryError,), why="the handler says so"),
    Rule(category=Category.PERMANENT, types=(PermanentError,), why="the handler says so"),
    Rule(category=Category.CANCELLED, types=(JobCancelled,), why="the handler says so"),
    Rule(
        category=Category.SYSTEM,
        types=(MemoryError, SystemExit, KeyboardInterrupt, BrokenExecutor),
        errnos=(errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE),
        why="the machine or the process gave up, not the job",
    ),
    Rule(
        category=Category.PERMANENT,
        types=(ValidationError, msgspec.DecodeError, json.JSONDecodeError),
        names=(
            "jsonschema.ValidationError",
            "marshmallow.ValidationError",
            "pydantic.ValidationError",
            "pydantic_core.ValidationError",
        ),
        why="the same payload is invalid the next time too",
    ),
    Rule(
        category=Category.PERMANENT,
        types=(SealError,),
        why="the stored value is not what was sealed for this job, and stays so",
    ),
    Rule(
        category=Category.PERMANENT,
        types=(NotImplementedError, MissingExtra),
        why="the operation is not supported here",
    ),
    Rule(
        category=Category.PERMANENT,
        names=("*.IntegrityError", "asyncpg.IntegrityConstraintViolationError"),
        why="the database would refuse the same rows again; the name is DB-API 2.0's",
    ),
    Rule(
        category=Category.TEMPORARY,
        statuses=((408, 408), (425, 425), (429, 429), (500, 599)),
        why="the service is slow, busy or broken for now",
    ),
    Rule(
        category=Category.PERMANENT,
        statuses=((400, 499),),
        why="the service refuses the request itself: bad, unauthorised, forbidden, not found",
    ),
    Rule(category=Category.PERMANENT, types=(PermissionError,), why="rights do not come by waiting"),
    Rule(
        category=Category.SYSTEM,
        types=(ScriptError, AccessDenied),
        why="the job server refuses, e.g. it is out of memory",
    ),
    Rule(
        category=Category.TEMPORARY,
        types=(TimeoutError, ConnectionError, EOFError, BlockingIOError, BrokerError, OSError),
        why="networks recover; a missing file or socket may be about to appear",
    ),
)


class Classifier(msgspec.Struct, frozen=True):
    """Assigns a category to an error.

    Attributes:
        rules: The table. The first rule that matches decides.
        unknown: The category of an error without a rule.
    """

    rules: tuple[Rule, ...] = DEFAULT_RULES
    unknown: Category = Category.TEMPORARY

    @classmethod
    def default(cls) -> Classifier:
        """Returns the default classifier."""
        return _DEFAULT

    def with_rule(self, *rules: Rule) -> Classifier:
        """Returns a classifier that checks these rules first."""
        return Classifier(rules=(*rules, *self.rules), unknown=self.unknown)

    def classify(self, error: BaseException) -> Category:
        """Returns the category of an error.

        An error without a rule takes the category of its cause (``raise … from …``). A group is as retryable
        as its most retryable member.
        """
        for link in _chain(error):
            if isinstance(link, BaseExceptionGroup):
                found = [self.classify(member) for member in link.exceptions]
                return next((category for category in found if category.retryable), found[0])
            for rule in self.rules:
                if rule.fits(link):
                    return rule.category
        return self.unknown


_DEFAULT = Classifier()


def classify(error: BaseException) -> Category:
    """Returns the category of an error by the default table."""
    return _DEFAULT.classify(error)


def http_status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error, from the attributes that HTTP clients use.

    It reads ``status_code``, ``status`` and ``code`` of the error, then of its ``response``. No client needs
    to be installed.
    """
    status = _status_of(error)
    if status is None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # boto's errors carry a plain dict
            meta = response.get("ResponseMetadata")
            status = _as_status(meta.get("HTTPStatusCode")) if isinstance(meta, dict) else None
        elif response is not None:
            status = _status_of(response)
    return status


def _status_of(thing: Any) -> int | None:
    for name in ("status_code", "status", "code"):
        try:
            status = _as_status(getattr(thing, name, None))
        except Exception:  # a property that raises must not hide the failure itself
            continue
        if status is not None:
            return status
    return None


def _as_status(value: Any) -> int | None:
    # The range excludes other codes of that name: exit codes, websocket codes, our reply codes.
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return int(value)
    return None


def _class_names(error: BaseException) -> Iterator[str]:
    for kind in type(error).__mro__:
        yield f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        yield f"*.{kind.__name__}"


def _chain(error: BaseException) -> Iterable[BaseException]:
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen and len(seen) < 10:
        seen.append(link)
        link = link.__cause__
    return seen
