"""The jobs of a week, with known outcomes: their stream entries, and the rows that tables must have.

Everything follows from the numbers of queue and job, so that entries and truth are made twice instead of
kept. Jobs of a queue begin evenly over the week. A quarter is run by Node, which writes no records. Some are
delayed, retried or failed, and some run over midnight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oxcart.broker.export import ATTEMPTS, EVENTS

DAY_MS = 86_400_000
#: Entries of a job on average: events and records.
ENTRIES_A_JOB = 5.0
_LATER, _RETRY, _LONG = 5000, 1000, 7_200_000


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
    """

    queue: int
    number: int
    begin: int
    entries: list[Entry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    moves: int = 0

    def __post_init__(self) -> None:
        self._now = self._ready = self.begin
        number, self._name, self._id = self.number, f"n{self.number % 5}", f"job-{self.number}"
        self._wait = 1 + (number * 7919 + self.queue * 31) % 399
        self._run = 1 + (number * 104_729 + self.queue * 17) % 2999
        self._worker = None if number % 4 == 0 else f"host:{number % 7}:0"
        self._event("added", name=self._name)
        if number % 100 == 5:
            self._event("mystery")
        if number % 37 == 2:
            self._event("delayed", delay=str(self._now + _LATER))
            self.moves += 1
            self._now += _LATER
            self._event("waiting", prev="delayed")
        else:
            self._event("waiting")
        if number % 20 in (0, 7):
            self._attempt("delayed", "retried", "temporary", delay=str(self._now + _RETRY))
            self._now += _RETRY
            self._event("waiting", prev="delayed")
        if number % 200 == 3:
            self._run = _LONG
        if number % 50 in (1, 4):
            reason = f"user {number} is unknown"
            self._attempt("failed", "failed", "permanent", failedReason=reason)
        else:
            self._attempt("completed", "completed", None, returnvalue='{"ok":true}')

    @property
    def job(self) -> Job:
        """Its row of `jobs`."""
        last = self.attempts[-1]
        return Job(
            last.queue,
            self._id,
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
        self._add(EVENTS, {"event": event, "jobId": self._id, **fields})

    def _attempt(self, event: str, outcome: str, category: str | None, **fields: str) -> None:
        self._now += self._wait
        started = self._now
        self._event("active", prev="waiting")
        self._now += self._run
        self._event(event, prev="active", **fields)
        if self._worker:
            record = {"event": outcome, "jobId": self._id, "name": self._name, "worker": self._worker}
            record |= {"began": str(started), "ended": str(self._now), "starts": str(len(self.attempts) + 1)}
            if category:
                record |= {"category": category, "failedReason": fields.get("failedReason", "not yet")}
            self._add(ATTEMPTS, record)
        self.attempts.append(
            Attempt(
                queue_name(self.queue),
                self._id,
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
                life = Life(self.queue, self._next, self._start())
                self._next += 1
                self.begun.append(life)
                for entry in life.entries:
                    heapq.heappush(self._waiting, entry)
                continue
            if not self._waiting or self._waiting[0].at >= end:
                return
            yield self._place(heapq.heappop(self._waiting))

    def _start(self) -> int:
        return self._begin + self.queue * 37 + self._next * self._span // self._jobs

    def _place(self, entry: Entry) -> Placed:
        self._ordinals[entry.stream] += 1
        if entry.stream == EVENTS:
            self._last = f"{entry.at}-{self._ordinals[EVENTS]}"
        # A record has the id of its event, the entry before it.
        return Placed(self._last, self._ordinals[entry.stream], entry)


def queue_name(queue: int) -> str:
    """The name of a queue."""
    return f"q{queue:03}"


def key(queue: int, stream: str) -> str:
    """The key of a stream on the server."""
    return f"bull:{queue_name(queue)}:{stream}"


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
