"""Listeners by the name of an event, as in Node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("oxcart.compat")

Listener = Callable[..., Any]


class EventEmitter:
    """Calls its listeners when an event happens."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def on(self, event_name: str, function: Listener) -> Listener:
        """Calls a function at every event of a name; returns the function."""
        self._listeners[event_name] = [*self._listeners.get(event_name, ()), function]
        return function

    def off(self, event_name: str, function: Listener) -> None:
        """Removes a listener.

        Raises:
            ValueError: It is not registered.
        """
        known = self._listeners.get(event_name, [])
        rest = known.copy()
        rest.remove(function)
        self._listeners[event_name] = rest

    def emit(self, event_name: str, *args: Any, **kwargs: Any) -> None:
        """Calls the listeners of an event, in the order in which they were added."""
        for function in self._listeners.get(event_name, ()):
            function(*args, **kwargs)

    def _emit_safely(self, event_name: str, *args: Any) -> None:
        """As ``emit``, for our own events: a listener that raises causes an ``error`` event."""
        for function in self._listeners.get(event_name, ()):
            try:
                function(*args)
            except Exception as error:
                if event_name == "error" or not self._listeners.get("error"):
                    log.exception("a listener of %r raised", event_name)
                else:
                    self._emit_safely("error", error)
