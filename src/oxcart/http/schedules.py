"""The routes of schedules: list, set and remove them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.params import FromPath, FromQuery
from msgspec import Meta

from oxcart.handle import JobHandle
from oxcart.http import examples, values
from oxcart.http.access import OPERATE, READ
from oxcart.http.audit import note
from oxcart.http.errors import not_found
from oxcart.http.listing import MAX_PAGE
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service, look
from oxcart.http.times import parse_go_ms, parse_time_ms, rfc3339_ms
from oxcart.model.errors import ValidationError
from oxcart.model.priority import Priority
from oxcart.model.schedule import Scheduler
from oxcart.queue import Queue


class ScheduleOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The rule of a schedule, and its jobs."""

    every: Annotated[values.GoDuration | None, Meta(description="The interval; or cron.")] = None
    cron: Annotated[str | None, Meta(description="Five fields, or six with seconds first.")] = None
    tz: str = "UTC"
    offset: values.GoDuration | None = None
    start: Annotated[str | None, Meta(description="No run before this time.")] = None
    end: Annotated[str | None, Meta(description="No run after this time.")] = None
    limit: Annotated[int | None, Meta(description="The most runs.")] = None
    immediately: bool = False
    type: Annotated[str | None, Meta(description="The type of its jobs; by default its id.")] = None
    payload: Any = None
    priority: int | str | None = None
    max_attempts: int | None = None
    timeout: values.GoDuration | None = None
    tags: dict[str, str] | None = None


class ScheduleBody(msgspec.Struct, kw_only=True):
    """A schedule."""

    id: str
    type: str
    every_ms: int | None
    cron: str | None
    tz: str | None
    next_at: Annotated[values.Time | None, Meta(description="The next run; null while paused.")]
    paused: Annotated[bool, Meta(description="Whether it makes no run until it is resumed.")]
    next_job_id: str | None
    runs: int | None
    limit: int | None
    offset_ms: int | None
    start: values.Time | None
    end: values.Time | None
    priority: int
    max_attempts: int
    timeout_ms: Annotated[int | None, Meta(description="null for no timeout of its own.")]
    tags: dict[str, str]
    payload: Any
    payload_hidden: Annotated[bool, Meta(description="The caller may not read the payload.")]


class ScheduleList(msgspec.Struct, kw_only=True):
    """Schedules, soonest next run first."""

    schedules: list[ScheduleBody]
    count: Annotated[int, Meta(description="How many schedules the queue has.")]


@get(
    "/api/v1/queues/{name:str}/schedules",
    summary="List schedules",
    responses=answers(404, ok=(200, ScheduleList, "Schedules, soonest next run first.")),
    opt=READ,
)
async def schedules(
    service: Api, name: FromPath[str], first: FromQuery[int] = 0, limit: FromQuery[int] = 100
) -> ScheduleList:
    """Lists the schedules of a queue."""
    values.check_page_size(limit, MAX_PAGE)
    if not 0 <= first <= 1_000_000:
        raise ValidationError("first", "an integer from 0 to 1000000", first)
    of = service.queue(name).schedules
    found = await of.list(first=first, limit=limit)
    return ScheduleList(schedules=[_body(service, name, one) for one in found], count=await of.count())


@put(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}",
    summary="Make or change a schedule",
    status_code=200,
    responses=answers(404, 409, 413, ok=(200, ScheduleBody, "The schedule.")),
    opt=OPERATE,
)
async def upsert(
    service: Api,
    name: FromPath[str],
    schedule_id: FromPath[str],
    data: Annotated[ScheduleOptions, examples.SCHEDULE],
) -> ScheduleBody:
    """Makes a schedule, or changes the one of this id. The same call again changes nothing."""
    of = service.queue(name).schedules
    options: dict[str, Any] = {
        "priority": data.priority,
        "attempts": data.max_attempts,
        "timeout": _seconds(data.timeout, "timeout"),
        "tags": data.tags or None,
    }
    await of.upsert(
        schedule_id,
        every=_seconds(data.every, "every"),
        cron=data.cron,
        tz=data.tz,
        offset=_seconds(data.offset, "offset"),
        start=None if data.start is None else parse_time_ms(data.start, "start"),
        end=None if data.end is None else parse_time_ms(data.end, "end"),
        limit=data.limit,
        immediately=data.immediately,
        name=data.type,
        data=data.payload,
        **{field: value for field, value in options.items() if value is not None},
    )
    found = await of.get(schedule_id)
    if found is None:
        raise not_found(f"schedule {schedule_id}")
    return _body(service, name, found)


