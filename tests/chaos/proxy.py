"""A TCP proxy in front of a server that breaks connections as networks do.

It understands enough of the protocol to know which answer belongs to which command, so that it can cut a
connection *after* the server applied a call and before the answer reached the caller: the fault that a
client cannot tell from a call that never arrived.

    async with Proxy(server.port) as proxy:
        proxy.cut_if(lambda call: call.verb == "finish")
        Queue("q", url=proxy.url)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import hiredis

from oxcart.broker.bullmq.scripts import load, verbs

_CHUNK = 1 << 18


class _Refusal(Exception):
    """An error answer of the server."""


_VERBS = {load(verb).sha: verb for verb in verbs()}


@dataclass(slots=True)
class Call:
    """A command on its way.

    Attributes:
        verb: The script's verb (``claim``), ``compile`` for a text sent without a key, or the
            command in lower case (``bzpopmin``).
        args: The command as it was sent.
        cut: Whether the proxy drops its reply.
        refused: Whether the server replied with an error.
    """

    verb: str
    args: list[Any]
    cut: bool = False
    refused: bool = False


def _call(args: Any) -> Call:
    if not isinstance(args, list):
        return Call("?", [args])
    name = bytes(args[0]).upper()
    if name == b"EVALSHA":
        return Call(_VERBS.get(args[1], "?"), args)
    if name == b"EVAL" and bytes(args[2]) == b"0":
        return Call("compile", args)
    if name == b"EVAL":
        return Call(_VERBS.get(hashlib.sha1(args[1]).hexdigest().encode(), "?"), args)
    return Call(name.decode().lower(), args)


@dataclass(eq=False)
class _Pair:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    waiting: deque[Call] = field(default_factory=deque)

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Stands between clients and a server on loopback.

    Attributes:
        cuts: Number of dropped replies by verb.
        calls: Number of forwarded commands by verb.
        delay: Seconds by which every reply is delayed.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._cut: Callable[[Call], bool] | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.delay = 0.0
        self.cuts: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.seen = asyncio.Event()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def is_up(self) -> bool:
        """Whether the proxy accepts connections."""
        return self._listener is not None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open.set()
        await self.down()
        if self._tasks:  # they end with their connections
            await asyncio.wait(self._tasks, timeout=5)

    def cut_if(self, chosen: Callable[[Call], bool] | None) -> None:
        """From now on, drops the replies of chosen calls and cuts their connections."""
        self._cut = chosen

    def cut_all(self) -> None:
        """Cuts every open connection; new ones are accepted."""
        for pair in list(self._pairs):
            pair.abort()

    def hold(self) -> None:
        """Forwards nothing any more without closing anything, like a black hole."""
        self._open.clear()

    def release(self) -> None:
        """Ends `hold`."""
        self._open.set()

    def lead_to(self, server_port: int) -> None:
        """Forwards to another server from now on; every open connection is cut."""
        self._server_port = server_port
        self.cut_all()

    async def down(self) -> None:
        """Cuts every connection and refuses new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut_all()
        await asyncio.sleep(0)

    async def up(self) -> None:
        """Accepts connections again, on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accept, "127.0.0.1", self.port, limit=_CHUNK, reuse_address=True
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_server, to_server = await asyncio.open_connection(
                "127.0.0.1", self._server_port, limit=_CHUNK
            )
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, to_server)
        if not self.is_up:  # it went down while this connection was being made
            pair.abort()
            return
        self._pairs.add(pair)
        back = asyncio.create_task(self._answers(from_server, pair))
        try:
            await self._commands(reader, pair)
        finally:
            self._pairs.discard(pair)
            pair.abort()
            back.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await back

    async def _commands(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        parser = hiredis.Reader(replyError=_Refusal, protocolError=_Refusal)
        # A stranger that speaks another protocol on this port is cut off.
        with contextlib.suppress(ConnectionError, _Refusal):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                parser.feed(data)
                while (args := parser.gets()) is not False:
                    call = _call(args)
                    self.calls[call.verb] += 1
                    self.seen.set()
                    call.cut = self._cut is not None and self._cut(call)
                    pair.waiting.append(call)
                pair.server.write(data)
                await pair.server.drain()

    async def _answers(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        parser = hiredis.Reader(replyError=_Refusal, protocolError=_Refusal)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                parser.feed(data)
                cut = False
                while (answer := parser.gets()) is not False:
                    call = pair.waiting.popleft()
                    call.refused = isinstance(answer, _Refusal)
                    # A reply that means "not applied" is not dropped.
                    if call.cut and not call.refused:
                        self.cuts[call.verb] += 1
                        cut = True
                if cut:
                    break
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                pair.client.write(data)
                await pair.client.drain()
        pair.abort()
