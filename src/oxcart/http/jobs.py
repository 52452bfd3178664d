"""The routes of single jobs, of batches and of waiting, as GopherQueue's clients call them."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from oxcart.http import examples, submission, values
from oxcart.http.access import OPERATE, READ, SUBMIT
from oxcart.http.errors import ApiError, Detail
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service, look
from oxcart.http.times import parse_go_ms, rfc3339
from oxcart.model import payload
from oxcart.model.errors import JobFailed, JobNotFound, ResultTimeout, ValidationError
from oxcart.model.job import Job
from oxcart.model.state import TERMINAL, State
from oxcart.queue import Queue

#: The longest wait for a job, and the one without a timeout, in milliseconds.
MAX_WAIT_MS = 5 * 60_000
DEFAULT_WAIT_MS = 30_000

QueueParameter = Annotated[
    str | None, QueryParameter(name="queue", description="The job's queue, if its id does not lead to it.")
]

#: States from which a job can be retried.
_RETRYABLE = (State.FAILED, State.DEAD_LETTER)


@post(
    "/api/v1/jobs",
    summary="Add a job",
    responses=answers(
        400,
        413,
        ok=(201, values.JobBody, "The new job."),
        also=(200, values.JobBody, "The existing job of the same type and idempotency key."),
    ),
    opt=SUBMIT,
)
async def submit(
    service: Api, data: Annotated[values.Submit, examples.SUBMIT], request: Request[Any, Any, Any]
) -> Response[values.JobBody]:
    """Adds a job. A job of the same type and idempotency key is returned instead, with status 200.

    The job continues the trace of the header ``traceparent``.
    """
    order = await submission.read(service, data, request.headers)
    job, created = await submission.add(order)
    return Response(values.job_body(job, order.queue.name), status_code=201 if created else 200)


@post(
    "/api/v1/jobs/batch",
    summary="Add up to 1000 jobs",
    responses=answers(400, 413, ok=(201, values.BatchAnswer, "The result of each job.")),
    opt=SUBMIT,
)
async def submit_batch(
    service: Api, data: Annotated[values.Batch, examples.BATCH], request: Request[Any, Any, Any]
) -> values.BatchAnswer:
    """Adds many jobs. With ``atomic`` or ``strict`` one wrong job refuses all; otherwise each is judged by
    itself.

    The jobs continue the trace of the header ``traceparent``.
    """
    if not 1 <= len(data.jobs) <= values.MAX_BATCH:
        raise ValidationError("jobs", f"1 to {values.MAX_BATCH} jobs", len(data.jobs))
    orders: list[submission.Order] = []
    places: list[int] = []
    refused: list[values.BatchResult] = []
    for index, raw in enumerate(data.jobs):
        try:
            order = await submission.read(service, _job_of_batch(raw), request.headers)
            orders.append(submission.check(order))
            places.append(index)
        except Exception as error:
            refused.append(submission.refusal(index, error))
    if (data.atomic or data.strict) and refused:
        details = [Detail(f"jobs[{one.index}]", "invalid", one.error or "") for one in refused]
        message = f"{len(refused)} of {len(data.jobs)} jobs are invalid; nothing was added"
        raise ApiError(400, "validation_error", message, *details)
    jobs = await (submission.add_all if data.atomic else submission.add_each)(orders) if orders else []
    accepted = [
        values.BatchResult(index=place, success=True, job=values.job_body(job, order.queue.name))
        for place, job, order in zip(places, jobs, orders, strict=True)
    ]
    return values.BatchAnswer(
        total=len(data.jobs),
        accepted=len(accepted),
        rejected=len(refused),
        results=sorted([*accepted, *refused], key=lambda one: one.index),
    )


def _job_of_batch(raw: Any) -> values.Submit:
    try:
        return msgspec.convert(raw, values.Submit)
    except msgspec.ValidationError as error:
        raise ValidationError("job", "a job as in POST /api/v1/jobs", None, str(error)) from None


@get(
    "/api/v1/jobs/{job_id:str}",
    summary="Read a job",
    responses=answers(400, 404, ok=(200, values.JobBody, "The job.")),
    opt=READ,
)
async def read(
    service: Api,
    job_id: FromPath[str],
    in_queue: QueueParameter = None,
    show_payload: Annotated[
        bool, QueryParameter(name="payload", description="Whether to show the payload.")
    ] = False,
) -> values.JobBody:
    """Returns a job as it is now."""
    queue, job = await service.find(job_id, in_queue)
    body = values.job_body(job, queue.name)
    if show_payload:
        body.payload_hidden = not service.may_read_payloads(queue.name)
        body.payload = None if body.payload_hidden else values.plain(service.masks.apply(job.data))
    return body


@delete(
    "/api/v1/jobs/{job_id:str}",
    summary="Remove a job",
    status_code=204,
    responses=answers(404, 409),
    opt=OPERATE,
)
async def remove(service: Api, job_id: FromPath[str], in_queue: QueueParameter = None) -> None:
    """Removes a job that no worker runs."""
    queue, _ = await service.find(job_id, in_queue)
    await queue.jobs.remove(job_id)


@post(
    "/api/v1/jobs/{job_id:str}/cancel",
    summary="Cancel a job",
    status_code=200,
    responses=answers(
        400, 404, 409, ok=(200, values.JobBody, "The job. A running one ends when its handler does.")
    ),
    opt={**SUBMIT, "audit": True},
)
async def cancel(
    service: Api,
    job_id: FromPath[str],
    data: Annotated[values.CancelOptions | None, examples.CANCEL] = None,
    in_queue: QueueParameter = None,
) -> values.JobBody:
    """Cancels a job. The worker of a running job is asked to stop it; ``force`` ends it at once."""
    queue, job = await service.find(job_id, in_queue)
    if job.state in TERMINAL:
        raise ApiError(409, "conflict", f"job {job_id} has ended: it is {job.state}")
    options = data or values.CancelOptions()
    await queue.jobs.cancel(job_id, options.reason or "", force=options.force)
    return values.job_body(await look(queue, job_id) or job, queue.name)


@post(
    "/api/v1/jobs/{job_id:str}/retry",
    summary="Retry a failed job",
    status_code=200,
    responses=answers(400, 404, 409, ok=(200, values.JobBody, "The job.")),
    opt=OPERATE,
)
async def retry(
    service: Api,
    job_id: FromPath[str],
    data: Annotated[values.RetryOptions | None, examples.RETRY] = None,
    in_queue: QueueParameter = None,
) -> values.JobBody:
    """Lets a job run again that failed or is a dead letter."""
    queue, job = await service.find(job_id, in_queue)
    if job.state not in _RETRYABLE:
        raise ApiError(
            409, "conflict", f"job {job_id} is {job.state}; only failed and dead_letter jobs can be retried"
        )
    await queue.jobs.retry(job_id, reset=data is not None and data.reset_attempts)
    return values.job_body(await look(queue, job_id) or job, queue.name)


@get(
    "/api/v1/jobs/{job_id:str}/result",
    summary="Read the result of a job",
    responses=answers(404, 409, ok=(200, values.Result, "The result of a job that has ended.")),
    opt=READ,
)
async def result(service: Api, job_id: FromPath[str], in_queue: QueueParameter = None) -> values.Result:
    """Returns the result of a job that has ended; 409 while it has not."""
    queue, job = await service.find(job_id, in_queue)
    if job.state not in TERMINAL:
        raise ApiError(409, "conflict", f"job {job_id} has not ended: it is {job.state}")
    return _hidden(service, queue, _result(service, job))


@post(
    "/api/v1/jobs/{job_id:str}/wait",
    summary="Wait for a job",
    status_code=200,
    responses=answers(400, 404, ok=(200, values.Waited, "The end of the job, or of the wait.")),
    opt=READ,
)
async def wait(
    service: Api,
    job_id: FromPath[str],
    data: Annotated[values.WaitOptions | None, examples.WAIT] = None,
    in_queue: QueueParameter = None,
) -> values.Waited:
    """Waits until a job has ended, for at most 5 minutes; 30 seconds without a timeout."""
    return await _wait(service, job_id, None if data is None else data.timeout, in_queue)


@get(
    "/api/v1/jobs/{job_id:str}/wait",
    summary="Wait for a job, without a body",
    responses=answers(400, 404, ok=(200, values.Waited, "The end of the job, or of the wait.")),
    opt=READ,
)
async def wait_get(
    service: Api,
    job_id: FromPath[str],
    timeout: FromQuery[str | None] = None,
    in_queue: QueueParameter = None,
) -> values.Waited:
    """Waits until a job has ended, for at most 5 minutes; 30 seconds without a timeout."""
    return await _wait(service, job_id, timeout, in_queue)


async def _wait(
    service: Service, job_id: str, timeout: str | int | float | None, in_queue: str | None
) -> values.Waited:
    ms = DEFAULT_WAIT_MS if timeout is None else parse_go_ms(timeout, "timeout")
    if ms > MAX_WAIT_MS:
        raise ValidationError("timeout", "at most 5m", timeout)
    queue, known = await service.locate(job_id, in_queue)
    # A job with a target ends in the events of its lane.
    lane = queue if known is None or known.lane is None else queue.lanes.get(known.lane)
    handle = lane.jobs.handle(job_id)
    try:
        value = await handle.result(ms / 1000)
        timed_out, found, state = False, await look(queue, job_id), State.COMPLETED
        made = (
            _result(service, found)
            if found is not None
            else values.Result(job_id=job_id, success=True, output=_output(service, value))
        )
    except JobFailed as error:
        timed_out, found = False, await look(queue, job_id)
        state = (found and found.state) or State.FAILED
        made = (
            _result(service, found)
            if found is not None
            else values.Result(
                job_id=job_id, success=False, error=error.reason, error_category=error.category
            )
        )
    except ResultTimeout:
        found = await look(queue, job_id)
        if found is None:
            raise JobNotFound(job_id) from None
        ended = found.state in TERMINAL
        state = found.state or State.PENDING
        timed_out, made = not ended, _result(service, found)
    done, made = not timed_out, _hidden(service, queue, made)
    return values.Waited(
        id=job_id,
        state=state.value,
        completed=done,
        success=done and made.success,
        result=made if done else None,
        timed_out=timed_out,
    )


def _hidden(service: Service, queue: Queue, result: values.Result) -> values.Result:
    if result.output is not None and not service.may_read_results(queue.name):
        result.output, result.output_hidden = None, True
    return result


def _result(service: Service, job: Job) -> values.Result:
    completed = job.state is State.COMPLETED
    ran_ms = (job.finished_on or 0) - (job.processed_on or job.finished_on or 0)
    return values.Result(
        job_id=job.id,
        success=completed,
        output=_output(service, job.return_value) if completed else None,
        error=None if completed else job.failed_reason,
        error_category=None if completed else job.category,
        duration=max(ran_ms, 0) * 1_000_000,
        completed_at=None if job.completed_at is None else rfc3339(job.completed_at),
    )


def _output(service: Service, value: Any) -> str:
    return base64.b64encode(payload.encode(service.masks.apply(value))).decode()


ROUTES = [submit, submit_batch, read, remove, cancel, retry, result, wait, wait_get]
