"""A queue: adds jobs, names their handlers, and is paused and resumed.

Existing jobs, and every other noun, are a part of it: ``queue.jobs``, ``.dead_letters``,
``.deduplication``, ``.events``, ``.flows``, ``.groups``, ``.lanes``, ``.limits``, ``.namespace``,
``.partitions``, ``.schedules`` and ``.workers`` (docs/decisions/72-the-face.md).

``Queue("emails")`` costs nothing: it connects when first used, once per event loop, and again in a forked
child. Adds of one turn of the loop share a call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from oxcart._core import Core
from oxcart.broker.capabilities import Capabilities
from oxcart.broker.clock import time_left
from oxcart.broker.connection import Server
from oxcart.broker.factory import ProtocolName
from oxcart.broker.keyring import KeyRing
from oxcart.broker.location import is_web_url
from oxcart.broker.port import BrokerSource, Encoded
from oxcart.dead_letters import DeadLetters
from oxcart.deduplication import Deduplication
from oxcart.engine.batch_handler import BatchHandler
from oxcart.engine.handler import Handler, RunKind
from oxcart.engine.runners import BUILT_IN, find_runner
from oxcart.engine.running import RunningJob, carry
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.engine.tracing import Tracing, traced_options, traced_rows
from oxcart.engine.webhooks.sender import Webhooks
from oxcart.events import Events
from oxcart.flow import Flows
from oxcart.graph import Dependency, Graph, ids_of
from oxcart.groups import Groups
from oxcart.handle import JobHandle
from oxcart.jobs import LISTABLE, Jobs
from oxcart.lanes import Lanes
from oxcart.limits import Limits
from oxcart.model.duration import Duration
from oxcart.model.errors import Unacknowledged, ValidationError
from oxcart.model.names import check_job_name
from oxcart.model.options import Durability, JobOptions, OptionKwargs
from oxcart.model.schedule import Schedule
from oxcart.model.target import Target, base_of
from oxcart.partitions import Partitions
from oxcart.schedules import Schedules
from oxcart.task import BatchMaker, SparkTaskMaker, Task, TaskMaker
from oxcart.workers import Namespace, Workers

P = ParamSpec("P")
R = TypeVar("R")

#: How long an add may take before it fails, in seconds.
ADD_TIMEOUT = 30.0

Row = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]


class Queue:
    """A named queue.

    Args:
        name: The queue's name; the same name in a Node service is the same queue.
        url: The server; by default ``OXCART_URL``, and without that the embedded Valkey. With ``https://``
            or ``http://`` it is an HTTP API of Oxcart, for services without access to the server.
        prefix: The prefix of the queue's keys, ``bull`` by default; all peers must use the same.
        protocol: ``bullmq``, or ``bridge``, whose queues are job types.
        namespace: With ``protocol="bridge"``, the prefix of all keys, ``bridge`` by default.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
        add_timeout: Seconds after which an unacknowledged add fails; an add with a ``job_id`` is safe to
            repeat.
        durability: ``"replicated"``: an add returns only when a replica has the job (`WAIT`). It costs a
            round trip between master and replica, and fails with `NotReplicated` if none confirms it in time.
        default_lifetime: The lifetime of jobs that do not set their own.
        server: A server object to share between queues, instead of ``url``.
        broker: Opens the queue's broker, instead of ``url``: a ``MemoryServer`` keeps the jobs in memory.
        priorities: ``"formal"``: priorities are the names ``critical``, ``high``, ``normal`` (the default),
            ``low`` and ``bulk``. Otherwise they are the wire's numbers.
        key_ring: Keys that seal payloads and checkpoints when they are stored. Plaintext is refused then.
        webhooks: How completion webhooks are signed and sent. Without it, none is sent.
        keep_events: About how many events the queue keeps, 10 000 unless a peer set another number. Each job
            writes three or more. Readers that are further behind miss events.
        tracing: Makes spans of adds and attempts: ``oxcart.observe.tracing.Tracing()``.
        partitions: How many partitions a new queue gets, over the slots of a cluster or over the servers of a
            list as ``url``. A queue that exists keeps the number of its layout (docs/partitions.md).
        **defaults: Options of jobs that do not set their own.
    """

    #: The queue of a lane, whose connection the lane shares.
    _root: Queue | None = None

    def __new__(cls, name: str = "", *_: Any, **given: Any) -> Queue:
        """Makes a queue behind an HTTP API if the URL is that of one."""
        if cls is Queue and is_web_url(given):
            # By its name, because the API stands above the queue.
            return cast(Queue, object.__new__(import_module("oxcart.http.remote").RemoteQueue))
        return object.__new__(cls)

    def __init__(
        self,
        name: str,
        *,
        url: str | Sequence[str] | None = None,
        prefix: str | None = None,
        protocol: ProtocolName = "bullmq",
        namespace: str | None = None,
        folder: str | Path | None = None,
        add_timeout: float = ADD_TIMEOUT,
        durability: Durability | None = None,
        default_lifetime: Duration | None = None,
        server: Server | None = None,
        broker: BrokerSource | None = None,
        priorities: Literal["formal"] | None = None,
        key_ring: KeyRing | None = None,
        webhooks: Webhooks | None = None,
        tracing: Tracing | None = None,
        keep_events: int | None = None,
        partitions: int | None = None,
        **defaults: Unpack[OptionKwargs],
    ) -> None:
        self._core = Core(
            name,
            url=url,
            prefix=prefix,
            protocol=protocol,
            namespace=namespace,
            folder=folder,
            add_timeout=add_timeout,
            durability=durability,
            default_lifetime=default_lifetime,
            server=server,
            broker=broker,
            priorities=priorities,
            key_ring=key_ring,
            webhooks=webhooks,
            tracing=tracing,
            keep_events=keep_events,
            defaults=defaults,
            partitions=partitions,
        )

    def _lane(self, core: Core) -> Queue:
        lane = self.__class__.__new__(self.__class__)
        lane._core, lane._root = core, self
        return lane

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._core.name

    @property
    def capabilities(self) -> Capabilities:
        """What the queue's protocol can express."""
        return self._core.capabilities

    # -- adding

    async def add(
        self,
        name: str,
        data: Any = None,
        *,
        after: Iterable[Dependency] = (),
        after_any: Iterable[Dependency] = (),
        durability: Durability | None = None,
        **options: Unpack[OptionKwargs],
    ) -> JobHandle[Any]:
        """Adds a job.

        Args:
            name: The kind of job; the handler of this name runs it. If the handler is registered in this
                process, its options and its payload check apply, as in ``enqueue``.
            data: The payload: any JSON value, and bytes.
            after: Jobs (handles or ids) that must have completed before it runs. If one does not, the job
                ends in the same state. Ids are those of this queue, or of the namespace with Bridge.
            after_any: Jobs of which one must have ended before it runs, in any state. Not with Bridge.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: As in ``JobOptions``: attempts, backoff, delay, priority, lifo, remove_on_complete,
                remove_on_fail, job_id, timeout and others.

        Raises:
            ValidationError: An argument is wrong; nothing was written.
            NotSupported: The protocol lacks an option; the error names the alternative. Nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time (``add_timeout``, 30 s). Repeating it with the error's
                ``job_ids``, or with the same idempotency key, is safe.
            NotReplicated: The master has the job, but no replica confirmed it in time; repeat it likewise.
            UnknownDependency: A job to wait for does not exist; nothing was written.
        """
        if after or after_any:
            if self.capabilities.can("graphs"):
                graph = Graph(self)
                graph.job(name, data, after=after, after_any=after_any, **options)
                return (await graph.add(durability=durability))[0]
            if after_any:
                self.capabilities.require("after_any")
            self.capabilities.require("after_ids")
        read = self._core.prepare(name, data, options)
        if after:
            read = read.replace(after=ids_of(self, after))
        return await self._add_one(name, data, carry(read), durability)

    async def _add_one(
        self,
        name: str,
        data: Any,
        options: JobOptions,
        durability: Durability | None = None,
        *,
        traced: bool = False,
    ) -> JobHandle[Any]:
        core, trace = self._core, None
        if core.tracing is not None and not traced:
            span = core.tracing.add(core.capabilities.protocol, base_of(self.name), (name,))
            if span.is_silent:
                trace = span.context
            else:
                options = traced_options(options, span.context)
                with span:
                    handle = await self._add_one(name, data, options, durability, traced=True)
                    span.added([handle.id], int(handle.created))
                    return handle
        bound = core.bind()
        broker = bound.broker
        if options.callback_url is not None or options.target is not None or broker.partitions is not None:
            rows = [(name, data, options.traced(trace))]
            return (await self._add(rows, durability, traced=True))[0]
        # Nearly every job: without the loops over many, which cost a tenth of an add.
        replicated = core.is_replicated(durability)
        job = broker.encode(name, data, options, trace)
        try:
            one = await bound.add(job, replicated=replicated)
        except Unacknowledged as error:
            raise error.of_jobs((job[0],)) from error
        return JobHandle(self, one.id, name, one.created, one.duplicate)

    async def add_many(
        self, jobs: Iterable[Row], *, durability: Durability | None = None, **options: Unpack[OptionKwargs]
    ) -> list[JobHandle[Any]]:
        """Adds many jobs, in a round trip per chunk.

        All are checked and encoded before the first is written.

        Args:
            jobs: ``(name, data)`` or ``(name, data, options)`` per job.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: Options of all of them; the options of a row override them.
        """
        return await self._add(self._read_rows(jobs, options), durability)

    def _read_rows(self, jobs: Iterable[Row], options: OptionKwargs) -> Iterator[tuple[str, Any, JobOptions]]:
        core = self._core
        known: dict[str, tuple[Callable[[Any], None] | None, JobOptions]] = {}
        for row in jobs:
            name = row[0]
            try:
                check, read = known[name]
            except (KeyError, TypeError):  # a name that cannot be a key is refused where the job is encoded
                handler = core.handlers.named(name)
                check = None if handler is None else handler.check
                read = carry(core.read_options(options, None if handler is None else handler.options))
                if isinstance(name, str):
                    known[name] = check, read
            if check is not None:
                check(row[1])
            if len(row) > 2:
                read = core.read_options(cast(OptionKwargs, dict(row[2])), read)
            yield name, row[1], read

    async def _add(
        self,
        jobs: Iterable[tuple[str, Any, JobOptions]],
        durability: Durability | None = None,
        *,
        traced: bool = False,
    ) -> list[JobHandle[Any]]:
        core = self._core
        if core.tracing is not None and not traced:
            known = [name for name, _, _ in jobs] if isinstance(jobs, list) else []
            span = core.tracing.add(core.capabilities.protocol, base_of(self.name), known)
            jobs = traced_rows(jobs, span.context)
            if not span.is_silent:
                with span:
                    made = await self._add(jobs, durability, traced=True)
                    span.added([one.id for one in made], sum(one.created for one in made))
                    return made
        broker, replicated = core.broker, core.is_replicated(durability)
        if broker.partitions is not None:
            await broker.partitions.ready()
        encode = broker.encode
        encoded: list[Encoded] = []
        names: list[str] = []
        watched: list[str] = []
        targets: dict[int, Target] = {}
        for name, data, options in jobs:  # one pass that keeps no row: adds by the million go through here
            job = encode(name, data, options)
            if options.callback_url is not None:
                watched.append(job[0])
            if options.target is not None:
                targets[len(encoded)] = options.target
            encoded.append(job)
            names.append(name)
        if watched:
            await core.expect_webhooks(watched)
        if not targets or broker.lanes is None:
            all_added = await core.add(encoded, timeout=core.add_timeout, replicated=replicated)
            return [
                JobHandle(self, new.id, name, new.created, new.duplicate)
                for new, name in zip(all_added, names, strict=True)
            ]
        groups = _by_lane(core, [targets.get(place) for place in range(len(encoded))])
        handles: dict[int, JobHandle[Any]] = {}
        left = time_left(core.add_timeout)
        try:
            for where, places in groups.items():
                batch = [encoded[place] for place in places]
                added = await where.add(batch, timeout=left(), replicated=replicated)
                lane = self if where is core else self._lane(where)
                for place, new in zip(places, added, strict=True):
                    # A job that existed before may be in another lane.
                    queue = lane if new.created else self
                    handles[place] = JobHandle(queue, new.id, names[place], new.created, new.duplicate)
        except Unacknowledged as error:
            if len(groups) == 1:
                raise
            raise error.of_jobs(job_id for job_id, _ in encoded) from error
        return [handles[place] for place in range(len(encoded))]

    # -- handlers

    @overload
    def job(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[Concatenate[SyncRunningJob, P], R], /) -> Task[P, R, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def job(
        self,
        *,
        name: str | None = None,
        run: RunKind | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        **options: Unpack[OptionKwargs],
    ) -> TaskMaker: ...

    @overload
    def job(
        self,
        *,
        batch: int,
        within: Duration = 1,
        name: str | None = None,
        run: RunKind | None = None,
        **options: Unpack[OptionKwargs],
    ) -> BatchMaker: ...

    @overload
    def job(
        self,
        *,
        run: Literal["spark"],
        master: str | None = None,
        conf: Mapping[str, Any] | None = None,
        name: str | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        **options: Unpack[OptionKwargs],
    ) -> SparkTaskMaker: ...

    def job(  # type: ignore[misc]  # mypy does not match unpacked options with **options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        run: RunKind | str | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        batch: int | None = None,
        within: Duration = 1,
        **options: Any,
    ) -> Any:
        """Makes a function the handler of a kind of job. Its signature is the payload.

        Args:
            function: The function, when used as ``@queue.job`` without arguments.
            name: The job name; the function's own by default.
            run: ``thread`` (the default of a plain function) or ``process``; async functions run in the loop.
                ``spark`` runs a Spark application, and takes ``master`` and ``conf`` (docs/spark-jobs.md).
            cron: A cron expression by which it runs without a payload. A worker stores the schedule, under
                the job's name, when it starts, and removes it when the declaration is gone.
            every: Or an interval. Not with Bridge.
            tz: The time zone of the expression.
            batch: The most jobs of one call, 2 to 10 000. The function takes a list of payloads and returns
                one result per item, in order: a value, an exception, ``Retry``, ``Snooze`` or ``Cancel``.
            within: How long the first job of a batch waits for others.
            **options: Options of jobs enqueued through it, and the settings of a runner.

        Raises:
            ValidationError: An option is wrong, a parameter cannot be filled, or the name is taken.
            NotSupported: The protocol lacks an option or the schedule.
        """
        schedule = None
        if cron is not None or every is not None:
            schedule = Schedule.build(cron=cron, every=every, tz=tz)
            self.capabilities.require("schedules" if every is None else "intervals")
        elif tz != "UTC":
            raise ValidationError("tz", "left out without cron", tz)

        settings = {}
        if run is not None and run not in BUILT_IN:
            settings = {one: options.pop(one) for one in find_runner(run).settings & options.keys()}

        def decorate(function: Callable[..., Any] | str | Path) -> Task[..., Any, Any]:
            own = Path(function).stem if isinstance(function, str | Path) else function.__name__
            called = check_job_name(name or own)
            read = self._core.read_options(cast(OptionKwargs, options))
            if batch is None:
                handler = Handler(
                    called, function, run=run, options=read, schedule=schedule, settings=settings
                )
            elif schedule is not None:
                raise ValidationError("batch", "left out with a schedule", batch)
            else:
                handler = BatchHandler(called, function, batch=batch, within=within, run=run, options=read)
            self._core.handlers.add(handler)
            return Task(self, handler, handler.function)

        return decorate if function is None else decorate(function)

    def fallback(self, function: Callable[..., Any], *, run: RunKind | None = None) -> Callable[..., Any]:
        """Makes a function the handler of every job name without a handler of its own."""
        self._core.handlers.add(Handler("*", function, run=run, options=self._core.defaults), fallback=True)
        return function

    # -- the queue as a whole

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state, those of lanes included."""
        counted = await self._core.broker.counts_over_lanes()
        return {state: sum(counted[key] for key in keys) for state, keys in LISTABLE.items()}

    async def pause(self) -> None:
        """Blocks claims until ``resume``. Running jobs continue."""
        await self._core.broker.pause()

    async def resume(self) -> None:
        """Allows claims again."""
        await self._core.broker.resume()

    async def is_paused(self) -> bool:
        """Returns whether the queue is paused."""
        return await self._core.broker.is_paused()

    async def close(self) -> None:
        """Closes the connection. The queue can be used again afterwards."""
        await self._core.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- parts

    @property
    def jobs(self) -> Jobs:
        """Jobs that exist: get, list, retry, cancel and remove one or all of them."""
        return Jobs(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """Jobs that used up their attempts or their lifetime: list, replay and purge them."""
        return DeadLetters(self)

    @property
    def deduplication(self) -> Deduplication:
        """Deduplication windows: find and release their owners."""
        return Deduplication(self)

    @property
    def events(self) -> Events:
        """The event stream: read it, publish to it, trim it."""
        return Events(self)

    @property
    def flows(self) -> Flows:
        """Jobs that wait for other jobs: view a tree, list the dependents of a job."""
        return Flows(self)

    @property
    def groups(self) -> Groups:
        """Groups of jobs that take turns, and their limits."""
        return Groups(self)

    @property
    def lanes(self) -> Lanes:
        """The queues of jobs with a target: get the queue of a lane, count their jobs."""
        return Lanes(self)

    @property
    def limits(self) -> Limits:
        """How many jobs run at once and per time, over all workers."""
        return Limits(self)

    @property
    def namespace(self) -> Namespace:
        """The Bridge namespace of the queue: its statistics."""
        return Namespace(self)

    @property
    def partitions(self) -> Partitions:
        """The partitions of a partitioned queue: their layout, their jobs, another number of them."""
        return Partitions(self)

    @property
    def schedules(self) -> Schedules:
        """Rules that make jobs at intervals or by cron expressions: set, list and remove them."""
        return Schedules(self)

    @property
    def workers(self) -> Workers:
        """The workers of the queue, and the jobs that none of them can take."""
        return Workers(self)


def _by_lane(core: Core, targets: Sequence[Target | None]) -> dict[Core, Sequence[int]]:
    groups: dict[Core, list[int]] = {}
    for place, target in enumerate(targets):
        groups.setdefault(core if target is None else core.lane(target), []).append(place)
    return {**groups}
