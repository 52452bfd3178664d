"""The parts of a queue in memory: logs, updates, dead letters, steps and the registry of workers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.memory.record import ENDED, READY
from oxcart.broker.pace import Pace
from oxcart.broker.port.parts import DeadLetters, Logs, Updates
from oxcart.broker.port.results import DeadDone, DeadVerb, DeadWork
from oxcart.broker.port.steps import SignalCode, Steps, check_signal_room
from oxcart.broker.progress import Progress
from oxcart.broker.workers import LIFE, Wakes, WorkerRecord, WorkerRegistry
from oxcart.model.errors import ReplyCode, error_for_code
from oxcart.model.job import Job
from oxcart.model.state import State
from oxcart.model.steps import MOST_SIGNAL_BYTES

if TYPE_CHECKING:
    from oxcart.broker.memory.broker import MemoryBroker


class MemoryLogs(Logs):
    """The logs of a queue's jobs."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._store = broker.store

    async def append(self, job_id: str, lines: Sequence[str], keep: int | None) -> int:
        with self._store.lock:
            log = self._store.find(job_id, "add_log").log
            log += lines
            if keep is not None:
                del log[:-keep]
            return len(log)

    async def read(self, job_id: str, first: int = 0, last: int = -1) -> list[str]:
        record = self._store.records.get(job_id)
        return [] if record is None else record.log[first : None if last == -1 else last + 1]

    async def clear(self, job_id: str, keep: int = 0) -> None:
        with self._store.lock:
            log = self._store.find(job_id, "clear_logs").log
            del log[: max(0, len(log) - keep)]


class MemoryUpdates(Updates):
    """Changes to a queue's jobs."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._store = broker.store

    async def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        with self._store.lock:
            record = self._store.find(job_id, "change_priority")
            record.priority = priority
            if record.state in READY:
                self._store.make_ready(record, record.ready_ms or record.created_ms, front=lifo)

    async def update(self, job_id: str, metadata: Mapping[str, Any], priority: int | None) -> None:
        with self._store.lock:
            record = self._store.find(job_id, "update_job")
            if record.state in ENDED:
                raise error_for_code(ReplyCode.WRONG_STATE, job_id, "update_job")
            record.options = msgspec.structs.replace(record.options, **metadata)
            if priority is not None:
                await self.change_priority(job_id, priority)


class MemoryDeadLetters(DeadLetters):
    """The dead letters of a queue."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def run(self, work: DeadWork) -> DeadDone:
        pace, found = Pace(work.rate), DeadDone(dry_run=work.verb == "list")
        last = len(self._broker.store.records)
        for job in await self._broker.page("failed", 0, last, oldest=not work.newest):
            if work.limit is not None and found.matched >= work.limit:
                break
            if not _is_dead(job, work.chosen.permanent) or not work.chosen.fits(job, job.finished_on or 0):
                continue
            found.matched += 1
            found.ids.append(job.id)
            if work.verb != "list":
                permanent = work.chosen.permanent
                found.done += len(
                    await self.apply(work.verb, [job.id], reset=work.reset, permanent=permanent)
                )
            await pace.wait(found.done)
        work.progress(Progress("dead letters", found.matched, found.matched))
        return found

    async def apply(
        self, verb: DeadVerb, ids: Sequence[str], *, reset: bool = False, permanent: bool = False
    ) -> list[str]:
        done = []
        for job in await self._broker.get(ids, lenient=True):
            if job is None or not _is_dead(job, permanent):
                continue
            if verb == "replay":
                await self._broker.retry_job(job.id, "failed", reset=reset)
            elif verb == "purge":
                await self._broker.remove_job(job.id)
            done.append(job.id)
        return done


def _is_dead(job: Job, permanent: bool) -> bool:
    return job.state is State.DEAD_LETTER or (permanent and job.state is State.FAILED)


class MemorySteps(Steps):
    """The durable steps of a queue's jobs, and signals for them."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def keep(self, job_id: str, token: str, name: str, record: bytes) -> None:
        with self._broker.store.lock:
            self._broker.leased(job_id, token, "set_step").steps[name] = record

    async def receive(
        self, job_id: str, token: str, name: str, signal: str, *, wait: bytes, arrived: bytes, late: bytes
    ) -> bytes:
        with self._broker.store.lock:
            job = self._broker.leased(job_id, token, "receive_signal")
            known = job.steps.get(name)
            if known is not None and not known.startswith(b"wait\t"):
                return known
            found = next((one for one in job.signals if one[0] == signal), None)
            if found is not None:
                job.signals.remove(found)
                known = arrived + b"\n" + found[1]
            elif late:
                known = late + b"\nnull"
            known = known or wait + b"\nnull"
            job.steps[name] = known
            return known

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        broker = self._broker
        with broker.store.lock:
            job = broker.store.find(job_id, "signal")
            if job.state in ENDED:
                raise error_for_code(ReplyCode.WRONG_STATE, job_id, "signal")
            waiting = sum(len(name.encode()) + len(held) + 2 for name, held in job.signals)
            if waiting + len(signal.encode()) + len(body) + 2 > MOST_SIGNAL_BYTES:
                return check_signal_room(0, job_id)
            job.signals.append((signal, body))
            if job.state != "delayed" or job.waits != signal:
                return SignalCode.STORED
            job.delay = 0
            broker.store.make_ready(job, broker.clock())
            return SignalCode.WOKEN


class MemoryRegistry(WorkerRegistry):
    """The workers of a queue."""

    by_name = False

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._workers = broker.store.workers

    @property
    def place(self) -> Hashable:
        return id(self._workers)

    def check_name(self, name: str) -> None:
        """Accepts every name."""

    async def beat(self, record: WorkerRecord, wakes: Wakes = Wakes.NOTHING, *, life: float = LIFE) -> None:
        self._workers[record.id] = record

    async def leave(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    async def everyone(self) -> list[WorkerRecord]:
        oldest = self._broker.clock() - round(LIFE * 1000)
        return [
            msgspec.structs.replace(record, alive=record.last_seen > oldest)
            for _, record in sorted(self._workers.items())
        ]

    async def living(self) -> list[WorkerRecord]:
        return [record for record in await self.everyone() if record.alive]

    async def sweep(self) -> int:
        return 0
