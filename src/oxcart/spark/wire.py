"""A blocking connection for readers in Spark's Python workers: raw answers, as fast as hiredis parses them.

It reads only, so a call whose connection was lost is simply made again. The address is asked of `Server`
for every connection, so that a failover or a moved slot is followed.

May touch: sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any

import hiredis

from oxcart.broker.connection import Server
from oxcart.broker.link import Argument, Endpoint, ReplyError, pack
from oxcart.broker.scripts import Script
from oxcart.model.errors import AccessDenied, BrokerUnavailable, ScriptError

#: Seconds without a byte after which an answer is given up.
SILENCE = 30.0
#: Seconds to wait before the second, third … attempt.
PAUSES = (0.1, 0.5, 2.0)
_CHUNK = 262_144
_PASSING = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MOVED", "ASK")


class Wire:
    """One connection to the process that owns a slot.

    Args:
        server: The server.
        slot: The cluster slot, or None.
        pauses: Seconds between attempts to reach it; it is given up after the last.
    """

    def __init__(self, server: Server, slot: int | None = None, *, pauses: Sequence[float] = PAUSES) -> None:
        self._server = server
        self.slot = slot
        self._pauses = pauses
        self._socket: socket.socket | None = None
        self._parser: Any = None
        self._at: Endpoint | None = None

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the next call makes a new one."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def call(self, *command: Argument) -> Any:
        """The answer to a command.

        Raises:
            AccessDenied: The server does not let us in.
            BrokerUnavailable: The server cannot be reached.
            ScriptError: The server refused.
        """
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """The answers to commands that are sent in one go."""
        packed = b"".join(pack(tuple(command)) for command in commands)
        for pause in (*self._pauses, None):
            try:
                self._send(packed)
                answers = [self._receive() for _ in commands]
            except (OSError, BrokerUnavailable) as error:
                self.close()
                self._server.forget_slots()
                if pause is None:
                    raise self._unreachable(error) from error
                time.sleep(pause)
                continue
            refusal = next((answer for answer in answers if isinstance(answer, ReplyError)), None)
            if refusal is None:
                return answers
            if refusal.code in _PASSING and pause is not None:
                self.close()
                self._server.forget_slots()
                time.sleep(pause)
                continue
            if refusal.code == "NOSCRIPT":
                raise refusal
            raise ScriptError(f"{commands[0][0]!r}: {refusal}")
        raise AssertionError("not reached")

    def script(self, script: Script, key: str, *arguments: Argument) -> Any:
        """The answer to a script that only reads."""
        try:
            return self.call("EVALSHA", script.sha, 1, key, "", "", *arguments)
        except ReplyError:  # not known there yet
            return self.call("EVAL", script.text, 1, key, "", "", *arguments)

    def _send(self, packed: bytes) -> None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        self._socket.sendall(packed)

    def _receive(self) -> Any:
        assert self._socket is not None
        while True:
            answer = self._parser.gets()
            if answer is not False:
                return answer
            read = self._socket.recv(_CHUNK)
            if not read:
                raise BrokerUnavailable("the server closed the connection")
            self._parser.feed(read)

    def _connect(self) -> None:
        self._at = at = asyncio.run(self._server.endpoint(self.slot))
        if at.path:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(SILENCE)
            made.connect(at.path)
        else:
            made = socket.create_connection((at.host, at.port), timeout=5)
            made.settimeout(SILENCE)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if at.tls is not None:
                made = at.tls.wrap_socket(made, server_hostname=at.host)
        self._socket = made
        self._parser = hiredis.Reader(replyError=ReplyError, protocolError=ReplyError)
        greetings: list[tuple[Argument, ...]] = []
        if at.password is not None:
            greetings.append(("AUTH", at.username, at.password) if at.username else ("AUTH", at.password))
        if at.db:
            greetings.append(("SELECT", at.db))
        greetings.append(("PING",))
        self._send(b"".join(pack(greeting) for greeting in greetings))
        for greeting in greetings:
            answer = self._receive()
            if isinstance(answer, ReplyError):
                self.close()
                if answer.code in ("WRONGPASS", "NOAUTH", "NOPERM") or greeting[0] == "AUTH":
                    raise AccessDenied(
                        f"{at.name} refuses the login: {answer}; is the password in the environment variable "
                        "that urlEnv or passwordEnv names the right one, on this machine too?"
                    )
                raise BrokerUnavailable(str(answer))

    def _unreachable(self, error: Exception) -> BrokerUnavailable:
        where = self._at.name if self._at else self._server.name
        reason = str(error) or type(error).__name__
        return BrokerUnavailable(
            f"cannot reach {where}: {reason}; is the server up, and the url the right one? Start it and run "
            "this again: nothing is lost"
        )
