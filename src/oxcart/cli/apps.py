"""Loads a user's application: finds the queue object of ``module:queue``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from oxcart.cli.exits import USAGE, CommandError

if TYPE_CHECKING:
    from oxcart.engine.source import Consumable

_FORM = "module:queue, for example app:emails"


def load(targets: Sequence[str], *, handlers: bool = True) -> list[Consumable]:
    """Returns the queues that the targets name, each once, in order.

    A target names a queue or a list of queues in a module; a module alone means every queue of it that
    has handlers.

    Args:
        targets: The targets.
        handlers: Whether a queue without handlers is refused.

    Raises:
        CommandError: A target names no queue. Errors of the application pass through.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: list[Consumable] = []
    for target in targets:
        for queue in _queues_of(target):
            if not any(queue is known for known in found):
                found.append(queue)
    for queue in found if handlers else ():
        if not queue._core.handlers:
            raise CommandError(f"queue {queue.name!r} has no handlers", USAGE)
    return found


def load_function(target: str) -> Any:
    """Returns the function of ``module:name``: a lifespan or a middleware.

    Raises:
        CommandError: There is no such function.
    """
    value = load_object(target, "function", "lifespan")
    if not callable(value):
        module_name, _, path = target.partition(":")
        raise CommandError(f"module {module_name!r} has no function {path!r}", USAGE)
    return value


def load_object(target: str, what: str = "observer", example: str = "failures") -> Any:
    """Returns the object of ``module:name``.

    Args:
        target: The name.
        what: What it is, for errors.
        example: A name of such an object, for errors.

    Raises:
        CommandError: There is no such object.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise CommandError(f"{target!r} is not of the form module:{what}, for example app:{example}", USAGE)
    value = import_module(module_name)
    for part in path.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise CommandError(f"module {module_name!r} has no {what} {path!r}", USAGE)
    return value


def import_module(name: str) -> Any:
    """Imports a module of the application.

    Raises:
        CommandError: There is no such module. Errors of the module pass through.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise CommandError(f"no module {error.name!r} here or on the path", USAGE) from error
        raise


def explain(error: BaseException) -> str:
    """Returns the traceback of an application that cannot be imported, without our own frames."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def files_of(error: BaseException) -> set[str]:
    """Returns the files of an error's traceback: a change of one of them may fix it."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename:
        files.add(error.filename)
    return {file for file in files if os.path.isfile(file)}


def _queues_of(target: str) -> list[Consumable]:
    module_name, colon, path = target.partition(":")
    if not module_name or (colon and not path):
        raise CommandError(f"{target!r} is not of the form {_FORM}", USAGE)
    module = import_module(module_name)
    if not colon:
        queues = [value for value in vars(module).values() if is_queue(value) and value._core.handlers]
        if not queues:
            raise CommandError(f"module {module_name!r} has no queue with handlers", USAGE)
        return queues
    value = module
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise CommandError(_no_such(module, module_name, path), USAGE) from None
    if is_queue(value):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        queues = list(value)
        if queues and all(is_queue(queue) for queue in queues):
            return queues
    raise CommandError(f"{target!r} is no queue but a {type(value).__name__}", USAGE)


def is_queue(value: Any) -> bool:
    """Returns whether a worker could consume it."""
    return not isinstance(value, type) and hasattr(getattr(value, "_core", None), "station_facts")


def _no_such(module: Any, module_name: str, path: str) -> str:
    names = sorted(name for name, value in vars(module).items() if is_queue(value))
    hint = f"; it has {', '.join(names)}" if names else ", and no queue at all"
    return f"module {module_name!r} has no {path!r}{hint}"


def _is_ours(file: str) -> bool:
    return file == __file__ or "importlib" in file
