"""The routes that change one job: run it now, change its metadata, and send it a signal."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import patch, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from oxcart.http import examples, values
from oxcart.http.access import OPERATE, SUBMIT
from oxcart.http.jobs import QueueParameter
from oxcart.http.routes import Api, answers
from oxcart.http.service import look


class JobChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Metadata to change. What is left out stays as it is; null removes."""

    tags: Annotated[
        dict[str, str] | UnsetType | None,
        Meta(description="All of its labels.", examples=[{"tenant": "acme"}]),
    ] = UNSET
    correlation_id: Annotated[str | UnsetType | None, Meta(examples=["order-7"])] = UNSET
    callback_url: Annotated[str | UnsetType | None, Meta(examples=["https://shop.example/done"])] = UNSET
    priority: Annotated[
        int | str | UnsetType, Meta(description="Of a running job, from its next wait on.", examples=[1])
    ] = UNSET


class Signal(msgspec.Struct, forbid_unknown_fields=True):
    """A signal to a job."""

    signal: Annotated[str, Meta(description="Its name.", examples=["approved"])]
    data: Annotated[Any, Meta(description="Any JSON value.", examples=[{"by": "ada"}])] = None


class Signalled(msgspec.Struct):
    """Whether a signal woke its job."""

    woken: Annotated[bool, Meta(description="Whether the job waited for it; otherwise it is kept.")]


@post(
    "/api/v1/jobs/{job_id:str}/promote",
    summary="Run a delayed job now",
    status_code=200,
    responses=answers(404, 409, ok=(200, values.JobBody, "The job.")),
    opt=OPERATE,
)
async def promote(service: Api, job_id: FromPath[str], in_queue: QueueParameter = None) -> values.JobBody:
    """Makes a delayed job ready, by its priority; 409 if it is not delayed."""
    queue, job = await service.find(job_id, in_queue)
    await queue.jobs.handle(job_id).promote()
    return values.job_body(await look(queue, job_id) or job, queue.name)


@patch(
    "/api/v1/jobs/{job_id:str}",
    summary="Change the metadata of a job",
    status_code=200,
    responses=answers(404, 409, ok=(200, values.JobBody, "The job.")),
    opt=OPERATE,
)
async def update(
    service: Api,
    job_id: FromPath[str],
    data: Annotated[JobChanges, examples.CHANGES],
    in_queue: QueueParameter = None,
) -> values.JobBody:
    """Changes the metadata that the body has, of a job that has not ended. The payload cannot be changed."""
    queue, job = await service.find(job_id, in_queue)
    await queue.jobs.handle(job_id).update(
        tags=data.tags,
        correlation_id=data.correlation_id,
        callback_url=data.callback_url,
        priority=data.priority,
    )
    return values.job_body(await look(queue, job_id) or job, queue.name)


@post(
    "/api/v1/jobs/{job_id:str}/signal",
    summary="Send a signal to a job",
    status_code=200,
    responses=answers(404, 409, 413, ok=(200, Signalled, "Whether the job waited for it.")),
    opt={**SUBMIT, "audit": True},
)
async def signal(
    service: Api,
    job_id: FromPath[str],
    data: Annotated[Signal, examples.SIGNAL],
    in_queue: QueueParameter = None,
) -> Signalled:
    """Sends a signal; one that the job does not wait for is kept until its handler does."""
    queue, _ = await service.find(job_id, in_queue)
    return Signalled(await queue.jobs.signal(job_id, data.signal, data.data))


ROUTES = [promote, update, signal]
