"""How the server reads and writes HTTP: uvicorn's protocol over httptools, with a bound and fewer writes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from oxcart.http.errors import body_of

#: Bytes of a request's line and headers.
MAX_HEAD = 65_536


class Gathered(asyncio.Transport):
    """A transport that sends what is written within one turn of the event loop in one piece.

    An answer is written as a head and a body. Each write is a system call, which costs more than making the
    answer does.

    Args:
        inner: The transport of the connection.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []

    def write(self, data: Any) -> None:
        """Sends data at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._inner.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def close(self) -> None:
        """Sends what is left and closes."""
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        """Closes at once."""
        self._waiting = []
        self._inner.abort()

    def is_closing(self) -> bool:
        """Returns whether the connection is closing or closed."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns a fact of the connection, such as its peer."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stops reading."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._inner.resume_reading()


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answers a connection beyond the bound."""
    body = body_of("unavailable", "there are too many connections; try again later")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"5"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class HttpProtocol(HttpToolsProtocol):
    """One connection. The parser has no bounds of its own, so what it keeps is bounded here.

    The head of a request may have `MAX_HEAD` bytes, and so many bytes may arrive without a part of a body: an
    endless head, trailer or extension of a chunk is refused.
    """

    _silent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins a connection."""
        super().connection_made(Gathered(transport))

    def on_headers_complete(self) -> None:
        """Ends the head of a request.

        Raises:
            ValueError: It is too long; the parser stops, and the answer is 400.
        """
        self._silent = 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            raise ValueError(f"the head of a request is longer than {MAX_HEAD} bytes")
        limit = self.limit_concurrency
        if limit is None or max(len(self.connections), len(self.tasks)) < limit:
            super().on_headers_complete()
            return
        app, self.app, self.limit_concurrency = self.app, _refuse, None
        try:
            super().on_headers_complete()
        finally:
            self.app, self.limit_concurrency = app, limit

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, in the shape of every error, and closes the connection."""
        body = body_of("invalid_request", msg)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        self._silent = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        self._silent += len(data)
        super().data_received(data)
        if self._silent > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")
