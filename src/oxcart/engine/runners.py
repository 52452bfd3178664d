"""Ways to run a handler that the engine does not have itself, found by name: ``@queue.job(run="spark", …)``.

A package offers a runner as an entry point of the group ``oxcart.runners``. The engine imports it when a
handler names it, and knows none by itself. A runner's handler runs in a fresh process, as ``run="process"``
does, and in that process a function of the runner's (`Entry`) makes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from oxcart.model.errors import ValidationError

#: The group of entry points.
GROUP = "oxcart.runners"
#: The ways to run a handler that the engine has itself.
BUILT_IN = ("async", "thread", "process")


class Entry(NamedTuple):
    """How the process of a runner's handler calls it.

    Attributes:
        path: The module and the name of the function that makes the call (`process_child.Call`).
        settings: What it needs to know; pickle must be able to copy it.
        grace: Seconds between the request to stop and the kill of the process.
    """

    path: tuple[str, str]
    settings: Any
    grace: float = 5.0


class Prepared(NamedTuple):
    """A handler as its runner sees it.

    Attributes:
        function: The function whose signature is the payload.
        entry: How it is called.
        module: The place that declares it; None for the function's module.
    """

    function: Callable[..., Any]
    entry: Entry
    module: str | None = None


class Runner(Protocol):
    """A way to run handlers.

    Attributes:
        settings: Its own arguments of ``@queue.job``.
        fills: Parameters of a handler that it fills.
        face: The class of the job that a handler receives.
    """

    settings: frozenset[str]
    fills: frozenset[str]
    face: type[Any]

    def prepare(self, target: Callable[..., Any] | str | Path, settings: Mapping[str, Any]) -> Prepared:
        """Checks the settings of a handler.

        Raises:
            ValidationError: A setting is wrong, or the target cannot be run.
        """


def find_runner(name: str) -> Runner:
    """Returns a runner by its name.

    Raises:
        ValidationError: No installed package has one of this name.
    """
    found = {one.name: one for one in entry_points(group=GROUP)}
    if name not in found:
        names = ", ".join(repr(one) for one in (*BUILT_IN, *sorted(found)))
        raise ValidationError("run", f"one of {names}", name)
    runner: Runner = found[name].load()()
    return runner
