"""The routes of jobs that wait for others: add a graph, read the tree below a job, and its dependents."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, QueryParameter
from msgspec import Meta

from oxcart.graph import Graph
from oxcart.http import examples, submission, values
from oxcart.http.access import READ, SUBMIT
from oxcart.http.errors import not_found
from oxcart.http.jobs import QueueParameter
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service
from oxcart.model.errors import ValidationError
from oxcart.model.flow import FlowView

#: Jobs of one flow at most.
MAX_JOBS = 1000
#: Generations and children of one job that an answer has at most.
MAX_DEPTH, MAX_CHILDREN = 20, 200


class FlowJob(values.Submit, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job of a flow, as in POST /api/v1/jobs, with its place in the flow."""

    ref: Annotated[str, Meta(description="Its name within this flow.", examples=["render"])]
    after: Annotated[
        tuple[str, ...], Meta(description="Jobs of this flow that must have completed before it runs.")
    ] = ()
    after_any: Annotated[
        tuple[str, ...], Meta(description="Jobs of this flow of which one must have ended before it runs.")
    ] = ()


class FlowOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs that wait for each other, all added in one step."""

    jobs: list[FlowJob]


class AddedFlow(msgspec.Struct):
    """The jobs of a flow by their names within it."""

    jobs: dict[str, values.JobBody]


@post(
    "/api/v1/flows",
    summary="Add jobs that wait for each other",
    responses=answers(400, 413, ok=(201, AddedFlow, "The jobs by their names within the flow.")),
    opt=SUBMIT,
)
async def add_flow(
    service: Api, data: Annotated[FlowOptions, examples.FLOW], request: Request[Any, Any, Any]
) -> AddedFlow:
    """Adds a graph of jobs in one step: all or none."""
    if not 1 <= len(data.jobs) <= MAX_JOBS:
        raise ValidationError("jobs", f"1 to {MAX_JOBS} jobs", len(data.jobs))
    orders = {
        one.ref: submission.check(await submission.read(service, one, request.headers)) for one in data.jobs
    }
    if len(orders) < len(data.jobs):
        raise ValidationError("ref", "different for every job", [one.ref for one in data.jobs])
    first = next(iter(orders.values())).queue
    first.capabilities.require("graphs")
    graph, made = Graph(first), {}
    for ref, order in orders.items():
        if order.options.get("target") is not None:
            raise ValidationError("target", "left out in a flow", ref)
        made[ref] = order.join(graph)
    for one in data.jobs:
        for field, refs in (("after", one.after), ("after_any", one.after_any)):
            for ref in refs:
                if ref not in made:
                    raise ValidationError(field, f"refs of this flow: {', '.join(made)}", ref)
        made[one.ref].after(*(made[ref] for ref in one.after))
        made[one.ref].after_any(*(made[ref] for ref in one.after_any))
    handles = await graph.add()
    jobs = await submission.all_shown(handles, list(orders.values()))
    return AddedFlow(
        {
            ref: values.job_body(job, order.queue.name)
            for (ref, order), job in zip(orders.items(), jobs, strict=True)
        }
    )


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
    return _body(found, service)


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


def _body(view: FlowView, service: Service) -> FlowBody:
    """Returns a tree without the jobs of queues that the caller may not see; these are only counted."""
    seen = [child for child in view.children if service.served(child.job.queue) in service.queues]
    shown = [_body(child, service) for child in seen]
    more = view.more + len(view.children) - len(shown)
    job = values.job_body(view.job, service.served(view.job.queue))
    return FlowBody(job=job, children=shown, more=more)


ROUTES = [add_flow, flow, dependents]
