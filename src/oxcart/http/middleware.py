"""What happens around every request: its id, security headers, the audit log, and how long it may take."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

from litestar.types import ASGIApp, HTTPScope, Message, Receive, Send

from oxcart.http.audit import Audit
from oxcart.http.errors import body_of

#: Seconds that a request may take, its body included.
REQUEST_SECONDS = 60.0
#: The same for a wait, which takes up to 5 minutes by itself.
WAIT_SECONDS = 330.0

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Headers of every answer that does not set its own: no scripts or styles but those of files, no frames, no
#: guessing of types, no caches.
SECURITY: list[tuple[bytes, bytes]] = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_UNSHARED = (b"cross-origin-resource-policy",)
_HSTS = (b"strict-transport-security", b"max-age=31536000")

_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


class Frame:
    """Echoes or makes ``X-Request-ID``, adds security headers, records what callers did, and ends requests
    that take too long with 503.

    Args:
        inner: The application.
        audit: Where to record it.
        shared: Whether pages of other sites may read answers (CORS).
    """

    def __init__(self, inner: ASGIApp, audit: Audit | None = None, *, shared: bool = False) -> None:
        self._inner = inner
        self._audit = audit or Audit(None)
        self._headers = [row for row in SECURITY if not (shared and row[0] in _UNSHARED)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one connection; the types are those of ASGI, which each framework names in its own way."""
        if scope["type"] == "http":
            await self._serve(_unmounted(scope), receive, send)
        else:
            await self._inner(scope, receive, send)

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        text = given.decode("latin-1")
        request_id = text if _ID.fullmatch(text) else str(uuid.uuid4())
        scope["oxcart.request_id"] = request_id  # type: ignore[typeddict-unknown-key]
        started = False
        self._audit.begin()

        async def reply(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                # Before the answer, so that its reader finds the entry.
                await self._audit.record(scope, message["status"], request_id)
                started = True
                given = {name.lower() for name, _ in message["headers"]}
                extra = [row for row in self._headers if row[0] not in given]
                if scope["scheme"] == "https":
                    extra.append(_HSTS)
                headers: list[Any] = [*message["headers"], *extra, (b"x-request-id", request_id.encode())]
                message["headers"] = headers
            await send(message)

        path = scope["path"].rstrip("/")
        limit = (
            WAIT_SECONDS if path.endswith("/wait") else None if path.endswith("/events") else REQUEST_SECONDS
        )
        try:
            async with asyncio.timeout(limit):
                await self._inner(scope, receive, reply)
        except TimeoutError:
            if started:
                raise
            await _refuse(reply, request_id)


def _unmounted(scope: Any) -> Any:
    """Returns the scope with the path below the place where the application is mounted.

    Servers pass the whole path, or only the part below ``root_path``. Litestar would cut the text of
    ``root_path`` wherever it stands in a path: ``/jobs`` out of ``/api/v1/jobs``.
    """
    root = scope.get("root_path", "").rstrip("/")
    if not root:
        return scope
    path: str = scope["path"]
    if path == root or path.startswith(f"{root}/"):
        path = path[len(root) :]
    return {**scope, "path": path or "/", "root_path": "", "oxcart.root": root}


async def _refuse(send: Send, request_id: str) -> None:
    body = body_of("unavailable", "the request took too long; the store may be unreachable", request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