@get(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}",
    summary="Read a schedule",
    responses=answers(404, ok=(200, ScheduleBody, "The schedule.")),
    opt=READ,
)
async def schedule(service: Api, name: FromPath[str], schedule_id: FromPath[str]) -> ScheduleBody:
    """Returns a schedule."""
    return await _read(service, name, schedule_id)


async def _read(service: Service, queue: str, schedule_id: str) -> ScheduleBody:
    found = await service.queue(queue).schedules.get(schedule_id)
    if found is None:
        raise not_found(f"schedule {schedule_id}")
    return _body(service, queue, found)


@post(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}/run",
    summary="Run a schedule now",
    responses=answers(404, ok=(201, values.JobBody, "The new job.")),
    opt=OPERATE,
)
async def run(service: Api, name: FromPath[str], schedule_id: FromPath[str]) -> values.JobBody:
    """Adds a job with the payload and options of the schedule's runs now; other runs keep their times."""
    queue = service.queue(name)
    found = await queue.schedules.get(schedule_id)
    if found is None:
        raise not_found(f"schedule {schedule_id}")
    handle = await run_now(service, queue, found)
    note(job_id=handle.id)
    job = await look(queue, handle.id)
    if job is None:
        raise not_found(f"job {handle.id}")
    return values.job_body(job, name)


async def run_now(service: Service, queue: Queue, found: Scheduler) -> JobHandle[Any]:
    """Adds a job with the payload and the options of the schedule's runs; the schedule stays as it is."""
    options = msgspec.structs.replace(
        found.job_options, job_id=service.new_id(queue), delay=0, timestamp=None
    )
    # The five formal names are the numbers 0 to 4 of the wire; of such a queue a peer may have others.
    if queue._core.priorities is not None and options.priority not in range(5):
        options = msgspec.structs.replace(options, priority=Priority.NORMAL)
    (handle,) = await queue._add([(found.name, found.data, options)])
    return handle


@post(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}/pause",
    summary="Pause a schedule",
    status_code=200,
    responses=answers(404, ok=(200, ScheduleBody, "The schedule.")),
    opt=OPERATE,
)
async def pause(service: Api, name: FromPath[str], schedule_id: FromPath[str]) -> ScheduleBody:
    """Removes the delayed run of a schedule, which makes none until it is resumed."""
    if not await service.queue(name).schedules.pause(schedule_id):
        raise not_found(f"schedule {schedule_id}")
    return await _read(service, name, schedule_id)


@post(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}/resume",
    summary="Resume a schedule",
    status_code=200,
    responses=answers(404, 409, ok=(200, ScheduleBody, "The schedule.")),
    opt=OPERATE,
)
async def resume(service: Api, name: FromPath[str], schedule_id: FromPath[str]) -> ScheduleBody:
    """Makes the next run of a paused schedule; times that passed meanwhile are skipped."""
    if not await service.queue(name).schedules.resume(schedule_id):
        raise not_found(f"schedule {schedule_id}")
    return await _read(service, name, schedule_id)


@delete(
    "/api/v1/queues/{name:str}/schedules/{schedule_id:str}",
    summary="Remove a schedule",
    status_code=204,
    responses=answers(404),
    opt=OPERATE,
)
async def remove(service: Api, name: FromPath[str], schedule_id: FromPath[str]) -> None:
    """Removes a schedule with its delayed run."""
    if not await service.queue(name).schedules.remove(schedule_id):
        raise not_found(f"schedule {schedule_id}")


def _body(service: Service, queue: str, one: Scheduler) -> ScheduleBody:
    visible = service.may_read_payloads(queue)
    return ScheduleBody(
        id=one.id,
        type=one.name,
        every_ms=one.schedule.every,
        cron=one.schedule.cron,
        tz=one.schedule.tz,
        next_at=None if one.paused else rfc3339_ms(one.next_ms),
        paused=one.paused,
        next_job_id=one.next_job_id,
        runs=one.runs,
        limit=one.schedule.limit,
        offset_ms=one.schedule.offset,
        start=None if one.schedule.start is None else rfc3339_ms(one.schedule.start),
        end=None if one.schedule.end is None else rfc3339_ms(one.schedule.end),
        priority=one.job_options.priority,
        max_attempts=max(one.job_options.attempts, 1),
        timeout_ms=timeout if isinstance(timeout := one.job_options.timeout, int) else None,
        tags=dict(one.job_options.tags or {}),
        payload=values.plain(service.masks.apply(one.data)) if visible else None,
        payload_hidden=not visible,
    )


def _seconds(value: Any, field: str) -> float | None:
    return None if value is None else parse_go_ms(value, field, minimum=1) / 1000


ROUTES = [schedules, upsert, schedule, run, pause, resume, remove]
