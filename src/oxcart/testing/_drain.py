"""Draining: a worker until nothing is left to do.

May touch: the queues' server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, overload

from oxcart import sync
from oxcart.broker.factory import is_native
from oxcart.broker.port import Code, Outcome
from oxcart.engine.running import RunningJob
from oxcart.engine.worker import Worker
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import OxcartError, ValidationError, WrongState
from oxcart.model.job import Job
from oxcart.queue import Queue
from oxcart.testing._memory import MemoryBroker
from oxcart.testing._queues import AnyQueue, either, memory_of, unwrap
from oxcart.testing._report import Report

_PAGE = 1000
#: Seconds between looks at a queue that is being drained, if nothing ends meanwhile.
_LOOK = 0.02


class DrainTimeout(OxcartError, TimeoutError):
    """A queue was not empty in time; the message says what was left."""


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
    """Runs all jobs of queues, and those that they enqueue, until nothing waits, runs or is delayed.

    On a server this is a real ``Worker``. Jobs whose names have no handler are left and reported. Of queues
    in manual mode the jobs are run in memory, without delays.

    Args:
        *queues: The queues, all of them asynchronous or all of ``oxcart.sync``.
        skip_delays: Whether delayed jobs, and the pauses between attempts, are let through at once.
        within: How long it may take.
        concurrency: How many handlers run at once.
        **worker: Further arguments of ``Worker``.

    Returns:
        What ran and how it ended; awaited for an asynchronous queue.

    Raises:
        DrainTimeout: Something was left.
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
    memories = [memory for queue in queues if (memory := memory_of(queue)) is not None]
    if memories:
        if len(memories) < len(queues):
            raise ValidationError("queues", "all on a server or all in manual mode", queues)
        return await _drain_memories(memories)
    report = Report()
    observer = _Recorder(report)
    options = {"shutdown_timeout": 1, **options}  # what runs when the time is up has had its time
    worker = Worker(*queues, concurrency=concurrency, observer=observer, **options)
    async with worker.running():
        try:
            async with asyncio.timeout(limit):
                while not await _is_empty(queues, skip_delays, report):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await observer.moved.wait()
                    observer.moved.clear()
        except TimeoutError:
            left = {queue.name: {k: n for k, n in (await _counts(queue)).items() if n} for queue in queues}
            raise DrainTimeout(f"not empty within {limit:g} s: {left}; {report.counts} so far") from None
    return report


async def _drain_memories(memories: list[MemoryBroker]) -> Report:
    report = Report()
    for memory in memories:
        memory.also = report.note
    try:
        moved = True
        while moved:  # a job of one queue may enqueue into another
            moved = False
            for memory in memories:
                unhandled = {job.id for job in memory.unhandled()}
                for job_id in memory.waiting:
                    if job_id not in unhandled and job_id in memory.records:
                        moved = True
                        await memory.run(job_id)
    finally:
        for memory in memories:
            memory.also = None
    report.unhandled = [job for memory in memories for job in memory.unhandled()]
    return report


async def _is_empty(queues: list[Queue], skip_delays: bool, report: Report) -> bool:
    unhandled: list[Job] = []
    empty = True
    for queue in queues:
        counts = await _counts(queue)
        if counts["wait"] or counts["paused"] or counts["active"] or counts["prioritized"]:
            empty = False
        delayed = await queue.jobs("delayed", limit=_PAGE) if counts["delayed"] else []
        if len(delayed) < min(counts["delayed"], _PAGE):
            empty = False  # some moved on between the two looks
        for job in delayed:
            if queue.registry.find(job.name) is None:
                unhandled.append(job)
                continue
            empty = False
            if skip_delays:
                with contextlib.suppress(WrongState):  # its time came meanwhile
                    await queue.broker.promote_job(job.id)
    report.unhandled = unhandled
    return empty


async def _counts(queue: Queue) -> dict[str, int]:
    """How many jobs are in each wire state, all at one moment: no job is missed on its way between two."""
    broker = queue.broker
    if not is_native(broker):
        return dict(await broker.counts())
    keys = broker.keys
    lists = ("wait", "paused", "active")
    states = (*lists, "prioritized", "delayed")
    commands = [("LLEN" if state in lists else "ZCARD", keys.key(state)) for state in states]
    answers = await broker.caller.pipeline([("MULTI",), *commands, ("EXEC",)])
    return dict(zip(states, answers[-1], strict=True))


class _Recorder:
    """A worker's observer that writes the report."""

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
