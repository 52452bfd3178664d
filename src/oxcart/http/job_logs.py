"""The route of a job's log."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Meta

from oxcart.http import values
from oxcart.http.access import READ
from oxcart.http.jobs import QueueParameter
from oxcart.http.routes import Api, answers
from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.queue import Queue

#: Lines of one answer at most.
MAX_LINES = 10_000
#: The farthest line from either end at which an answer may begin.
FARTHEST = 1_000_000


class LogBody(msgspec.Struct, kw_only=True):
    """Lines of a job's log, oldest first."""

    lines: list[str]
    hidden: Annotated[bool, Meta(description="The caller may not read the log.")]


async def read_log(queue: Queue, job: Job, first: int, limit: int) -> list[str]:
    """Returns lines of a job's log, from the lane where the job is.

    Args:
        queue: The job's queue.
        job: The job.
        first: The first line; a negative number counts from the end.
        limit: The most lines.
    """
    lane = queue if job.lane is None or not queue.capabilities.can("lanes") else queue.lanes.get(job.lane)
    logs: Any = lane._core.broker.logs
    last = first + limit - 1
    return [] if logs is None else await logs.read(job.id, first, -1 if first < 0 <= last else last)


@get(
    "/api/v1/jobs/{job_id:str}/logs",
    summary="Read the log of a job",
    responses=answers(404, ok=(200, LogBody, "Lines of the log, oldest first.")),
    opt=READ,
)
async def logs(
    service: Api,
    job_id: FromPath[str],
    in_queue: QueueParameter = None,
    first: Annotated[int, QueryParameter(description="The first line; -100 for the last hundred.")] = 0,
    limit: Annotated[int, QueryParameter(description="The most lines; 1 to 10000.")] = 1000,
) -> LogBody:
    """Returns lines of the log of a job. It is hidden from callers that may not read payloads."""
    if not -FARTHEST <= first <= FARTHEST:
        raise ValidationError("first", f"an integer from {-FARTHEST} to {FARTHEST}", first)
    values.check_page_size(limit, MAX_LINES)
    queue, job = await service.find(job_id, in_queue)
    if not service.may_read_payloads(queue.name):
        return LogBody(lines=[], hidden=True)
    return LogBody(lines=await read_log(queue, job, first, limit), hidden=False)


ROUTES = [logs]
