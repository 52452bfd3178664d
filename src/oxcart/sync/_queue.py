"""The queue itself, for code without an event loop: every call is one of ``oxcart.Queue``, waited for.

May touch: the server, through the queue it stands for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from oxcart import queue as _queue
from oxcart.broker.capabilities import Capabilities
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.factory import ProtocolName
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import ServedBroker
from oxcart.broker.sealing import Sealer
from oxcart.deliveries import WebhookQueue
from oxcart.engine.handler import Registry, RunKind
from oxcart.engine.running import RunningJob
from oxcart.engine.webhooks import Webhooks
from oxcart.model.duration import Duration
from oxcart.model.flow import FlowView
from oxcart.model.graph import Kind
from oxcart.model.job import Job
from oxcart.model.options import Durability, JobOptions, OptionKwargs
from oxcart.queue import ADD_TIMEOUT, Row
from oxcart.sync._dead_letters import DeadLetters
from oxcart.sync._events import QueueEvents
from oxcart.sync._graph import Dependency, unwrapped
from oxcart.sync._handle import JobHandle
from oxcart.sync._portal import close_soon, is_running, portal
from oxcart.sync._routing import Routing
from oxcart.sync._steering import Limits, Schedulers
from oxcart.sync._task import Task, TaskMaker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Queue(Routing):
    """A named queue, for code without an event loop.

    Args:
        name: The queue's name; the same name in a Node service is the same queue.
        url: The server; without one ``OXCART_URL``, and without that the embedded Valkey.
        prefix: What stands before the name in keys; must equal that of peers. ``bull`` unless said.
        protocol: Whose keys the queue lives on: ``bullmq``, or ``bridge``, where a queue is a job type.
        namespace: With ``protocol="bridge"``, what stands before all keys; ``bridge`` unless said.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
        add_timeout: Seconds after which an add that cannot be acknowledged fails; it is safe to repeat.
        durability: ``"replicated"`` where an add returns only when a replica has the job.
        server: A server object to share between queues, instead of ``url``.
        priorities: ``"formal"`` for a queue whose priorities are names: ``critical``, ``high``, ``normal``,
            ``low`` and ``bulk``.
        key_ring: Keys that seal payloads and checkpoints when they are stored. Plaintext is refused then.
        webhooks: How those are told who gave a job a ``callback_url``; without it nobody is.
        **defaults: Options for every job that does not say otherwise.

    Attributes:
        asynchronous: The ``oxcart.Queue`` behind it.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        prefix: str | None = None,
        protocol: ProtocolName = "bullmq",
        namespace: str | None = None,
        folder: str | Path | None = None,
        add_timeout: float = ADD_TIMEOUT,
        durability: Durability | None = None,
        server: Server | None = None,
        priorities: Literal["formal"] | None = None,
        default_lifetime: Duration | None = None,
        key_ring: KeyRing | None = None,
        webhooks: Webhooks | None = None,
        **defaults: Unpack[OptionKwargs],
    ) -> None:
        self.asynchronous: _queue.Queue = _queue.Queue(
            name,
            url=url,
            prefix=prefix,
            protocol=protocol,
            namespace=namespace,
            folder=folder,
            add_timeout=add_timeout,
            durability=durability,
            server=server,
            priorities=priorities,
            default_lifetime=default_lifetime,
            key_ring=key_ring,
            webhooks=webhooks,
            **defaults,
        )
        # A queue that nobody holds any more must not keep its connection until the process ends.
        weakref.finalize(self, close_soon, self.asynchronous).atexit = False

    def __repr__(self) -> str:
        return f"sync.Queue({self.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.asynchronous.name

    @property
    def capabilities(self) -> Capabilities:
        """What the queue's protocol can express."""
        return self.asynchronous.capabilities

    @property
    def prefix(self) -> str:
        """What stands before the name in keys."""
        return self.asynchronous.prefix

    @property
    def defaults(self) -> JobOptions:
        """Options for every job that does not say otherwise."""
        return self.asynchronous.defaults

    @property
    def registry(self) -> Registry:
        """The queue's handlers."""
        return self.asynchronous.registry

    @property
    def priorities(self) -> str | None:
        """``"formal"`` where priorities are names."""
        return self.asynchronous.priorities

    @property
    def deliveries(self) -> WebhookQueue | None:
        """The queue in which webhooks wait to be delivered; None where the queue has none."""
        return self.asynchronous.deliveries

    def expect_callbacks(self, ids: Iterable[str]) -> None:
        """Notes jobs that somebody is to be told of when they have ended."""
        self.run(self.asynchronous.expect_callbacks(ids))

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens the values of the queue's jobs; None where it has no keys."""
        return self.asynchronous.sealer

    def read_options(self, given: OptionKwargs, defaults: JobOptions | None = None) -> JobOptions:
        """Options as a user writes them for a job of this queue, over some defaults or the queue's own."""
        return self.asynchronous.read_options(given, defaults)

    def is_replicated(self, durability: Durability | None = None) -> bool:
        """Says whether adds wait for a replica."""
        return self.asynchronous.is_replicated(durability)

    # -- adding

    def add(
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
            name: What kind of job it is; a handler of this name runs it.
            data: The payload: anything JSON can hold, and bytes.
            after: Jobs that must have completed before it runs; see ``oxcart.Queue.add``.
            after_any: Jobs of which one must have ended before it runs, however it did.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: As in ``JobOptions``: attempts, backoff, delay, priority and others.

        Raises:
            ValidationError: Something is wrong with the job; nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time; repeat with the same ``job_id`` to be sure.
        """
        adding = self.asynchronous.add(
            name,
            data,
            after=unwrapped(after),
            after_any=unwrapped(after_any),
            durability=durability,
            **options,
        )
        return JobHandle(self, self.run(adding))

    def add_many(
        self,
        jobs: Iterable[Row],
        *,
        durability: Durability | None = None,
        **options: Unpack[OptionKwargs],
    ) -> list[JobHandle[Any]]:
        """Adds many jobs, in a round trip per chunk; all are checked before the first is written.

        Args:
            jobs: ``(name, data)`` or ``(name, data, options)`` per job.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: Options for all of them, beneath their own.
        """
        rows = list(jobs)  # here, not in the thread: a generator may belong to the caller's database
        adding = self.asynchronous.add_many(rows, durability=durability, **options)
        return [JobHandle(self, one) for one in self.run(adding)]

    # -- handlers

    @overload
    def job(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[Concatenate[RunningJob, P], R], /) -> Task[P, R, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def job(
        self, *, name: str | None = None, run: RunKind | None = None, **options: Unpack[OptionKwargs]
    ) -> TaskMaker: ...

    def job(  # type: ignore[misc]  # mypy does not match unpacked options with **options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        run: RunKind | None = None,
        **options: Any,
    ) -> Any:
        """Makes a function the handler of a kind of job. Its signature is the payload.

        Args:
            function: The function, when used as ``@queue.job`` without arguments.
            name: The job name; the function's own unless given.
            run: ``thread`` (what a plain function gets) or ``process``; async functions run in the loop.
            **options: Options of jobs enqueued through it.
        """
        register = self.asynchronous.job(name=name, run=run, **options)

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            return Task(self, register(function))

        return decorate if function is None else decorate(function)

    def process(self, function: Callable[..., Any], *, run: RunKind | None = None) -> Callable[..., Any]:
        """Makes a function the handler of every job name that has none of its own."""
        return self.asynchronous.process(function, run=run)

    # -- looking

    def get(self, job_id: str) -> Job | None:
        """A job as it is now, or None."""
        return self.run(self.asynchronous.get(job_id))

    def get_many(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Jobs as they are now."""
        return self.run(self.asynchronous.get_many(job_ids))

    def handle(self, job_id: str, name: str = "") -> JobHandle[Any]:
        """A handle on a job whose id is known; nothing is read."""
        return JobHandle(self, self.asynchronous.handle(job_id, name))

    def state(self, job_id: str) -> str:
        """A job's state in the words of the wire, ``unknown`` for none."""
        return self.run(self.asynchronous.state(job_id))

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return self.run(self.asynchronous.counts())

    def jobs(self, state: str, *, first: int = 0, limit: int = 100, oldest: bool = False) -> list[Job]:
        """A page of jobs in a state, newest first unless ``oldest``.

        Raises:
            ValidationError: There is no such state.
        """
        return self.run(self.asynchronous.jobs(state, first=first, limit=limit, oldest=oldest))

    def get_flow(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        """A job with the jobs below it as they are now, or None.

        Args:
            job_id: The job at the top.
            depth: How many generations, the first included.
            limit: How many children of one job at most.
        """
        return self.run(self.asynchronous.get_flow(job_id, depth=depth, limit=limit))

    def dependents(self, job_id: str) -> dict[str, Kind]:
        """The jobs that wait for a job, by their full keys, and how; none once it has ended."""
        return self.run(self.asynchronous.dependents(job_id))

    def deduplicated_by(self, dedup_id: str) -> str | None:
        """The id of the job that keeps others of this deduplication id out, or None."""
        return self.run(self.asynchronous.deduplicated_by(dedup_id))

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.run(self.asynchronous.is_paused())

    # -- steering

    def pause(self) -> None:
        """Lets no worker take a job until ``resume``. Running jobs go on."""
        self.run(self.asynchronous.pause())

    def resume(self) -> None:
        """Lets workers take jobs again."""
        self.run(self.asynchronous.resume())

    def remove(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job that no worker holds.

        Raises:
            JobNotFound: There is none.
            JobLocked: A worker holds it.
        """
        self.run(self.asynchronous.remove(job_id, children=children))

    def retry(self, job_id: str, *, reset: bool = False) -> None:
        """Lets a finished job run again.

        Args:
            job_id: The job.
            reset: Whether to count its attempts from the beginning.

        Raises:
            JobNotFound: There is none.
            WrongState: It is neither failed nor completed.
        """
        self.run(self.asynchronous.retry(job_id, reset=reset))

    def release_deduplication(self, dedup_id: str) -> bool:
        """Lets the next add of this deduplication id be a job again; says whether others were kept out."""
        return self.run(self.asynchronous.release_deduplication(dedup_id))

    def events(self, since: str = "$", names: Iterable[str] | None = None) -> QueueEvents:
        """What happens in the queue, as an iterator.

        Args:
            since: The id of the last event already seen; ``$`` for only new ones, ``0`` from the oldest.
            names: Only events of these names.
        """
        return QueueEvents(self, self.asynchronous.events(since, names=names))

    @property
    def schedulers(self) -> Schedulers:
        """Jobs that are made again and again: make, list and remove their schedules."""
        return Schedulers(self)

    @property
    def limits(self) -> Limits:
        """How many jobs run at once and in a time, over all workers."""
        return Limits(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """Jobs that used up their attempts or their life: list, replay and purge them."""
        return DeadLetters(self)

    # -- life

    def close(self) -> None:
        """Closes the connection. The queue can be used again afterwards."""
        if is_running():
            self.run(self.asynchronous.close())

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for something async that was made for this queue, e.g. of ``asynchronous``.

        Raises:
            RuntimeError: Called by code that runs in the background loop itself.
        """
        way = portal()
        way.queues.add(self.asynchronous)
        return way.run(doing)

    # -- what a worker needs to know

    @property
    def server(self) -> Server:
        """Where the queue lives."""
        return self.asynchronous.server

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """A broker with a connection of its own."""
        return self.asynchronous.open_broker(reconnect)

    def station_facts(self) -> dict[str, Any]:
        """What another process needs to find this queue."""
        return self.asynchronous.station_facts()
