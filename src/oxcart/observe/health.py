"""A small HTTP server for orchestrators and scrapers: ``/metrics``, ``/live``, ``/ready``.

``/live`` answers as long as the event loop runs: an orchestrator may restart a process that does not answer.
``/ready`` is 200 only while the worker claims jobs: it has started, reaches its server and is not shutting
down. It listens on loopback by default, answers GET and HEAD, and closes every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from http import HTTPStatus

from oxcart.observe.metrics import Metrics

log = logging.getLogger("oxcart.health")

#: The limits of a request: seconds until it has arrived, and bytes.
REQUEST_SECONDS = 5.0
REQUEST_BYTES = 16_384

_TEXT = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]


class HealthServer:
    """Serves metrics and health.

    Args:
        metrics: The metrics of ``/metrics``.
        not_ready: Returns why the worker does not claim jobs, or None while it does.
        host: The address to listen on.
        port: The port; 0 for a free one.
    """

    def __init__(
        self,
        metrics: Metrics,
        not_ready: Callable[[], str | None],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._server is None:
            return self._port
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listens.

        Raises:
            OSError: The address is not available.
        """
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, limit=REQUEST_BYTES, reuse_address=True
        )
        log.info("metrics and health on http://%s:%d", self._host, self.port)

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._metrics.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.close()
            return
        method, path, accept = _parse(head)
        try:
            status, kind, body = await self._answer(method, path, accept)
        except Exception:
            log.exception("%s %s", method, path)
            status, kind, body = _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "the log says more")
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        with contextlib.suppress(OSError):
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else body))
            await writer.drain()
        writer.close()

    async def _answer(self, method: str, path: str, accept: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only")
        if path == "/metrics":
            body, kind = await self._metrics.scrape(accept)
            return HTTPStatus.OK, kind, body
        if path == "/live":
            return _plain(HTTPStatus.OK, "live")
        if path == "/ready":
            reason = self._not_ready()
            if reason is None:
                return _plain(HTTPStatus.OK, "ready")
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        return _plain(HTTPStatus.NOT_FOUND, "there are /metrics, /live and /ready")


def _plain(status: HTTPStatus, text: str) -> Answer:
    return status, _TEXT, text.encode() + b"\n"


def _parse(head: bytes) -> tuple[str, str, str]:
    """Returns method, path without query, and the Accept header; empty for a malformed request."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    method, target = (words[0], words[1]) if len(words) == 3 else ("", "")
    accept = ""
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            accept = value.strip()
    return method, target.partition("?")[0], accept
