"""The worker: claims jobs from one or several queues and runs their handlers.

It assembles the parts: ``claims`` talks to the queues, ``arrivals`` takes claimed jobs, ``executor`` runs
handlers, ``leases`` renews leases, ``listeners`` waits for jobs and for requests to cancel them,
``maintenance`` runs the periodic loops. The worker starts and stops them in order, and decides what follows
when an attempt's end is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from oxcart.broker.clock import monotonic_ms
from oxcart.broker.connection import Reconnect
from oxcart.broker.port import Ask, Code, Outcome, OutcomeKind, ServedBroker
from oxcart.engine.arrivals import Arrivals
from oxcart.engine.batches import warn_of_small_batches
from oxcart.engine.checks import check_count, check_metrics, read_abilities, read_lease, read_limiter
from oxcart.engine.claims import SPELL_US, Claims
from oxcart.engine.connections import close_connections, share_connections
from oxcart.engine.declarations import declarations_of
from oxcart.engine.executor import LEASE_LOST, SHUTDOWN, Executor, Middleware
from oxcart.engine.injection import Injector
from oxcart.engine.leader import leaderships_of
from oxcart.engine.leases import Leases, log_failed_renewal
from oxcart.engine.listeners import Listeners
from oxcart.engine.looper import Looper
from oxcart.engine.maintenance import maintenance_of
from oxcart.engine.mesh import Mesh
from oxcart.engine.observer import Observer, careful, layers_of
from oxcart.engine.partitions import Arrangement, Fleet, LayoutWatch
from oxcart.engine.processes import HandlerProcesses
from oxcart.engine.recovery import StalledCheck, observed_check, outage_of
from oxcart.engine.running import RunningJob, current_worker
from oxcart.engine.shutdown import UNREACHED, commit_the_rest
from oxcart.engine.source import Consumable, Source, make_worker_id, read_version
from oxcart.engine.spans import WorkerSpans, ended_span
from oxcart.engine.station import Station
from oxcart.engine.verdict import Verdict, log_failure, log_refusal
from oxcart.engine.webhooks.outbox import Outbox
from oxcart.model.backoff import Strategy
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import AccessDenied, BrokerUnavailable, ReplyCode, ValidationError
from oxcart.model.failure import Classifier
from oxcart.model.options import DEFAULT_TIMEOUT
from oxcart.model.retention import Retention
from oxcart.model.target import Abilities

log = logging.getLogger("oxcart.worker")

# Read once: on Python 3.11 a member of an enum costs 0.2 µs, for every job.
_DONE, _DONE_WITHOUT_PARENT = ReplyCode.DONE, ReplyCode.DONE_WITHOUT_PARENT
_ENDED = (OutcomeKind.COMPLETED, OutcomeKind.FAILED)

#: Refusals because of a job's children.
_OF_CHILDREN = (ReplyCode.CHILDREN_PENDING, ReplyCode.CHILD_FAILED)


class Worker:
    """Runs the jobs of queues.

    Args:
        *queues: The queues to consume, in rotation.
        concurrency: How many handlers run at once.
        name: The worker's name, shown by peers; its id by default.
        version: The version of your program, which a pipeline records; ``OXCART_APP_VERSION`` by default.
        abilities: What it can do and where it is. A worker with abilities takes jobs without a target and
            jobs whose targets match it. A worker without takes only jobs without a target, and on Bridge also
            jobs whose target is its name or stack. Its server is its name.
        lock_duration: How long a lease lasts without renewal.
        renew_every: How often leases are renewed; half the lease by default.
        stalled_interval: How often to check for jobs of lost workers.
        max_stalled: How often a job may be recovered before it fails. After the first time only losses count
            in which it ran alone.
        timeout: How long an attempt may take if neither job nor handler has a timeout; None for no limit.
        shutdown_timeout: How long running jobs may take to end when the worker is stopped.
        limiter: ``(max, duration)``: at most so many jobs in that time over all workers of a queue.
        lifespan: An async context manager; its value is ``job.state`` in every handler.
        middleware: ``async def layer(job, call_next)`` around every handler, the first outermost.
        classifier: Returns the category of an exception.
        strategies: Backoff functions by name, for the policy ``custom``.
        remove_on_complete: Retention of completed jobs that have none of their own.
        remove_on_fail: The same for failed jobs.
        reconnect: Pauses and limit of attempts to reach a lost server.
        recover: Whether this worker recovers jobs of lost workers.
        schedules: Whether this worker stores and removes the schedules that its handlers declare.
        max_started: How often a job may be started, stalls and returns included, before it fails unrun; None
            for no limit. By default 1 000 times without ending: its worker was lost or returned the job.
        metrics: For how many minutes the queue keeps the counts of ended jobs, for ``queue.jobs.metrics``
            and Node's ``getMetrics``; 0 counts nothing.
        observer: Receives what happens, for metrics and error trackers; one or several.
        clock: A clock in ms that replaces the server's, for tests.
        rand: Randomness, from 0 to 1.
    """

    def __init__(
        self,
        *queues: Consumable,
        concurrency: int = 1,
        name: str | None = None,
        version: str | None = None,
        abilities: Abilities | Mapping[str, Any] | None = None,
        lock_duration: Duration = 30,
        renew_every: Duration | None = None,
        stalled_interval: Duration = 30,
        max_stalled: int = 1,
        timeout: Duration | None = DEFAULT_TIMEOUT / 1000,
        shutdown_timeout: Duration = 30,
        limiter: tuple[int, Duration] | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        middleware: Sequence[Middleware] = (),
        classifier: Classifier | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        remove_on_complete: bool | int | Mapping[str, Any] | None = None,
        remove_on_fail: bool | int | Mapping[str, Any] | None = None,
        reconnect: Reconnect | None = None,
        recover: bool = True,
        schedules: bool = True,
        max_started: int | UnsetType | None = UNSET,
        metrics: int = 0,
        observer: Observer | Sequence[Observer] | None = None,
        clock: Callable[[], int] | None = None,
        rand: Callable[[], float] = random.random,
    ) -> None:
        if not queues:
            raise ValidationError("queues", "at least one queue", ())
        check_count(concurrency, "concurrency", 1)
        check_count(max_stalled, "max_stalled", 0)
        if max_started is not None and max_started is not UNSET:
            check_count(max_started, "max_started", 1)
        sources = [queue._core for queue in queues]
        limits = read_limiter(limiter, sources)
        check_metrics(metrics, sources)
        self.id = make_worker_id()
        self.name = name or self.id
        self._abilities = read_abilities(abilities, self.name)
        self._is_routed = abilities is not None
        waiting = [to.queue._core for source in sources if (to := source.webhook_queue) is not None]
        #: The queues as they were passed, and those of webhooks; while it runs, with the partitions of each.
        self.queues: tuple[Source, ...] = (*sources, *waiting)
        self._given = self.queues
        self.concurrency = concurrency
        self._lock_ms, self._renew_every = read_lease(lock_duration, renew_every)
        self._outage = outage_of(self._lock_ms, self._renew_every)
        self._stalled_interval = parse_ms(stalled_interval, "stalled_interval", minimum=10) / 1000
        self._max_stalled = max_stalled
        self._timeout = None if timeout is None else parse_ms(timeout, "timeout", minimum=1) / 1000
        self._shutdown_timeout = parse_ms(shutdown_timeout, "shutdown_timeout") / 1000
        self._lifespan = lifespan
        self._reconnect = reconnect or Reconnect()
        self._recover, self._schedules = recover, schedules
        self._observer = careful(observer)
        self._clock = clock or monotonic_ms
        self._spans: WorkerSpans | None = None
        self._middleware = (*layers_of(observer), *middleware)
        self._verdict = Verdict(
            clock=clock,
            rand=rand,
            classifier=classifier,
            strategies=strategies,
            remove_on_complete=Retention.parse(remove_on_complete, "remove_on_complete"),
            remove_on_fail=Retention.parse(remove_on_fail, "remove_on_fail"),
            max_started=max_started,
        )
        ask = Ask(0, self._lock_ms, self.name, *limits, spell_us=SPELL_US, metrics=metrics)
        self._ask = msgspec.structs.replace(ask, version=read_version(version), isolates=True)
        self._stations: list[Station] = []
        self._state: Any = None
        self._stopping, self._eased = asyncio.Event(), asyncio.Event()
        self._pausing = 0  # pauses that wait for the running jobs
        self.is_paused = False  #: Whether it claims no jobs until ``resume``.
        self._given_up: set[RunningJob] = set()
        self._failure: BaseException | None = None
        #: Set once the worker claims jobs.
        self.started = asyncio.Event()
        #: Whether the server could be reached at the last attempt.
        self.is_connected = False
        self.processed = 0

    @property
    def abilities(self) -> Abilities:
        """The worker's abilities. A change takes effect at once; the worker still ends the jobs it has.

        Raises:
            ValidationError: They cannot be read, or the running worker was started without abilities.
        """
        return self._abilities

    @abilities.setter
    def abilities(self, abilities: Abilities | Mapping[str, Any]) -> None:
        read = read_abilities(abilities, self.name)
        if self.started.is_set():
            if not self._is_routed and not self._mesh.may_change:
                raise ValidationError("abilities", "set when the worker starts, to be changed later", read)
            self._abilities = read
            self._mesh.change(read)
            self._claims.wake(None)
        self._abilities, self._is_routed = read, True

    async def run(self) -> None:
        """Runs until ``stop`` is called or the task is cancelled.

        Raises:
            AccessDenied: The server refused the worker's first connection.
            ValidationError: The lifespan yields no value of a type that a handler depends on.
            BrokerUnavailable: The server stayed away for as many attempts as ``reconnect`` allows.
        """
        here = current_worker.set(self.id)  # for log lines of the loops
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._lifespan is not None:
                    self._state = await stack.enter_async_context(self._lifespan())
                self._injector = Injector(self._state, stack)
                handlers = [handler for queue in self.queues for handler in queue.handlers.all]
                warn_of_small_batches(handlers, self.concurrency)
                await self._injector.start(need for one in handlers for need in one.needs.values())
                await self._run()
        finally:
            self._stopping = asyncio.Event()
            current_worker.reset(here)
        if self._failure is not None:
            raise self._failure

    def stop(self, *, now: bool = False, abandon: bool = False) -> None:
        """Asks the worker to end: it claims no new jobs, running jobs may end, and it returns the rest.

        Args:
            now: Do not wait for running jobs; also when the worker is already waiting for them.
            abandon: Do not return them either: another worker's stalled check recovers them, as after a kill.
        """
        self._stopping.set()
        self._eased.set()
        if now:
            self._shutdown_timeout = 0.0
            if self.started.is_set():
                self._given_up.update(self._executor.running if abandon else ())
                self._executor.hurry()

    async def pause(self, *, wait: bool = True) -> None:
        """Claims no more jobs until ``resume``. Other workers of the queues continue.

        The worker finishes its jobs, including those of a claim in flight. A worker that has
        not started yet will start paused.

        Args:
            wait: Whether to return only when the worker has no jobs left.
        """
        self.is_paused = True
        if not self.started.is_set():
            return
        self._claims.paused = True
        if wait:
            await self._claims.drained()  # a claim in flight may still return jobs
            self._pausing += 1
            try:
                while (self._executor.load or self._arrivals.held) and not self._stopping.is_set():
                    self._eased.clear()
                    await self._eased.wait()
            finally:
                self._pausing -= 1
            await self._claims.drained()

    def resume(self) -> None:
        """Claims jobs again after ``pause``."""
        self.is_paused = False
        if self.started.is_set():
            self._claims.paused = False
            self._claims.wake(None)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Runs the worker during the block, and stops it at its end."""
        task = asyncio.create_task(self.run(), name=f"oxcart-worker-{self.name}")
        waiting = asyncio.create_task(self.started.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield self
        finally:
            waiting.cancel()
            if not task.done():
                self.stop()
            await task

    async def _run(self) -> None:
        self._fleet = Fleet(self._given, self._reconnect)
        self.queues = tuple(await self._fleet.expand())
        self._sources = dict(enumerate(self.queues))
        self._spans = WorkerSpans.of(self._sources)
        self._brokers = brokers = [queue.open_broker(self._reconnect) for queue in self.queues]
        share_connections(brokers)
        self._stations = [Station(index, broker) for index, broker in enumerate(brokers)]
        self._executor = Executor(
            self.concurrency,
            self._verdict,
            self._job_done if self._spans is None else self._spans.ending(self._job_done),
            middleware=self._middleware,
            timeout=self._timeout,
            processes=HandlerProcesses(),
            injector=self._injector,
            is_traced=self._spans is not None,
        )
        self._leases = Leases(
            self._lock_ms,
            self._renew_every,
            [queue.station_facts() for queue in self.queues],
            lost=self._lease_lost,
            renewed=self._leases_renewed,
            failed=self._leases_failed,
            renew=lambda station, leases: self._mesh.stations[station].broker.renew(leases, self._lock_ms),
        )
        observer = self._observer
        self._claims = Claims(
            list(self._stations),
            self.concurrency,
            self._ask,
            load=self._load,
            arrived=lambda *claimed: self._arrivals.take(*claimed),
            leaving=lambda station, ids: self._leases.let_go(station.index, ids),
            left=lambda station, ids: self._leases.drop(station.index, ids),
            ended=self._ended,
            starved=self._starved,
            clock=self._clock,
            broken=self._break,
            observe=None
            if observer is None
            else lambda station, *facts: observer.called(station.broker.base, *facts),
            late=self._outage.silence_ms / 1000,
        )
        self._claims.paused = self.is_paused
        for broker in brokers:
            self._attach(broker)
        self._mesh = Mesh(
            self.id,
            self.name,
            self.concurrency,
            self._abilities if self._is_routed else None,
            stations=self._stations,
            claims=self._claims,
            leases=self._leases,
            clock=self._clock,
            check=self._stalled_check if self._recover else None,
            outage=self._outage if self._recover else None,
        )
        self._listeners = Listeners(
            self.name,
            mesh=self._mesh,
            claims=self._claims,
            clock=self._clock,
            reconnect=self._reconnect,
            stop=lambda *request: self._arrivals.cancel(*request),
            on_state=self._connection,
        )
        self._arrivals = Arrivals(
            self.id,
            self._state,
            self._sources,
            concurrency=self.concurrency,
            lock_ms=self._lock_ms,
            executor=self._executor,
            claims=self._claims,
            leases=self._leases,
            verdict=self._verdict,
            listeners=self._listeners,
            spans=self._spans,
            observer=observer,
            stopping=self._stopping,
            eased=self._eased.set,
            broken=self._loop_ended,
        )
        await self._mesh.begin(self._stopping)
        self._outbox = Outbox(
            {
                index: (broker, to)
                for index, (queue, broker) in enumerate(zip(self.queues, brokers, strict=True))
                if (to := queue.webhook_queue) is not None
            }
        )
        self._leases.start()
        self._leaderships = leaderships_of(brokers, self.name)
        self._loops: list[asyncio.Task[None]] = []
        loopers = [*self._outbox.sweeps(), *self._leaderships, *self._mesh.loops()]
        loopers += self._maintenance(brokers)
        loopers += declarations_of(self.queues, brokers, self._fleet) if self._schedules else []
        if self._fleet.whole:
            loopers += [LayoutWatch(self._fleet, self._take_in), Arrangement(self._fleet)]
        self._start(self._stations, loopers)
        if observer is not None:
            observer.workers(1)
        log.info("worker %s started on %s", self.name, ", ".join(queue.name for queue in self.queues))
        self.started.set()
        self._claims.wake(None)
        try:
            await self._stopping.wait()
        finally:
            await asyncio.shield(asyncio.ensure_future(self._shut_down()))

    def _stalled_check(self, broker: ServedBroker) -> StalledCheck:
        return observed_check(broker, self._stalled_interval, self._max_stalled, self._outage, self._observer)

    def _load(self) -> int:
        return self._executor.load + self._arrivals.load

    def _is_holding(self) -> bool:
        """Returns whether this worker has jobs or outcomes; a call in flight carries outcomes, or claims."""
        return self._load() + self._arrivals.held > 0 or any(
            one.calls or one.outcomes for one in self._mesh.stations
        )

    def _attach(self, broker: ServedBroker) -> None:
        broker.attach(
            holding=self._is_holding,
            on_script=None if self._observer is None else self._observer.scripted,
            on_reconnect=None if self._observer is None else self._observer.reconnecting,
        )

    def _take_in(self, further: list[Source]) -> None:
        """Consumes further partitions while the worker runs."""
        new = [queue.open_broker(self._reconnect) for queue in further]
        stations: list[Station] = []
        for queue, broker in zip(further, new, strict=True):
            station = Station(self._leases.add_station(queue.station_facts()), broker)
            self._sources[station.index] = queue
            stations.append(station)
            self._attach(broker)
        self._brokers += new
        self.queues += tuple(further)
        loopers = self._mesh.take_in(stations)
        for station in stations:
            if (to := self._sources[station.index].webhook_queue) is not None:
                loopers += self._outbox.take_in(station.index, station.broker, to)
        loopers += self._maintenance(new)
        self._start(stations, loopers)
        self._claims.take_in(stations)

    def _start(self, stations: Sequence[Station], loopers: Sequence[Looper]) -> None:
        named = self._listeners.take_in(stations)
        for looper in loopers:
            named.setdefault(f"oxcart-{looper.name}", []).append(looper.run())
        for name, works in named.items():
            self._loops += [self._run_loop(work, name) for work in works]

    def _run_loop(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._loop_ended)
        return task

    def _maintenance(self, brokers: Sequence[ServedBroker]) -> list[Looper]:
        return maintenance_of(
            brokers,
            self._stalled_check if self._recover else None,
            self._outage,
            self._reconnect,
            self.id,
            f"{self._recover} {self._outage} {self._stalled_interval} {self._max_stalled}",
            lambda loops: [self._run_loop(one.run(), f"oxcart-{one.name}") for one in loops],
        )

    # -- the path of a job

    def _job_done(self, job: RunningJob, outcome: Outcome) -> None:
        if self._arrivals.suspects.known:
            self._arrivals.suspects.left(job)
        if job in self._given_up:
            return  # it was returned because it would not end; the job is no longer ours
        self._claims.submit(job.station, job, outcome)

    def _ended(self, station: Station, job: RunningJob, outcome: Outcome, code: Code) -> None:
        if self._pausing:
            self._eased.set()
        if code == _DONE_WITHOUT_PARENT:
            code = _DONE
            log.error(
                "queue %s: job %s has ended, but its parent could not be notified and still waits",
                station.broker.queue,
                job.id,
                extra=job.log_fields(),
            )
        if code == _DONE:
            self.processed += 1
            if outcome.category:
                log_failure(job, outcome)
            if outcome.kind in _ENDED and job.claim.callback_url is not None:
                self._outbox.finished(station.root.index, job, outcome)
        elif code == ReplyCode.NOTHING_TO_DO and outcome.kind == OutcomeKind.AWAIT_CHILDREN:
            # Its children ended before it began to wait: it continues at once.
            self._leases.hold(station.index, [job], [None])
            self._claims.submit(station, job, self._verdict.given_back(job))
            return
        elif code in _OF_CHILDREN and outcome.kind in (OutcomeKind.COMPLETED, OutcomeKind.AWAIT_CHILDREN):
            # The lease is still ours: the refusal came before it was touched.
            self._leases.hold(station.index, [job], [None])
            self._claims.submit(station, job, self._verdict.children_not_ready(job, int(code)))
            return
        else:
            log_refusal(job, outcome, code)
        if self._observer is not None:
            self._observer.job_ended(job, outcome, code, job.took)

    def _starved(self) -> None:
        self._mesh.starved()
        self._listeners.starved()

    # -- reports of the parts

    def _lease_lost(self, station: int, job_id: str) -> None:
        job = self._leases.held(station).get(job_id)
        if job is not None:
            log.warning(
                "queue %s: the lease of job %s is lost; its result will be refused",
                job.queue,
                job_id,
                extra=job.log_fields(),
            )
            job.cancel(LEASE_LOST)
            self._arrivals.lose(job)
            self._listeners.look_soon(self._mesh.stations[station].root.index, job)
        if self._observer is not None:
            self._observer.renewal_failed(self._base_of(station), 1)

    def _leases_renewed(self, station: int, leases: int, seconds: float) -> None:
        if self._observer is not None:
            self._observer.renewed(self._base_of(station), leases, seconds)

    def _leases_failed(self, station: int, ids: list[str], error: str) -> None:
        log_failed_renewal(self._leases.held(station), ids, error)
        if self._observer is not None:
            self._observer.renewal_failed(self._base_of(station), len(ids))

    def _base_of(self, station: int) -> str:
        return self._mesh.stations[station].broker.base

    def _connection(self, up: bool) -> None:
        self.is_connected = up
        if self._observer is not None:
            self._observer.connection(up)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if self._failure is None:
            log.error("worker %s ends: %s", self.name, error)
            self._failure = error
        self.stop()

    # -- the end

    async def _shut_down(self) -> None:
        """Claims no new jobs, lets running jobs end in their time, and returns the rest."""
        self._stopping.set()  # also if the task was cancelled: jobs of a late claim are returned
        self._claims.stop_claiming()
        self._arrivals.give_back()
        for job in self._executor.take_back():
            self._claims.submit(job.station, job, self._verdict.given_back(job))
        give_up = time.monotonic() + (0 if self._failure else self._shutdown_timeout)
        await self._executor.idle(max(0.0, give_up - time.monotonic()))
        left = list(self._executor.running)
        for job in left:
            job.deadline = None
            self._executor.stop(job, SHUTDOWN)
        if left:
            fate = "left to a stalled check" if self._given_up else "returned to the queue"
            log.warning("worker %s: %d jobs did not end in time and are %s", self.name, len(left), fate)
            await asyncio.sleep(0.05)
        for job in set(self._executor.running) - self._given_up:  # threads, and handlers that do not stop
            self._given_up.add(job)
            self._claims.submit(job.station, job, ended_span(job, self._verdict.given_back(job)))
        for task in self._loops:
            task.cancel()
        await asyncio.wait(self._loops, timeout=UNREACHED)
        is_reached = False
        if not isinstance(self._failure, BrokerUnavailable | AccessDenied):
            # A second stop takes away the time that the first one allowed.
            until = lambda: give_up if self._shutdown_timeout else 0.0  # noqa: E731
            is_reached = await commit_the_rest(self._claims, self._mesh.stations, until)
        await self._claims.close()
        if is_reached:
            await self._outbox.close()
            await asyncio.gather(*(one.resign() for one in self._leaderships))
            await self._mesh.leave()
        await self._executor.close()
        await self._leases.close()
        await close_connections(self._brokers)
        await self._fleet.close()
        if self._observer is not None:
            self._observer.workers(-1)
        log.info("worker %s ended after %d jobs", self.name, self.processed)
