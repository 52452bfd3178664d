"""The routes of jobs that wait for others: the tree below a job, and its dependents."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Meta

from oxcart.http import values
from oxcart.http.access import READ
from oxcart.http.errors import not_found
from oxcart.http.jobs import QueueParameter
from oxcart.http.routes import Api, answers
from oxcart.model.errors import ValidationError
from oxcart.model.flow import FlowView

#: Generations and children of one job that an answer has at most.
MAX_DEPTH, MAX_CHILDREN = 20, 200


class FlowBody(msgspec.Struct, kw_only=True):
    """A job with the jobs below it."""

    job: values.JobBody
    children: list[FlowBody]
    more: Annotated[int, Meta(description="Children that are not shown.")]


class DependentList(msgspec.Struct):
    """The jobs that wait for a job, by their full keys, and how: after or after_any."""

    dependents: dict[str, str]


@get(
    "/api/v1/jobs/{job_id:str}/flow",
    summary="Read the tree below a job",
    responses=answers(404, ok=(200, FlowBody, "The job and those below it.")),
    opt=READ,
)
async def flow(
    service: Api,
    job_id: FromPath[str],
    in_queue: QueueParameter = None,
    depth: Annotated[int, QueryParameter(description="Generations, the first included; 1 to 20.")] = 10,
    limit: Annotated[int, QueryParameter(description="Children of one job; 1 to 200.")] = 20,
) -> FlowBody:
    """Returns a job with the jobs that it waits for."""
    if not 1 <= depth <= MAX_DEPTH:
        raise ValidationError("depth", f"an integer from 1 to {MAX_DEPTH}", depth)
    values.check_page_size(limit, MAX_CHILDREN)
    queue, _ = await service.find(job_id, in_queue)
    found = await queue.flows.get(job_id, depth=depth, limit=limit)
    if found is None:
        raise not_found(f"job {job_id}")
    return _body(found)


@get(
    "/api/v1/jobs/{job_id:str}/dependents",
    summary="List the jobs that wait for a job",
    responses=answers(404, ok=(200, DependentList, "The jobs that wait for it.")),
    opt=READ,
)
async def dependents(service: Api, job_id: FromPath[str], in_queue: QueueParameter = None) -> DependentList:
    """Returns the jobs that wait for a job; none once it has ended."""
    queue, _ = await service.find(job_id, in_queue)
    found = await queue.flows.dependents(job_id)
    return DependentList({key: kind.value for key, kind in found.items()})


def _body(view: FlowView) -> FlowBody:
    return FlowBody(
        job=values.job_body(view.job), children=[_body(child) for child in view.children], more=view.more
    )


ROUTES = [flow, dependents]
