"""The routes of whole queues: counts, pause, clean, workers, and operations on many jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Meta

from oxcart.broker.progress import OnProgress, Progress, silent
from oxcart.broker.workers import WorkerRecord
from oxcart.http import examples, values
from oxcart.http.access import ADMIN, OPERATE, READ
from oxcart.http.audit import note
from oxcart.http.counting import QueueStats
from oxcart.http.operations import Operation
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service
from oxcart.http.times import parse_go_ms, rfc3339_ms
from oxcart.model.errors import JobError, ValidationError
from oxcart.model.moment import parse_moment
from oxcart.queue import Queue

#: Jobs that one operation changes at most; a client repeats it for more.
MAX_CHANGED = 10_000
#: Failed jobs that a retry with filters reads at most.
MAX_READ = 1_000_000
#: The fields of a body that choose jobs by more than time and state.
FILTERS = ("type", "category", "reason", "worker", "tags", "correlation_id")
#: Ids that an answer lists at most.
MAX_IDS = 1000


Background = Annotated[
    bool, QueryParameter(description="Answer at once with 202, and go on in the background.")
]


class QueueBody(msgspec.Struct, kw_only=True):
    """A queue."""

    name: str
    protocol: str
    paused: bool
    counts: Annotated[dict[str, int], Meta(description="Jobs by state of the wire, lanes included.")]


class QueueList(msgspec.Struct):
    """All queues."""

    queues: list[QueueBody]


class QueueDetail(QueueBody, kw_only=True):
    """A queue with its formal counts and its lanes."""

    states: QueueStats
    lanes: Annotated[dict[str, dict[str, int]], Meta(description="Jobs of each lane by state of the wire.")]


class Changed(msgspec.Struct, kw_only=True):
    """How many jobs an operation changed."""

    changed: int


class CleanOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs to remove."""

    state: Literal["completed", "failed", "waiting", "prioritized", "delayed", "active"] = "completed"
    grace: Annotated[values.GoDuration, Meta(description="Younger jobs stay.")] = 0
    limit: int = MAX_CHANGED


class ClearOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Which waiting jobs to remove."""

    delayed: bool = False


class ObliterateOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How to remove a queue."""

    name: Annotated[str, Meta(description="The queue's name again, so that no other is removed.")]
    force: bool = False


