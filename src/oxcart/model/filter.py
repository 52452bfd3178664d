"""Filters for bulk operations: by name, failure, tags, correlation id, age and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.failure import Category
from oxcart.model.job import Job
from oxcart.model.metadata import check_correlation_id, check_tags
from oxcart.model.moment import When, parse_moment


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of jobs: all conditions that are set must match.

    Attributes:
        names: The job's name is one of these.
        categories: The category of its failure is one of these.
        reason: Its failure, or the failure's code, contains this text, in any case.
        tags: It has all of these tags, with these values.
        correlation_id: Its correlation id equals this.
        since_ms: Its time is this or later.
        before_ms: Its time is this or earlier.
        permanent: Among dead letters, jobs that failed for good match as well.
    """

    names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    reason: str | None = None
    tags: Mapping[str, str] = {}
    correlation_id: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    permanent: bool = False

    @classmethod
    def build(
        cls,
        *,
        now_ms: int,
        name: str | Iterable[str] | None = None,
        category: str | Iterable[str] | None = None,
        reason: str | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        since: When | None = None,
        until: When | None = None,
        permanent: bool = False,
    ) -> JobFilter:
        """Parses and checks a user's arguments.

        Raises:
            ValidationError: A category is unknown, a text is none, an age, a time or a tag is invalid, or
                both an age and a time bound the same side.
        """
        if reason is not None and not isinstance(reason, str):
            raise ValidationError("reason", "text", reason)
        categories = read_texts(category, "category")
        known = [each.value for each in Category]
        for each in categories:
            if each not in known:
                raise ValidationError("category", f"one of {', '.join(known)}", each)
        return cls(
            names=read_texts(name, "name"),
            categories=categories,
            reason=reason or None,
            tags=check_tags(tags or {}, "tags"),
            correlation_id=None
            if correlation_id is None
            else check_correlation_id(correlation_id, "correlation_id"),
            since_ms=_bound(newer_than, "newer_than", since, "since", now_ms),
            before_ms=_bound(older_than, "older_than", until, "until", now_ms),
            permanent=permanent,
        )

    def fits(self, job: Job, at_ms: int) -> bool:
        """Returns whether a job matches. ``at_ms`` is the time that the ages apply to."""
        return (
            (not self.names or job.name in self.names)
            and (not self.categories or job.category in self.categories)
            and (not self.reason or _has_reason(job, self.reason))
            and all(job.tags.get(name) == value for name, value in self.tags.items())
            and (self.correlation_id is None or job.correlation_id == self.correlation_id)
            and (self.since_ms is None or at_ms >= self.since_ms)
            and (self.before_ms is None or at_ms <= self.before_ms)
        )


def _has_reason(job: Job, text: str) -> bool:
    wanted = text.casefold()
    return any(wanted in part.casefold() for part in (failure_of(job) or "", job.code or ""))


def failure_of(job: Job) -> str | None:
    """Returns why a job failed, or that no worker can decode it; None if neither."""
    return job.failed_reason or (f"cannot be decoded: {job.fault}" if job.fault else None)


def _bound(age: Duration | None, age_field: str, at: When | None, field: str, now_ms: int) -> int | None:
    if age is not None and at is not None:
        raise ValidationError(field, f"left out where {age_field} is given", at)
    if age is not None:
        return now_ms - parse_ms(age, age_field)
    return None if at is None else parse_moment(at, field, now_ms=now_ms)


def read_texts(value: str | Iterable[str] | None, field: str) -> tuple[str, ...]:
    """Returns one text or several as a tuple."""
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else tuple(value)
    for each in found:
        if not isinstance(each, str):
            raise ValidationError(field, "text, or several of them", each)
    return found
