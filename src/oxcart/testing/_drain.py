"""Drains queues: runs their jobs until none is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, overload

from oxcart import sync
from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.worker import Worker
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import OxcartError, ValidationError, WrongState
from oxcart.model.job import Job
from oxcart.queue import Queue
from oxcart.testing._driver import Mode
from oxcart.testing._queues import AnyQueue, either, mode_of, unwrap
from oxcart.testing._report import Report

_PAGE = 1000
#: Seconds between checks of a queue, if no job ends meanwhile.
_LOOK = 0.02
#: How many of the jobs that were left a message names.
_NAMED = 5


class DrainTimeout(OxcartError, TimeoutError):
    """A queue was not empty in time; the message lists the jobs that were left."""


@overload
def drain(
    *queues: sync.Queue,
    skip_delays: bool = ...,
    within: Duration = ...,
    concurrency: int = ...,
    **worker: Any,
) -> Report: ...


@overload
def drain(
    *queues: Queue,
    skip_delays: bool = ...,
    within: Duration = ...,
    concurrency: int = ...,
    **worker: Any,
) -> Coroutine[Any, Any, Report]: ...


def drain(
    *queues: AnyQueue,
    skip_delays: bool = False,
    within: Duration = 30,
    concurrency: int = 10,
    **worker: Any,
) -> Report | Coroutine[Any, Any, Report]:
    """Runs all jobs of queues, and the jobs that these enqueue, until none is ready, running or delayed.

    A real ``Worker`` runs them; in manual mode they run in the test, without delays. Jobs whose names have no
    handler stay and are reported. So do jobs that wait for a signal or sleep (``job.wait_signal``,
    ``job.sleep``), unless their time comes within the time limit.

    Args:
        *queues: The queues, all of them asynchronous or all of ``oxcart.sync``.
        skip_delays: Whether to promote delayed jobs and retries at once.
        within: The time limit.
        concurrency: How many handlers run at once.
        **worker: Further arguments of ``Worker``.

    Returns:
        A report of all attempts; awaited for an asynchronous queue.

    Raises:
        DrainTimeout: Other jobs were left.
        WrongState: A queue is paused.
    """
    if not queues:
        raise ValidationError("queues", "at least one queue", ())
    inner = [unwrap(queue) for queue in queues]
    doing = _drain(inner, skip_delays, parse_ms(within, "within") / 1000, concurrency, worker)
    return either(queues[0], doing)


async def _drain(
    queues: list[Queue], skip_delays: bool, limit: float, concurrency: int, options: dict[str, Any]
) -> Report:
    for queue in queues:
        if await queue.is_paused():
            raise WrongState(
                "", f"queue {queue.name!r} is paused, so nothing of it would run: resume it first"
            )
    modes = [mode for queue in queues if (mode := mode_of(queue)) is not None]
    if modes:
        if len(modes) < len(queues):
            raise ValidationError("queues", "all on a server or all in manual mode", queues)
        return await _drain_memory(modes)
    report = Report()
    observer = _Recorder(report)
    # Jobs that still run at the time limit get no more time. Declared schedules would refill the queue.
    options = {"shutdown_timeout": 1, "schedules": False, **options}
    worker = Worker(*queues, concurrency=concurrency, observer=observer, **options)
    async with worker.running():
        try:
            async with asyncio.timeout(limit):
                ends = time.monotonic() + limit
                while not await _is_empty(queues, skip_delays, report, ends - time.monotonic()):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await observer.moved.wait()
                    observer.moved.clear()
        except TimeoutError:
            left = {
                queue.name: {
                    state: count
                    for state, count in (await queue._core.broker.counts_at_once()).items()
                    if count and state not in ("completed", "failed")
                }
                for queue in queues
            }
            first = [job_id for queue in queues for job_id in await _first_left(queue)]
            raise DrainTimeout(
                f"not empty within {limit:g} s: {left}, the first {', '.join(first[:_NAMED])}; "
                f"{report.counts} so far"
            ) from None
    return report


async def _first_left(queue: Queue) -> list[str]:
    found: list[str] = []
    for state in ("active", "waiting", "prioritized", "delayed", "waiting-children"):
        found += [f"{job.id} ({job.name})" for job in await queue.jobs.list(state, limit=_NAMED, oldest=True)]
    return found


async def _drain_memory(modes: Sequence[Mode]) -> Report:
    report = Report()
    for mode in modes:
        mode.also = report.note
    try:
        moved = True
        while moved:  # a job of one queue may enqueue into another
            moved = False
            for mode in modes:
                unhandled = mode.unhandled()
                for job_id in mode.waiting():
                    if mode.is_waiting_for_signal(job_id):
                        continue
                    if job_id not in unhandled and job_id in mode.broker.store.records:
                        moved = True
                        await mode.run(job_id)
    finally:
        for mode in modes:
            mode.also = None
    for mode in modes:
        report.unhandled += [job for job in await mode.broker.get(mode.unhandled()) if job is not None]
        waiting = [one for one in mode.waiting() if mode.is_waiting_for_signal(one)]
        report.suspended += [job for job in await mode.broker.get(waiting) if job is not None]
    return report


async def _is_empty(queues: list[Queue], skip_delays: bool, report: Report, left: float) -> bool:
    unhandled: list[Job] = []
    suspended: list[Job] = []
    empty = True
    for queue in queues:
        counts = await queue._core.broker.counts_at_once()
        if counts["wait"] or counts["paused"] or counts["active"] or counts["prioritized"]:
            empty = False
        delayed = await queue.jobs.list("delayed", limit=_PAGE) if counts["delayed"] else []
        if len(delayed) < min(counts["delayed"], _PAGE):
            empty = False  # some jobs moved between the two reads
        for job in delayed:
            if queue._core.handlers.find(job.name) is None:
                unhandled.append(job)
                continue
            if is_suspended(job, await queue._core.broker.now() + left * 1000):
                suspended.append(job)
                continue
            empty = False
            if skip_delays:
                with contextlib.suppress(WrongState):  # it became due meanwhile
                    await queue._core.broker.promote_job(job.id)
    report.unhandled, report.suspended = unhandled, suspended
    return empty


def is_suspended(job: Job, until_ms: float) -> bool:
    """Returns whether a delayed job sleeps, or waits for a signal, beyond a time."""
    for step in job.steps[-1:]:
        if step.kind in ("sleep", "wait") and job.delay > 0:
            return step.until_ms is None or step.until_ms > until_ms
    return False


class _Recorder:
    """An observer of the worker that writes the report."""

    def __init__(self, report: Report) -> None:
        self.moved = asyncio.Event()
        self._report = report

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        self._report.note(job, outcome, code, seconds)
        self.moved.set()

    def job_started(self, job: RunningJob) -> None: ...

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None: ...

    def scripted(self, verb: str, seconds: float) -> None: ...

    def renewed(self, queue: str, leases: int, seconds: float) -> None: ...

    def renewal_failed(self, queue: str, leases: int) -> None: ...

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None: ...

    def check_skipped(self, queue: str) -> None: ...

    def reconnecting(self) -> None: ...

    def connection(self, up: bool) -> None: ...

    def workers(self, change: int) -> None: ...
