"""One connection to a server: it sends calls as they come, and answers arrive in order.

A link is thin on purpose. A call costs 260 µs with redis-py's client, and 170 µs with a link on the same
machine (``benchmarks/link.py``). A link can carry many calls at once on one connection, which group commit
needs. Finding masters and slots, reading URLs, and blocking clients for tools are still left to redis-py.

A link connects when first called, and again after a loss; it never repeats a call by itself, because only
the caller knows whether a repeat is safe. A call in flight when the connection is lost ends in
``BrokerUnavailable``. No read hangs: a watch ends the connection when the oldest call is overdue and no
byte of it goes out or comes in any more; a large job on a slow line is no lost one.

A link belongs to the event loop that first used it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import hiredis

from oxcart.broker.transport import speaks_plainly, speaks_tls
from oxcart.model.errors import AccessDenied, BrokerUnavailable, CrossSlotError

Argument = bytes | str | int | float

#: Replies to a greeting that no second attempt will change.
DENIALS = frozenset({"WRONGPASS", "NOAUTH", "NOPERM"})

CALL_TIMEOUT = 10.0
CONNECT_TIMEOUT = 5.0
#: Seconds after which an answer is late: the process may have hung, and been replaced meanwhile.
LATE = 1.0
#: Seconds after which a TLS handshake is slow enough to see whether the port speaks TLS at all.
HANDSHAKE = 0.5


def pack(command: tuple[Argument, ...]) -> bytes:
    """Returns a command in wire form."""
    try:
        packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    except UnicodeEncodeError:  # an id that a peer wrote and that is no text goes back unchanged
        raw = (part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part for part in command)
        packed = hiredis.pack_command(tuple(raw))  # type: ignore[arg-type]
    return packed


#: The text that Redis before 7 puts before the refusal that ended a script.
_WRAPPING = re.compile(r"^ERR Error running script .*user_script: ?\d+: -?(?=[A-Z]{3,} )", re.DOTALL)


class ReplyError(Exception):
    """An error that the server answered; ``code`` is its first word (``NOSCRIPT``, ``MOVED``)."""

    def __init__(self, text: str) -> None:
        super().__init__(_WRAPPING.sub("", text, count=1) if text.startswith("ERR Error running") else text)

    @property
    def code(self) -> str:
        """The first word of the answer, by convention its kind."""
        return str(self).split(" ", 1)[0]


class AnswerLost(BrokerUnavailable):
    """The connection ended after the call was sent: the server may have applied it."""


class LinkClosed(BrokerUnavailable):
    """The link was closed by its owner: no repeat will be answered."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one server process, and the credentials for it."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    #: Whether it must be a single server: a node of a cluster is refused.
    alone: bool = False
    #: Whether it must be a master: Sentinels and nodes may name a master that was replaced.
    master: bool = False
    #: Its id as a node of a cluster, if known.
    node: str = ""

    @property
    def name(self) -> str:
        """The address in words, for messages."""
        return self.path or f"{self.host}:{self.port}"


class Guard(Protocol):
    """Follows the masters of a location, for the links to them."""

    def release(self, link: Link) -> None:
        """Follows a link no longer."""

    def doubts(self, link: Link) -> bool:
        """Returns whether an answer that has just arrived may come from a replaced master."""

    async def confirm(self, link: Link) -> None:
        """Raises ``AnswerLost`` unless the endpoint that answered is still the master."""


#: A call that waits: its answer, when it is overdue, whether it may take longer while its bytes still move,
#: when it was sent, and when its caller gives it up.
_Call = tuple[asyncio.Future[Any], float, bool, float, float]


