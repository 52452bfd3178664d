"""The page of one job: payload, options, timeline, logs, stack traces, and the jobs around it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
from markupsafe import Markup

from oxcart.drawing.timeline import Bar, Lane, duration, timeline
from oxcart.http.job_logs import read_log
from oxcart.http.redaction import Masks
from oxcart.http.service import Service
from oxcart.http.values import progress_of
from oxcart.http.web.copies import as_curl, as_python
from oxcart.http.web.dashboard import View, each, page
from oxcart.http.web.page import state_name
from oxcart.http.web.traces import read_trace
from oxcart.model.errors import OxcartError
from oxcart.model.flow import FlowView
from oxcart.model.job import Job
from oxcart.model.state import TERMINAL, State
from oxcart.model.steps import Step
from oxcart.queue import Queue

#: Log lines, children and jobs of the same correlation id that the page shows.
LINES, CHILDREN, RELATED = 300, 20, 10
#: Jobs of each queue that are read to find those of the same correlation id, queues that are searched, and
#: seconds between two searches.
SCAN, CORRELATED_QUEUES, CORRELATED_FRESH = 300, 40, 15.0
#: Seconds that one queue may take to answer such a search.
CORRELATED_WAIT = 2.0
#: Characters of a payload or result that the page shows.
LONGEST = 100_000
#: What stands in place of a payload that the caller may not read.
HIDDEN = "[hidden]"


class JobPage(View):
    """A job."""

    template = "job.html"
    parts = ("job_head", "job_timeline", "job_steps", "job_result", "job_traces", "job_logs", "job_relations")
    nav = "jobs"

    def read_address(self) -> None:
        """Reads which job."""
        self._id = self.query.get("id", "")
        self._in = self.query.get("queue") or None
        self.title = self._id
        self._related: list[tuple[str, Job]] = []
        self._looked = float("-inf")

    async def load(self) -> dict[str, Any]:
        """Reads the job and what is around it."""
        queue, job = await self.service.find(self._id, self._in)
        self.title = f"{job.name} {job.id}"
        state = job.state or State.PENDING
        ended = state in TERMINAL
        self.every = 5.0 if ended else 1.0
        now = await queue._core.broker.now()
        percent, message = progress_of(job.progress)
        sees_payload = self.service.may_read_payloads(queue.name)
        sees_result = self.service.may_read_results(queue.name)
        data = self.service.masks.apply(job.data) if sees_payload else HIDDEN
        return {
            "job": job,
            "queue": queue.name,
            "protocol": queue._core.protocol,
            "state": state.value,
            "ended": ended,
            "attempt": job.attempts_used + (state is State.RUNNING),
            "attempts": max(job.options.attempts, 1),
            "percent": percent,
            "progress_message": message,
            "progress_other": self.service.masks.apply(job.progress)
            if sees_payload and isinstance(job.progress, dict | list | str) and not message
            else None,
            "timeline": Markup(timeline(lanes_of(job, now), f"timeline of job {job.id}")),
            "lanes": [lane.label for lane in lanes_of(job, now)],
            "changes": job.transitions,
            "past": job.past_attempts,
            "ran_ms": _ran(job, now),
            "waited_ms": _waited(job, now),
            "payload": _json(data) if sees_payload else None,
            "sees_payload": sees_payload,
            "sees_result": sees_result,
            "steps": [_masked(step, self.service.masks) for step in job.steps],
            "options": _options(job),
            "result": _json(self.service.masks.apply(job.return_value))
            if sees_result and state is State.COMPLETED
            else None,
            "traces": [read_trace(text) for text in reversed(job.stacktrace)],
            "logs": await read_log(queue, job, -LINES, LINES) if sees_payload else [],
            "python": as_python(job, data, queue.name),
            "curl": as_curl(job, data, queue.name),
            **await _relations(self.service, queue, job),
            "related": await self._correlated(queue, job),
        }

    async def _correlated(self, queue: Queue, job: Job) -> list[tuple[str, Job]]:
        """Returns jobs of the same correlation id with their queues, those of the job's own queue first."""
        if not job.correlation_id:
            return []
        if time.monotonic() - self._looked < CORRELATED_FRESH:
            return self._related
        others = [one for one in self.service.queues.values() if one is not queue][: CORRELATED_QUEUES - 1]
        wanted: dict[str, Any] = {
            "correlation_id": job.correlation_id,
            "limit": RELATED + 1,
            "scan": SCAN,
            "count": False,
        }

        async def search(one: Queue) -> list[Job]:
            try:
                async with asyncio.timeout(CORRELATED_WAIT):
                    return (await one.jobs.search(**wanted)).jobs
            except (OxcartError, TimeoutError):
                return []  # a queue that cannot be read is left out, the page is not

        found = await each([queue, *others], search)
        rows = [(of.name, one) for of, jobs in zip([queue, *others], found, strict=True) for one in jobs]
        self._related = [row for row in rows if row[1].id != job.id][:RELATED]
        self._looked = time.monotonic()
        return self._related


