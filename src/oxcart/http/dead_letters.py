"""The routes of dead letters: list, replay and purge them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Meta

from oxcart.broker.port.results import DeadDone
from oxcart.broker.progress import OnProgress
from oxcart.dead_letters import Which
from oxcart.http import examples, values
from oxcart.http.access import ADMIN, OPERATE, READ
from oxcart.http.audit import note
from oxcart.http.listing import MAX_PAGE, Tag, tags_of
from oxcart.http.operations import Operation
from oxcart.http.queues import MAX_CHANGED, MAX_IDS, Background, bulk, check_filters
from oxcart.http.routes import Api, answers
from oxcart.http.times import parse_go_ms
from oxcart.model.errors import ValidationError


class Choice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to change; all that match."""

    type: list[str] | None = None
    category: list[str] | None = None
    reason: Annotated[str | None, Meta(description="A part of the failure's text or code.")] = None
    tags: dict[str, str] | None = None
    correlation_id: str | None = None
    older_than: values.GoDuration | None = None
    newer_than: values.GoDuration | None = None
    dry_run: bool = False
    limit: int = MAX_CHANGED


class ReplayOptions(Choice, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to replay, and how."""

    reset_attempts: bool = True


class ReplayOne(msgspec.Struct, forbid_unknown_fields=True):
    """How to replay a dead letter."""

    reset_attempts: bool = True


class DeadAnswer(msgspec.Struct, kw_only=True):
    """How many dead letters match, and how many were changed."""

    matched: int
    changed: int
    ids: Annotated[list[str], Meta(description="The first 1000 of them.")]
    dry_run: bool


class DeadPage(msgspec.Struct, kw_only=True):
    """Dead letters, newest first."""

    jobs: list[values.JobBody]
    count: Annotated[int, Meta(description="How many dead letters this page has.")]
    matched: Annotated[int | None, Meta(description="How many match, with counted=true.")] = None


@get(
    "/api/v1/queues/{name:str}/dead-letters",
    summary="List dead letters",
    responses=answers(404, ok=(200, DeadPage, "Dead letters, newest first.")),
    opt=READ,
)
async def dead_letters(
    service: Api,
    name: FromPath[str],
    job_type: Annotated[
        list[str] | None, QueryParameter(name="type", description="Only these types.")
    ] = None,
    category: Annotated[list[str] | None, QueryParameter(description="Only these categories.")] = None,
    reason: Annotated[
        str | None, QueryParameter(description="Only those whose failure contains this text.")
    ] = None,
    tag: Tag = None,
    correlation_id: FromQuery[str | None] = None,
    older_than: Annotated[
        str | None, QueryParameter(description="Only those that ended so long ago or longer: 2h.")
    ] = None,
    newer_than: Annotated[
        str | None, QueryParameter(description="Only those that ended within this time: 2h.")
    ] = None,
    limit: FromQuery[int] = 100,
    counted: Annotated[bool, QueryParameter(description="Whether to count all that match.")] = False,
) -> DeadPage:
    """Lists jobs that used up their attempts or their lifetime."""
    which: Which = {
        "name": job_type,
        "category": category,
        "reason": reason,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
        "older_than": _seconds(older_than, "older_than"),
        "newer_than": _seconds(newer_than, "newer_than"),
    }
    letters = service.queue(name).dead_letters
    found = await letters.list(limit=values.check_page_size(limit, MAX_PAGE), **which)
    matched = await letters.count(**which) if counted else None
    jobs = [values.job_body(job, name) for job in found]
    return DeadPage(jobs=jobs, count=len(found), matched=matched)


@post(
    "/api/v1/queues/{name:str}/dead-letters/replay",
    summary="Replay dead letters",
    status_code=200,
    responses=answers(
        404,
        ok=(200, DeadAnswer, "How many were replayed."),
        also=(202, Operation, "The operation that goes on in the background."),
    ),
    opt=OPERATE,
)
async def replay(
    service: Api,
    name: FromPath[str],
    data: Annotated[ReplayOptions, examples.REPLAY],
    background: Background = False,
) -> Response[DeadAnswer | Operation]:
    """Lets dead letters that match run again, oldest first, at most 10 000 per call."""
    letters, which, most = service.queue(name).dead_letters, _which(data), _limit(data)

    async def work(progress: OnProgress) -> DeadAnswer:
        done = await letters.replay_all(
            reset=data.reset_attempts, dry_run=data.dry_run, limit=most, progress=progress, **which
        )
        return _answer(done, data)

    return await bulk(service, name, "replay", background, work)


@post(
    "/api/v1/queues/{name:str}/dead-letters/purge",
    summary="Remove dead letters",
    status_code=200,
    responses=answers(
        404,
        ok=(200, DeadAnswer, "How many were removed."),
        also=(202, Operation, "The operation that goes on in the background."),
    ),
    opt=ADMIN,
)
async def purge(
    service: Api, name: FromPath[str], data: Annotated[Choice, examples.PURGE], background: Background = False
) -> Response[DeadAnswer | Operation]:
    """Removes dead letters that match for good, at most 10 000 per call."""
    letters, which, most = service.queue(name).dead_letters, _which(data), _limit(data)

    async def work(progress: OnProgress) -> DeadAnswer:
        done = await letters.purge_all(dry_run=data.dry_run, limit=most, progress=progress, **which)
        return _answer(done, data)

    return await bulk(service, name, "purge", background, work)


Permanent = Annotated[
    bool, QueryParameter(description="Whether a job that failed for good counts as a dead letter.")
]


@get(
    "/api/v1/queues/{name:str}/dead-letters/{job_id:str}",
    summary="Read a dead letter",
    responses=answers(404, 409, ok=(200, values.JobBody, "The dead letter.")),
    opt=READ,
)
async def dead_letter(
    service: Api, name: FromPath[str], job_id: FromPath[str], permanent: Permanent = False
) -> values.JobBody:
    """Returns a dead letter; 409 if the job is none."""
    return values.job_body(await service.queue(name).dead_letters.get(job_id, permanent=permanent), name)


@post(
    "/api/v1/queues/{name:str}/dead-letters/{job_id:str}/replay",
    summary="Replay a dead letter",
    status_code=204,
    responses=answers(404, 409),
    opt=OPERATE,
)
async def replay_one(
    service: Api,
    name: FromPath[str],
    job_id: FromPath[str],
    data: Annotated[ReplayOne | None, examples.REPLAY_ONE] = None,
    permanent: Permanent = False,
) -> None:
    """Lets a dead letter run again; 409 if the job is none."""
    reset = data is None or data.reset_attempts
    await service.queue(name).dead_letters.replay(job_id, reset=reset, permanent=permanent)


@delete(
    "/api/v1/queues/{name:str}/dead-letters/{job_id:str}",
    summary="Purge a dead letter",
    status_code=204,
    responses=answers(404, 409),
    opt=ADMIN,
)
async def purge_one(
    service: Api, name: FromPath[str], job_id: FromPath[str], permanent: Permanent = False
) -> None:
    """Removes a dead letter for good; 409 if the job is none."""
    await service.queue(name).dead_letters.purge(job_id, permanent=permanent)


def _limit(data: Choice) -> int:
    if not 1 <= data.limit <= MAX_CHANGED:
        raise ValidationError("limit", f"an integer from 1 to {MAX_CHANGED}", data.limit)
    return data.limit


def _which(data: Choice) -> Which:
    check_filters(data)
    return {
        "name": data.type,
        "category": data.category,
        "reason": data.reason,
        "tags": data.tags,
        "correlation_id": data.correlation_id,
        "older_than": _seconds(data.older_than, "older_than"),
        "newer_than": _seconds(data.newer_than, "newer_than"),
    }


def _seconds(value: Any, field: str) -> float | None:
    return None if value is None else parse_go_ms(value, field) / 1000


def _answer(done: DeadDone, data: Choice) -> DeadAnswer:
    note(matched=done.matched, changed=done.done, dry_run=data.dry_run)
    return DeadAnswer(matched=done.matched, changed=done.done, ids=done.ids[:MAX_IDS], dry_run=data.dry_run)


ROUTES = [dead_letters, replay, purge, dead_letter, replay_one, purge_one]
