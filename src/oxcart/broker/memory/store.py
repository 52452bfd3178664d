"""One queue's jobs in memory: the moves between states, the order within them, and the events of both.

Nothing here waits. A store is used under its lock, because loops of several threads may share it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from typing import Any

from oxcart.broker.memory.record import READY, Record
from oxcart.broker.memory.signal import Signal
from oxcart.broker.workers import WorkerRecord
from oxcart.model import payload
from oxcart.model.errors import ReplyCode, error_for_code
from oxcart.model.event import Event
from oxcart.model.retention import Retention

#: Events that are kept.
EVENTS = 10_000


class Store:
    """One queue.

    Attributes:
        queue: Its name.
        records: The jobs by id.
        paused: Whether claims are blocked.
        held_ms: Until when claims are blocked, because a handler returned `RateLimited`.
        changed: Fires with every event and whenever jobs may have become available.
    """

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.lock = threading.RLock()
        self.records: dict[str, Record] = {}
        self.paused = False
        self.held_ms = 0
        self.changed = Signal()
        self.events: deque[Event] = deque(maxlen=EVENTS)
        #: The jobs that own an idempotency key, by name and key, and until when.
        self.keys: dict[tuple[str, str], tuple[str, int]] = {}
        #: Jobs that started in the window of a worker's rate limit, and when it ends.
        self.window: tuple[int, int] = (0, 0)
        #: The registered workers, by their ids.
        self.workers: dict[str, WorkerRecord] = {}
        self._active: dict[str, Record] = {}
        self._ready: list[tuple[int, int, str]] = []
        self._delayed: list[tuple[int, int, str]] = []
        self._last = self._first = 0
        self._last_event = (0, 0)

    def clear(self) -> None:
        """Removes all jobs, events and settings."""
        self.records.clear()
        self._active.clear()
        self.events.clear()
        self.keys.clear()
        self.paused, self.held_ms, self.window = False, 0, (0, 0)

    def find(self, job_id: str, verb: str) -> Record:
        """Returns a job.

        Raises:
            JobNotFound: There is none.
        """
        record = self.records.get(job_id)
        if record is None:
            raise error_for_code(ReplyCode.JOB_NOT_FOUND, job_id, verb)
        return record

    def of_state(self, *states: str) -> list[Record]:
        """Returns the jobs of some states, the first one first."""
        return sorted(
            (one for one in self.records.values() if one.state in states), key=lambda one: one.place
        )

    @property
    def active(self) -> Collection[Record]:
        """The active jobs."""
        return self._active.values()

    # -- moves

    def make_ready(self, record: Record, now: int, *, front: bool = False) -> None:
        """Makes a job ready: in turn, or before its equals."""
        self._active.pop(record.id, None)
        previous, record.ready_ms = record.state, now
        record.state = "prioritized" if record.priority else "wait"
        if front:
            self._first -= 1
            record.place = (record.priority, self._first)
        else:
            record.place = (record.priority, self._next())
        heappush(self._ready, (*record.place, record.id))
        self.emit(now, "waiting", record.id, prev=previous or None)

    def make_delayed(self, record: Record, now: int, delay_ms: int) -> None:
        """Delays a job."""
        self._active.pop(record.id, None)
        record.state, record.delay = "delayed", delay_ms
        record.place = (now + delay_ms, self._next())
        heappush(self._delayed, (*record.place, record.id))
        self.emit(now, "delayed", record.id, delay=record.place[0])

    def promote(self, now: int, most: int | None = None) -> int:
        """Makes due jobs ready; returns how many."""
        moved = 0
        while moved != most and (due := self._next_delayed()) is not None and due.place[0] <= now:
            due.delay = 0
            self.make_ready(due, now)
            moved += 1
        return moved

    @property
    def due_ms(self) -> int:
        """When the next delayed job is due; 0 for none."""
        record = self._next_delayed()
        return 0 if record is None else record.place[0]

    def next_ready(self) -> Record | None:
        """Returns the job that is claimed next."""
        return self._head(self._ready, READY)

    def start(self, record: Record, now: int, token: str, lock_ms: int, worker: str) -> None:
        """Leases a job to a worker."""
        self._active[record.id] = record
        record.state, record.place = "active", (now, self._next())
        record.starts += 1
        record.started_ms, record.worker = now, worker or record.worker
        record.token, record.lease_ms = token, now + lock_ms
        self.emit(now, "active", record.id, prev="waiting")

    def end(self, record: Record, state: str, at_ms: int, retention: Retention | None = None) -> None:
        """Ends a job, and applies its retention to it and to jobs that ended before.

        Args:
            record: The job.
            state: ``completed`` or ``failed``.
            at_ms: When it ended.
            retention: Which ended jobs to keep; None for all.
        """
        self._active.pop(record.id, None)
        previous, record.state = record.state, state
        record.finished_ms, record.place = at_ms, (at_ms, self._next())
        record.deferred, record.token = None, ""
        if state == "completed":
            result = payload.decode(record.result) if record.result else None
            self.emit(at_ms, state, record.id, prev=previous, return_value=result)
        else:
            self.emit(at_ms, state, record.id, prev=previous, failed_reason=record.reason or None)
        if retention is not None:
            self._retain(record, retention)

    def _retain(self, record: Record, retention: Retention) -> None:
        count, age = retention.count, retention.age
        if count == 0:
            del self.records[record.id]
            return
        kept = self.of_state(record.state)
        old: list[Record] = []
        if age is not None:
            before = record.place[0] - age * 1000
            old = [one for one in kept if one.place[0] <= before][: retention.limit]
        if count is not None and count > 0:
            old += kept[len(old) : max(len(old), len(kept) - count)]
        for one in old:
            del self.records[one.id]

    def remove(self, record: Record, now: int) -> None:
        """Removes a job."""
        del self.records[record.id]
        self._active.pop(record.id, None)
        self.emit(now, "removed", record.id, prev=record.state)

    # -- events

    def emit(self, now: int, name: str, job_id: str | None = None, **facts: Any) -> None:
        """Writes an event with attributes of `Event`, and wakes all waiting tasks."""
        at, number = self._last_event = max((now, 0), (self._last_event[0], self._last_event[1] + 1))
        self.events.append(
            Event(id=f"{at}-{number}", name=name, queue=self.queue, timestamp=at, job_id=job_id, **facts)
        )
        self.changed.fire()

    def events_after(self, entry_id: str) -> list[Event]:
        """Returns the events that came after an id."""
        after = _order(entry_id)
        found: list[Event] = []
        with self.lock:
            for event in reversed(self.events):
                if _order(event.id) <= after:
                    break
                found.append(event)
        return found[::-1]

    # -- order

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _next_delayed(self) -> Record | None:
        return self._head(self._delayed, ("delayed",))

    def _head(self, heap: list[tuple[int, int, str]], states: tuple[str, ...]) -> Record | None:
        # A job that moved left its old entry behind.
        while heap:
            record = self.records.get(heap[0][2])
            if record is not None and record.state in states and record.place == heap[0][:2]:
                return record
            heappop(heap)
        return None


def _order(entry_id: str) -> tuple[int, int]:
    millis, _, number = entry_id.partition("-")
    return int(millis), int(number or 0)