def _masked(step: Step, masks: Masks) -> Step:
    """Returns a step whose value is masked; the step's name counts as the name of a field."""
    return msgspec.structs.replace(step, value=masks.apply({step.name: step.value})[step.name])


def lanes_of(job: Job, now: int) -> list[Lane]:
    """Returns the states of a job, and its attempts, as lanes of a timeline."""
    changes = [change for change in job.transitions if change.at is not None]
    bars: list[Bar] = []
    for number, change in enumerate(changes):
        begin = change.at or 0
        last = number + 1 == len(changes)
        is_open = last and change.target not in TERMINAL
        if last and not is_open:
            break
        end = max(begin, now if last else changes[number + 1].at or begin)
        text = f"{state_name(change.target.value)} for {duration(end - begin)}: {change.why}"
        bars.append(Bar(begin, end, f"s-{change.target.value}", text, is_open))
    lanes = [Lane("States", tuple(bars))] if bars else []
    for attempt in job.past_attempts:
        if attempt.started is not None and attempt.ended is not None:
            end = max(attempt.started, attempt.ended)
            outcome = attempt.outcome or "ended"
            text = f"Attempt {attempt.number}: {outcome} after {duration(end - attempt.started)}"
            kind = {"completed": "s-completed", "failed": "s-failed", "stalled": "s-failed"}.get(outcome)
            bar = Bar(attempt.started, end, kind or "s-retrying", text)
            lanes.append(Lane(f"Attempt {attempt.number}", (bar,)))
    if job.state is State.RUNNING and job.processed_on is not None:
        text = f"Attempt {job.attempts_started}: running for {duration(max(0, now - job.processed_on))}"
        bar = Bar(job.processed_on, max(now, job.processed_on), "s-running", text, True)
        lanes.append(Lane(f"Attempt {job.attempts_started}", (bar,)))
    return lanes


def _ran(job: Job, now: int) -> int | None:
    if job.processed_on is None or job.state in (
        State.SCHEDULED,
        State.DELAYED,
        State.RETRYING,
        State.PENDING,
    ):
        return None
    return max(0, (job.finished_on or now) - job.processed_on)


def _waited(job: Job, now: int) -> int | None:
    ready = job.scheduled_at
    if ready is None:
        return None
    return max(0, (job.processed_on or job.finished_on or now) - round(ready.timestamp() * 1000))


def _json(value: Any) -> str | None:
    if value is None:
        return None
    text = json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    return text if len(text) <= LONGEST else text[:LONGEST] + "\n…"


def _options(job: Job) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    defaults = type(job.options)()
    for field in msgspec.structs.fields(job.options):
        value = getattr(job.options, field.name)
        if value is None or value == getattr(defaults, field.name) or field.name in ("job_id", "timestamp"):
            continue
        text = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False, default=str)
        rows.append((field.name, text.strip('"')))
    return rows


async def _relations(service: Service, queue: Queue, job: Job) -> dict[str, Any]:
    children: list[FlowView] = []
    more = 0
    dependents: list[tuple[str, str]] = []
    if queue.capabilities.can("flows") and job.lane is None:
        try:
            view = await queue.flows.get(job.id, depth=2, limit=CHILDREN)
            below = view.children if view else []
            children = [child for child in below if service.served(child.job.queue) in service.queues]
            more = (view.more if view else 0) + len(below) - len(children)
            dependents = [place_of(service, key) for key in await queue.flows.dependents(job.id)]
        except OxcartError:
            pass  # relations of a queue that cannot be read are left out, the job itself is not
    parent = place_of(service, job.parent_key) if job.parent_key else None
    return {
        "parent": parent,
        "children": children,
        "more_children": more,
        "dependents": dependents[:CHILDREN],
        "has_flow": bool(parent or children or dependents),
    }


def place_of(service: Service, key: str) -> tuple[str, str]:
    """Returns the queue and the id of a job by its full key; the queue is empty if it is not served."""
    places = [(queue.name, queue._core.broker.job_id_of(key)) for queue in service.queues.values()]
    # A prefix may end like the name of another queue: the longest match leaves the shortest id.
    known = [(name, job_id) for name, job_id in places if job_id is not None]
    return min(known, key=lambda place: len(place[1]), default=("", key))


ROUTES = page("/job", JobPage)
