"""Runs handlers in processes of their own: CPU-bound work, and work that must be stoppable by force.

A child process loads the handler by its import path, then takes one job after another over a pipe. A child
whose attempt is stopped is killed with everything it started, and replaced. A child that dies takes its
attempt with it: a SYSTEM failure.

The child sees the job as a plain value (``oxcart.model.Job``), because nothing of the parent is there.

May touch: processes and pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oxcart.engine.handler import Handler
from oxcart.engine.running import RunningJob
from oxcart.model.errors import OxcartError, ValidationError


class HandlerCrashed(OxcartError):
    """The process of a handler ended before its job did."""


class HandlerStopped(OxcartError):
    """The process of a handler was killed, because its attempt was to stop."""


class RemoteTraceback(Exception):
    """The stack of an exception as it was in the handler's process."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class _Child:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, list(sys.path)), daemon=True)
        with _main_module_hidden():
            self.process.start()
        theirs.close()

    def ask(self, path: tuple[str, str], arguments: dict[str, Any], takes_job: str | None) -> Any:
        """Runs one job and waits for it; in a thread of the pool."""
        try:
            self.pipe.send((path, arguments, takes_job))
            fine, value, trace = self.pipe.recv()
        except (EOFError, OSError, BrokenPipeError):
            self.process.join(5)
            raise HandlerCrashed(
                f"the handler's process ended with {_ending(self.process.exitcode)}"
            ) from None
        if fine:
            return value
        value.__cause__ = RemoteTraceback(trace)
        raise value

    def kill(self) -> None:
        """Ends the process and its children now."""
        pid = self.process.pid
        if pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()
        self.process.join(5)
        self.pipe.close()


class HandlerProcesses:
    """A pool of handler processes, as many as run at once."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Runs a handler in a child.

        Raises:
            HandlerCrashed: The child died.
            HandlerStopped: The attempt was stopped.
        """
        path = import_path(handler)
        if handler.takes_job is not None:
            arguments[handler.takes_job] = job.snapshot()
        loop = asyncio.get_running_loop()
        if self._threads is None:
            # One thread waits per child; the pool's own limit is the worker's concurrency.
            self._threads = ThreadPoolExecutor(1024, thread_name_prefix="oxcart-process")
        child = self._idle.pop() if self._idle else None
        while child is not None and not child.process.is_alive():
            child.kill()
            child = self._idle.pop() if self._idle else None
        if child is None:
            child = await loop.run_in_executor(self._threads, _Child)
        self._busy.add(child)
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            child.kill()

        job.stop = stop
        if job.cancel_reason is not None:
            stop()
        try:
            value = await loop.run_in_executor(self._threads, child.ask, path, arguments, handler.takes_job)
        except HandlerCrashed:
            self._busy.discard(child)
            child.kill()
            if stopped:
                raise HandlerStopped("the handler's process was killed") from None
            raise
        except asyncio.CancelledError:
            self._busy.discard(child)
            child.kill()
            raise
        except BaseException:
            self._give_back(child)
            raise
        self._give_back(child)
        return value

    def close(self) -> None:
        """Kills all children."""
        for child in [*self._idle, *self._busy]:
            child.kill()
        self._idle.clear()
        self._busy.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _give_back(self, child: _Child) -> None:
        self._busy.discard(child)
        self._idle.append(child)


def import_path(handler: Handler) -> tuple[str, str]:
    """Module and name by which a child finds the handler.

    Raises:
        ValidationError: The function cannot be imported: it is nested, or lives in a script's ``__main__``.
    """
    function = handler.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        raise ValidationError("run", "'thread' for a function that cannot be imported by name", name)
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name:
            return str(spec.name), str(name)
        file = getattr(sys.modules["__main__"], "__file__", None)
        if not file:
            raise ValidationError("run", "'thread' for a function typed into a prompt", name)
        return os.path.abspath(file), str(name)
    return str(module), str(name)


@contextlib.contextmanager
def _main_module_hidden() -> Any:
    """Keeps ``spawn`` from running the user's script again: the child imports only what it needs."""
    main = sys.modules["__main__"]
    saved = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        for name in saved:
            setattr(main, name, None) if name == "__spec__" else delattr(main, name)
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _find(path: tuple[str, str]) -> Any:
    module, name = path
    if os.path.isabs(module):
        import runpy

        found: Any = sys.modules.get(module)
        if found is None:
            import types

            found = types.ModuleType("__oxcart_main__")
            found.__dict__.update(runpy.run_path(module, run_name="__oxcart_main__"))
            sys.modules[module] = found
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    # A decorated handler is a Task object; the function is inside.
    return getattr(found, "__wrapped__", found)


def _serve(pipe: multiprocessing.connection.Connection, path: list[str]) -> None:
    """The child: one job after another until the parent is gone."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # so that a kill reaches what the handler started
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    sys.path[:] = path
    while True:
        try:
            where, arguments, _ = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, _find(where)(**arguments), "")
        except BaseException as error:
            answer = (False, _portable(error), traceback.format_exc())
        try:
            pipe.send(answer)
        except (BrokenPipeError, OSError):
            return
        except Exception as error:  # the result cannot be pickled
            pipe.send((False, TypeError(f"the handler's result cannot be sent back: {error}"), ""))


def _portable(error: BaseException) -> BaseException:
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")
