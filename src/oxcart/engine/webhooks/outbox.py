"""Enqueues the webhook of every finished job that has a ``callback_url``.

A job enters the webhook index before it is added. A worker of ours that finishes the job enqueues its webhook
and drops the entry. Jobs that others finish (a Node worker, a cancellation, a stalled check) are found by a
sweep over the index. The id of a webhook follows from the job and the time at which it finished, so that
workers that do this twice enqueue one webhook.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from oxcart.broker.port import Outcome, OutcomeKind, ServedBroker
from oxcart.engine.looper import Looper
from oxcart.engine.running import RunningJob
from oxcart.engine.tracing import run_span
from oxcart.engine.webhooks.queue import WebhookQueue
from oxcart.engine.webhooks.sender import LARGEST_RESULT, Delivery
from oxcart.model import payload
from oxcart.model.errors import PayloadError
from oxcart.model.job import Job
from oxcart.model.state import TERMINAL, State, formal_state

log = logging.getLogger("oxcart.worker")

#: Ms after which an entry without a job is dropped: its add failed, or the job was removed.
LOST = 60_000


class Outbox:
    """The webhooks of a worker's queues.

    Args:
        queues: Per queue that has webhooks: its index in the worker, its broker, where webhooks wait.
    """

    def __init__(self, queues: dict[int, tuple[ServedBroker, WebhookQueue]]) -> None:
        self._queues = {
            index: (broker, broker.webhooks, to)
            for index, (broker, to) in queues.items()
            if broker.webhooks is not None
        }
        self._enqueuing: set[asyncio.Task[None]] = set()
        self._warned: set[int] = set()

    def finished(self, index: int, job: RunningJob, outcome: Outcome) -> None:
        """Takes a job with a callback URL that this worker has finished."""
        url = job.claim.callback_url or ""
        if index not in self._queues:
            if index not in self._warned:
                self._warned.add(index)
                log.warning(
                    "queue %s: jobs have a callback_url, but the queue has no webhooks=…: none is sent",
                    job.queue,
                )
            return
        span = run_span(job)
        context = job.options.trace_context if span is None else span.text
        task = asyncio.create_task(self._enqueue(index, url, job.id, _of_outcome(job, outcome), context))
        self._enqueuing.add(task)
        task.add_done_callback(self._enqueued)

    def take_in(self, index: int, broker: ServedBroker, to: WebhookQueue) -> list[Looper]:
        """Serves a further queue; returns the loop that sweeps it."""
        if broker.webhooks is None:
            return []
        self._queues[index] = (broker, broker.webhooks, to)
        return [Sweep(self, index, broker.queue)]

    def sweeps(self) -> list[Looper]:
        """Returns the loops that sweep the queues."""
        return [Sweep(self, index, broker.queue) for index, (broker, _, _) in self._queues.items()]

    async def sweep(self, index: int) -> int:
        """Enqueues the webhooks of finished jobs in the index; returns how many there were."""
        (broker, webhooks, _), found = self._queues[index], 0
        async for entries in webhooks.scan():
            jobs = await broker.look([job_id for job_id, _ in entries], lenient=True)
            for (job_id, entered_ms), job in zip(entries, jobs, strict=True):
                if job is None:
                    if entered_ms < broker.clock() - LOST:
                        await webhooks.drop(job_id)
                elif job.state in TERMINAL:
                    found += 1
                    context = job.options.trace_context
                    await self._enqueue(index, job.callback_url or "", job_id, _of_job(job), context)
        return found

    async def close(self) -> None:
        """Waits up to 5 s until webhooks of finished jobs are enqueued."""
        if self._enqueuing:
            await asyncio.wait(self._enqueuing, timeout=5)

    async def _enqueue(
        self, index: int, url: str, job_id: str, body: dict[str, Any], context: str | None
    ) -> None:
        _, webhooks, queue = self._queues[index]
        if url:
            # Ids of peers may contain what an id of ours may not.
            plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in job_id)
            body["delivery_id"] = f"wh-{plain}-{body['finished_at']}"
            delivery = Delivery(url=url, delivery_id=body["delivery_id"], body=body)
            await queue.enqueue(delivery, body["correlation_id"], context)
        await webhooks.drop(job_id)

    def _enqueued(self, task: asyncio.Task[None]) -> None:
        self._enqueuing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("could not enqueue a webhook, the next sweep retries: %s", error)


class Sweep(Looper):
    """Finds jobs of one queue that others finished."""

    name = "webhook sweep"
    interval = delay = 5.0

    def __init__(self, outbox: Outbox, index: int, queue: str) -> None:
        super().__init__(queue)
        self._outbox = outbox
        self._index = index

    async def tick(self) -> None:
        """Sweeps once."""
        await self._outbox.sweep(self._index)


def _body(job_id: str, name: str, queue: str, state: State, finished: int, **more: Any) -> dict[str, Any]:
    body = {"job_id": job_id, "type": name, "queue": queue, "state": state.value, "finished_at": finished}
    return body | {"correlation_id": None, "attempt": None, "result": None, "error": None} | more


def _of_outcome(job: RunningJob, outcome: Outcome) -> dict[str, Any]:
    more: dict[str, Any] = {"correlation_id": job.correlation_id, "attempt": job.attempt}
    if outcome.kind == OutcomeKind.COMPLETED:
        state = State.COMPLETED
        more |= _result(outcome.value)
    else:
        state = formal_state(
            "failed",
            attempts_made=job.attempts_made + 1,
            attempts=job.options.attempts,
            stalled=job.stalls,
            category=outcome.category or None,
            lifetime_over=bool(outcome.dead),
        )
        reason = outcome.value.decode("utf-8", "replace")
        more["error"] = {
            "category": outcome.category or None,
            "code": outcome.code or None,
            "message": reason,
        }
    return _body(job.id, job.name, job.queue, state, outcome.at_ms, **more)


def _of_job(job: Job) -> dict[str, Any]:
    more: dict[str, Any] = {"correlation_id": job.correlation_id, "attempt": job.attempt}
    if job.state is State.COMPLETED:
        more |= _result(payload.encode(job.return_value))
    else:
        more["error"] = {"category": job.category, "code": job.code, "message": job.failed_reason}
    return _body(job.id, job.name, job.queue, State(job.state or State.FAILED), job.finished_on or 0, **more)


def _result(raw: bytes) -> dict[str, Any]:
    if len(raw) > LARGEST_RESULT:
        return {"result": None, "result_omitted": True}
    try:
        return {"result": payload.read(raw)}
    except PayloadError:
        return {"result": None, "result_omitted": True}
