"""The global options of all commands: the server, the prefix and the namespace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from oxcart.cli.completion import queue_names
from oxcart.cli.exits import USAGE, CommandError

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.queue import Queue

T = TypeVar("T")

DEFAULT_PREFIX = "bull"

#: Attempts to reach the server before a command gives up: a person waits for it.
ATTEMPTS = 3

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
QueueArgument = Annotated[
    str, typer.Argument(help="The queue's name.", show_default=False, autocompletion=queue_names)
]


@dataclass
class Settings:
    """The global options, and the queues and servers that they lead to.

    Attributes:
        url: The server, or None for the embedded one.
        prefix: The prefix of queue names in keys.
        namespace: The Bridge namespace whose job types are the queues, instead of BullMQ's.
        attempts: How often to try to reach the server.
        servers: The standalone servers of a partitioned queue, in their order, instead of ``url``.
    """

    url: str | None = None
    prefix: str = DEFAULT_PREFIX
    namespace: str | None = None
    attempts: int = ATTEMPTS
    servers: tuple[str, ...] = ()
    _server: Server | None = field(default=None, repr=False)

    @property
    def server(self) -> Server:
        """Returns the server, one object for all queues of a command.

        Raises:
            CommandError: Several were given, and the command is none of a partitioned queue.
        """
        if self._server is None:
            from oxcart.broker.connection import Server

            self._server = Server(self.single)
        return self._server

    @property
    def single(self) -> str | None:
        """Returns the address of the only server, or None for the embedded one.

        Raises:
            CommandError: Several were given, and the command is none of a partitioned queue.
        """
        if len(self.servers) > 1:
            raise CommandError("several --server are for a partitioned queue: pass one with --url", USAGE)
        return self.servers[0] if self.servers else self.url

    def export(self) -> None:
        """Sets ``OXCART_URL`` for queues that name no server, here and in child processes.

        Raises:
            CommandError: Several servers were given.
        """
        if self.single is not None:
            os.environ["OXCART_URL"] = self.single

    @property
    def reconnect(self) -> Reconnect:
        """Returns the reconnect policy: a command gives up, while a worker would wait."""
        from oxcart.broker.connection import Reconnect

        return Reconnect(attempts=self.attempts)

    def plain(self, name: str) -> Queue:
        """Returns a queue without partitions, or a single partition, whose calls give up soon."""
        from oxcart.queue import Queue

        if self.namespace is not None:
            made = Queue(name, protocol="bridge", namespace=self.namespace, server=self.server)
        else:
            made = Queue(name, prefix=self.prefix, server=self.server)
        made._core.reconnect = self.reconnect
        return made

    @contextlib.asynccontextmanager
    async def queue(self, name: str) -> AsyncIterator[Queue]:
        """Opens a queue whose calls give up soon: all of its partitions if a layout is stored.

        Raises:
            CommandError: Its partitions are on another number of servers.
        """
        async with contextlib.AsyncExitStack() as stack:
            found = await stack.enter_async_context(self.partitioned(name))
            if found is None:
                if len(self.servers) > 1:
                    raise CommandError(f"no partitions of queue {name!r} found on these servers")
                found = await stack.enter_async_context(self.plain(name))
            yield found

    @contextlib.asynccontextmanager
    async def partitioned(self, name: str) -> AsyncIterator[Queue | None]:
        """Opens all partitions of a queue; None if it has none.

        Raises:
            CommandError: Its partitions are on another number of servers.
        """
        from oxcart.broker.slots import has_tag
        from oxcart.model.errors import ValidationError
        from oxcart.queue import Queue

        if self.namespace is not None or "#" in name or "@" in name or has_tag(name) or has_tag(self.prefix):
            yield None
            return
        place: dict[str, Any] = {"url": list(self.servers)} if self.servers else {"server": self.server}
        made = Queue(name, prefix=self.prefix, partitions=1, **place)
        made._core.reconnect = self.reconnect
        async with made:
            store = made._core.broker.partitions
            if store is None or not await store.exists():
                yield None
                return
            try:
                await store.refresh()
            except ValidationError as error:
                raise CommandError(f"{error}; pass each of them with --server", USAGE) from error
            yield made


def of(ctx: typer.Context) -> Settings:
    """Returns the settings of a running command."""
    return cast(Settings, cast(Any, ctx).find_root().obj)


def group(name: str, text: str) -> typer.Typer:
    """Makes a group of commands."""
    return typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)


def on_queue(ctx: typer.Context, queue: str, work: Callable[[Queue], Awaitable[T]]) -> T:
    """Runs the async part of a command on one queue."""

    async def act() -> T:
        async with of(ctx).queue(queue) as source:
            return await work(source)

    return run(act())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs the async part of a command."""
    import asyncio
    import logging

    # A command prints an error as one line; the library's warnings would only repeat it.
    logging.getLogger("oxcart").addHandler(logging.NullHandler())
    return asyncio.run(work)
