"""The dashboard of an API: its pulse, its pages, and the routes that show and follow a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response, Stream

from oxcart.http.access import READ
from oxcart.http.credentials import caller_of
from oxcart.http.errors import log, problem_of
from oxcart.http.mailbox import Mailbox
from oxcart.http.routes import Api
from oxcart.http.service import Service
from oxcart.http.sessions import SIGN_IN, root_of
from oxcart.http.web import forms
from oxcart.http.web.live import BACKLOG, Live
from oxcart.http.web.page import THEMES, AnyRequest, Pages, here, html, role_of
from oxcart.http.web.pulse import SELDOM, Pulse, Track
from oxcart.model.access import Role
from oxcart.queue import Queue

#: Seconds that reading a page may take.
PATIENCE = 15.0

#: Queues that a page over all of them reads at the same time.
AT_ONCE = 20

T = TypeVar("T")

_EVENT_STREAM = "text/event-stream"


async def each(queues: Sequence[Queue], read: Callable[[Queue], Awaitable[T]]) -> list[T]:
    """Reads something of many queues, of `AT_ONCE` at the same time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(queue: Queue) -> T:
        async with turns:
            return await read(queue)

    return await asyncio.gather(*(one(queue) for queue in queues))


class View:
    """What a page shows to a caller.

    Args:
        dashboard: What all pages share.
        service: The queues that the caller may see.
        request: The request, whose address chooses what is shown.

    Attributes:
        title: Its title.
        template: Its template.
        parts: The templates of its live parts, each in an element of the id ``part-NAME``.
        every: Seconds between two looks at a live page.
        nav: The entry of the navigation that it belongs to.
        crews_age: How old what it shows of workers may be, in seconds.
    """

    title: str = ""
    template: str = ""
    parts: Sequence[str] = ()
    every: float = 2.0
    nav: str = ""
    crews_age: float = SELDOM

    def __init__(self, dashboard: Dashboard, service: Service, request: AnyRequest) -> None:
        self.dashboard = dashboard
        self.service = service
        self.query = request.query_params
        self.base = root_of(request)
        self.read_address()

    def read_address(self) -> None:
        """Reads and checks what the address asks for."""

    async def load(self) -> dict[str, Any]:
        """Reads what the page shows."""
        raise NotImplementedError

    async def tracks(self) -> dict[str, Track]:
        """Returns the queues that the caller may see, sampled lately."""
        everything = await self.dashboard.pulse.fresh(self.crews_age)
        return {name: everything[name] for name in self.service.queues}


class Dashboard:
    """What all pages share.

    Args:
        service: The queues behind them.
        lake: The folder of a lake, whose history is shown; None without one.
    """

    def __init__(self, service: Service, lake: str | Path | None = None) -> None:
        self.lake = lake
        self.pulse = Pulse(list(service.queues.values()))
        self.pages = Pages()
        self.live = Live(self.pages)

    def shared(self, request: AnyRequest, service: Service) -> dict[str, Any]:
        """Returns the values that live parts use, the same for all callers with the same grants."""
        caller = caller_of(request)

        def can(needed: Role, queue: str) -> bool:
            found = service.queues.get(queue)
            return caller is not None and found is not None and caller.has(needed, found._core.prefix, queue)

        return {"base": root_of(request), "role": role_of(request), "can": can}

    def frame(self, request: AnyRequest, service: Service) -> dict[str, Any]:
        """Returns the values around a page, some of them the viewer's own."""
        caller = caller_of(request)
        theme = request.cookies.get("oxcart-theme")
        return {
            **self.shared(request, service),
            "here": here(request),
            "csrf": (caller.csrf if caller is not None else None) or "",
            "caller": caller,
            "theme": theme if theme in THEMES else "",
            "flash": forms.flash(request),
            "queue_names": list(service.queues) if caller is not None else [],
            "has_lake": self.lake is not None,
            "has_audit": service.store is not None and role_of(request) >= Role.ADMIN,
            "search": request.query_params.get("q", ""),
        }

    def show(
        self, request: AnyRequest, service: Service, template: str, values: dict[str, Any], status: int = 200
    ) -> Response[str]:
        """Renders a page for one viewer."""
        around = {"title": "", "nav": "", "events": "", "is_away": False, **self.frame(request, service)}
        return html(self.pages.render(template, {**around, **values}), status)

    async def show_view(self, request: AnyRequest, view: View) -> Response[str]:
        """Reads and renders a page for one viewer.

        Raises:
            TimeoutError: The queue server does not answer in time.
        """
        async with asyncio.timeout(PATIENCE):
            values = await view.load()
        path, _, query = here(request).partition("?")
        events = f"{path.rstrip('/')}/events" + (f"?{query}" if query else "")
        around = {"title": view.title, "nav": view.nav, "events": events if view.parts else ""}
        return self.show(request, view.service, view.template, {**values, **around})

    def follow(self, request: AnyRequest, view: View) -> AsyncIterator[bytes]:
        """Yields the live parts of a page. Callers with the same grants share one poller."""
        caller = caller_of(request)
        rights = "" if caller is None else f"{sorted(map(str, caller.grants))} {caller.payloads}"
        key = f"{rights} {root_of(request)} {here(request)}"
        self.live.check_room(key)
        viewer = Mailbox(BACKLOG)
        request.app.state.open_streams.add(request, viewer)
        return self.live.follow(key, view, self.shared(request, view.service), viewer)

    async def close(self) -> None:
        """Ends the live parts."""
        await self.live.close()


Web = NamedDependency[Dashboard]


def page(path: str, view: type[View], opt: dict[str, Any] = READ) -> Sequence[HTTPRouteHandler]:
    """Returns the routes of a page: the page itself, and its live parts at ``PATH/events``.

    Args:
        path: Where it is.
        view: What it shows.
        opt: The role that it needs.
    """

    @get(path, opt=opt, include_in_schema=False)
    async def show(request: Request[Any, Any, Any], service: Api, dashboard: Web) -> Response[str]:
        return await dashboard.show_view(request, view(dashboard, service, request))

    if not view.parts:
        return [show]

    @get(f"{path.rstrip('/')}/events", opt={**opt, "endless": True}, include_in_schema=False)
    async def follow(request: Request[Any, Any, Any], service: Api, dashboard: Web) -> Stream:
        lines = dashboard.follow(request, view(dashboard, service, request))
        return Stream(lines, media_type=_EVENT_STREAM, headers={"X-Accel-Buffering": "no"})

    return [show, follow]


def refuse(request: AnyRequest, error: Exception) -> Response[Any]:
    """Answers a page's request with an error, as a page; leads callers without a key to the form."""
    status, problem = problem_of(error)
    request_id = str(request.scope.get("oxcart.request_id", ""))
    if status == 500:
        log.error("request %s failed: %s %s", request_id, request.method, request.url.path, exc_info=error)
    if status == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        place = f"{root_of(request)}{SIGN_IN}?next={quote(here(request), safe='')}"
        return Response(None, status_code=303, headers={"Location": place})
    state = request.app.state
    dashboard: Dashboard = state["dashboard"]
    service: Service = state["service"].seen_by(caller_of(request), Role.OBSERVER)
    values = {
        "title": "Error",
        "status": status,
        "message": problem.message,
        "request_id": request_id,
        "is_away": status == 503 and request.method == "GET",
    }
    made: Response[Any] = dashboard.show(request, service, "error.html", values, status)
    if status == 401:
        made.headers["WWW-Authenticate"] = "Bearer"
    return made
