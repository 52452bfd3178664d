"""Leases of a queue in memory: which have expired, and when a check may recover their jobs.

The rules are those of the scripts. A job is recovered if it was active at the last check and has no lease at
this one. After a silence that counts as an outage, a check only notes the active jobs.
"""

from __future__ import annotations

from oxcart.broker.memory.record import Record
from oxcart.broker.memory.store import Store
from oxcart.broker.port import Lease, Outage, Recovered

#: Why a job that stalled too often fails, in the words of all brokers.
STALLED = "job stalled more than allowable limit"
#: Checks in a row that wait for renewals at most.
WAITS = 2


class Leases:
    """The leases of one queue."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._suspects: set[str] = set()
        self._suspects_until: int | None = None
        self._alive: tuple[int, int] = (0, 0)  # ms of silence that are allowed, and until when
        self._gaps = 0  # checks in a row that found no sign of life
        self._guarded_ms = 0

    def holder(self, record: Record, now: int) -> str:
        """Returns the token of a job's lease; empty if it has none."""
        return record.token if record.state == "active" and record.lease_ms > now else ""

    def renew(self, leases: list[Lease], lock_ms: int, now: int) -> list[str]:
        """Renews leases; returns the ids of the refused ones."""
        refused = []
        for lease in leases:
            record = self._store.records.get(lease.id)
            holder = "" if record is None else self.holder(record, now)
            if record is not None and (
                holder == lease.token
                if holder
                else record.state == "active" and record.starts == lease.starts
            ):
                record.token, record.lease_ms = lease.token, now + lock_ms
                self._suspects.discard(record.id)
            else:
                refused.append(lease.id)
        return refused

    def appear(self, outage: Outage, now: int) -> bool:
        """Extends the sign of life; returns whether the last one had not expired."""
        silence, until = self._alive
        if until <= now:
            return False
        silence = min(silence, outage.silence_ms)
        self._alive = (silence, now + silence)
        if not self._gaps and self._suspects_until is not None and self._suspects_until > now:
            self._suspects_until = now + silence
        return True

    def recover(self, now: int, max_stalled: int, interval_ms: int, outage: Outage | None) -> Recovered:
        """Makes jobs ready again whose lease has expired."""
        if self._suspects_until is not None and self._suspects_until <= now:
            self._suspects.clear()
        ids: list[str] = []
        if outage is not None and self._must_wait(outage, now):
            self._suspects_until = None
            self._guarded_ms = now + outage.grace_ms
        elif self._guarded_ms > now:
            return Recovered([], False, self._guarded_ms - now)
        else:
            self._guarded_ms, self._gaps = now + interval_ms, 0
            for job_id in self._suspects:
                record = self._store.records.get(job_id)
                if record is not None and record.state == "active" and record.lease_ms <= now:
                    self._take_back(record, now, max_stalled)
                    ids.append(job_id)
            self._suspects.clear()
        self._suspects.update(record.id for record in self._store.active)
        if outage is None:
            return Recovered(ids, True)
        if self._gaps:
            return Recovered(ids, True, max(1, self._guarded_ms - now))
        self._suspects_until = now + outage.silence_ms
        return Recovered(ids, True)

    def _must_wait(self, outage: Outage, now: int) -> bool:
        if self.appear(outage, now):
            return False
        self._alive = (outage.silence_ms, now + outage.silence_ms)
        if self._gaps >= WAITS or not self._store.active:
            return False
        self._gaps += 1
        return True

    def _take_back(self, record: Record, now: int, max_stalled: int) -> None:
        record.stalls += 1
        if record.stalls > max_stalled:
            record.deferred = STALLED
        self._store.make_ready(record, now, front=True)
        self._store.emit(now, "stalled", record.id)
