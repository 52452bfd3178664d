"""The common part of both protocols' brokers: one queue on one connection, and the server's clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from oxcart.broker.cancellations import CancellationInbox, CancelRequest, read_requests
from oxcart.broker.clock import ServerClock, server_now
from oxcart.broker.discovery import glob_escape
from oxcart.broker.events import EventReader
from oxcart.broker.port import Added, Encoded, QueueKeys
from oxcart.broker.waiting import MarkerWait
from oxcart.broker.workers import WorkerRecord, WorkerRegistry
from oxcart.model.errors import OxcartError
from oxcart.model.target import Abilities

if TYPE_CHECKING:
    from oxcart.broker.caller import Caller
    from oxcart.broker.connection import Server
    from oxcart.broker.port import ServedBroker

#: Keys that one step of a scan looks at.
SCAN = 1000


class Connected:
    """A queue's connection and everything that does not depend on the protocol.

    Attributes:
        server: The server that the queue is on.
        slot: The cluster slot of all the queue's keys; None on a single server.
        keys: The names of the queue's keys.
        caller: The connection.
        clock: Estimates the server's time.
    """

    server: Server
    slot: int | None
    keys: QueueKeys
    caller: Caller
    clock: ServerClock
    partitions = None

    async def now(self, timeout: float | None = None) -> int:
        """Reads the server's time in ms."""
        return await server_now(self.caller, self.clock, timeout)

    async def close(self) -> None:
        """Closes the connection."""
        await self.caller.close()

    @property
    def site(self) -> Hashable:
        """Identifies the server, and the slot on a cluster; one wait can span queues of equal sites."""
        return self.server.identity, self.slot

    @property
    def server_name(self) -> str:
        """Names the server in log lines."""
        return self.server.name

    @property
    def known_url(self) -> str | None:
        """The URL of a cluster with the nodes that are known by now; None for a single server."""
        return self.server.known_url if self.server.is_cluster else None

    @property
    def place(self) -> Hashable:
        """Identifies the endpoint that serves the queue, as last known; equal places fail together."""
        return self.caller.place

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self.caller.link.is_connected

    @property
    def waits_for_slot(self) -> bool:
        """Whether the last refusal concerned the queue's slot alone, and not its node."""
        return self.caller.waits_for_slot

    @property
    def client_id(self) -> str:
        """Names this client in journals and lease tokens."""
        return self.caller.client_id

    def attach(
        self,
        *,
        holding: Callable[[], bool],
        on_script: Callable[[str, float], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        """Attaches a worker to the connection.

        Args:
            holding: Returns whether the worker has leases or outcomes, which shortens reconnect pauses.
            on_script: Receives the verb and the seconds of every answered script call.
            on_reconnect: Called before every attempt to reach a lost server.
        """
        self.caller.holding = holding
        self.caller.on_script = on_script
        self.caller.on_reconnect = on_reconnect

    async def add(
        self, jobs: Sequence[Encoded], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds encoded jobs, in order; long lists go in several calls.

        Raises:
            OxcartError: The server refused a job, or a call as such. All others stay added; their ids are
                known to the caller, and adding them again is harmless.
        """
        added = []
        for one in await self.add_each(jobs, timeout=timeout, replicated=replicated):
            if isinstance(one, OxcartError):
                raise one
            added.append(one)
        return added

    async def add_each(
        self,
        jobs: Sequence[Encoded],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``, with the error of a refused job in its place."""
        raise NotImplementedError

    def job_id_of(self, key: str) -> str | None:
        """Returns the id in the full key of a job of this queue; None for a key of another queue."""
        base = f"{self.keys.base}:"
        return key[len(base) :] if key.startswith(base) else None

    def open_events(self, *, unseals: bool = False) -> EventReader:
        """Opens the queue's event stream."""
        return EventReader(cast("ServedBroker", self), unseals=unseals)

    def open_wait(self, brokers: Sequence[ServedBroker], worker: str) -> MarkerWait:
        """Opens a worker's wait for jobs of some queues of this site."""
        return MarkerWait(brokers, worker)

    def open_inbox(self, brokers: Mapping[int, ServedBroker]) -> CancellationInbox:
        """Opens a worker's inbox for requests to cancel jobs of some queues of this site."""
        return CancellationInbox(brokers)

    async def cancel_requests(self, attempts: Sequence[tuple[ServedBroker, str, int]]) -> list[CancelRequest]:
        """Reads from the jobs which attempts to cancel."""
        return await read_requests(cast("ServedBroker", self), attempts)

    @property
    def registry(self) -> WorkerRegistry:
        """The registry of the queue's workers."""
        raise NotImplementedError

    def serve(self, abilities: Abilities) -> None:
        """Sets the abilities of the worker that claims with this broker; BullMQ selects lanes by them."""

    async def workers(self) -> list[WorkerRecord]:
        """Returns the workers that live and may take jobs of the queue."""
        return await self.registry.living()

    async def has_targets(self) -> bool:
        """Returns whether jobs of the queue have targets."""
        return bool(await self.caller.command("EXISTS", self.keys.lanes()))

    async def take_watch(self, worker_id: str, life_ms: int) -> bool:
        """Makes a worker the one that watches the queue, unless another one does.

        Args:
            worker_id: The worker.
            life_ms: Ms after which another worker may watch, unless this one calls again.
        """
        watcher = self.keys.watcher()
        if await self.caller.write("SET", watcher, worker_id, "NX", "PX", life_ms):
            return True
        if await self.caller.command("GET", watcher) != worker_id.encode():
            return False
        await self.caller.write("PEXPIRE", watcher, life_ms)
        return True

    async def take_duty(self, group: str, worker_id: str, life_ms: int) -> int:
        """Makes a worker the one that maintains a group of queues, unless another one does.

        Args:
            group: Names the queues and settings.
            worker_id: The worker.
            life_ms: Ms after which another worker may do it, unless this one calls again.

        Returns:
            0 if it is this worker, otherwise the ms until another worker may be.
        """
        key = f"{self.keys.watcher()}:{group}"
        holder, left = await self.caller.pipeline([("GET", key), ("PTTL", key)])
        if holder is None:
            taken = await self.caller.write("SET", key, worker_id, "NX", "PX", life_ms)
            return 0 if taken else life_ms
        if holder != worker_id.encode():
            return max(1, int(left))
        await self.caller.write("PEXPIRE", key, life_ms)
        return 0

    async def with_work(self, brokers: Sequence[ServedBroker]) -> list[int]:
        """Returns the indexes of all queues: what shows that one is idle depends on the protocol."""
        return list(range(len(brokers)))

    def share_connection(self, other: ServedBroker) -> None:
        """Uses the connection and the clock of another queue of this server from now on."""
        self.caller.share(other.caller)
        self.clock = other.clock

    async def remove_all_keys(self) -> None:
        """Removes every key that begins with the queue's; for tests."""
        pattern, cursor = f"{glob_escape(self.keys.base)}:*", b""
        while cursor != b"0":
            cursor, keys = await self.caller.command("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", SCAN)
            if keys:
                await self.caller.write("UNLINK", *keys)
