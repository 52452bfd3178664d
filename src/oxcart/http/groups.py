"""The routes of fair groups: those that wait, one of them, and what operators do with it.

The name of a group is a parameter or a field, never a part of the path: it may be empty, or contain a slash.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, post, put
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from oxcart.http import examples
from oxcart.http.access import ADMIN, OPERATE, READ
from oxcart.http.audit import note
from oxcart.http.queues import Changed
from oxcart.http.routes import Api, answers
from oxcart.model.errors import ValidationError
from oxcart.queue import Queue

_GROUP = Meta(description='The group; "" for the jobs without one.')
Named = Annotated[str, QueryParameter(name="group", description='The group; "" for the jobs without one.')]


class GroupRow(msgspec.Struct, kw_only=True):
    """A group with waiting jobs."""

    group: Annotated[str, _GROUP]
    waiting: int


class GroupList(msgspec.Struct, kw_only=True):
    """A page of the groups with waiting jobs, and all of them in a few numbers."""

    groups: Annotated[list[GroupRow], Meta(description="By name.")]
    cursor: Annotated[str | None, Meta(description="Pass it as `after` for the next page; null at the end.")]
    total: Annotated[
        int, Meta(description="Groups with waiting jobs; above 100 those that take turns at this moment.")
    ]
    waiting: Annotated[int, Meta(description="Jobs that wait in all groups.")]
    largest: Annotated[
        list[GroupRow],
        Meta(description="The groups with the most waiting jobs; above 100 groups those of random jobs."),
    ]
    oldest_ms: Annotated[int, Meta(description="How long the next job of a group has waited at most.")]
    exact: Annotated[bool, Meta(description="Whether every group was looked at.")]


class GroupLimits(msgspec.Struct, kw_only=True):
    """The settings of a group, or of all groups; null where a group has none of its own, 0 for unlimited."""

    concurrent: int | None
    per_minute: int | None
    weight: float | None = None
    paused: bool = False


class GroupBody(msgspec.Struct, kw_only=True):
    """A group: its jobs and its settings."""

    group: Annotated[str, _GROUP]
    waiting: int
    running: int
    started: Annotated[int, Meta(description="Jobs let through in this minute, if that is limited.")]
    settings: GroupLimits
    all: Annotated[GroupLimits, Meta(description="The limits of every group without its own.")]


class GroupOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The settings to change; null lets those of all groups apply."""

    group: Annotated[str | None, Meta(description="The group; null for every group without its own.")]
    concurrent: int | UnsetType | None = UNSET
    per_minute: int | UnsetType | None = UNSET
    weight: Annotated[
        float | UnsetType | None, Meta(description="Jobs per round, 0.001 to 1000; one group only.")
    ] = UNSET


class GroupNamed(msgspec.Struct, forbid_unknown_fields=True):
    """Which group."""

    group: Annotated[str, _GROUP]


class GroupCancel(GroupNamed, forbid_unknown_fields=True, kw_only=True):
    """Which group's jobs to cancel, and how."""

    reason: str = ""
    force: bool = False


@get(
    "/api/v1/queues/{name:str}/groups",
    summary="List fair groups",
    responses=answers(404, ok=(200, GroupList, "The groups.")),
    opt=READ,
)
async def groups(
    service: Api,
    name: FromPath[str],
    after: Annotated[str | None, QueryParameter(description="The cursor of the page before.")] = None,
    limit: FromQuery[int] = 100,
) -> GroupList:
    """Lists the groups with waiting jobs by name, at most 1000 per page."""
    of = service.queue(name).groups
    page = await of.list(after=after, limit=limit)
    summary = await of.summary()
    return GroupList(
        groups=[GroupRow(group=group, waiting=many) for group, many in page.items()],
        cursor=list(page)[-1] if len(page) == limit else None,
        total=summary.groups,
        waiting=summary.waiting,
        largest=[GroupRow(group=group, waiting=many) for group, many in summary.largest.items()],
        oldest_ms=summary.oldest_ms,
        exact=summary.exact,
    )


