"""Sees to it that a job's end becomes a webhook: at once where our worker ended it, else by a sweep.

Every job with a callback URL stands in ``P:ox:callbacks`` from before it is added. When a worker of ours has
ended it, the delivery is enqueued and the entry goes. What others end (a Node worker, a cancellation, a lost
worker) is found by a sweep over that set. A delivery's id follows from the job and the time of its end, so
that however many see to it, it is one delivery.

May touch: the server, through brokers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.webhooks import LARGEST_RESULT, Delivery
from oxcart.model import payload
from oxcart.model.errors import OxcartError, PayloadError
from oxcart.model.job import Job
from oxcart.model.state import TERMINAL, State, formal_state

log = logging.getLogger("oxcart.worker")

#: Seconds between sweeps.
SWEEP = 5.0
#: Jobs that a sweep looks at in one call.
LOOK = 100
#: An entry whose job is not there after so many ms is dropped: its add failed, or the job was removed.
LOST = 60_000


class Deliveries(Protocol):
    """Where deliveries are enqueued."""

    async def enqueue(self, delivery: Delivery, correlation_id: str | None) -> None:
        """Enqueues a delivery; one of an id that exists is the same."""


class Callbacks:
    """The webhooks of a worker's queues.

    Args:
        queues: Per queue that has webhooks: its index in the worker, its broker, where deliveries go.
    """

    def __init__(self, queues: dict[int, tuple[BullMQBroker, Deliveries]]) -> None:
        self._queues = queues
        self._under_way: set[asyncio.Task[None]] = set()
        self._warned: set[int] = set()

    def ended(self, index: int, job: RunningJob, outcome: Outcome) -> None:
        """Takes a job with a callback URL that this worker has ended."""
        url = job.claim.fields.get(b"ox:callback", b"").decode("utf-8", "replace")
        if index not in self._queues:
            if index not in self._warned:
                self._warned.add(index)
                log.warning(
                    "queue %s: jobs have callback URLs, but Queue(…, webhooks=…) is not said", job.queue
                )
            return
        task = asyncio.create_task(self._tell(index, url, job.id, _of_outcome(job, outcome)))
        self._under_way.add(task)
        task.add_done_callback(self._told)

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            await asyncio.sleep(SWEEP)
            for index in self._queues:
                try:
                    await self.sweep(index)
                except OxcartError as error:
                    log.warning("webhooks cannot be looked after now: %s", error)

    async def sweep(self, index: int) -> int:
        """Looks at every job with a callback URL that has not been told of; returns how many have ended."""
        broker = self._queues[index][0]
        place, cursor, found = broker.keys.callbacks(), "0", 0
        while True:
            answer = await broker.caller.command("ZSCAN", place, cursor, "COUNT", LOOK)
            cursor, flat = answer[0].decode(), answer[1]
            ids = [raw.decode("utf-8", "surrogateescape") for raw in flat[::2]]
            added = [float(score) for score in flat[1::2]]
            jobs = await broker.look(ids, lenient=True) if ids else []
            for job_id, at, job in zip(ids, added, jobs, strict=True):
                if job is None:
                    if at < broker.clock() - LOST:
                        await broker.caller.command("ZREM", place, job_id)
                elif job.state in TERMINAL:
                    found += 1
                    await self._tell(index, job.callback_url or "", job_id, _of_job(job))
            if cursor == "0":
                return found

    async def close(self) -> None:
        """Waits for what is under way, for a moment."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=5)

    async def _tell(self, index: int, url: str, job_id: str, body: dict[str, Any]) -> None:
        broker, deliveries = self._queues[index]
        if url:
            # Ids of peers may hold what an id of ours may not.
            plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in job_id)
            body["delivery_id"] = f"wh-{plain}-{body['finished_at']}"
            delivery = Delivery(url=url, delivery_id=body["delivery_id"], body=body)
            await deliveries.enqueue(delivery, body["correlation_id"])
        await broker.caller.command("ZREM", broker.keys.callbacks(), job_id)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a webhook could not be enqueued; a sweep will try again: %s", error)


def _body(job_id: str, name: str, queue: str, state: State, finished: int, **more: Any) -> dict[str, Any]:
    body = {"job_id": job_id, "type": name, "queue": queue, "state": state.value, "finished_at": finished}
    return body | {"correlation_id": None, "attempt": None, "result": None, "error": None} | more


def _of_outcome(job: RunningJob, outcome: Outcome) -> dict[str, Any]:
    more: dict[str, Any] = {"correlation_id": job.correlation_id, "attempt": job.attempt}
    if outcome.kind == "c":
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
        code = job.extra.get("ox:code")
        more["error"] = {"category": job.category, "code": code, "message": job.failed_reason}
    return _body(job.id, job.name, job.queue, State(job.state or State.FAILED), job.finished_on or 0, **more)


def _result(raw: bytes) -> dict[str, Any]:
    if len(raw) > LARGEST_RESULT:
        return {"result": None, "result_omitted": True}
    try:
        return {"result": payload.read(raw)}
    except PayloadError:
        return {"result": None, "result_omitted": True}
