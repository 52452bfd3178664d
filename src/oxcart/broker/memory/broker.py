"""A queue in memory: the port's verbs over a `Store`."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from oxcart.broker.cancellations import CancelRequest
from oxcart.broker.capabilities import MEMORY, OPTIONS, Capabilities
from oxcart.broker.clock import ServerClock
from oxcart.broker.ids import new_id
from oxcart.broker.memory.claimed import claimed_job, job_of
from oxcart.broker.memory.leases import Leases
from oxcart.broker.memory.parts import (
    MemoryDeadLetters,
    MemoryLogs,
    MemoryRegistry,
    MemorySteps,
    MemoryUpdates,
)
from oxcart.broker.memory.record import ENDED, Record
from oxcart.broker.memory.store import Store
from oxcart.broker.memory.streams import MemoryEvents, MemoryInbox, MemoryWait
from oxcart.broker.port import (
    LIFETIME_OVER,
    NOTHING,
    UNDECODABLE,
    Added,
    Ask,
    Claimed,
    ClaimedJob,
    Code,
    Ended,
    Lease,
    Outage,
    Outcome,
    OutcomeKind,
    Recovered,
)
from oxcart.broker.port.codes import STATES
from oxcart.broker.port.parts import Parts
from oxcart.broker.sealing import Sealer
from oxcart.broker.workers import WorkerRecord
from oxcart.model import payload
from oxcart.model.errors import JobLocked, OxcartError, ReplyCode, error_for_code
from oxcart.model.failure import Category
from oxcart.model.job import Job
from oxcart.model.names import check_job_name
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions, check_together
from oxcart.model.target import Abilities

#: Why a part of a real broker is missing.
NO_SERVER = "this needs a server, and a queue in memory has no server"
#: Grace in ms in which a worker may end a running job itself whose lifetime has expired.
EXPIRY_GRACE = 5_000

_DEFAULTS = msgspec.structs.asdict(DEFAULT_OPTIONS)

#: A checked job: its id, and itself.
Encoded = tuple[str, Record]


class MemoryBroker(Parts):
    """One queue in memory, as one client sees it.

    Args:
        queue: The queue's name.
        store: Its jobs, which all clients share.
        leases: Their leases.
        clock: The time in ms.
        sealer: Seals and opens values, if the queue has keys.
    """

    capabilities: Capabilities = MEMORY
    #: Options that jobs may have although they have no effect here.
    ignored: frozenset[str] = frozenset()

    def __init__(
        self, queue: str, store: Store, leases: Leases, clock: ServerClock, sealer: Sealer | None = None
    ) -> None:
        self.queue = self.base = queue
        self.lane: str | None = None
        self.slot: int | None = None
        self.next_expiry = 0
        self.clock = clock
        self.sealer = sealer
        self.client_id = uuid.uuid4().hex[:16]
        self.store = store
        self._leases = leases
        self._claims = 0

    # -- members that belong to a server

    @property
    def server(self) -> NoReturn:
        """Refuses: there is none."""
        raise OxcartError(NO_SERVER)

    caller = keys = server

    @property
    def site(self) -> Hashable:
        return "memory"

    @property
    def place(self) -> Hashable:
        return id(self.store)

    server_name = "memory"
    known_url = None
    is_connected = True
    waits_for_slot = False

    def attach(self, **_: Any) -> None:
        """Does nothing: there is no connection to watch."""

    def serve(self, abilities: Abilities) -> None:
        """Does nothing: no job in memory has a target."""

    def job_id_of(self, key: str) -> str | None:
        """Returns None: jobs in memory have no keys."""
        return None

    def open_events(self, *, unseals: bool = False) -> MemoryEvents | None:
        return MemoryEvents(self.store, self.sealer if unseals else None)

    def open_wait(self, brokers: Sequence[MemoryBroker], worker: str) -> MemoryWait:
        return MemoryWait(brokers)

    def open_inbox(self, brokers: Mapping[int, Any]) -> MemoryInbox:
        return MemoryInbox()

    async def cancel_requests(self, attempts: Sequence[tuple[Any, str, int]]) -> list[CancelRequest]:
        """Returns nothing: jobs in memory are not cancelled while they run."""
        return []

    async def has_targets(self) -> bool:
        """Returns False: no job in memory has a target."""
        return False

    async def take_watch(self, worker_id: str, life_ms: int) -> bool:
        """Returns False: there is nothing to watch."""
        return False

    async def take_duty(self, group: str, worker_id: str, life_ms: int) -> int:
        """Returns 0: the loops of queues in memory cost no server anything."""
        return 0

    async def with_work(self, brokers: Sequence[Any]) -> list[int]:
        """Returns all queues."""
        return list(range(len(brokers)))

    def share_connection(self, other: Any) -> None:
        """Does nothing: there is no connection."""

    async def remove_all_keys(self) -> None:
        with self.store.lock:
            self.store.clear()

    async def now(self, timeout: float | None = None) -> int:
        return self.clock()

    async def close(self) -> None:
        """Does nothing: the jobs stay for other clients of the same server."""

    # -- parts

    @property
    def logs(self) -> MemoryLogs:
        """The logs of jobs."""
        return MemoryLogs(self)

    @property
    def registry(self) -> MemoryRegistry:
        """The registry of workers."""
        return MemoryRegistry(self)

    @property
    def steps(self) -> MemorySteps:
        """Durable steps of jobs, and signals for them."""
        return MemorySteps(self)

    @property
    def updates(self) -> MemoryUpdates:
        """Changes to jobs that exist."""
        return MemoryUpdates(self)

    @property
    def dead_letters(self) -> MemoryDeadLetters:
        """The dead letters."""
        return MemoryDeadLetters(self)

    # -- adding

    def encode(self, name: str, data: Any, options: JobOptions, trace: str | None = None) -> Encoded:
        """Checks a job for ``add``.

        Raises:
            ValidationError: Name or data cannot be stored.
            NotSupported: An option needs a feature that the broker lacks.
        """
        options = options.traced(trace)
        for option, feature in {**OPTIONS, "target": "target"}.items():
            if option not in self.ignored and getattr(options, option) != _DEFAULTS[option]:
                self.capabilities.require(feature)
        check_together(options)
        check_job_name(name)
        job_id = options.job_id or new_id()
        body = self._seal("payload", job_id, payload.encode(data))
        payload.check_size(body, b"", options.size_limit)
        return job_id, Record(job_id, name, body, options, options.priority, options.delay)

    async def add(
        self, jobs: Sequence[Encoded], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        with self.store.lock:
            return [self._add(record, self.clock()) for _, record in jobs]

    async def add_each(
        self,
        jobs: Sequence[Encoded],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``: no job is refused here."""
        return list(await self.add(jobs))

    def _add(self, record: Record, now: int) -> Added:
        store, options = self.store, record.options
        if record.id in store.records:
            store.emit(now, "duplicated", record.id)
            return Added(record.id, False, at_ms=now)
        if options.idempotency_key is not None:
            key = (record.name, options.idempotency_key)
            owner, until = store.keys.get(key, ("", 0))
            if owner in store.records and until > now:
                store.emit(now, "duplicated", owner)
                return Added(owner, False, True, now)
            store.keys[key] = (record.id, now + options.idempotency_window)
        record.created_ms = record.since_ms = now if options.timestamp is None else options.timestamp
        store.records[record.id] = record
        store.emit(now, "added", record.id, fields={"name": record.name})
        if options.delay:
            store.make_delayed(record, record.created_ms, options.delay)
        else:
            store.make_ready(record, now, front=options.lifo)
        return Added(record.id, True, at_ms=now)

    # -- running

    async def claim(self, ask: Ask) -> Claimed:
        with self.store.lock:
            return self._claim(ask, self.clock())

    def _claim(self, ask: Ask, now: int) -> Claimed:
        store = self.store
        answer = Claimed([])
        if ask.count:
            store.promote(now)
            room = self._room(ask, now)
            answer.limited_ms, answer.closed = max(0, -room), store.paused
            token, size = self._next_token(), 0
            while not store.paused and len(answer.jobs) < min(ask.count, room) and size < ask.max_bytes:
                record = store.next_ready()
                if record is None:
                    break
                answer.jobs.append(self._start(record, ask, token, now))
                size += len(record.body)
            if ask.limit_max is not None and answer.jobs:
                started, until = store.window
                opened = until if started else now + (ask.limit_duration or 0)
                store.window = (started + len(answer.jobs), opened)
            if len(answer.jobs) < ask.count:
                answer.due_ms = store.due_ms
        answer.active = len(store.active)
        return answer

    def _room(self, ask: Ask, now: int) -> int:
        """How many jobs may start; negative: the ms until the next one may."""
        store = self.store
        if store.held_ms > now:
            return now - store.held_ms
        if ask.limit_max is None:
            return ask.count
        if store.window[1] <= now:
            store.window = (0, 0)
        return ask.limit_max - store.window[0] or now - store.window[1]

    def _start(self, record: Record, ask: Ask, token: str, now: int) -> ClaimedJob:
        claim = claimed_job(record, token, now)
        self.store.start(record, now, token, ask.lock_ms, ask.worker)
        return claim

    def take(self, job_id: str, ask: Ask) -> ClaimedJob:
        """Claims one job that waits, whether it is due or not; for `oxcart.testing`.

        Raises:
            JobNotFound: There is none.
        """
        with self.store.lock:
            record = self.store.find(job_id, "claim")
            record.delay = 0
            return self._start(record, ask, self._next_token(), self.clock())

    def _next_token(self) -> str:
        self._claims += 1
        return f"{self.client_id}:{self._claims}"

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        with self.store.lock:
            now = self.clock()
            codes: list[Code] = []
            for outcome in outcomes:
                outcome.at_ms = outcome.at_ms or now
                codes.append(self._finish(outcome, now))
            return codes, self._claim(ask, now)

    def _finish(self, outcome: Outcome, now: int) -> Code:
        record = self.store.records.get(outcome.id)
        if record is None:
            return ReplyCode.JOB_NOT_FOUND
        holder = self._leases.holder(record, now)
        if holder and holder != outcome.token:
            return ReplyCode.LEASE_OF_ANOTHER
        if not holder and (record.state != "active" or outcome.starts != record.starts):
            return ReplyCode.LEASE_GONE
        if outcome.kind is OutcomeKind.AWAIT_CHILDREN:
            return ReplyCode.NOTHING_TO_DO  # it has no children
        self._apply(record, outcome, now)
        return ReplyCode.DONE

    def _apply(self, record: Record, outcome: Outcome, now: int) -> None:
        store, kind, at_ms = self.store, outcome.kind, outcome.at_ms
        record.token = ""
        if kind is OutcomeKind.COMPLETED:
            record.attempts_made += 1
            record.result = self._seal("result", record.id, outcome.value)
            store.end(record, "completed", at_ms, outcome.retention)
            return
        if outcome.value or outcome.stack:
            record.reason = outcome.value.decode("utf-8", "replace")
            record.stack = outcome.stack or record.stack
        if kind is OutcomeKind.FAILED:
            record.attempts_made += outcome.dead != UNDECODABLE
            record.category, record.code, record.dead = outcome.category, outcome.code, outcome.dead
            store.end(record, "failed", at_ms, outcome.retention)
            if record.attempts_made >= outcome.attempts:
                store.emit(now, "retries-exhausted", record.id, attempts_made=record.attempts_made)
        elif kind is OutcomeKind.RETRY:
            record.attempts_made += 1
            store.make_ready(record, at_ms, front=outcome.lifo)
        elif kind is OutcomeKind.DELAY:
            record.attempts_made += outcome.counts
            record.excused += not outcome.counts
            record.moved_ms = at_ms
            record.waits = outcome.waits
            if outcome.unhandled:
                record.unhandled = record.starts
            arrived = any(name == outcome.waits for name, _ in record.signals)
            store.make_delayed(record, at_ms, 0 if arrived else outcome.delay_ms)
        else:
            if kind is OutcomeKind.HOLD_QUEUE:
                record.excused += 1
                store.held_ms = now + outcome.delay_ms
            store.make_ready(record, at_ms, front=True)

    async def renew(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        with self.store.lock:
            return self._leases.renew(list(leases), lock_ms, self.clock())

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = 30_000, outage: Outage | None = None
    ) -> Recovered:
        with self.store.lock:
            return self._leases.recover(self.clock(), max_stalled, interval_ms, outage)

    async def appear(self, outage: Outage) -> bool:
        with self.store.lock:
            return self._leases.appear(outage, self.clock())

    async def promote(self, most: int = 250) -> tuple[int, int]:
        with self.store.lock:
            expiries = [at for one in self.store.records.values() if (at := one.expires_ms) is not None]
            self.next_expiry = min(expiries, default=0)
            return self.store.promote(self.clock(), most), self.store.due_ms

    async def expire(self, *, grace_ms: int = EXPIRY_GRACE) -> int:
        """Ends jobs whose lifetime has expired; returns how many.

        Args:
            grace_ms: Ms for which a running job is left to its worker.
        """
        ended = 0
        with self.store.lock:
            now = self.clock()
            for record in list(self.store.records.values()):
                at = record.expires_ms
                if at is None or at > now or (self._leases.holder(record, now) and now - at < grace_ms):
                    continue
                record.attempts_made += record.state == "active"
                record.category, record.dead = Category.TIMEOUT.value, "lifetime"
                record.reason = LIFETIME_OVER
                self.store.end(record, "failed", now)
                ended += 1
        return ended

    # -- the queue

    async def pause(self) -> None:
        with self.store.lock:
            self.store.paused = True
            self.store.emit(self.clock(), "paused")

    async def resume(self) -> None:
        with self.store.lock:
            self.store.paused = False
            self.store.emit(self.clock(), "resumed")

    async def is_paused(self) -> bool:
        return self.store.paused

    async def kept_seconds(self) -> tuple[int | None, int | None]:
        """Returns that ended jobs stay: a queue in memory ends with its process."""
        return None, None

    async def counts(self) -> dict[str, int]:
        with self.store.lock:
            states = [record.state for record in self.store.records.values()]
        return {state: states.count(state) for state in STATES}

    async def counts_at_once(self) -> dict[str, int]:
        """As ``counts``, which are always of one moment."""
        return await self.counts()

    async def counts_over_lanes(self) -> dict[str, int]:
        """As ``counts``: a queue in memory has no lanes."""
        return await self.counts()

    async def workers(self) -> list[WorkerRecord]:
        return await self.registry.living()

    async def unroutable(self) -> dict[str, int]:
        """Returns nothing: no job in memory has a target."""
        return {}

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Returns nothing: no job in memory has a target."""
        return []

    # -- jobs

    async def set_progress(self, job_id: str, progress: Any) -> None:
        body = self._seal("progress", job_id, payload.encode(progress, field="progress"))
        with self.store.lock:
            self.store.find(job_id, "set_progress").progress = body
            self.store.emit(self.clock(), "progress", job_id, data=payload.decode(body))

    async def update_data(self, job_id: str, data: Any) -> None:
        body = self._seal("payload", job_id, payload.encode(data))
        payload.check_size(body, b"")
        with self.store.lock:
            self.store.find(job_id, "update_data").body = body

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        with self.store.lock:
            self.leased(job_id, token, "set_checkpoint").checkpoint = body

    def leased(self, job_id: str, token: str, verb: str) -> Record:
        """Returns a job that the caller has leased.

        Raises:
            JobNotFound: There is no such job.
            LeaseLost: The caller has no lease.
        """
        record = self.store.find(job_id, verb)
        holder = self._leases.holder(record, self.clock())
        if holder != token:
            code = ReplyCode.LEASE_OF_ANOTHER if holder else ReplyCode.LEASE_GONE
            raise error_for_code(code, job_id, verb)
        return record

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        with self.store.lock:
            self.store.make_delayed(self._delayed(job_id, "change_delay"), self.clock(), delay_ms)

    async def promote_job(self, job_id: str) -> None:
        with self.store.lock:
            record = self._delayed(job_id, "promote_job")
            record.delay = 0
            self.store.make_ready(record, self.clock())

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        with self.store.lock:
            record = self.store.find(job_id, "retry_job")
            if record.state != state:
                raise error_for_code(ReplyCode.WRONG_STATE, job_id, "retry_job")
            now = self.clock()
            record.restart(now, reset=reset)
            self.store.make_ready(record, now, front=lifo)

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        with self.store.lock:
            record, now = self.store.find(job_id, "remove_job"), self.clock()
            if self._leases.holder(record, now):
                raise JobLocked(job_id)
            self.store.remove(record, now)

    def _delayed(self, job_id: str, verb: str) -> Record:
        record = self.store.find(job_id, verb)
        if record.state != "delayed":
            raise error_for_code(ReplyCode.WRONG_STATE, job_id, verb)
        return record

    # -- reading

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        with self.store.lock:
            found = [self.store.records.get(job_id) for job_id in job_ids]
            return [None if record is None else self.job_of(record, lenient=lenient) for record in found]

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """As ``get``: a job in memory always shows its formal state."""
        return await self.get(job_ids, lenient=lenient)

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        found = [self.store.records.get(job_id) for job_id in job_ids]
        states = ["unknown" if record is None else record.state for record in found]
        return ["waiting" if state == "wait" else state for state in states]

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        with self.store.lock:
            found = self.store.of_state(state)
            return [
                self.job_of(record, lenient=True)
                for record in (found if oldest else found[::-1])[first : last + 1]
            ]

    async def ids_beginning(self, start: str, most: int) -> list[str]:
        with self.store.lock:
            return sorted(job_id for job_id in self.store.records if job_id.startswith(start))

    async def ended(self, job_id: str) -> Ended:
        record = self.store.records.get(job_id)
        if record is None:
            return Ended(False, False)
        return Ended(True, record.state in ENDED, record.result, record.starts > 0)

    def job_of(self, record: Record, *, lenient: bool = False) -> Job:
        """Returns a snapshot of a job."""
        return job_of(self.queue, record, self.sealer, lenient=lenient)

    def _seal(self, purpose: Any, job_id: str, body: bytes) -> bytes:
        return body if self.sealer is None else self.sealer.seal(purpose, job_id, body)
