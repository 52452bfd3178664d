"""Context variables on their way to a handler's process.

A thread runs in a copy of its slot's context. A process receives the variables that can be named and copied:
those that are attributes of a module, with a value that pickle can copy. Others stay behind; the worker logs
the name of each once.
"""

from __future__ import annotations

import contextvars
import logging
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any

from oxcart.engine.running import current_place

log = logging.getLogger("oxcart.worker")

#: Variables that do not travel and need no warning: of the standard library, of OpenTelemetry (the trace
#: travels in ``Run.trace``) and of Sentry, whose scopes belong to a process.
_OWN = frozenset({"decimal_context", "current_context", "current_scope", "isolation_scope"})

#: The module and the name of a variable.
Where = tuple[str, str]
Packed = list[tuple[Where, bytes]]


class ContextPacker:
    """Packs the context variables of attempts for handler processes.

    Args:
        path_of: Returns the name by which a child imports a module of this process.
    """

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._places: dict[contextvars.ContextVar[Any], Where] = {}
        self._left: set[str] = set()

    def pack(self, context: contextvars.Context) -> Packed:
        """Returns the variables that can travel."""
        packed: Packed = []
        for variable, value in context.items():
            if variable is current_place or variable.name in _OWN:  # the child has a job of its own
                continue
            where = self._place_of(variable)
            if where is None:
                self._leave(variable, "it is no attribute of a module")
                continue
            try:
                packed.append((where, pickle.dumps(value)))
            except Exception as error:
                self._leave(variable, f"its value cannot be pickled: {error}")
        return packed

    def _place_of(self, variable: contextvars.ContextVar[Any]) -> Where | None:
        known = self._places.get(variable)
        if known is None:
            found = _find(variable)
            if found is None:
                return None
            known = self._places[variable] = self._path_of(found[0]), found[1]
        return known

    def _leave(self, variable: contextvars.ContextVar[Any], why: str) -> None:
        if variable.name not in self._left:
            self._left.add(variable.name)
            log.warning("context variable %r does not reach handler processes: %s", variable.name, why)


def unpack(packed: Iterable[tuple[Where, bytes]], load: Callable[[str], Any]) -> None:
    """Sets the variables in the current context of a handler's process.

    Args:
        packed: The variables.
        load: Imports a module by the name that ``path_of`` gave it.
    """
    for (module, name), value in packed:
        try:
            getattr(load(module), name).set(pickle.loads(value))
        except Exception as error:
            log.warning("context variable %s.%s is not set in this process: %s", module, name, error)


def _find(variable: contextvars.ContextVar[Any]) -> Where | None:
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is variable:
                return name, attribute
    return None
