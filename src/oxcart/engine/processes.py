"""Runs handlers in processes of their own: CPU-bound work, and work that must be stoppable by force.

A child process imports the handler by its path, then receives one job after another over a pipe. If its
attempt is stopped, the child is killed with every process that it started, and replaced. If a child dies, its
attempt fails in the category SYSTEM.

The child sees the job as a plain value (``oxcart.model.Job``), because it has nothing of the parent. The
parent handles its log records (``forwarding``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from oxcart.engine.forwarding import forward, handle
from oxcart.engine.handler import Handler
from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import HandlerStopped
from oxcart.model.errors import OxcartError, ValidationError

#: Seconds between the checks of a handler's process whether its worker still runs.
LOOK = 0.5


class HandlerCrashed(OxcartError):
    """The process of a handler ended before its job did."""


class RemoteTraceback(Exception):
    """The stack of an exception as it was in the handler's process."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


#: The name of the parent's script in a child. It is also an alias of the script in the parent, as long as
#: ``multiprocessing`` is loaded there, so objects of its classes can be sent both ways.
_SCRIPT = "__mp_main__"

#: The code that a child runs first. It receives the import path, and does not run the parent's script.
_BOOT = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:], level = pipe.recv()
from oxcart.engine.processes import serve
serve(pipe, level)
"""


class _Child:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # so that a kill reaches processes that the handler started
            )
        self.pipe: Connection[Any, Any] = Connection(ours.detach())
        self._asked = 0
        with contextlib.suppress(OSError):  # it may have died already; the first job will show it
            self.pipe.send((list(sys.path), logging.getLogger().level))

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, job: RunningJob, path: tuple[str, str], arguments: dict[str, Any]) -> Any:
        """Runs one job in the child, waits for it and handles its log records; in a thread of the pool."""
        self._asked += 1
        try:
            self.pipe.send((self._asked, path, pickle.dumps(arguments)))
            while True:
                answer = self.pipe.recv()
                if len(answer) == 3:
                    break
                number, record = answer
                handle(record, job if number == self._asked else None)  # a thread may outlive its job
            fine, value, trace = answer
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise HandlerCrashed(
                f"the handler's process ended with {_ending(self._process.returncode)}"
            ) from None
        if fine:
            return value
        value.__cause__ = RemoteTraceback(trace)
        if isinstance(value, StopIteration):  # a future cannot carry it: the attempt would never end
            raise RuntimeError("the handler raised StopIteration") from value
        raise value

    def kill(self) -> None:
        """Ends the process and its children now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
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
        while child is not None and not child.is_alive:
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

        before, job.stop = job.stop, stop
        if job.cancel_reason is not None:
            stop()
        try:
            value = await loop.run_in_executor(self._threads, child.ask, job, path, arguments)
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
            if stopped:  # the pipe was closed while the thread used it
                self._busy.discard(child)
                raise HandlerStopped("the handler's process was killed") from None
            self._give_back(child)
            raise
        finally:
            job.stop = before  # for the layers around the handler
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
    """Returns the module and the name by which a child finds the handler.

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
        found: Any = _load_script(module)
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    # A decorated handler is a Task object; the function is inside.
    return getattr(found, "__wrapped__", found)


@functools.cache
def _load_script(path: str) -> types.ModuleType:
    script = types.ModuleType(_SCRIPT)
    script.__dict__.update(runpy.run_path(path, run_name=_SCRIPT))
    sys.modules[_SCRIPT] = sys.modules["__main__"] = script
    return script


def serve(pipe: Connection[Any, Any], level: int) -> None:
    """Runs in the child: one job after another until the parent is gone; log records go to the parent."""
    number, one_at_a_time = 0, threading.Lock()

    def send(answer: tuple[Any, ...]) -> None:
        with one_at_a_time:
            pipe.send(answer)

    forward(lambda record: send((number, record)), level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    # So is a SIGTERM that a supervisor sends to every process of the service: the job may finish.
    # A function, because programs that a handler starts would inherit an ignored signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            number, where, packed = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            function = _find(where)  # first, because its module may define the types of the arguments
            answer = (True, function(**pickle.loads(packed)), "")
        except BaseException as error:
            answer = (False, _portable(error), traceback.format_exc())
        try:
            send(answer)
        except OSError:
            return
        except Exception as error:  # the result cannot be pickled
            send((False, TypeError(f"the handler's result cannot be sent back: {error}"), ""))


def _end_with(parent: int) -> None:
    """Ends this process, and the processes that the handler started, when the worker is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.killpg(0, signal.SIGKILL)


def _portable(error: BaseException) -> BaseException:
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")
