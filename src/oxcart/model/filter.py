"""Which jobs are meant, where somebody deals with many: by name, category, tags, correlation id and age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.failure import Category
from oxcart.model.job import Job
from oxcart.model.metadata import check_correlation_id, check_tags

_json = msgspec.json.Encoder()


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a job must be to be chosen; what is not said does not matter.

    Attributes:
        names: Its name is one of these.
        categories: The category of its failure is one of these.
        tags: It has all of these tags, with these values.
        correlation_id: Its correlation id is this one.
        since_ms: It is from this time or later.
        before_ms: It is from this time or earlier.
    """

    names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    correlation_id: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    @classmethod
    def build(
        cls,
        *,
        now_ms: int,
        name: str | Iterable[str] | None = None,
        category: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
    ) -> JobFilter:
        """Reads a filter as a user writes it.

        Raises:
            ValidationError: A category is none, or an age or a tag is not what it must be.
        """
        categories = _texts(category, "category")
        known = [each.value for each in Category]
        for each in categories:
            if each not in known:
                raise ValidationError("category", f"one of {', '.join(known)}", each)
        return cls(
            names=_texts(name, "name"),
            categories=categories,
            tags=check_tags(tags or {}, "tags"),
            correlation_id=None
            if correlation_id is None
            else check_correlation_id(correlation_id, "correlation_id"),
            since_ms=None if newer_than is None else now_ms - parse_ms(newer_than, "newer_than"),
            before_ms=None if older_than is None else now_ms - parse_ms(older_than, "older_than"),
        )

    def fits(self, job: Job, at_ms: int) -> bool:
        """Whether a job is chosen, where ``at_ms`` is the time that counts of it."""
        return (
            (not self.names or job.name in self.names)
            and (not self.categories or job.category in self.categories)
            and all(job.tags.get(name) == value for name, value in self.tags.items())
            and (self.correlation_id is None or job.correlation_id == self.correlation_id)
            and (self.since_ms is None or at_ms >= self.since_ms)
            and (self.before_ms is None or at_ms <= self.before_ms)
        )

    def wire(self) -> bytes:
        """As the scripts read it."""
        said: dict[str, object] = {}
        if self.names:
            said["names"] = self.names
        if self.categories:
            said["categories"] = self.categories
        if self.tags:
            said["tags"] = self.tags
        if self.correlation_id is not None:
            said["correlation"] = self.correlation_id
        if self.since_ms is not None:
            said["since"] = self.since_ms
        if self.before_ms is not None:
            said["before"] = self.before_ms
        return _json.encode(said) if said else b""


def _texts(value: str | Iterable[str] | None, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else tuple(value)
    for each in found:
        if not isinstance(each, str):
            raise ValidationError(field, "text, or several of them", each)
    return found
