"""Puts the API together: an ASGI application over some queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from oxcart.http import dead_letters, flows, jobs, listing, schedules, stream, system
from oxcart.http import queues as queue_routes
from oxcart.http.access import READ, Guard, Tokens
from oxcart.http.errors import answer
from oxcart.http.middleware import Frame
from oxcart.http.service import Service
from oxcart.model.duration import Duration
from oxcart.queue import Queue

#: The largest body of a request, in bytes.
MAX_BODY = 16 * 1024 * 1024

_ROUTES = [
    route
    for part in (jobs, listing, stream, system, queue_routes, dead_letters, schedules, flows)
    for route in part.ROUTES
]


class Application(Frame):
    """The HTTP API of some queues, an ASGI application.

    Attributes:
        litestar: The application with the routes.
        service: The queues behind it.
    """

    def __init__(self, litestar: Litestar, service: Service) -> None:
        super().__init__(litestar)
        self.litestar = litestar
        self.service = service


def app(
    queues: Iterable[Queue],
    *,
    types: Mapping[str, str] | None = None,
    default: str | None = None,
    lifetime: Duration | None = "7d",
    tokens: Mapping[str, str] | None = None,
    trusted: bool = False,
    origins: Iterable[str] = (),
    max_body: int = MAX_BODY,
) -> Application:
    """Returns the HTTP API of some queues, an ASGI application.

    Serve it with ``oxcart serve`` or any ASGI server, or mount it in another application. It does not close
    the queues.

    Args:
        queues: The queues.
        types: The queue of each job type. Other types lead to the queue of their name, or to ``default``.
        default: The queue of types that lead to no other: ``default`` if there is one, or the first.
        lifetime: How long after its delay a job may take to end unless it sets its own; None for no limit.
        tokens: The role (``read``, ``submit``, ``operate``, ``admin``) of each token. Without tokens only
            callers on this machine are served.
        trusted: Whether callers without a token are served from anywhere, because the application that mounts
            this one checks them.
        origins: Sites whose pages may call the API (CORS); none by default.
        max_body: The largest body of a request, in bytes.

    Raises:
        ValidationError: There are no queues, a type leads to none of them, or a token is too short.

    Example:
        >>> api = app([Queue("emails")])                  # doctest: +SKIP
    """
    service = Service(queues, types, default, lifetime)
    guard = Guard(Tokens(tokens), trusted=trusted)
    allowed = list(origins)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await service.close()

    routed = Litestar(
        route_handlers=_ROUTES,
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        guards=[guard],
        exception_handlers={Exception: answer},
        lifespan=[lifespan],
        cors_config=CORSConfig(allow_origins=allowed) if allowed else None,
        request_max_body_size=max_body,
        openapi_config=_openapi(),
        logging_config=None,
        debug=False,
    )
    return Application(routed, service)


def _openapi() -> OpenAPIConfig:
    from oxcart import __version__

    return OpenAPIConfig(
        title="Oxcart",
        version=__version__,
        description="Jobs over HTTP. Every answer of status 400 or above has the shape of ErrorBody.",
        openapi_router=Router("/api/v1/openapi.json", route_handlers=[], opt=READ, include_in_schema=False),
        render_plugins=[JsonRenderPlugin(path="/")],
        use_handler_docstrings=True,
        security=[{"bearer": []}, {"key": []}],
        components=Components(
            security_schemes={
                "bearer": SecurityScheme(type="http", scheme="bearer"),
                "key": SecurityScheme(type="apiKey", name="X-API-Key", security_scheme_in="header"),
            }
        ),
    )