class CancelMany(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs to cancel."""

    state: list[str] | None = None
    type: list[str] | None = None
    tags: dict[str, str] | None = None
    correlation_id: str | None = None
    older_than: values.GoDuration | None = None
    newer_than: values.GoDuration | None = None
    reason: str = ""
    force: bool = False
    dry_run: bool = False
    limit: int = MAX_CHANGED


class CancelledMany(msgspec.Struct, kw_only=True):
    """How many jobs were cancelled, asked to stop and refused."""

    matched: int
    cancelled: int
    asked: Annotated[int, Meta(description="Running jobs whose workers were asked to stop them.")]
    refused: Annotated[int, Meta(description="Jobs that a worker of another client runs.")]
    ids: Annotated[list[str], Meta(description="The first 1000 of them.")]
    dry_run: bool


class RetryMany(msgspec.Struct, forbid_unknown_fields=True):
    """Which ended jobs to retry; all that match."""

    state: Literal["failed", "completed"] = "failed"
    type: list[str] | None = None
    reason: Annotated[str | None, Meta(description="A part of the failure's text or code.")] = None
    category: list[str] | None = None
    worker: Annotated[list[str] | None, Meta(description="Who claimed them last: web-*.")] = None
    tags: dict[str, str] | None = None
    correlation_id: str | None = None
    since: str | None = None
    until: str | None = None
    reset_attempts: bool = False
    dry_run: bool = False
    limit: int = MAX_CHANGED


class RetriedMany(msgspec.Struct, kw_only=True):
    """How many jobs match, and how many were retried."""

    matched: int
    exact: Annotated[bool, Meta(description="Whether all were found; otherwise more may match: repeat it.")]
    retried: int
    dry_run: bool


class WorkerBody(msgspec.Struct, kw_only=True):
    """A live worker."""

    id: str
    name: str
    hostname: str
    pid: int
    queues: list[str]
    concurrency: int
    version: str
    started_at: values.Time
    last_seen: values.Time
    capabilities: list[str]
    stack: list[str]
    region: list[str]
    routed: Annotated[bool, Meta(description="Whether it takes jobs with a target.")]


class WorkerList(msgspec.Struct, kw_only=True):
    """The live workers, and the jobs that none of them can take."""

    workers: list[WorkerBody]
    unroutable: Annotated[dict[str, int], Meta(description="Waiting jobs whose target no worker matches.")]


@get("/api/v1/queues", summary="List queues", responses=answers(ok=(200, QueueList, "All queues.")), opt=READ)
async def queues(service: Api) -> QueueList:
    """Lists the queues that the API serves."""
    return QueueList(list(await asyncio.gather(*(_body(queue) for queue in service.queues.values()))))


@get(
    "/api/v1/queues/{name:str}",
    summary="Read a queue",
    responses=answers(404, ok=(200, QueueDetail, "The queue.")),
    opt=READ,
)
async def queue(service: Api, name: FromPath[str]) -> QueueDetail:
    """Returns a queue with its counts by formal state and by lane."""
    found = service.queue(name)
    plain, states = await asyncio.gather(_body(found), service.formal.of(found))
    lanes = await found.lanes.counts() if found.capabilities.can("lanes") else {}
    return QueueDetail(**msgspec.structs.asdict(plain), states=states, lanes=lanes)


async def _body(found: Queue) -> QueueBody:
    counts, paused = await asyncio.gather(found.counts(), found.is_paused())
    return QueueBody(name=found.name, protocol=found._core.protocol, paused=paused, counts=counts)


@post(
    "/api/v1/queues/{name:str}/pause",
    summary="Pause a queue",
    status_code=200,
    responses=answers(404, ok=(200, QueueBody, "The queue.")),
    opt=OPERATE,
)
async def pause(service: Api, name: FromPath[str]) -> QueueBody:
    """Stops claims until the queue is resumed. Running jobs continue."""
    await service.queue(name).pause()
    return await _body(service.queue(name))


@post(
    "/api/v1/queues/{name:str}/resume",
    summary="Resume a queue",
    status_code=200,
    responses=answers(404, ok=(200, QueueBody, "The queue.")),
    opt=OPERATE,
)
async def resume(service: Api, name: FromPath[str]) -> QueueBody:
    """Allows claims again."""
    await service.queue(name).resume()
    return await _body(service.queue(name))


@post(
    "/api/v1/queues/{name:str}/clean",
    summary="Remove old jobs of a state",
    status_code=200,
    responses=answers(404, ok=(200, Changed, "How many were removed.")),
    opt=OPERATE,
)
async def clean(
    service: Api, name: FromPath[str], data: Annotated[CleanOptions | None, examples.CLEAN] = None
) -> Changed:
    """Removes jobs of a state that are older than ``grace``, oldest first, at most 10 000 per call."""
    asked = data or CleanOptions()
    found = service.queue(name)
    grace = parse_go_ms(asked.grace, "grace") / 1000
    most = _limit(asked.limit)
    return Changed(changed=await found.jobs.clean(asked.state, grace=grace, limit=most))


@post(
    "/api/v1/queues/{name:str}/clear",
    summary="Remove waiting jobs",
    status_code=200,
    responses=answers(404, ok=(200, Changed, "How many were removed.")),
    opt=ADMIN,
)
async def clear(
    service: Api, name: FromPath[str], data: Annotated[ClearOptions | None, examples.CLEAR] = None
) -> Changed:
    """Removes every waiting job, with ``delayed`` the delayed ones too. Running and ended jobs stay."""
    asked = data or ClearOptions()
    return Changed(changed=await service.queue(name).jobs.clear(delayed=asked.delayed))


@post(
    "/api/v1/queues/{name:str}/obliterate",
    summary="Remove a queue with everything in it",
    status_code=200,
    responses=answers(404, 409, ok=(200, Changed, "How many jobs were removed.")),
    opt=ADMIN,
)
async def obliterate(
    service: Api, name: FromPath[str], data: Annotated[ObliterateOptions, examples.OBLITERATE]
) -> Changed:
    """Removes all jobs, lanes, schedules, limits and events of a queue; 409 while workers run jobs of it."""
    found = service.queue(name)
    if data.name != name:
        raise ValidationError("name", f"the queue's name, {name}", data.name)
    return Changed(changed=await found.jobs.obliterate(force=data.force))


@post(
    "/api/v1/queues/{name:str}/cancel",
    summary="Cancel many jobs",
    status_code=200,
    responses=answers(
        404,
        ok=(200, CancelledMany, "How many were cancelled."),
        also=(202, Operation, "The operation that goes on in the background."),
    ),
    opt=OPERATE,
)
async def cancel_many(
    service: Api,
    name: FromPath[str],
    data: Annotated[CancelMany, examples.CANCEL_MANY],
    background: Background = False,
) -> Response[CancelledMany | Operation]:
    """Cancels jobs that match, at most 10 000 per call. A dry run only lists them."""
    return await bulk(
        service, name, "cancel", background, lambda progress: _cancel_many(service, name, data, progress)
    )


async def _cancel_many(service: Service, name: str, data: CancelMany, progress: OnProgress) -> CancelledMany:
    found = service.queue(name)
    check_filters(data, ("state", "type", "tags", "correlation_id"))
    done = await found.jobs.cancel_all(
        state=data.state,
        name=data.type,
        tags=data.tags,
        correlation_id=data.correlation_id,
        older_than=_seconds(data.older_than, "older_than"),
        newer_than=_seconds(data.newer_than, "newer_than"),
        reason=data.reason,
        force=data.force,
        dry_run=data.dry_run,
        limit=_limit(data.limit),
        progress=progress,
    )
    note(matched=done.matched, cancelled=done.cancelled, dry_run=data.dry_run)
    return CancelledMany(
        matched=done.matched,
        cancelled=done.cancelled,
        asked=done.asked,
        refused=done.refused,
        ids=done.ids[:MAX_IDS],
        dry_run=data.dry_run,
    )


@post(
    "/api/v1/queues/{name:str}/retry",
    summary="Retry many jobs",
    status_code=200,
    responses=answers(
        404,
        ok=(200, RetriedMany, "How many were retried."),
        also=(202, Operation, "The operation that goes on in the background."),
    ),
    opt=OPERATE,
)
async def retry_many(
    service: Api,
    name: FromPath[str],
    data: Annotated[RetryMany, examples.RETRY_MANY],
    background: Background = False,
) -> Response[RetriedMany | Operation]:
    """Lets ended jobs run again, oldest end first, at most 10 000 per call. A dry run only counts them."""
    return await bulk(
        service, name, "retry", background, lambda progress: _retry_many(service, name, data, progress)
    )


async def _retry_many(service: Service, name: str, data: RetryMany, progress: OnProgress) -> RetriedMany:
    found = service.queue(name)
    most = _limit(data.limit)
    now = await found._core.broker.now()
    since = None if data.since is None else parse_moment(data.since, "since", now_ms=now)
    until = None if data.until is None else parse_moment(data.until, "until", now_ms=now)
    if check_filters(data):
        return await _retry_chosen(found, data, since, until, most, progress)
    counted = await found.jobs.search(state=data.state, wire=True, since=since, until=until, limit=1)
    matched = min(counted.matched, most)
    exact = counted.exact and counted.matched <= most
    if data.dry_run:
        return RetriedMany(matched=matched, exact=exact, retried=0, dry_run=True)
    retried = await found.jobs.retry_all(
        data.state,
        since=since,
        until=until,
        limit=most,
        reset=data.reset_attempts,
        progress=progress,
    )
    note(retried=retried)
    return RetriedMany(matched=max(matched, retried), exact=exact, retried=retried, dry_run=False)


async def _retry_chosen(
    queue: Queue, data: RetryMany, since: int | None, until: int | None, most: int, progress: OnProgress
) -> RetriedMany:
    """Retries the jobs that match now, one by one: each once, even if it fails again meanwhile."""
    found = await queue.jobs.search(
        state=data.state,
        wire=True,
        name=data.type,
        reason=data.reason,
        category=data.category,
        worker=data.worker,
        tags=data.tags,
        correlation_id=data.correlation_id,
        since=since,
        until=until,
        limit=most,
        oldest=True,
        scan=MAX_READ,
        count=False,
    )
    retried = 0
    for number, job in enumerate(found.jobs if not data.dry_run else (), 1):
        try:
            await queue.jobs.retry(job.id, reset=data.reset_attempts)
            retried += 1
        except JobError:
            pass  # it runs again already, or is gone
        progress(Progress("retrying", number, len(found.jobs)))
    if not data.dry_run:
        note(retried=retried)
    exact = found.exact and found.matched <= len(found.jobs)
    return RetriedMany(matched=len(found.jobs), exact=exact, retried=retried, dry_run=data.dry_run)


@get(
    "/api/v1/queues/{name:str}/workers",
    summary="List the workers of a queue",
    responses=answers(404, ok=(200, WorkerList, "The live workers.")),
    opt=READ,
)
async def workers(service: Api, name: FromPath[str]) -> WorkerList:
    """Returns the live workers with their abilities, and how many jobs no worker can take, by target."""
    of = service.queue(name).workers
    found, unroutable = await asyncio.gather(of.list(), of.unroutable())
    return WorkerList(workers=[_worker(one) for one in found], unroutable=unroutable)


def _worker(one: WorkerRecord) -> WorkerBody:
    return WorkerBody(
        id=one.id,
        name=one.name,
        hostname=one.hostname,
        pid=one.pid,
        queues=list(one.queues),
        concurrency=one.concurrency,
        version=one.version,
        started_at=rfc3339_ms(one.started_at),
        last_seen=rfc3339_ms(one.last_seen),
        capabilities=list(one.capabilities),
        stack=list(one.stack),
        region=list(one.region),
        routed=one.routed,
    )


class FailureBody(msgspec.Struct, kw_only=True):
    """Failed jobs with one cause."""

    reason: str
    frame: str | None
    count: int
    example: str
    ids: list[str]
    types: dict[str, int]
    states: dict[str, int]
    first_at: values.Time
    last_at: values.Time


class FailureList(msgspec.Struct, kw_only=True):
    """Failed jobs by cause."""

    groups: list[FailureBody]
    failed: int
    exact: bool


@get(
    "/api/v1/queues/{name:str}/failures",
    summary="Group failed jobs by cause",
    responses=answers(404, ok=(200, FailureList, "The groups, largest first.")),
    opt=READ,
)
async def failures(
    service: Api,
    name: FromPath[str],
    since: Annotated[str | None, QueryParameter(description="Only jobs that ended since then: 2h.")] = None,
    limit: FromQuery[int] = 20,
) -> FailureList:
    """Groups failed jobs by their reason and by the frame that raised it."""
    values.check_page_size(limit, 100)
    found = await service.queue(name).jobs.failures(since=since)
    groups = [
        FailureBody(
            reason=one.reason,
            frame=one.frame,
            count=one.count,
            example=one.example,
            ids=list(one.ids),
            types=dict(one.names),
            states={str(state): count for state, count in one.states.items()},
            first_at=rfc3339_ms(one.first_ms),
            last_at=rfc3339_ms(one.last_ms),
        )
        for one in found.groups[:limit]
    ]
    return FailureList(groups=groups, failed=found.failed, exact=found.exact)


Done = TypeVar("Done", bound=msgspec.Struct)


async def bulk(
    service: Service,
    name: str,
    action: str,
    background: bool,
    work: Callable[[OnProgress], Awaitable[Done]],
) -> Response[Done | Operation]:
    """Runs an operation on many jobs of a queue: now, or in the background."""
    queue = service.queue(name).name
    if not background:
        return Response(await work(silent), status_code=200)
    caller = "" if service.viewer is None else service.viewer.id
    made = service.operations.start(queue, action, caller, work)
    note(operation=made.id)
    return Response(made, status_code=202, headers={"Location": f"/api/v1/operations/{made.id}"})


def check_filters(data: msgspec.Struct, names: Sequence[str] = FILTERS) -> bool:
    """Returns whether a body chooses jobs by more than their time and state.

    Raises:
        ValidationError: A filter is empty, and would choose all jobs.
    """
    given = [name for name in names if getattr(data, name, None) is not None]
    for name in given:
        if not getattr(data, name):
            raise ValidationError(name, "at least one value, or left out for all jobs", getattr(data, name))
    return bool(given)


def _limit(limit: int) -> int:
    if not 1 <= limit <= MAX_CHANGED:
        raise ValidationError("limit", f"an integer from 1 to {MAX_CHANGED}", limit)
    return limit


def _seconds(value: Any, field: str) -> float | None:
    return None if value is None else parse_go_ms(value, field) / 1000


ROUTES = [
    queues,
    queue,
    pause,
    resume,
    clean,
    clear,
    obliterate,
    cancel_many,
    retry_many,
    workers,
    failures,
]
