"""The core behind a queue's face: its place, its options, its handlers and its connections.

A worker consumes a core (`oxcart.engine.source.Source`), and the parts of a queue reach the server through
it. It connects when first used, once per event loop, and again in a forked child.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from oxcart._bound import Bound, DirectlyBound, SpreadBound
from oxcart.broker.addresses import check_submitted
from oxcart.broker.capabilities import PARTITIONED, Capabilities, Part
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.factory import (
    CAPABILITIES,
    DEFAULTS,
    PARTITIONABLE,
    ProtocolName,
    check_place,
    make_broker,
    make_spread,
)
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import Added, BrokerSource, Encoded, ServedBroker
from oxcart.broker.sealing import Sealer
from oxcart.broker.slots import has_tag
from oxcart.engine.handler import Handlers
from oxcart.engine.tracing import Tracing
from oxcart.engine.webhooks.queue import SUFFIX, WebhookQueue, queue_options
from oxcart.engine.webhooks.sender import Webhooks
from oxcart.events import Results
from oxcart.model.duration import Duration
from oxcart.model.errors import Unacknowledged, ValidationError
from oxcart.model.options import Durability, JobOptions, OptionKwargs
from oxcart.model.partitions import check_partitions, split_partition
from oxcart.model.priority import formal_priority
from oxcart.model.target import Target, base_of, lane_name

#: Bounds of ``keep_events``.
LEAST_EVENTS, MOST_EVENTS = 100, 10_000_000


class Core:
    """The plumbing of a queue, or of one of its lanes. The arguments are those of ``Queue``.

    Attributes:
        name: The queue's name.
        prefix: The prefix of its keys: BullMQ's prefix, or Bridge's namespace.
        protocol: ``bullmq`` or ``bridge``.
        defaults: Options of jobs that do not set their own.
        handlers: The handlers of its jobs.
        add_timeout: Seconds after which an unacknowledged add fails.
        brokers: Opens its brokers, instead of a server; None for a server.
        key_ring: Keys that seal stored values, or None.
        priorities: ``"formal"`` if priorities are names, or None.
        reconnect: Pauses and limit of attempts to reach a lost server; None for the default.
        tracing: Makes spans of what happens to its jobs, or None.
        partitions: How many partitions a new queue gets; None for a queue without partitions.
        is_remote: Whether the queue sends requests to an HTTP API and never opens a broker.
    """

    is_remote = False

    def __init__(
        self,
        name: str,
        *,
        url: str | Sequence[str] | None,
        prefix: str | None,
        protocol: ProtocolName,
        namespace: str | None,
        folder: str | Path | None,
        add_timeout: float,
        durability: Durability | None,
        default_lifetime: Duration | None,
        server: Server | None,
        broker: BrokerSource | None,
        priorities: Literal["formal"] | None,
        key_ring: KeyRing | None,
        webhooks: Webhooks | None,
        tracing: Tracing | None,
        keep_events: int | None,
        defaults: OptionKwargs,
        partitions: int | None = None,
    ) -> None:
        self.prefix = check_place(protocol, name, prefix, namespace)
        if broker is not None:
            elsewhere = {"url": url, "folder": folder, "server": server, "namespace": namespace}
            elsewhere["protocol"] = None if protocol == "bullmq" else protocol
            for field, value in elsewhere.items():
                if value is not None:
                    raise ValidationError(field, "left out with broker=, which opens the queue", value)
        if priorities not in (None, "formal"):
            raise ValidationError("priorities", "'formal' or None", priorities)
        self.name = name
        self.protocol = protocol
        self.priorities = priorities
        self.add_timeout = add_timeout
        self.key_ring = key_ring
        self.tracing = tracing
        self.handlers = Handlers()
        self.reconnect: Reconnect | None = None
        self.brokers = broker
        self._is_given_broker = broker is not None
        self.partitions = None if partitions is None else check_partitions(partitions)
        self._check_partitions(url)
        self._urls = [url] if url is None or isinstance(url, str) else [*url]
        self._servers: list[Server] = []
        self._folder = folder
        self._server = server
        self._webhooks = webhooks
        self._webhook_queue: WebhookQueue | None = None
        self._durability = durability
        self._root: Core | None = None  # the queue of a lane
        self._lanes: dict[str, Core] = {}
        self._bound: Bound | None = None  # the one used last
        self._bounds: dict[asyncio.AbstractEventLoop, Bound] = {}
        self._keep_events = keep_events
        if keep_events is not None:
            self.capabilities.require("keep_events")
            if type(keep_events) is not int or not LEAST_EVENTS <= keep_events <= MOST_EVENTS:
                bound = f"an integer from {LEAST_EVENTS} to {MOST_EVENTS}"
                raise ValidationError("keep_events", bound, keep_events)
        if webhooks is not None:
            self.capabilities.require("webhooks")
        given: OptionKwargs = {**defaults}
        if priorities:
            given.setdefault("priority", "normal")
        if default_lifetime is not None:
            given.setdefault("lifetime", default_lifetime)
        self.defaults = self.read_options(given, DEFAULTS[protocol])
        self.is_replicated()

    def _check_partitions(self, url: str | Sequence[str] | None) -> None:
        several = url is not None and not isinstance(url, str)
        if self.partitions is None:
            if several:
                raise ValidationError("url", "one URL, or a list with partitions=", url)
            return
        if self.protocol not in PARTITIONABLE:
            CAPABILITIES[self.protocol].require("partitions")
        if self.brokers is not None:
            raise ValidationError(
                "partitions", "left out with broker=, which opens the queue", self.partitions
            )
        if split_partition(self.name) is not None or base_of(self.name) != self.name:
            raise ValidationError("queue name", "with partitions=, one without '#<number>' or '@'", self.name)
        if has_tag(self.name) or has_tag(self.prefix):
            raise ValidationError(
                "partitions",
                "left out with a hash tag in name or prefix, which puts all in one slot",
                self.name,
            )
        if several and (not url or not all(isinstance(one, str) for one in url)):
            raise ValidationError("url", "a list of URLs", url)

    # -- place

    @property
    def server(self) -> Server:
        """The server that the queue is on; of several, the first."""
        if self._server is None:
            self._server = Server(self._urls[0], folder=self._folder)
        return self._server

    @property
    def servers(self) -> Sequence[Server]:
        """The servers that the partitions of the queue are on, in turn."""
        if not self._servers:
            self._servers = [self.server, *map(Server, self._urls[1:])]
        return self._servers

    @property
    def capabilities(self) -> Capabilities:
        """What the queue's protocol can express."""
        if self.brokers is not None:
            return self.brokers.capabilities
        return CAPABILITIES[self.protocol] if self.partitions is None else PARTITIONED

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens the stored values of the queue's jobs; None without keys."""
        return Sealer.of(self.key_ring, self.protocol, self.prefix, base_of(self.name))

    @property
    def place(self) -> tuple[str, str]:
        """The server as a value: its URL, and its folder if it is embedded."""
        if self.brokers is not None:
            return "", f"memory {id(self.brokers)}"
        if self.partitions is not None and len(self._urls) > 1:
            return ",".join(one.location.url for one in self.servers if one.location is not None), ""
        location = self.server.location
        return (location.url, "") if location else ("", str(self.server.folder))

    def station_facts(self) -> dict[str, Any]:
        """Returns the facts by which another process finds the queue; empty if only this process can."""
        if self.brokers is not None:
            return {}
        url, folder = self.place
        return {
            "url": url,
            "folder": folder,
            "queue": self.name,
            "prefix": self.prefix,
            "protocol": self.protocol,
        }

    # -- connections

    @property
    def broker(self) -> ServedBroker:
        """The queue's broker in the running event loop."""
        return self.bind().broker

    @property
    def results(self) -> Results:
        """Waits for results in the running event loop."""
        return self.bind().results

    def part(self, part: Part | None, feature: str) -> Part:
        """Returns a part of the broker: ``core.part(core.broker.flows, "flows")``.

        Raises:
            NotSupported: The protocol lacks the feature; the error names the alternative.
        """
        return self.broker.capabilities.part(part, feature)

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """Returns a broker with a connection of its own."""
        if self.brokers is not None:
            return self.brokers.open(
                self.name, prefix=self.prefix, key_ring=self.key_ring, reconnect=reconnect or self.reconnect
            )
        if self.partitions is not None:
            return make_spread(
                self.servers,
                self.name,
                self.partitions,
                prefix=self.prefix,
                reconnect=reconnect or self.reconnect,
                key_ring=self.key_ring,
                keep_events=self._keep_events,
            )
        return make_broker(
            self.protocol,
            self.server,
            self.name,
            prefix=self.prefix,
            reconnect=reconnect or self.reconnect,
            key_ring=self.key_ring,
            formal=self.priorities == "formal",
            **({} if self._keep_events is None else {"keep_events": self._keep_events}),
        )

    @contextlib.contextmanager
    def using(self, source: BrokerSource) -> Iterator[None]:
        """Opens brokers from another source within the block; for `oxcart.testing`.

        Raises:
            ValidationError: The queue opens no broker: it sends requests to an HTTP API.
        """
        if self.is_remote:
            bound = "queues that open a broker: make the queue without the URL of an HTTP API"
            raise ValidationError("queues", bound, self.name)
        before = self.brokers, self._bound, self._bounds
        self.brokers, self._bound, self._bounds = source, None, {}
        try:
            yield
        finally:
            self.brokers, self._bound, self._bounds = before

    async def close(self) -> None:
        """Closes the connections of the running event loop."""
        if self._webhook_queue is not None:
            await self._webhook_queue.queue.close()
        for lane in self._lanes.values():
            await lane.close()
        bound, self._bound = self._bounds.pop(asyncio.get_running_loop(), None), None
        if bound is not None and bound.pid == os.getpid():
            await bound.close()

    def bind(self) -> Bound:
        """Returns the state of the queue in the running event loop."""
        loop = asyncio.get_running_loop()
        bound = self._bound
        if bound is None or bound.loop is not loop or bound.pid != os.getpid():
            bound = self._bound = self._bound_of(loop)
        return bound

    def _bound_of(self, loop: asyncio.AbstractEventLoop) -> Bound:
        # Event loops of several threads may take turns, each with its own connection.
        pid = os.getpid()
        for known, bound in list(self._bounds.items()):
            if known.is_closed() or bound.pid != pid:
                self._bounds.pop(known, None)
        found = self._bounds.get(loop)
        if found is None:
            if self._root is None and self.brokers is not None:
                found = DirectlyBound(loop, self.open_broker(), self.add_timeout)
            elif self._root is None and self.partitions is not None:
                spread = self.open_broker()
                partitions = spread.capabilities.part(spread.partitions, "partitions")
                found = SpreadBound(loop, spread, partitions, self.add_timeout)
            elif self._root is None:
                found = Bound(loop, self.open_broker(), self.add_timeout)
            else:  # a lane shares the connection of its queue
                broker = self._root.broker
                lane = self._root.part(broker.lanes, "lanes").open(self.name[len(broker.base) + 1 :])
                found = Bound(loop, lane, self.add_timeout, shares=True)
            self._bounds[loop] = found
        return found

    # -- lanes

    def lane(self, target: Target | Mapping[str, Any] | str) -> Core:
        """Returns the core of the lane for a target; this one for a target without demands.

        Raises:
            ValidationError: It is no target, or this queue is itself a lane.
        """
        name = lane_name(self.name, Target.read(target))
        if name == self.name or (self.brokers is not None and not self.brokers.capabilities.can("lanes")):
            return self
        found = self._lanes.get(name)
        if found is None:
            found = self._lanes[name] = copy.copy(self)
            found.name, found._root, found._bound, found._bounds, found._lanes = name, self, None, {}, {}
            found._webhook_queue = None
        return found

    # -- jobs

    def read_options(self, given: OptionKwargs, defaults: JobOptions | None = None) -> JobOptions:
        """Reads options as a user writes them, over some defaults or the queue's own.

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
            check_submitted(read.callback_url, self._webhooks.allow if self._webhooks else ())
        return read

    def prepare(self, name: str, data: Any, given: OptionKwargs) -> JobOptions:
        """Reads the options of a new job, and checks its payload if its handler is registered here.

        Args:
            name: The job's name. A name without a handler in this process has the queue's options.
            data: Its payload.
            given: Options over those of the handler.

        Raises:
            ValidationError: An option is wrong, or the payload does not fit the handler.
        """
        handler = self.handlers.named(name)
        if handler is None:
            return self.read_options(given) if given else self.defaults
        handler.check(data)
        return self.read_options(given, handler.options)

    def is_replicated(self, durability: Durability | None = None) -> bool:
        """Returns whether adds wait for a replica.

        Args:
            durability: The durability of one call; None for the queue's.

        Raises:
            ValidationError: There is no such durability, or the queue has no server with a replica.
        """
        asked = durability or self._durability
        if asked is None or asked == "acknowledged":
            return False
        if asked != "replicated":
            raise ValidationError("durability", "'acknowledged' or 'replicated'", asked)
        if self._is_given_broker:
            raise ValidationError("durability", "left out with broker=, which has no replica", asked)
        if self.server.folder is not None:
            raise ValidationError("durability", "left out with the embedded server: it has no replica", asked)
        return True

    async def add(
        self, jobs: Sequence[Encoded], *, timeout: float | None, replicated: bool
    ) -> Sequence[Added]:
        """Adds encoded jobs; a single one shares its call with other adds of this turn of the event loop."""
        try:
            if len(jobs) == 1:
                return [await self.bind().add(jobs[0], replicated=replicated)]
            return await self.broker.add(jobs, timeout=timeout, replicated=replicated)
        except Unacknowledged as error:
            raise error.of_jobs(job_id for job_id, _ in jobs) from error

    # -- webhooks

    async def expect_webhooks(self, ids: Iterable[str]) -> None:
        """Enters jobs into the webhook index before they are added; an entry without a job does no harm."""
        broker = (self._root or self).broker  # the queue's workers send the webhooks of its lanes
        if broker.webhooks is not None:
            await broker.webhooks.enter(list(ids), self.add_timeout)

    @property
    def webhook_queue(self) -> WebhookQueue | None:
        """The queue whose jobs send the webhooks; None without webhooks."""
        if self._webhook_queue is None and self._webhooks is not None:
            from oxcart.queue import Queue

            queue = Queue(
                self.name + SUFFIX,
                server=self.server,
                prefix=self.prefix,
                key_ring=self.key_ring,
                tracing=self.tracing,
                **queue_options(self._webhooks),
            )
            self._webhook_queue = WebhookQueue(queue, self._webhooks)
        return self._webhook_queue
