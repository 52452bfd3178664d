"""The types of scheduler options and records, for annotations."""

from __future__ import annotations

from typing import Any, TypedDict


class RepeatOptions(TypedDict, total=False):
    """When a scheduler makes jobs; times are in ms."""

    count: int
    endDate: int | float | str
    every: int
    immediately: bool
    limit: int
    offset: int
    pattern: str
    startDate: int | float | str
    tz: str


class JobSchedulerTemplateJson(TypedDict, total=False):
    """The template of every job of a scheduler."""

    data: object
    opts: dict[str, Any]


class JobSchedulerJson(TypedDict, total=False):
    """A scheduler as a queue stores it."""

    endDate: int | None
    every: int
    id: str | None
    iterationCount: int
    key: str
    limit: int
    name: str
    next: int | None
    offset: int
    pattern: str | None
    startDate: int
    template: JobSchedulerTemplateJson
    tz: str | None