@get(
    "/api/v1/queues/{name:str}/groups/one",
    summary="Read a fair group",
    responses=answers(404, ok=(200, GroupBody, "The group.")),
    opt=READ,
)
async def one_group(service: Api, name: FromPath[str], group: Named) -> GroupBody:
    """Returns the jobs and the settings of a group. A group that has neither is no error."""
    return await _body(service.queue(name), group)


async def _body(queue: Queue, group: str) -> GroupBody:
    usage = await queue.groups.usage(group)
    own, all_of_them = await queue.groups.settings(group), await queue.groups.settings()
    return GroupBody(
        group=group,
        waiting=usage.waiting,
        running=usage.running,
        started=usage.started,
        settings=GroupLimits(
            concurrent=own.concurrent, per_minute=own.per_minute, weight=own.weight, paused=own.paused
        ),
        all=GroupLimits(concurrent=all_of_them.concurrent, per_minute=all_of_them.per_minute),
    )


@put(
    "/api/v1/queues/{name:str}/groups/limits",
    summary="Change the limits of fair groups",
    status_code=200,
    responses=answers(404, ok=(200, GroupLimits, "The settings.")),
    opt=OPERATE,
)
async def set_groups(
    service: Api, name: FromPath[str], data: Annotated[GroupOptions, examples.GROUP_LIMITS]
) -> GroupLimits:
    """Changes limits and weight of one group, or the limits of every group without its own."""
    of = service.queue(name).groups
    if data.group is not None:
        await of.set(data.group, concurrent=data.concurrent, per_minute=data.per_minute, weight=data.weight)
    elif data.weight is not UNSET:
        raise ValidationError("weight", "left out for all groups: a weight is one group's", data.weight)
    else:
        await of.set_all(concurrent=data.concurrent, per_minute=data.per_minute)
    found = await of.settings(data.group)
    return GroupLimits(
        concurrent=found.concurrent, per_minute=found.per_minute, weight=found.weight, paused=found.paused
    )


@post(
    "/api/v1/queues/{name:str}/groups/pause",
    summary="Pause a fair group",
    status_code=200,
    responses=answers(404, ok=(200, GroupBody, "The group.")),
    opt=OPERATE,
)
async def pause_group(
    service: Api, name: FromPath[str], data: Annotated[GroupNamed, examples.GROUP]
) -> GroupBody:
    """Lets no further job of a group through. Those that run continue."""
    await service.queue(name).groups.pause(data.group)
    return await _body(service.queue(name), data.group)


@post(
    "/api/v1/queues/{name:str}/groups/resume",
    summary="Resume a fair group",
    status_code=200,
    responses=answers(404, ok=(200, GroupBody, "The group.")),
    opt=OPERATE,
)
async def resume_group(
    service: Api, name: FromPath[str], data: Annotated[GroupNamed, examples.GROUP]
) -> GroupBody:
    """Lets a paused group take turns again."""
    await service.queue(name).groups.resume(data.group)
    return await _body(service.queue(name), data.group)


@post(
    "/api/v1/queues/{name:str}/groups/clear",
    summary="Remove the waiting jobs of a fair group",
    status_code=200,
    responses=answers(404, ok=(200, Changed, "How many were removed.")),
    opt=ADMIN,
)
async def clear_group(
    service: Api, name: FromPath[str], data: Annotated[GroupNamed, examples.GROUP]
) -> Changed:
    """Removes the jobs that wait for a group's turn. Running and delayed ones stay."""
    removed = await service.queue(name).groups.clear(data.group)
    note(group=data.group, changed=removed)
    return Changed(changed=removed)


@post(
    "/api/v1/queues/{name:str}/groups/cancel",
    summary="Cancel the jobs of a fair group",
    status_code=200,
    responses=answers(404, ok=(200, Changed, "How many were cancelled.")),
    opt=OPERATE,
)
async def cancel_group(
    service: Api, name: FromPath[str], data: Annotated[GroupCancel, examples.GROUP_CANCEL]
) -> Changed:
    """Cancels the waiting and the running jobs of a group. Delayed ones stay."""
    cancelled = await service.queue(name).groups.cancel(data.group, data.reason, force=data.force)
    note(group=data.group, changed=cancelled)
    return Changed(changed=cancelled)


ROUTES = [groups, one_group, set_groups, pause_group, resume_group, clear_group, cancel_group]
