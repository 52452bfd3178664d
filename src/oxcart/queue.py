"""A queue in the user's hand: add jobs, look at them, steer them, and say what runs for them.

``Queue("emails")`` costs nothing: it connects when first used, in whatever event loop uses it, and again
in another loop or a forked child. Adds of one turn of the loop share a call.

May touch: the server, through a broker per event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from oxcart._bound import Bound
from oxcart.broker.addresses import check_submitted
from oxcart.broker.bullmq import flows, graphs
from oxcart.broker.bullmq.codec import Encoded
from oxcart.broker.capabilities import Capabilities
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.factory import (
    CAPABILITIES,
    DEFAULTS,
    ProtocolName,
    check_place,
    is_native,
    make_broker,
    native,
)
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import Added, ServedBroker
from oxcart.broker.sealing import Sealer
from oxcart.dead_letters import DeadLetters
from oxcart.deliveries import WebhookQueue
from oxcart.engine.handler import Handler, Registry, RunKind
from oxcart.engine.running import RunningJob, carry
from oxcart.engine.webhooks import Webhooks
from oxcart.events import QueueEvents, Results
from oxcart.graph import Dependency, Graph
from oxcart.handle import JobHandle
from oxcart.limits import Limits
from oxcart.model.duration import Duration
from oxcart.model.errors import Unacknowledged, ValidationError
from oxcart.model.flow import FlowView
from oxcart.model.graph import Kind
from oxcart.model.job import Job
from oxcart.model.names import check_job_name
from oxcart.model.options import Durability, JobOptions, OptionKwargs
from oxcart.model.priority import formal_priority
from oxcart.model.target import Target, base_of
from oxcart.routing import Routing
from oxcart.schedulers import Schedulers
from oxcart.task import Task, TaskMaker

P = ParamSpec("P")
R = TypeVar("R")

#: How long an add may take before it fails, in seconds.
ADD_TIMEOUT = 30.0

#: The states by which jobs can be listed, and where the wire keeps them.
LISTABLE: Mapping[str, tuple[str, ...]] = {
    "waiting": ("wait", "paused"),
    "prioritized": ("prioritized",),
    "active": ("active",),
    "delayed": ("delayed",),
    "waiting-children": ("waiting-children",),
    "completed": ("completed",),
    "failed": ("failed",),
}

Row = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]


class Queue(Routing):
    """A named queue.

    Args:
        name: The queue's name; the same name in a Node service is the same queue.
        url: The server; without one ``OXCART_URL``, and without that the embedded Valkey.
        prefix: What stands before the name in keys; must equal that of peers. ``bull`` unless said.
        protocol: Whose keys the queue lives on: ``bullmq``, or ``bridge``, where a queue is a job type.
        namespace: With ``protocol="bridge"``, what stands before all keys; ``bridge`` unless said.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
        default_lifetime: The lifetime of every job that does not say its own.
        add_timeout: Seconds after which an add that cannot be acknowledged fails; one with a ``job_id`` is
            safe to repeat.
        durability: ``"replicated"`` where an add returns only when a replica has the job (`WAIT`); it costs a
            round trip between master and replica, and fails with `NotReplicated` where none confirms in time.
        server: A server object to share between queues, instead of ``url``.
        priorities: ``"formal"`` for a queue whose priorities are names: ``critical``, ``high``, ``normal``
            (where a job does not say), ``low`` and ``bulk``; otherwise they are the wire's numbers.
        key_ring: Keys that seal payloads and checkpoints when they are stored. Plaintext is refused then.
        webhooks: How those are told who gave a job a ``callback_url``; without it nobody is.
        **defaults: Options for every job that does not say otherwise.
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
        default_lifetime: Duration | None = None,
        server: Server | None = None,
        priorities: Literal["formal"] | None = None,
        key_ring: KeyRing | None = None,
        webhooks: Webhooks | None = None,
        **defaults: Unpack[OptionKwargs],
    ) -> None:
        # A bad name is told here, not at the first add.
        self.prefix = check_place(protocol, name, prefix, namespace)
        self.protocol = protocol
        if priorities not in (None, "formal"):
            raise ValidationError("priorities", "'formal' or None", priorities)
        self.name = name
        self.priorities = priorities
        if default_lifetime is not None:
            defaults.setdefault("lifetime", default_lifetime)
        self.key_ring = key_ring
        self.webhooks = webhooks
        self._deliveries: WebhookQueue | None = None
        if webhooks is not None:
            self.capabilities.require("webhooks")
        self.defaults = self.read_options(
            {"priority": "normal", **defaults} if priorities else defaults, DEFAULTS[protocol]
        )
        self.registry = Registry()
        self._url = url
        self._folder = folder
        self._server = server
        self.add_timeout = add_timeout
        self.durability = durability
        self.is_replicated(durability)
        self._bound: Bound | None = None  # the one used last
        self._bounds: dict[asyncio.AbstractEventLoop, Bound] = {}

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

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
            name: What kind of job it is; a handler of this name runs it.
            data: The payload: anything JSON can hold, and bytes.
            after: Jobs (handles, or ids of this queue) that must have completed before it runs; if one does
                not, the job ends in the same state.
            after_any: Jobs of which one must have ended before it runs, however it did.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: As in ``JobOptions``: attempts, backoff, delay, priority, lifo, remove_on_complete,
                remove_on_fail, job_id, timeout and others.

        Raises:
            ValidationError: Something is wrong with the job; nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time (``add_timeout``, 30 s); to repeat it with the error's
                ``job_ids``, or with the same idempotency key, is safe.
            NotReplicated: The master has the job, but no replica confirmed it in time; repeat it likewise.
            UnknownDependency: A job to wait for does not exist; nothing was written.
        """
        if after or after_any:
            graph = Graph(self)
            graph.job(name, data, after=after, after_any=after_any, **options)
            return (await graph.add(durability=durability))[0]
        return await self._add(name, data, self.read_options(options), durability)

    async def add_many(
        self, jobs: Iterable[Row], *, durability: Durability | None = None, **options: Unpack[OptionKwargs]
    ) -> list[JobHandle[Any]]:
        """Adds many jobs, in a round trip per chunk.

        All are checked and encoded before the first is written.

        Args:
            jobs: ``(name, data)`` or ``(name, data, options)`` per job.
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.
            **options: Options for all of them, beneath their own.
        """
        shared = carry(self.read_options(options))
        bound, replicated = self._bind(), self.is_replicated(durability)
        encode = bound.broker.encode
        encoded, names, watched, routed = [], [], [], []
        for row in jobs:
            own = shared if len(row) == 2 else self.read_options(cast(OptionKwargs, dict(row[2])), shared)
            encoded.append(encode(row[0], row[1], own))
            names.append(row[0])
            if own.callback_url is not None:
                watched.append(encoded[-1][0])
            if own.target is not None and self.protocol == "bullmq":
                routed.append((len(encoded) - 1, self.lane(own.target)))
        if watched:
            await self.expect_callbacks(watched)
        try:
            if routed:
                return await self._add_routed(encoded, names, dict(routed), self.add_timeout, replicated)
            added = await bound.broker.add(encoded, timeout=self.add_timeout, replicated=replicated)
        except Unacknowledged as error:
            raise error.of_jobs(job_id for job_id, _ in encoded) from error
        return [
            JobHandle(self, one.id, name, one.created, one.duplicate)
            for one, name in zip(added, names, strict=True)
        ]

    async def _add(
        self, name: str, data: Any, options: JobOptions, durability: Durability | None = None
    ) -> JobHandle[Any]:
        has_lane = options.target is not None and self.protocol == "bullmq"
        where = self.lane(cast(Target, options.target)) if has_lane else self
        encoded = self.broker.encode(name, data, carry(options))
        if options.callback_url is not None:
            await self.expect_callbacks([encoded[0]])
        added = await where.add_encoded(encoded, durability)
        return JobHandle(where if added.created else self, added.id, name, added.created, added.duplicate)

    async def add_encoded(self, job: Encoded, durability: Durability | None = None) -> Added:
        """Adds a job that another module has checked and encoded."""
        try:
            return await self._bind().add(job, replicated=self.is_replicated(durability))
        except Unacknowledged as error:
            raise error.of_jobs([job[0]]) from error

    def is_replicated(self, durability: Durability | None = None) -> bool:
        """Says whether adds wait for a replica.

        Args:
            durability: What one call asks for; None for what the queue says.

        Raises:
            ValidationError: There is no such durability, or the server is the embedded one.
        """
        asked = durability or self.durability
        if asked is None or asked == "acknowledged":
            return False
        if asked != "replicated":
            raise ValidationError("durability", "'acknowledged' or 'replicated'", asked)
        if self.server.folder is not None:
            raise ValidationError("durability", "left out with the embedded server: it has no replica", asked)
        return True

    async def expect_callbacks(self, ids: Iterable[str]) -> None:
        """Notes jobs that somebody is to be told of, before they are added; one too many does no harm."""
        broker = (self._root or self).broker  # whose workers look after those of its lanes
        if is_native(broker):
            await broker.expect_callbacks(list(ids), self.add_timeout)

    @property
    def deliveries(self) -> WebhookQueue | None:
        """The queue in which webhooks wait to be delivered; None where the queue has none."""
        if self._deliveries is None and self.webhooks is not None:
            self._deliveries = WebhookQueue(self, self.webhooks)
        return self._deliveries

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens the values of the queue's jobs; None where it has no keys."""
        return Sealer.of(self.key_ring, self.protocol, self.prefix, base_of(self.name))

    def read_options(self, given: OptionKwargs, defaults: JobOptions | None = None) -> JobOptions:
        """Options as a user writes them for a job of this queue, over some defaults or the queue's own.

        Raises:
            ValidationError: A name is unknown or a value outside its bound.
        """
        if defaults is None:
            defaults = self.defaults
        if not given:
            return defaults
        if self.priorities and "priority" in given:
            given = {**given, "priority": formal_priority(given["priority"])}
        read = defaults.replace(**given)
        if read.callback_url is not None:
            check_submitted(read.callback_url, self.webhooks.allow if self.webhooks else ())
        return read

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

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            called = check_job_name(name or function.__name__)
            handler = Handler(
                called, function, run=run, options=self.read_options(cast(OptionKwargs, options))
            )
            self.registry.add(handler)
            return Task(self, handler, function)

        return decorate if function is None else decorate(function)

    def process(self, function: Callable[..., Any], *, run: RunKind | None = None) -> Callable[..., Any]:
        """Makes a function the handler of every job name that has none of its own."""
        self.registry.add(Handler("*", function, run=run, options=self.defaults), every_name=True)
        return function

    # -- looking

    async def get(self, job_id: str) -> Job | None:
        """A job as it is now, or None."""
        return (await self._bind().broker.look([job_id]))[0]

    async def get_many(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Jobs as they are now."""
        return await self._bind().broker.look(job_ids)

    def handle(self, job_id: str, name: str = "") -> JobHandle[Any]:
        """A handle on a job whose id is known; nothing is read."""
        return JobHandle(self, job_id, name, False)

    async def state(self, job_id: str) -> str:
        """A job's state in the words of the wire, ``unknown`` for none."""
        return (await self._bind().broker.states([job_id]))[0]

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        counted = await self._bind().broker.counts_over_lanes()
        return {state: sum(counted[key] for key in keys) for state, keys in LISTABLE.items()}

    async def jobs(self, state: str, *, first: int = 0, limit: int = 100, oldest: bool = False) -> list[Job]:
        """A page of jobs in a state, newest first unless ``oldest``; those of lanes follow the queue's own.

        Raises:
            ValidationError: There is no such state.
        """
        if state not in LISTABLE:
            raise ValidationError("state", "one of " + ", ".join(LISTABLE), state)
        if limit < 1:
            return []
        broker = self._bind().broker
        found: list[Job] = []
        for key in LISTABLE[state]:
            found += await broker.page(key, first, first + limit - 1, oldest=oldest)
        if len(found) < limit and is_native(broker):
            found += await broker.lanes.page(LISTABLE[state], first, limit - len(found), oldest=oldest)
        return found[:limit]

    async def get_flow(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        """A job with the jobs below it as they are now, or None.

        Args:
            job_id: The job at the top.
            depth: How many generations, the first included.
            limit: How many children of one job at most.
        """
        return await flows.view(native(self._bind().broker, "flows"), job_id, depth=depth, limit=limit)

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        """The jobs that wait for a job, by their full keys, and how; none once it has ended."""
        return await graphs.dependents(native(self._bind().broker, "graphs"), job_id)

    async def deduplicated_by(self, dedup_id: str) -> str | None:
        """The id of the job that keeps others of this deduplication id out, or None."""
        return await native(self._bind().broker, "deduplication").window_owner(dedup_id)

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return await self._bind().broker.is_paused()

    # -- steering

    async def pause(self) -> None:
        """Lets no worker take a job until ``resume``. Running jobs go on."""
        await self._bind().broker.pause()

    async def resume(self) -> None:
        """Lets workers take jobs again."""
        await self._bind().broker.resume()

    async def remove(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job that no worker holds.

        Raises:
            JobNotFound: There is none.
            JobLocked: A worker holds it.
        """
        await self._bind().broker.remove_job(job_id, children=children)

    async def retry(self, job_id: str, *, reset: bool = False) -> None:
        """Lets a finished job run again.

        Args:
            job_id: The job.
            reset: Whether to count its attempts from the beginning.

        Raises:
            JobNotFound: There is none.
            WrongState: It is neither failed nor completed.
        """
        state = await self.state(job_id)
        await self._bind().broker.retry_job(job_id, state if state == "completed" else "failed", reset=reset)

    async def release_deduplication(self, dedup_id: str) -> bool:
        """Lets the next add of this deduplication id be a job again; says whether others were kept out."""
        return await native(self._bind().broker, "deduplication").release_window(dedup_id)

    def events(self, since: str = "$", names: Iterable[str] | None = None) -> QueueEvents:
        """What happens in the queue, as an async iterator.

        Args:
            since: The id of the last event already seen; ``$`` for only new ones, ``0`` from the oldest.
            names: Only events of these names.
        """
        return QueueEvents(self.open_broker(), since, names)

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

    async def close(self) -> None:
        """Closes the connection. The queue can be used again afterwards."""
        if self._deliveries is not None:
            await self._deliveries.queue.close()
        for lane in self._opened.values():
            await lane.close()
        bound, self._bound = self._bounds.pop(asyncio.get_running_loop(), None), None
        if bound is not None and bound.pid == os.getpid():
            await bound.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def server(self) -> Server:
        """Where the queue lives."""
        if self._server is None:
            self._server = Server(self._url, folder=self._folder)
        return self._server

    @property
    def capabilities(self) -> Capabilities:
        """What the queue's protocol can express."""
        return CAPABILITIES[self.protocol]

    @property
    def broker(self) -> ServedBroker:
        """The storage of this queue in the running event loop."""
        return self._bind().broker

    @property
    def results(self) -> Results:
        """What waits for results in the running event loop."""
        return self._bind().results

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """A broker with a connection of its own."""
        return make_broker(
            self.protocol,
            self.server,
            self.name,
            prefix=self.prefix,
            reconnect=reconnect,
            key_ring=self.key_ring,
            formal=self.priorities == "formal",
        )

    def station_facts(self) -> dict[str, Any]:
        """What another process needs to find this queue."""
        location = self.server.location
        return {
            "url": location.url if location else "",
            "folder": "" if location else str(self.server.folder),
            "queue": self.name,
            "prefix": self.prefix,
            "protocol": self.protocol,
        }

    def _bind(self) -> Bound:
        loop = asyncio.get_running_loop()
        bound = self._bound
        if bound is None or bound.loop is not loop or bound.pid != os.getpid():
            bound = self._bound = self._bound_of(loop)
        return bound

    def _bound_of(self, loop: asyncio.AbstractEventLoop) -> Bound:
        """What belongs to a loop: loops of several threads may take turns, each with its connection."""
        pid = os.getpid()
        for known, bound in list(self._bounds.items()):
            if known.is_closed() or bound.pid != pid:
                self._bounds.pop(known, None)
        found = self._bounds.get(loop)
        if found is None:
            if self._root is None:
                found = Bound(loop, self.open_broker(), self.add_timeout)
            else:  # a lane, on the connection of its queue
                of = self._root._native("lanes")
                lane = of.lanes.open(self.name[len(of.base) + 1 :])
                found = Bound(loop, lane, self.add_timeout, shares=True)
            self._bounds[loop] = found
        return found
