"""The jobs of a week, with known outcomes: their stream entries, and the rows that tables must have.

Everything follows from the numbers of queue and job, so that entries and truth are made twice instead of
kept. Jobs of a queue begin evenly over the week. A quarter is run by Node, which writes no records. Some are
delayed, retried or failed, some run over midnight. Some are runs of a schedule, some wait for a child, and
some have tags and a limit key. Every tenth stream is a lane of the queue before it.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oxcart.broker.export import ATTEMPTS, EVENTS

DAY_MS = 86_400_000
#: Entries of a job on average: events and records.
ENTRIES_A_JOB = 5.28
_LATER, _RETRY, _LONG = 5000, 1000, 7_200_000
#: The target of lanes, and the schedule of all queues; one job of so many is one of its runs.
LANE = "all;c=gpu"
SCHEDULE, _RUNS = "beat", 30
#: Every run but the first of a queue has so many slots between itself and the previous one.
MISSED = 1


class Attempt(NamedTuple):
    """A row of `attempts`."""

    queue: str
    job_id: str
    attempt: int
    name: str
    outcome: str
    told_by: str
    started: int
    ended: int
    wait_ms: int
    run_ms: int
    category: str | None
    worker: str | None
    tenant: str | None
    plan: str | None
    tag_tenant: str | None


class Child(NamedTuple):
    """A row of `flows`, and the path from the child to the end of its parent."""

    queue: str
    job_id: str
    parent_queue: str
    parent_id: str
    on_failure: str
    state: str
    created: int
    ended: int
    total_ms: int


class Run(NamedTuple):
    """A row of `firings`."""

    queue: str
    job_id: str
    schedule: str
    state: str
    expected: int
    made: int
    ready: int
    started: int
    late_ms: int
    attempts: int
    run: int | None
    every_ms: int | None


class Job(NamedTuple):
    """A row of `jobs`, and how many rows of `transitions` it has."""

    queue: str
    job_id: str
    name: str
    state: str
    created: int
    started: int
    ended: int
    attempts: int
    retries: int
    wait_ms: int
    run_ms: int
    category: str | None
    worker: str | None
    moves: int


class Entry(NamedTuple):
    """An entry of a stream, ordered by time, job and place in the job's life."""

    at: int
    job: int
    place: int
    stream: str
    fields: dict[str, str]


