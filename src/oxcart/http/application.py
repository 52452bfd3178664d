"""Puts the API together: an ASGI application over some queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import Scope

from oxcart.broker.access import AccessStore
from oxcart.broker.connection import Reconnect
from oxcart.http import audit as audit_routes
from oxcart.http import (
    dead_letters,
    flows,
    groups,
    history,
    job_changes,
    job_logs,
    jobs,
    limits,
    listing,
    operations,
    schedules,
    sessions,
    stream,
    system,
)
from oxcart.http import queues as queue_routes
from oxcart.http.access import READ, Forward, Guard
from oxcart.http.answers import Answer
from oxcart.http.audit import Audit
from oxcart.http.credentials import Credentials
from oxcart.http.errors import answer
from oxcart.http.middleware import Frame
from oxcart.http.open_streams import OpenStreams
from oxcart.http.rates import Rates
from oxcart.http.redaction import Masks
from oxcart.http.service import Service
from oxcart.http.sessions import Sessions
from oxcart.http.web import PAGES
from oxcart.http.web.dashboard import Dashboard, refuse
from oxcart.model.duration import Duration
from oxcart.queue import Queue

#: The largest body of a request, in bytes.
MAX_BODY = 16 * 1024 * 1024
#: Requests per second of one key.
RATE = 500.0

_PARTS = (
    jobs,
    job_changes,
    job_logs,
    listing,
    stream,
    system,
    queue_routes,
    dead_letters,
    schedules,
    flows,
    sessions,
    audit_routes,
    operations,
    history,
    limits,
    groups,
)
_ROUTES = [route for part in _PARTS for route in part.ROUTES]


class Application(Frame):
    """The HTTP API of some queues, an ASGI application.

    Attributes:
        litestar: The application with the routes.
        service: The queues behind it.
    """

    def __init__(self, litestar: Litestar, service: Service, *, shared: bool = False) -> None:
        super().__init__(litestar, Audit(service.store), shared=shared)
        self.litestar = litestar
        self.service = service


def app(
    queues: Iterable[Queue],
    *,
    types: Mapping[str, str] | None = None,
    default: str | None = None,
    lifetime: Duration | None = "7d",
    tokens: Mapping[str, str] | None = None,
    keys: bool = True,
    forward: Forward | None = None,
    trusted: bool = False,
    origins: Iterable[str] = (),
    rate: float | None = RATE,
    mask: Iterable[str] = (),
    max_body: int = MAX_BODY,
    lake: str | Path | None = None,
) -> Application:
    """Returns the HTTP API of some queues, an ASGI application.

    Serve it with ``oxcart serve`` or any ASGI server, or mount it in another application. It does not close
    the queues.

    Args:
        queues: The queues.
        types: The queue of each job type. Other types lead to the queue of their name, or to ``default``.
        default: The queue of types that lead to no other: ``default`` if there is one, or the first.
        lifetime: How long after its delay a job may take to end unless it sets its own; None for no limit.
        tokens: The role of each token: ``observer``, ``submitter``, ``operator`` or ``admin``, and for some
            queues alone ``operator@emails*``. Without tokens and keys only this machine is served.
        keys: Whether API keys that ``oxcart access`` keeps beside the first queue are taken as well.
        forward: A proxy that names users in a header; None for no such header.
        trusted: Whether callers without a key are served from anywhere, because the application that mounts
            this one checks them.
        origins: Sites whose pages may call the API (CORS); none by default.
        rate: Requests per second that each key may send, twice as many at once; None for no limit.
        mask: Names of fields whose values no answer shows, in payloads and results: ``*token*``.
        max_body: The largest body of a request, in bytes.
        lake: The folder of a pipeline's lake, whose history the API and the dashboard show.

    Raises:
        ValidationError: There are no queues, a type leads to none of them, or a token is too short.

    Example:
        >>> api = app([Queue("emails")])                  # doctest: +SKIP
    """
    opened, allowed = list(queues), list(origins)
    store = store_of(opened) if keys else None
    service = Service(opened, types, default, lifetime, Masks(mask), store, lake)
    dashboard = Dashboard(service, lake)
    service.streams.append(dashboard.close)
    service.added.append(dashboard.pulse.add)
    signed = Sessions(store)
    rates = Rates(rate, 2 * (rate or 1))
    credentials = Credentials(tokens, store)
    guard = Guard(credentials, signed, trusted=trusted, forward=forward, origins=allowed, rates=rates)
    open_streams = OpenStreams(guard.is_still)
    service.streams.append(open_streams.close)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await service.close()

    routed = Litestar(
        route_handlers=[*_ROUTES, Router("/", route_handlers=PAGES, exception_handlers={Exception: refuse})],
        dependencies={
            "service": Provide(_seen(service), sync_to_thread=False),
            "dashboard": Provide(lambda: dashboard, sync_to_thread=False),
        },
        state=State(
            {
                "guard": guard,
                "sessions": signed,
                "service": service,
                "dashboard": dashboard,
                "open_streams": open_streams,
            }
        ),
        guards=[guard],
        response_class=Answer,
        exception_handlers={Exception: answer},
        lifespan=[lifespan],
        cors_config=CORSConfig(allow_origins=allowed) if allowed else None,
        request_max_body_size=max_body,
        openapi_config=_openapi(),
        logging_config=None,
        debug=False,
    )
    return Application(routed, service, shared=bool(allowed))


def _seen(service: Service) -> Callable[[Scope], Service]:
    def provide(scope: Scope) -> Service:
        known: Any = scope
        return service.seen_by(known.get("oxcart.caller"), known.get("oxcart.needed"))

    return provide


def store_of(queues: list[Queue]) -> AccessStore | None:
    """Returns the keys and the audit log beside the first queue; None if it is in memory."""
    if not queues or queues[0]._core.brokers is not None:
        return None
    core = queues[0]._core
    return AccessStore(core.server, core.prefix, Reconnect(attempts=3))


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
