"""Live parts: one poller per page that somebody watches, shared by all who watch the same page.

A poller reads what its page shows, renders the live parts and sends those that have changed. It ends with its
last viewer. So a hundred viewers of the overview cost the server as much as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec

from oxcart.http.errors import ApiError
from oxcart.http.mailbox import Mailbox
from oxcart.http.messages import one_line
from oxcart.http.web.page import Pages
from oxcart.model.errors import OxcartError

log = logging.getLogger("oxcart.http")

#: Seconds after which a look at the store counts as failed.
PATIENCE = 5.0
#: Pages that are watched at once, and viewers of all of them.
MOST_PAGES = 200
MOST_VIEWERS = 1000
#: Seconds after which a silent stream sends a comment.
KEEP_ALIVE = 15.0
#: Messages that a slow viewer may fall behind before its stream ends.
BACKLOG = 50


class Watched(Protocol):
    """A page that is looked at: see ``View``."""

    title: str
    every: float

    @property
    def parts(self) -> Sequence[str]:
        """The names of its live parts."""

    async def load(self) -> dict[str, Any]:
        """Reads what the page shows."""


Render = Callable[[Watched, dict[str, object]], dict[str, str]]


class _Poller:
    """Looks at one page for all its viewers."""

    def __init__(self, view: Watched, render: Render) -> None:
        self._view = view
        self._render = render
        self._shown: dict[str, str] = {}
        self._away = ""
        self.viewers: set[Mailbox] = set()
        self._task = asyncio.create_task(self._run(), name=f"oxcart-http-page {view.title}")

    def join(self, viewer: Mailbox) -> None:
        self.viewers.add(viewer)
        if self._away:
            viewer.offer(_message("away", {"message": self._away}))
        elif self._shown:
            viewer.offer(_message("parts", self._shown))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for viewer in self.viewers:
            viewer.end()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    values = await self._view.load()
                shown = self._render(self._view, values)
            except (OxcartError, TimeoutError, OSError) as error:
                self._say_away(error)
            except ApiError as error:
                self._send(_message("gone", {"message": str(error)}))
            except Exception:
                log.exception("cannot look at the page %r, trying again", self._view.title)
            else:
                changed = {name: text for name, text in shown.items() if self._shown.get(name) != text}
                if self._away:
                    self._away, changed = "", shown
                self._shown = shown
                if changed:
                    self._send(_message("parts", changed))
            await asyncio.sleep(self._view.every)

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            log.warning("cannot look at the page %r, trying again: %s", self._view.title, error)
        self._away = "The queue server does not answer. What you see is not current."
        self._send(_message("away", {"message": self._away}))

    def _send(self, message: bytes) -> None:
        for viewer in list(self.viewers):
            viewer.offer(message)


def _message(event: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), one_line(msgspec.json.encode(data)))


class Live:
    """The pollers of all watched pages.

    Args:
        pages: Renders parts.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._pollers: dict[str, _Poller] = {}

    @property
    def viewers(self) -> int:
        """How many viewers there are."""
        return sum(len(poller.viewers) for poller in self._pollers.values())

    def check_room(self, key: str) -> None:
        """Refuses a viewer beyond the bounds.

        Raises:
            ApiError: There are too many viewers, or too many different pages are watched.
        """
        if self.viewers >= MOST_VIEWERS or (key not in self._pollers and len(self._pollers) >= MOST_PAGES):
            raise ApiError(429, "quota_exceeded", "too many pages are watched; this one stays as it is")

    async def follow(
        self, key: str, view: Watched, shared: dict[str, object], viewer: Mailbox | None = None
    ) -> AsyncIterator[bytes]:
        """Yields the messages of a page.

        Args:
            key: Identifies the page: viewers of equal keys see the same.
            view: The page.
            shared: Values that its templates use beside those of the view.
            viewer: What the viewer receives; None for a new one. Ending it ends the stream.
        """
        viewer = viewer or Mailbox(BACKLOG)
        poller = self._pollers.get(key)
        if poller is None:
            poller = self._pollers[key] = _Poller(view, lambda of, values: self._render(of, shared | values))
        poller.join(viewer)
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        message = await viewer.take()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                    continue
                if message is None:
                    return
                yield message
        finally:
            poller.viewers.discard(viewer)
            if not poller.viewers and self._pollers.get(key) is poller:
                del self._pollers[key]
                with contextlib.suppress(asyncio.CancelledError):
                    await poller.stop()

    def _render(self, view: Watched, values: dict[str, object]) -> dict[str, str]:
        return {name: self._pages.part(name, values) for name in view.parts}

    async def close(self) -> None:
        """Ends all streams."""
        pollers, self._pollers = list(self._pollers.values()), {}
        for poller in pollers:
            await poller.stop()
