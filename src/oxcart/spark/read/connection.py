"""A connection of Spark's processes to the server: the broker's own client, run by code that blocks.

In an offset, a queue's event stream has the queue's name. The stream of its attempt records has the name and
the suffix after a colon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from oxcart.broker.blocking import Blocking
from oxcart.broker.export import ATTEMPTS, EVENTS, Stride
from oxcart.model.errors import AccessDenied, BrokerUnavailable
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.position import Position
from oxcart.spark.read.stream import Stream, end_of

T = TypeVar("T")

_RECORDS = f":{ATTEMPTS}"


def stream_key(queue: str, suffix: str) -> str:
    """Returns the name of a stream in an offset."""
    return queue if suffix == EVENTS else f"{queue}:{suffix}"


def split_key(key: str) -> tuple[str, str]:
    """Returns queue and suffix of a stream's name in an offset."""
    queue = key.removesuffix(_RECORDS)
    return queue, EVENTS if queue == key else ATTEMPTS


class Connection:
    """The queues of a server, for as long as the block lasts; queues of one slot share a socket.

    Args:
        address: Where the server is.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._blocking = Blocking()
        self.export = address.export(address.server())

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._blocking.run(self.export.close())
        self._blocking.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a call of `export`.

        Raises:
            AccessDenied: The server refuses the login, or a command.
            BrokerUnavailable: The server cannot be reached.
            ScriptError: The server refused the call.
        """
        try:
            return self._blocking.run(work)
        except AccessDenied as error:
            raise AccessDenied(
                f"{error}; check the user, and the password in the environment variable that urlEnv or "
                "passwordEnv names, on this machine too"
            ) from error
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{error}; is the server up, and the url the right one? Start it and run this again: nothing "
                "is lost"
            ) from error

    def queues(self, selection: QueueSelection) -> list[str]:
        """Returns the selected queues with their lanes, by the names of their streams."""
        pick = None if selection.pattern is None else selection.pick
        return self.run(self.export.queues(selection.names, pick))

    def stream(self, key: str) -> Stream:
        """Returns a stream by its name in an offset."""
        return Stream(self, *split_key(key))

    def ends(self, keys: Sequence[str]) -> dict[str, Position]:
        """Returns where streams end, by their names in an offset; all in one round trip per server."""

        async def measured() -> list[Stride]:
            return await asyncio.gather(*(self.export.stride(*split_key(key)) for key in keys))

        return {key: end_of(found.facts) for key, found in zip(keys, self.run(measured()), strict=True)}

    def counts(self, queue: str) -> dict[str, int]:
        """Returns how many jobs of a queue are in each state."""
        return self.run(self.export.counts(queue))

    def kept(self, queue: str) -> int:
        """Returns how many events a queue keeps."""
        return self.run(self.export.kept(queue))
