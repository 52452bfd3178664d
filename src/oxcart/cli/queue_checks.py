"""The checks of ``oxcart doctor`` for one queue: what waits for whom, and for how long. They only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oxcart.cli import output
from oxcart.cli.checks import Finding, Level

if TYPE_CHECKING:
    from oxcart.broker.workers import WorkerRecord
    from oxcart.model.job import Job
    from oxcart.queue import Queue

#: Seconds that jobs may wait without a worker before this is a problem.
UNATTENDED = 300
#: Seconds that a job may wait with a worker before this is a warning.
WAITED = 300
#: Seconds after which a pause is a warning.
PAUSED = 3600
#: Seconds after its time at which the run of a schedule counts as missed.
MISSED = 60
#: Ended jobs of one state at which to note, and to warn, that a queue keeps too many.
KEPT = (10_000, 100_000)
#: Events that are read at most to find the latest pause, and schedules to find those that are late.
EVENTS = 2000
SCHEDULES = 1000
#: Delayed jobs, those that are due first, that are read at most.
DELAYED = 200


@dataclass(frozen=True)
class Stuck:
    """Jobs that do not go on.

    Attributes:
        count: How many.
        first: The id of one of them.
        seconds: For how long that one has been so.
        why: What a worker noted, or empty.
    """

    count: int = 0
    first: str = ""
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class QueueFacts:
    """What the checks know about a queue.

    Attributes:
        name: The queue.
        counts: How many jobs are in each state of the wire.
        workers: Its live workers.
        paused: Whether it is paused.
        paused_for: Seconds since its pause, at least; None if that is unknown.
        oldest: The id of the job that is ready for longest, or None.
        waited: Seconds since that job became ready.
        late: The schedules whose next run is overdue, and by how many seconds.
        running: The jobs that run; the time is that since the start.
        overdue: Delayed jobs whose time has come.
        unhandled: Jobs that workers put off because they have no handler for them, by the jobs' names.
        unroutable: How many waiting jobs no worker matches, by their targets.
        kept: For how many seconds it keeps completed and failed jobs; None for ever.
    """

    name: str
    counts: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[WorkerRecord, ...] = ()
    paused: bool = False
    paused_for: float | None = None
    oldest: str | None = None
    waited: float = 0.0
    late: Mapping[str, float] = field(default_factory=dict)
    running: Stuck = Stuck()
    overdue: Stuck = Stuck()
    unhandled: Mapping[str, Stuck] = field(default_factory=dict)
    unroutable: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[int | None, int | None] = (None, None)

    @property
    def ready(self) -> int:
        """How many jobs are ready to run."""
        return self.counts.get("waiting", 0) + self.counts.get("prioritized", 0)


async def read_facts(queue: Queue) -> QueueFacts:
    """Reads what the checks need, in a bounded number of calls."""
    now = await queue._core.broker.now()
    oldest, waited = await _oldest(queue, now)
    is_paused = await queue.is_paused()
    counts = await queue.counts()
    delayed = await queue.jobs.list("delayed", limit=DELAYED, oldest=True) if counts.get("delayed") else []
    return QueueFacts(
        name=queue.name,
        kept=await queue._core.broker.kept_seconds(),
        counts=counts,
        workers=tuple(await queue.workers.list()),
        paused=is_paused,
        paused_for=await _paused_for(queue, now) if is_paused else None,
        oldest=oldest,
        waited=waited,
        late={
            one.id: (now - one.next_ms) / 1000
            for one in await queue.schedules.list(limit=SCHEDULES)
            if 0 < one.next_ms < now - MISSED * 1000
        },
        running=await _running(queue, counts.get("active", 0), now),
        overdue=_overdue(delayed, now),
        unhandled=_unhandled(delayed),
        unroutable=await queue.workers.unroutable(),
    )


async def _running(queue: Queue, count: int, now: int) -> Stuck:
    if not count:
        return Stuck()
    for job in await queue.jobs.list("active", limit=1, oldest=True):
        return Stuck(count, job.id, max(0, now - (job.processed_on or now)) / 1000)
    return Stuck()  # they have ended meanwhile


def _overdue(delayed: Sequence[Job], now: int) -> Stuck:
    times = [(now - _due(job), job.id) for job in delayed if _due(job) < now]
    late, first = max(times, default=(0, ""))
    return Stuck(len(times), first, late / 1000)


def _due(job: Job) -> int:
    return max(job.timestamp, job.processed_on or 0, job.moved_ms or 0) + job.delay


def _unhandled(delayed: Sequence[Job]) -> dict[str, Stuck]:
    found: dict[str, Stuck] = {}
    for job in delayed:
        if why := job.put_off:
            known = found.get(job.name, Stuck(0, job.id, 0, why))
            found[job.name] = replace(known, count=known.count + 1)
    return found


async def _oldest(queue: Queue, now: int) -> tuple[str | None, float]:
    found: list[tuple[float, str]] = []
    for state in ("waiting", "prioritized"):
        for job in await queue.jobs.list(state, limit=1, oldest=True):
            ready = job.scheduled_at or job.created_at
            found.append((now / 1000 - ready.timestamp(), job.id))
    waited, job_id = max(found, default=(0.0, None))
    return job_id, max(0.0, waited)


async def _paused_for(queue: Queue, now: int) -> float | None:
    events = queue._core.broker.open_events()
    if events is None:
        return None
    seen, at = 0, None
    try:
        async for event in events.backwards():
            at, seen = event.timestamp, seen + 1
            if event.name == "paused" or seen >= EVENTS:
                break
    finally:
        await events.close()
    return None if at is None else (now - at) / 1000


def judge(facts: QueueFacts, connected: int = 0) -> list[Finding]:
    """Judges a queue.

    Args:
        facts: What is known of it.
        connected: How many connections name themselves workers of it, peers included.
    """
    attended = bool(facts.workers or connected)
    return [
        *_waiting(facts, connected),
        *([] if attended else _abandoned(facts)),
        *_without_handler(facts),
        *_pause(facts),
        *_schedules(facts),
        *_ended(facts),
    ]


def _waiting(facts: QueueFacts, connected: int) -> list[Finding]:
    if not facts.ready or facts.paused:
        return []
    since = output.span(facts.waited)
    if facts.ready == 1:
        waits = f"1 job waits, {facts.oldest}, for {since}"
    else:
        waits = f"{facts.ready:,} jobs wait, the oldest, {facts.oldest}, for {since}"
    if not facts.workers and not connected:
        level: Level = "problem" if facts.waited > UNATTENDED else "warning"
        return [
            Finding(
                f"no worker for {facts.name}",
                level,
                f"{waits}, and no worker serves the queue",
                "oxcart work MODULE:QUEUE",
            )
        ]
    if facts.waited > WAITED:
        return [
            Finding(
                f"backlog of {facts.name}",
                "warning",
                f"{waits}; workers are too few, or a limit stops them",
                f"oxcart limits show {facts.name}, then more workers or a higher oxcart work --concurrency",
            )
        ]
    return []


def _abandoned(facts: QueueFacts) -> list[Finding]:
    """Lists jobs that nobody runs, promotes or recovers while no worker lives."""
    found = []
    running, overdue = facts.running, facts.overdue
    if running.count:
        jobs = "1 job is" if running.count == 1 else f"{running.count:,} jobs are"
        found.append(
            Finding(
                f"running jobs of {facts.name}",
                "problem" if running.seconds > UNATTENDED else "warning",
                f"{jobs} running, the first, {running.first}, for {output.span(running.seconds)}, "
                "but no worker lives; the next worker recovers jobs of lost ones",
                "oxcart work MODULE:QUEUE",
            )
        )
    if overdue.count and not facts.paused:
        jobs = "1 delayed job is" if overdue.count == 1 else f"{overdue.count:,} delayed jobs are"
        found.append(
            Finding(
                f"overdue jobs of {facts.name}",
                "problem" if overdue.seconds > UNATTENDED else "warning",
                f"{jobs} overdue, {overdue.first} for {output.span(overdue.seconds)}, "
                "and no worker serves the queue",
                "oxcart work MODULE:QUEUE",
            )
        )
    return found


def _without_handler(facts: QueueFacts) -> list[Finding]:
    found = []
    for name, jobs in sorted(facts.unhandled.items()):
        many = "1 job is" if jobs.count == 1 else f"{jobs.count:,} jobs are"
        found.append(
            Finding(
                f"no handler for {name} of {facts.name}",
                "warning",
                f"{many} put off again and again, the first is {jobs.first}: {jobs.why}",
                f"start a worker that handles {name}; oxcart jobs {facts.name} --state delayed --name {name}",
            )
        )
    return found


def _pause(facts: QueueFacts) -> list[Finding]:
    if not facts.paused:
        return []
    spans = [span for span in (facts.paused_for, facts.waited if facts.oldest else None) if span is not None]
    since = max(spans, default=None)
    shown = "" if since is None else f" for at least {output.span(since)}"
    level: Level = "warning" if since is not None and since > PAUSED else "note"
    detail = f"no worker takes its jobs{shown}; {facts.ready:,} wait"
    return [Finding(f"paused {facts.name}", level, detail, f"oxcart resume {facts.name}")]


def _schedules(facts: QueueFacts) -> list[Finding]:
    found = []
    for schedule_id, late in sorted(facts.late.items(), key=lambda item: -item[1])[:5]:
        found.append(
            Finding(
                f"schedule {schedule_id} of {facts.name}",
                "warning",
                f"its next run was due {output.span(late)} ago",
                f"start a worker of the queue; oxcart schedules show {facts.name} {schedule_id}",
            )
        )
    if len(facts.late) > 5:
        more = f"{len(facts.late) - 5} more schedules are late"
        found.append(
            Finding(f"schedules of {facts.name}", "warning", more, f"oxcart schedules list {facts.name}")
        )
    return found


#: What follows the number of jobs that nothing removes.
_FOREVER = "; without retention they fill the server's memory"


def _ended(facts: QueueFacts) -> list[Finding]:
    found = []
    options = ("completed", "remove_on_complete"), ("failed", "remove_on_fail")
    for (state, option), kept in zip(options, facts.kept, strict=True):
        count = facts.counts.get(state, 0)
        if count >= KEPT[0]:
            found.append(
                Finding(
                    f"{state} jobs of {facts.name}",
                    "warning" if count >= KEPT[1] else "note",
                    f"{count:,} are kept" + (_FOREVER if kept is None else f" for {kept / 86_400:g} d"),
                    f"oxcart clean {facts.name} --state {state} --grace 7d; add jobs with {option}=…",
                )
            )
    failed = facts.counts.get("failed", 0)
    if failed:
        found.append(
            Finding(
                f"failures of {facts.name}",
                "note",
                "1 job has failed or was cancelled"
                if failed == 1
                else f"{failed:,} jobs have failed or were cancelled",
                f"oxcart failures {facts.name} --since 1d",
            )
        )
    return found
