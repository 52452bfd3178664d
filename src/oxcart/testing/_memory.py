"""A queue's storage in memory, which runs its jobs itself.

Jobs are encoded and decoded as on the wire, so a payload that survives here survives there.

May touch: nothing outside of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.broker import STATES
from oxcart.broker.bullmq.registry import WorkerRecord
from oxcart.broker.clock import now_ms
from oxcart.broker.port import Added, ClaimedJob, Code, Outcome
from oxcart.broker.sealing import Sealer, open_value
from oxcart.engine.handler import Handler, Registry
from oxcart.engine.running import RunningJob
from oxcart.model import payload
from oxcart.model.errors import JobFailed, JobNotFound, OxcartError, ResultTimeout, error_for_code
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.testing._attempt import WORKER, InlineJob, Settings, run_attempt

#: A job that snoozes more often than this without being waited for will never do anything else.
MOST_SNOOZES = 100
#: Jobs that enqueue jobs that enqueue jobs, so deep and no deeper.
DEEPEST = 50

_depth: ContextVar[int] = ContextVar("oxcart_inline_depth", default=0)


class EndlessJobs(OxcartError):
    """A job snoozes, or jobs enqueue each other, without end: a worker would go on for ever."""


class Record:
    """A job in memory: its hash as the wire has it, and what the wire keeps beside it."""

    __slots__ = ("error", "fields", "id", "log", "state")

    def __init__(self, job_id: str, fields: dict[bytes, bytes], state: str) -> None:
        self.id = job_id
        self.fields = fields
        self.state = state
        self.log: list[str] = []
        self.error: BaseException | None = None


class MemoryBroker:
    """One queue's jobs, behind those verbs of the port that producers and handlers use.

    Args:
        queue: The queue's name.
        registry: Its handlers.
        settings: How to run jobs.
        at_once: Whether a job runs as soon as it is added.
        ended: Told of every ended attempt, as a worker's observer is.
        sealer: Seals and opens values, where the queue has keys.
    """

    def __init__(
        self,
        queue: str,
        registry: Registry,
        settings: Settings,
        at_once: bool,
        ended: Callable[[RunningJob, Outcome, Code, float], None],
        sealer: Sealer | None = None,
    ) -> None:
        self.queue = queue
        self.sealer = sealer
        self.at_once = at_once
        self.added: list[Job] = []
        self.records: dict[str, Record] = {}
        self._gone: dict[str, Record] = {}  # removed when they ended; their result is still asked for
        self._keys: dict[
            tuple[bytes, bytes | None], tuple[str, int]
        ] = {}  # who owns an idempotency key, how long
        self._registry = registry
        self._settings = settings
        self._ended = ended
        #: Told as well, while somebody drains the queue.
        self.also: Callable[[RunningJob, Outcome, Code, float], None] | None = None
        self._paused = False

    # -- adding and running

    def encode(self, name: str, data: Any, options: JobOptions) -> codec.Encoded:
        """Checks and encodes a job for ``add``."""
        return codec.encode_job(name, data, options, now_ms(), sealer=self.sealer)

    async def add(
        self, jobs: Sequence[codec.Encoded], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds encoded jobs and, unless they are to wait, runs them in that order."""
        answers = [self._store(job_id, args) for job_id, args in jobs]
        if self.at_once and not self._paused:
            for answer in answers:
                if answer.created:
                    await self.run(answer.id)
        return answers

    def _store(self, job_id: str, args: list[bytes | str | int]) -> Added:
        if job_id in self.records:
            return Added(job_id, False)
        values = [value if isinstance(value, bytes) else str(value).encode() for value in args]
        names = (b"name", b"data", b"opts", b"timestamp", b"delay", b"priority")
        fields = dict(zip(names, values[1:7], strict=True))
        fields.update(zip(values[9::2], values[10::2], strict=True))
        key = (fields[b"name"], fields.get(codec.FIELD_IDEMPOTENCY.encode()))
        if key[1] is not None:
            owner, until = self._keys.get(key, ("", 0))
            if owner in self.records and until > now_ms():
                return Added(owner, False, True)
            self._keys[key] = (job_id, now_ms() + int(str(args[codec.FLAGS]).partition("I")[2]))
        state = "delayed" if args[5] else "prioritized" if args[6] else "wait"
        self.records[job_id] = Record(job_id, fields, state)
        self.added.append(codec.decode_job(self.queue, job_id, self._opened(job_id, fields)))
        return Added(job_id, True)

    @property
    def waiting(self) -> list[str]:
        """The ids of jobs that wait for a worker or for their time, in the order in which they would run."""
        order = {"wait": 0, "prioritized": 1, "delayed": 2}
        found = [record for record in self.records.values() if record.state in order]
        found.sort(key=lambda record: (order[record.state], int(record.fields[b"priority"])))
        return [record.id for record in found]

    def unhandled(self) -> list[Job]:
        """Jobs whose name has no handler."""
        jobs = [self._job(self.records[job_id]) for job_id in self.waiting]
        return [job for job in jobs if self._registry.find(job.name) is None]

    async def run(self, job_id: str) -> None:
        """Runs a job until it has ended, without waiting between attempts.

        Raises:
            EndlessJobs: It does not end.
        """
        record = self.records[job_id]
        handler = self._registry.find(record.fields[b"name"].decode())
        if handler is None:
            record.state = "delayed"  # as a worker would: put off until somebody has a handler
            return
        depth = _depth.get()
        if depth >= DEEPEST:
            raise EndlessJobs(
                f"jobs enqueue jobs {depth} deep; the last is {handler.name!r} in {self.queue!r}"
            )
        token = _depth.set(depth + 1)
        try:
            await self._run(record, handler)
        finally:
            _depth.reset(token)
        if self._settings.propagate and record.error is not None and record.state == "failed":
            raise record.error

    async def _run(self, record: Record, handler: Handler) -> None:
        snoozes = 0
        record.state = "active"
        record.fields[b"delay"] = b"0"
        while record.state == "active":
            job, outcome, seconds = await self._attempt(record, handler)
            self._apply(record, outcome)
            for told in (self._ended, self.also):
                if told is not None:
                    told(job, outcome, 1, seconds)
            snoozes += outcome.kind in "dlh" and not outcome.counts
            if snoozes > MOST_SNOOZES:
                record.state = "delayed"
                raise EndlessJobs(f"job {record.id} ({handler.name!r}) snoozed {snoozes} times in a row")

    async def _attempt(self, record: Record, handler: Handler) -> tuple[RunningJob, Outcome, float]:
        now, fields = now_ms(), record.fields
        starts = int(fields.get(b"ats", 0)) + 1
        claim = ClaimedJob(record.id, f"{WORKER}:{starts}", starts, now, dict(fields))
        fields.update({b"ats": b"%d" % starts, b"processedOn": b"%d" % now, b"pb": WORKER.encode()})
        job = InlineJob(self, claim, self._settings)
        job.handler = handler
        began = time.perf_counter()
        outcome = await run_attempt(job, self._settings)
        record.error = self._settings.verdict.errors.pop(record.id, None)
        return job, outcome, time.perf_counter() - began

    def _apply(self, record: Record, outcome: Outcome) -> None:
        fields, kind = record.fields, outcome.kind
        if kind != "w" and outcome.counts:
            fields[b"atm"] = b"%d" % (int(fields.get(b"atm", 0)) + 1)
        if kind == "c":
            fields[b"returnvalue"] = (
                outcome if self.sealer is None else self.sealer.seal_result(outcome)
            ).value
        elif outcome.value or outcome.stack:
            fields[b"failedReason"], fields[b"stacktrace"] = outcome.value, outcome.stack
        if kind in "cf":
            fields[b"finishedOn"] = b"%d" % outcome.at_ms
            record.state = "completed" if kind == "c" else "failed"
            if outcome.category:
                fields[codec.FIELD_CATEGORY.encode()] = outcome.category.encode()
            if outcome.retention.startswith("0:"):
                self._gone[record.id] = self.records.pop(record.id)

    # -- the queue

    async def pause(self) -> None:
        """Jobs that are added from now on wait."""
        self._paused = True

    async def resume(self) -> None:
        """Runs what has waited."""
        self._paused = False
        if self.at_once:
            for job_id in self.waiting:
                await self.run(job_id)

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._paused

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each wire state."""
        states = [record.state for record in self.records.values()]
        return {state: states.count(state) for state in STATES}

    async def counts_over_lanes(self) -> dict[str, int]:
        """The same: in memory a job with a target waits among the others."""
        return await self.counts()

    async def unroutable(self) -> dict[str, int]:
        """None: in memory every job runs here."""
        return {}

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """None: in memory every job runs here."""
        return []

    async def workers(self) -> list[WorkerRecord]:
        """None: in memory nobody is registered."""
        return []

    # -- jobs

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""
        body = payload.encode(progress, field="progress")
        if self.sealer is not None:
            body = self.sealer.seal("progress", job_id, body)
        self._find(job_id, "set_progress").fields[b"progress"] = body

    async def add_log(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        """Appends to a job's log; returns its length."""
        record = self._find(job_id, "add_log")
        record.log += lines
        if keep is not None:
            del record.log[:-keep]
        return len(record.log)

    async def logs(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        """Reads a job's log."""
        record = self.records.get(job_id)
        return [] if record is None else record.log[first : None if last == -1 else last + 1]

    async def clear_logs(self, job_id: str, keep: int = 0) -> None:
        """Drops a job's log but for the newest lines."""
        record = self._find(job_id, "clear_logs")
        record.log = record.log[-keep:] if keep else []

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""
        body = payload.encode(data)
        if self.sealer is not None:
            body = self.sealer.seal("payload", job_id, body)
        payload.check_size(body, b"")
        self._find(job_id, "update_data").fields[b"data"] = body

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Saves how far a running job has come."""
        self._find(job_id, "set_checkpoint").fields[codec.FIELD_CHECKPOINT.encode()] = body

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        """Changes a job's priority."""
        record = self._find(job_id, "change_priority")
        record.fields[b"priority"] = b"%d" % priority
        if record.state in ("wait", "prioritized"):
            record.state = "prioritized" if priority else "wait"

    async def update_job(self, job_id: str, fields: Mapping[str, str], priority: int | None) -> None:
        """Changes fields of ours and the priority, until a job has ended."""
        record = self._find(job_id, "update_job")
        if record.state in ("completed", "failed"):
            raise error_for_code(-3, job_id, "update_job")
        for name, value in fields.items():
            if value:
                record.fields[name.encode()] = value.encode()
            else:
                record.fields.pop(name.encode(), None)
        if priority is not None:
            await self.change_priority(job_id, priority)

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""
        self._delayed(job_id, "change_delay").fields[b"delay"] = b"%d" % delay_ms

    async def promote_job(self, job_id: str) -> None:
        """Lets a delayed job run now."""
        record = self._delayed(job_id, "promote_job")
        record.fields[b"delay"] = b"0"
        record.state = "prioritized" if record.fields[b"priority"] != b"0" else "wait"
        if self.at_once and not self._paused:
            await self.run(job_id)

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Lets a finished job run again."""
        record = self._find(job_id, "retry_job")
        if record.state != state:
            raise error_for_code(-3, job_id, "retry_job")
        dropped = [b"finishedOn", b"processedOn", b"failedReason", b"returnvalue", b"ox:category"]
        for name in [*dropped, b"atm", b"stc"] if reset else dropped:
            record.fields.pop(name, None)
        record.state, record.error = "wait", None
        if self.at_once and not self._paused:
            await self.run(job_id)

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job."""
        self._find(job_id, "remove_job")
        del self.records[job_id]

    def _find(self, job_id: str, verb: str) -> Record:
        record = self.records.get(job_id)
        if record is None:
            raise error_for_code(-1, job_id, verb)
        return record

    def _delayed(self, job_id: str, verb: str) -> Record:
        record = self._find(job_id, verb)
        if record.state != "delayed":
            raise error_for_code(-3, job_id, verb)
        return record

    # -- looking

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs."""
        found = [self.records.get(job_id) for job_id in job_ids]
        return [None if record is None else self._job(record, lenient=lenient) for record in found]

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs with their formal states."""
        return await self.get(job_ids, lenient=lenient)

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Tells the wire states of jobs."""
        found = [self.records.get(job_id) for job_id in job_ids]
        states = ["unknown" if record is None else record.state for record in found]
        return ["waiting" if state == "wait" else state for state in states]

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state."""
        found = [self._job(record, lenient=True) for record in self.records.values() if record.state == state]
        return (found if oldest else found[::-1])[first : last + 1]

    def _job(self, record: Record, *, lenient: bool = False) -> Job:
        fields = self._opened(record.id, record.fields, lenient=lenient)
        return codec.decode_job(self.queue, record.id, fields, record.state)

    def _opened(
        self, job_id: str, fields: dict[bytes, bytes], *, lenient: bool = False
    ) -> dict[bytes, bytes]:
        return fields if self.sealer is None else self.sealer.open_fields(job_id, fields, lenient=lenient)

    # -- results

    async def wait(self, job_id: str, timeout: float | None) -> Any:
        """The job's result; in the place of what listens to a server's events.

        Raises:
            JobFailed: It failed for good.
            ResultTimeout: It has not ended, or nothing will run it.
            JobNotFound: There is none.
        """
        end = None if timeout is None else time.monotonic() + timeout
        record = self.records.get(job_id) or self._gone.get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        # It may run in another thread's loop, to which an event of ours would mean nothing.
        while record.state == "active" and (end is None or time.monotonic() < end):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if record.state == "completed":
            return payload.decode(open_value(self.sealer, "result", job_id, record.fields[b"returnvalue"]))
        if record.state == "failed":
            job = self._job(record, lenient=True)
            category = job.extra.get(codec.FIELD_CATEGORY)
            raise JobFailed(job_id, job.failed_reason or "", job.stacktrace, category) from record.error
        raise ResultTimeout(f"job {job_id} is {record.state} and nothing runs it: {self._why(record)}")

    def _why(self, record: Record) -> str:
        name = record.fields[b"name"].decode()
        if self._registry.find(name) is None:
            return f"queue {self.queue!r} has no handler for {name!r}"
        return "the queue is paused" if self._paused else "drain the queue first"


class StandIn:
    """Takes the place of what a queue binds to an event loop: connection, waiting adds, waiting results."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.results = broker

    async def add(self, job: codec.Encoded, *, replicated: bool = False) -> Added:
        """Adds a job."""
        return (await self.broker.add([job]))[0]

    async def close(self) -> None:
        """Nothing is open."""
