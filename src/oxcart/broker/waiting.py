"""Blocking waits on sorted sets: the markers of queues, and other keys that wake a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.caller import script_error
from oxcart.broker.link import Argument, ReplyError
from oxcart.model.errors import BrokerError

if TYPE_CHECKING:
    from oxcart.broker.connection import Server
    from oxcart.broker.port import ServedBroker

#: Seconds that a reply may take beyond the time for which its command blocks.
MARGIN = 5.0
#: Queues of a wait up to which each has a connection with its name.
NAMED = 64


class Popped(msgspec.Struct, frozen=True):
    """A member that a wait removed from a sorted set.

    Attributes:
        key: The sorted set.
        member: The member.
        score: Its score, as the server writes it.
    """

    key: bytes
    member: bytes
    score: bytes


class BlockingPop:
    """A connection of its own that blocks until one of some sorted sets has a member.

    Args:
        server: Where to connect.
        slot: The slot of all the keys, on a cluster.
        client_name: The name that the server shows for the connection.
    """

    def __init__(self, server: Server, slot: int | None, client_name: str | None = None) -> None:
        self._server = server
        self._link = server.link(slot, client_name=client_name)

    @property
    def connections_made(self) -> int:
        """How often the connection was made."""
        return self._link.connections_made

    async def connect(self) -> None:
        """Makes the connection if there is none."""
        if not self._link.is_connected:
            try:
                await self._link.connect()
            except BrokerError:
                self._server.forget_slots()
                raise

    async def ping(self) -> None:
        """Keeps the connection, or makes a new one."""
        await self._call("PING")

    async def pop(self, keys: Iterable[str | bytes], seconds: float) -> Popped | None:
        """Removes the member with the lowest score; waits for one if there is none.

        Args:
            keys: The sorted sets, all in one slot.
            seconds: How long to wait.

        Returns:
            The member, or None if there was none in time.

        Raises:
            BrokerError: The server refused or could not be reached. The next call connects again.
        """
        answer = await self._call("BZPOPMIN", *keys, f"{seconds:.3f}", timeout=seconds + MARGIN)
        return None if answer is None else Popped(*answer)

    async def close(self) -> None:
        """Closes the connection."""
        await self._link.close()

    async def _call(self, *args: Argument, timeout: float | None = None) -> Any:
        # After a failure the slot has usually moved, or the server is no longer the master: resolve it again.
        try:
            return await self._link.call(*args, timeout=timeout)
        except ReplyError as error:
            self._link.drop("the server refused")
            self._server.forget_slots()
            raise script_error(str(args[0]), str(error)) from error
        except BrokerError:
            self._server.forget_slots()
            raise


class MarkerWait:
    """A worker's blocking wait for the markers of queues of one slot.

    Node's ``getWorkers`` finds a worker by the name of its connection. Queues beyond the first get a
    connection that only carries their name, unless there are more than `NAMED`.

    Args:
        brokers: The queues; all in one slot on a cluster.
        worker: The worker's name.
    """

    def __init__(self, brokers: Sequence[ServedBroker], worker: str) -> None:
        self._caller = brokers[0].caller
        self._markers = [broker.keys.marker().encode() for broker in brokers]
        self._queues = {marker: index for index, marker in enumerate(self._markers)}
        self._pop, *self._names = [
            BlockingPop(broker.server, broker.slot, broker.keys.client_name(f":w:{worker}"))
            for broker in brokers[: len(brokers) if len(brokers) <= NAMED else 1]
        ]

    @property
    def connections_made(self) -> int:
        """How often the connection that blocks was made."""
        return self._pop.connections_made

    async def connect(self) -> None:
        """Makes the connections that are missing."""
        for one in (self._pop, *self._names):
            await one.connect()

    async def ping(self) -> None:
        """Keeps the connections while there is nothing to wait for."""
        for one in (self._pop, *self._names):
            await one.ping()

    async def wait(self, queues: Iterable[int], beside: Iterable[bytes], seconds: float) -> Popped | None:
        """Waits for the markers of queues, by their indexes, and for other keys."""
        return await self._pop.pop([*(self._markers[index] for index in queues), *beside], seconds)

    def queue_of(self, popped: Popped) -> int:
        """Returns the index of the queue whose marker was popped."""
        return self._queues[popped.key]

    async def put_back(self, popped: Popped) -> None:
        """Puts a popped member back for another worker; a lower score that is there meanwhile stays."""
        await self._caller.write("ZADD", popped.key, "LT", popped.score, popped.member)

    async def close(self) -> None:
        """Closes the connections."""
        for one in (self._pop, *self._names):
            await one.close()