class _Wire(asyncio.Protocol):
    """The bytes of a link: feeds the parser, and passes each answer to the oldest waiting call."""

    def __init__(
        self, lost: Callable[[BaseException | None], None], late: Callable[[], None] | None = None
    ) -> None:
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=ReplyError)
        self._lost = lost
        self._late = late
        self.waiting: deque[_Call] = deque()
        self.received = 0
        #: Bytes received, and bytes still to be sent, when the watch last looked; and when they last moved.
        self.seen = (0, 0)
        self.moved_at = 0.0
        self.transport: asyncio.Transport | None = None
        #: The timer of the oldest call; None while no call waits.
        self.watch: asyncio.TimerHandle | None = None
        #: Why it ended; a later call will never be answered.
        self.ended: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self.waiting
        self.received += len(data)
        if self._late is not None and waiting and time.monotonic() - waiting[0][3] > LATE:
            self._late()
        reader.feed(data)
        while True:
            answer = reader.gets()
            if answer is False:
                return
            if not waiting:  # an answer without a call: the stream is out of step
                if self.transport is not None:
                    self.transport.abort()
                return
            future = waiting.popleft()[0]
            if future.done():
                continue
            if isinstance(answer, ReplyError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost(exc)


def _give_up(calls: Iterable[_Call], now: float) -> float:
    """Ends the wait of calls whose time is over; returns when the next one's will be."""
    soonest = math.inf
    for future, _, _, _, given_up in calls:
        if given_up > now:
            soonest = min(soonest, given_up)
        elif not future.done():
            future.set_exception(TimeoutError())
    return soonest


class Link:
    """A connection that is made when needed.

    Args:
        resolve: Returns where to connect. It is called for every connection, so that it can follow a
            failover or start the embedded server again.
        client_name: The name the server shows for this connection.
        timeout: Seconds after which an unanswered call ends the connection.
        blocks: Whether commands block on this link, so that a late answer means nothing.

    Attributes:
        guard: Follows the master that the link leads to; None if it cannot change.
        late: The endpoint of a late answer that no Sentinel or node has confirmed yet.
    """

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        *,
        client_name: str | None = None,
        timeout: float = CALL_TIMEOUT,
        blocks: bool = True,
    ) -> None:
        self._resolve = resolve
        self._client_name = client_name
        self._timeout = timeout
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[_Wire] | None = None
        self._closed = False
        self._blocks = blocks
        self._opening: _Wire | None = None
        self._opening_since = 0.0
        self.guard: Guard | None = None
        self.late: Endpoint | None = None
        self.endpoint: Endpoint | None = None
        self.connections_made = 0

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self._wire is not None

    @property
    def is_open(self) -> bool:
        """Whether the connection stands or is being made."""
        return self._wire is not None or self._opening is not None

    @property
    def is_silent(self) -> bool:
        """Whether an answer, or the greeting of a new connection, has been late for a while."""
        now = asyncio.get_running_loop().time()
        if self._opening is not None:
            return now - self._opening_since > LATE
        waiting = self._wire.waiting if self._wire else None
        return not self._blocks and bool(waiting) and now - waiting[0][3] > LATE  # type: ignore[index]

    @property
    def in_flight(self) -> int:
        """How many calls wait for their answer."""
        return len(self._wire.waiting) if self._wire else 0

    async def call(self, *args: Argument, timeout: float | None = None) -> Any:
        """Sends one command and waits for its answer.

        Args:
            *args: The command and its arguments.
            timeout: Seconds to wait instead of the link's own limit, for commands that block.

        Raises:
            ReplyError: The server answered with an error.
            BrokerUnavailable: There is no connection, or it was lost before the answer came.
        """
        return await self.call_packed(pack(args), timeout)

    async def call_packed(self, packed: bytes, timeout: float | None = None) -> Any:
        """As ``call``, for a command that is already in wire form."""
        wire = self._wire
        if wire is None:
            wire = await self.connect()
        return await self._send(wire, packed, timeout)

    def send(self, packed: bytes, most: float | None = None) -> asyncio.Future[Any] | None:
        """Sends a packed command if the connection stands; returns its answer to come, or None.

        Args:
            packed: The command in wire form.
            most: Seconds after which the answer ends in ``TimeoutError``; the connection stays. The watch
                looks for that, so a bound below a second may be noticed late.
        """
        wire = self._wire
        return None if wire is None else self._send(wire, packed, None, most)

    async def pipeline(self, commands: Sequence[bytes], timeout: float | None = None) -> list[Any]:
        """Sends packed commands at once. The result has an error in the place of its command."""
        wire = self._wire or await self.connect()
        futures = [self._expect(wire, timeout) for _ in commands]
        if wire.ended is None:
            assert wire.transport is not None
            wire.transport.write(b"".join(commands))
        return await asyncio.gather(*futures, return_exceptions=True)

    async def connect(self) -> _Wire:
        """Makes the connection if there is none; concurrent callers share one attempt."""
        if self._wire is not None:
            return self._wire
        if self._closed:
            raise LinkClosed("the connection was closed")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open(), name="oxcart-connect")
            self._connecting.add_done_callback(self._connected)
        connecting, me = self._connecting, asyncio.current_task()
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and not (me and me.cancelling()):
                raise LinkClosed("the connection was closed") from None
            raise

    def _connected(self, task: asyncio.Task[_Wire]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # no caller waits for this attempt any more

    async def close(self) -> None:
        """Ends the connection; calls in flight end in ``BrokerUnavailable``."""
        self.shut()

    def shut(self) -> None:
        """As ``close``, without waiting for anything."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.drop("the connection was closed")
        if self.guard is not None:
            self.guard.release(self)

    def drop(self, why: str) -> None:
        """Cuts the connection now, even while it is being made; the next call makes a new one."""
        wires, self._wire, self._opening = (self._wire, self._opening), None, None
        for wire in wires:
            if wire is not None:
                if wire.transport is not None:
                    wire.transport.abort()
                self._fail(wire, why)

    async def _open(self) -> _Wire:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                self.endpoint = at = await self._resolve()
                late = None if self.guard is None or self._blocks else lambda: setattr(self, "late", at)
                wire = _Wire(lambda exc: self._on_lost(wire, exc), late)
                self._opening, self._opening_since = wire, asyncio.get_running_loop().time()
                await self._dial(wire, at)
                await self._greet(wire, at)
                if wire.ended is not None:
                    raise BrokerUnavailable(wire.ended)
        except (OSError, TimeoutError, ReplyError, BrokerUnavailable) as error:
            where = self.endpoint.name if self.endpoint else "the server"
            reason = str(error) or type(error).__name__
            if isinstance(error, ReplyError) and error.code in DENIALS:
                raise AccessDenied(f"{where} does not let us in: {reason}") from error
            if isinstance(error, AnswerLost | ConnectionResetError):
                await self._check_plain()
            raise BrokerUnavailable(f"cannot reach {where}: {reason}") from error
        finally:
            self._opening = None
        self._wire = wire
        self.connections_made += 1
        return wire

    async def _dial(self, wire: _Wire, at: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        if at.path:
            await loop.create_unix_connection(lambda: wire, at.path)
        elif at.tls is None:
            await loop.create_connection(lambda: wire, at.host, at.port)
        else:
            dialling = loop.create_task(
                loop.create_connection(lambda: wire, at.host, at.port, ssl=at.tls, server_hostname=at.host)
            )
            try:
                await asyncio.wait((dialling,), timeout=HANDSHAKE)
                slow = not dialling.done()
                error = None if slow else dialling.exception()
                wrong = isinstance(error, ssl.SSLError) and not isinstance(
                    error, ssl.SSLCertVerificationError
                )
                if (slow or wrong) and await speaks_plainly(at.host, at.port):
                    raise AccessDenied(f"{at.name} does not speak TLS: write redis:// instead of rediss://")
                await dialling
            finally:
                dialling.cancel()

    async def _check_plain(self) -> None:
        """Raises a typed error if a server that ended a plain connection speaks TLS."""
        at = self.endpoint
        if at is None or at.path or at.tls or at.master or not await speaks_tls(at.host, at.port):
            return
        raise AccessDenied(f"{at.name} speaks TLS: write rediss:// instead of redis://")

    async def _greet(self, wire: _Wire, at: Endpoint) -> None:
        greetings: list[tuple[str | int, ...]] = []
        if at.password is not None:
            greetings.append(("AUTH", at.username, at.password) if at.username else ("AUTH", at.password))
        if at.db:
            greetings.append(("SELECT", at.db))
        greetings.append(("PING",))  # a server that still loads its data answers this with an error
        indiscreet = None
        try:
            for greeting in greetings:
                try:
                    await self._send(wire, pack(greeting), CONNECT_TIMEOUT)
                except ReplyError as error:
                    if not at.password or at.password not in str(error):
                        raise
                    indiscreet = error.code
                if indiscreet:  # raised here, so that no traceback contains the server's answer
                    raise ReplyError(f"{indiscreet} (the answer to {greeting[0]} holds the password)")
            if at.alone or at.master:
                await self._check_kind(wire, at)
            if self._client_name:
                # A courtesy to operators: a server or proxy that knows no names is used without one.
                with contextlib.suppress(ReplyError):
                    await self._send(wire, pack(("CLIENT", "SETNAME", self._client_name)), CONNECT_TIMEOUT)
        except BaseException:
            if wire.transport is not None:
                wire.transport.abort()
            raise

    async def _check_kind(self, wire: _Wire, at: Endpoint) -> None:
        """Refuses a node of a cluster before any write: keys without hash tags would be spread over it.

        Worse, a script that names keys of two slots in one command breaks all scripts of a Valkey 9 node.
        Also refuses a replica if a master is required: reads from it would be stale.
        """
        try:
            hello = await self._send(wire, pack(("HELLO", 2)), CONNECT_TIMEOUT)
        except ReplyError:  # an old server or a proxy does not know this command
            return
        pairs = iter(hello)
        facts = dict(zip(pairs, pairs, strict=False))
        if at.alone and facts.get(b"mode") == b"cluster":
            raise CrossSlotError(f"{at.name} is a node of a cluster: use a redis+cluster:// URL")
        if at.master and facts.get(b"role", b"master") != b"master":
            raise BrokerUnavailable(f"{at.name} is no master")

    def _send(
        self, wire: _Wire, packed: bytes, timeout: float | None, most: float | None = None
    ) -> asyncio.Future[Any]:
        future = self._expect(wire, timeout, most)
        if wire.ended is None:
            assert wire.transport is not None
            wire.transport.write(packed)
        return future

    def _expect(self, wire: _Wire, timeout: float | None, most: float | None = None) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if wire.ended is not None:  # lost after it was made and before its first call
            future.set_exception(BrokerUnavailable(wire.ended))
            return future
        limit = self._timeout if timeout is None else timeout
        now = loop.time()
        given_up = math.inf if most is None else now + most
        wire.waiting.append((future, now + limit, timeout is None, now, given_up))
        if wire.watch is None:
            wire.watch = loop.call_later(1.0, self._look, wire)
        return future

    def _look(self, wire: _Wire) -> None:
        """Ends a connection whose oldest call is overdue. One timer per connection, not one per call."""
        wire.watch = None
        if not wire.waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        seen = (wire.received, wire.transport.get_write_buffer_size() if wire.transport else 0)
        if seen[0] > wire.seen[0] or seen[1] < wire.seen[1]:
            wire.moved_at = now
        wire.seen = seen
        _, overdue, may_take_longer, _, _ = wire.waiting[0]
        if may_take_longer:
            overdue = max(overdue, wire.moved_at + self._timeout)
        if now < overdue:
            soonest = min(overdue, _give_up(wire.waiting, now))
            wire.watch = loop.call_later(min(1.0, max(0.01, soonest - now)), self._look, wire)
        elif wire is self._wire:
            self.drop("no answer in time")
        else:
            if wire.transport is not None:
                wire.transport.abort()

    def _on_lost(self, wire: _Wire, exc: BaseException | None) -> None:
        if self._wire is wire:
            self._wire = None
        self._fail(wire, f"the connection was lost: {exc}" if exc else "the server closed the connection")

    def _fail(self, wire: _Wire, why: str) -> None:
        where = self.endpoint.name if self.endpoint else "the server"
        if wire.ended is None:
            wire.ended = f"{where}: {why}"
        if wire.watch is not None:
            wire.watch.cancel()
            wire.watch = None
        while wire.waiting:
            future = wire.waiting.popleft()[0]
            if not future.done():
                future.set_exception(AnswerLost(wire.ended))