@dataclass
class Life:
    """A job from its add to its end.

    Args:
        queue: The number of its queue.
        number: Its own number.
        begin: When it is added, in ms.
        before: When the job before it is added.
        apart: How far jobs of the queue are apart, in ms.
    """

    queue: int
    number: int
    begin: int
    before: int
    apart: int
    entries: list[Entry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    moves: int = 0

    def __post_init__(self) -> None:
        self._now = self._ready = self.begin
        number, self._name, self._stream = self.number, f"n{self.number % 5}", stream_name(self.queue)
        self._wait = 1 + (number * 7919 + self.queue * 31) % 399
        self._run = 1 + (number * 104_729 + self.queue * 17) % 2999
        self._worker = None if number % 4 == 0 else f"host:{number % 7}:0"
        self._is_run = number % _RUNS == 14
        self._due = self.begin + _LATER
        self.id = f"repeat:{SCHEDULE}:{self._due}" if self._is_run else f"job-{number}"
        self._begin()
        if number % 20 in (0, 7):
            self._attempt("delayed", "retried", "temporary", delay=str(self._now + _RETRY))
            self._now += _RETRY
            self._event("waiting", prev="delayed")
        if number % 200 == 6:
            self._run = _LONG
        if number % 50 in (1, 4):
            reason = f"user {number} is unknown"
            self._attempt("failed", "failed", "permanent", failedReason=reason)
        else:
            self._attempt("completed", "completed", None, returnvalue='{"ok":true}')

    def _begin(self) -> None:
        """The job is added, and is ready at once or later."""
        number = self.number
        self._event("added", name=self._name)
        if self._labels and not self._worker:  # our producer records labels; Node's worker does not
            self._add(ATTEMPTS, {"event": "added", "jobId": self.id, "name": self._name, **self._labels})
        if number % 100 == 5:
            self._event("mystery")
        if self._is_run or number % 37 == 2:
            self._event("delayed", delay=str(self._due))
            self.moves += 1
            self._now = self._due
            self._event("waiting", prev="delayed")
        elif number % 35 == 7:
            self._event("waiting-children")
            self.moves += 1
            self._now = max(self._now, self.before_ended)
            self._event("waiting", prev="waiting-children")
        else:
            self._event("waiting")
        self._first_ready = self._ready

    @property
    def before_ended(self) -> int:
        """When the job before it ends: the child that it waits for, if it waits for one."""
        child = Life(self.queue, self.number - 1, self.before, self.before - self.apart, self.apart)
        return child.attempts[-1].ended

    @property
    def _is_child(self) -> bool:
        """Whether the next job waits for it."""
        return self.number % 35 == 6

    @property
    def _labels(self) -> dict[str, str]:
        """The tags and the limit key of the job, as a record has them."""
        if self.number % 3:
            return {}
        key = {"key": f"t{self.number % 4}"} if self.number % 9 == 0 else {}
        return {"tags": json.dumps(self._tags), **key}

    @property
    def _tags(self) -> dict[str, str]:
        tenant = {"tenant": f"t{self.number % 5}"} if self.number % 6 == 0 else {}
        return {"plan": f"p{self.number // 3 % 3}", **tenant}

    @property
    def child(self) -> Child | None:
        """Its row of `flows`, if a parent waits for it and a record says so."""
        if not self._is_child or self._worker is None:
            return None
        last, begin = self.attempts[-1], self.begin + self.apart
        above = Life(self.queue, self.number + 1, begin, self.begin, self.apart)
        return Child(
            last.queue,
            self.id,
            last.queue,
            above.id,
            "ignore",
            last.outcome,
            self.begin,
            last.ended,
            above.attempts[-1].ended - self.begin,
        )

    @property
    def run(self) -> Run | None:
        """Its row of `firings`, if it is a run of a schedule."""
        if not self._is_run:
            return None
        job, is_known = self.job, self._worker is not None
        return Run(
            job.queue,
            self.id,
            SCHEDULE,
            job.state,
            self._due,
            self.begin,
            self._first_ready,
            job.started,
            job.started - self._due,
            job.attempts,
            self.number if is_known else None,
            self.every_ms if is_known else None,
        )

    @property
    def every_ms(self) -> int:
        """The interval of the queue's schedule."""
        return max(1, self.apart * _RUNS // (1 + MISSED))

    @property
    def job(self) -> Job:
        """Its row of `jobs`."""
        last = self.attempts[-1]
        return Job(
            last.queue,
            self.id,
            self._name,
            last.outcome,
            self.begin,
            self.attempts[0].started,
            last.ended,
            len(self.attempts),
            len(self.attempts) - 1,
            sum(one.wait_ms for one in self.attempts),
            sum(one.run_ms for one in self.attempts),
            last.category,
            self._worker,
            self.moves + 3 * len(self.attempts),
        )

    def _event(self, event: str, **fields: str) -> None:
        if event == "waiting":
            self._ready = self._now
        self._add(EVENTS, {"event": event, "jobId": self.id, **fields})

    def _attempt(self, event: str, outcome: str, category: str | None, **fields: str) -> None:
        self._now += self._wait
        started = self._now
        self._event("active", prev="waiting")
        self._now += self._run
        self._event(event, prev="active", **fields)
        if self._worker:
            record = {"event": outcome, "jobId": self.id, "name": self._name, "worker": self._worker}
            record |= {"began": str(started), "ended": str(self._now), "starts": str(len(self.attempts) + 1)}
            if category:
                record |= {"category": category, "failedReason": fields.get("failedReason", "not yet")}
            if self._is_child:
                parent = {"id": f"job-{self.number + 1}", "queueKey": f"bull:{self._stream}", "idof": True}
                record["parent"] = json.dumps(parent)
            if self._is_run:
                record["rule"] = json.dumps({"every": self.every_ms, "count": self.number})
            record |= self._labels
            self._add(ATTEMPTS, record)
        tags = self._tags if self._labels else {}
        self.attempts.append(
            Attempt(
                self._stream,
                self.id,
                len(self.attempts) + 1,
                self._name,
                outcome,
                "record" if self._worker else "events",
                started,
                self._now,
                started - self._ready,
                self._run,
                category if self._worker else None,
                self._worker,
                self._labels.get("key") or tags.get("tenant"),
                tags.get("plan"),
                tags.get("tenant"),
            )
        )

    def _add(self, stream: str, fields: dict[str, str]) -> None:
        self.entries.append(Entry(self._now, self.number, len(self.entries), stream, fields))


class Placed(NamedTuple):
    """An entry with its place in the stream of its queue."""

    entry_id: str
    ordinal: int
    entry: Entry


class Traffic:
    """The entries of a queue in the order of the stream.

    Args:
        queue: The number of the queue.
        jobs: How many jobs it has in the week.
        days: How long a week is.
        begin: When the week begins, in ms.
    """

    def __init__(self, queue: int, jobs: int, days: int, begin: int) -> None:
        self.queue = queue
        self._jobs = jobs
        self._span = days * DAY_MS - 2 * _LONG  # jobs end on the last day, long ones included
        self._begin = begin
        self._next = 0
        self._waiting: list[Entry] = []
        self._ordinals = {EVENTS: 0, ATTEMPTS: 0}
        self._last = ""
        self.begun: list[Life] = []

    def until(self, end: int) -> Iterator[Placed]:
        """Yields further entries before a time, in order; `begun` gets the lives that begin before it."""
        while True:
            if self._next < self._jobs and (not self._waiting or self._start() <= self._waiting[0].at):
                if self._start() >= end:
                    return
                apart = self._span // self._jobs
                life = Life(self.queue, self._next, self._start(), self._start() - apart, apart)
                self._next += 1
                self.begun.append(life)
                for entry in life.entries:
                    heapq.heappush(self._waiting, entry)
                continue
            if not self._waiting or self._waiting[0].at >= end:
                return
            yield self._place(heapq.heappop(self._waiting))

    def _start(self) -> int:
        return self._begin + self.queue * 37 + self._next * (self._span // self._jobs)

    def _place(self, entry: Entry) -> Placed:
        self._ordinals[entry.stream] += 1
        if entry.stream == EVENTS:
            self._last = f"{entry.at}-{self._ordinals[EVENTS]}"
        # A record has the id of its event, the entry before it.
        return Placed(self._last, self._ordinals[entry.stream], entry)


def stream_name(queue: int) -> str:
    """The name of a stream: of a queue, or of a lane of the queue before it."""
    return f"q{queue - 1:03}@{LANE}" if queue % 10 == 2 else f"q{queue:03}"


def idle_jobs(queue: int) -> dict[str, int]:
    """How many jobs wait in a queue for the whole week, by list; no event names them."""
    return {"wait": queue % 5, "delayed": queue % 3}


def key(queue: int, stream: str) -> str:
    """The key of a stream on the server."""
    return f"bull:{stream_name(queue)}:{stream}"


def prepare(store: Any, queue: int, keeps: int) -> None:
    """Makes a queue on the server, with jobs that wait all week."""
    store.hset(key(queue, "meta"), "opts.maxLenEvents", str(keeps))
    idle = idle_jobs(queue)
    if idle["wait"]:
        store.rpush(key(queue, "wait"), *(f"idle-{number}" for number in range(idle["wait"])))
    if idle["delayed"]:
        store.zadd(key(queue, "delayed"), {f"late-{number}": 1 << 52 for number in range(idle["delayed"])})


def write(store: Any, traffic: Traffic, end: int) -> int:
    """Writes the entries of a queue before a time and trims as its scripts do; returns how many."""
    pipe, count = store.pipeline(transaction=False), 0
    for entry_id, _, entry in traffic.until(end):
        pipe.xadd(key(traffic.queue, entry.stream), entry.fields, id=entry_id)
        count += 1
    traffic.begun.clear()
    pipe.execute()
    limit = int(store.hget(key(traffic.queue, "meta"), "opts.maxLenEvents") or 10_000)
    for stream in (EVENTS, ATTEMPTS):
        store.xtrim(key(traffic.queue, stream), maxlen=limit, approximate=True)
    return count
