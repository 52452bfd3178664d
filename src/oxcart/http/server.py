"""Serves an API over a socket with uvicorn, in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from oxcart.http.access import is_loopback
from oxcart.http.application import Application
from oxcart.http.protocol import HttpProtocol
from oxcart.http.service import Service
from oxcart.model.errors import OxcartError, ValidationError

log = logging.getLogger("oxcart.http")

#: Seconds that requests under way may take after the end was asked for.
GRACE = 10
#: Seconds that an idle connection stays open. Pools of clients keep it for less (httpx 5 s, aiohttp 15 s):
#: otherwise a request would now and then meet a connection that is just being closed.
KEEP_ALIVE = 75
#: Connections at once; more are answered with 503.
MAX_CONNECTIONS = 4000


def check_host(host: str, *, has_keys: bool, open_to_all: bool) -> None:
    """Refuses to listen beyond this machine without keys.

    Raises:
        ValidationError: The host is reachable from other machines, and nobody would be asked for a key.
    """
    if not (is_loopback(host) or has_keys or open_to_all):
        bound = "an address of this machine alone, such as 127.0.0.1, unless there are keys"
        raise ValidationError("host", bound, host)


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Refuses files that are no certificate with its key.

    Raises:
        ValidationError: A file cannot be read, or they do not belong together.
    """
    if cert is None:
        if key is not None:
            raise ValidationError("tls_key", "left out without tls_cert", str(key))
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ValidationError("tls_cert", "a certificate with its private key", str(cert)) from error


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers, whose event streams end when the server does."""

    service: Service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the program."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the event streams first, because each is a request without an end of its own."""
        await self.service.end_streams()
        await super().shutdown(sockets)


class Server:
    """An API that listens.

    Args:
        api: The application, made by `oxcart.http.app`.
        host: Where to listen.
        port: The port; 0 for a free one.
        grace: Seconds that requests under way may take after `stop`.
        tls_cert: A file with a certificate, to serve HTTPS.
        tls_key: A file with its private key; None if the first file has it.

    Example:
        >>> async with Server(app([emails]), port=8080): ...            # doctest: +SKIP
    """

    def __init__(
        self,
        api: Application,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace: int = GRACE,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        check_tls(tls_cert, tls_key)
        self.api = api
        self._scheme = "http" if tls_cert is None else "https"
        self._host = host
        self._port = port
        config = uvicorn.Config(
            api,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=grace,
            timeout_keep_alive=KEEP_ALIVE,
            ws="none",
            http=HttpProtocol,
            ssl_certfile=None if tls_cert is None else str(tls_cert),
            ssl_keyfile=None if tls_key is None else str(tls_key),
        )
        self._server = _Uvicorn(config)
        self._server.service = api.service
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address of the API."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self.port}"

    async def start(self) -> None:
        """Listens.

        Raises:
            OSError: The address is not available.
            OxcartError: The server ended at once.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, self._port), family=family, backlog=1024)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="oxcart-http")
        while not self._server.started:
            if self._task.done():
                raise OxcartError("the HTTP server ended when it started; the log has the reason")
            await asyncio.sleep(0.01)
        log.info("HTTP API on %s", self.url)

    async def stop(self) -> None:
        """Stops accepting requests, lets those under way end, and closes."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        if self._socket is not None:
            self._socket.close()

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
