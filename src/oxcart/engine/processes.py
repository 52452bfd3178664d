"""Runs handlers in processes of their own: CPU-bound work, and work that must be stoppable by force.

A child process imports the handler by its path, then receives one job after another over a pipe. If its
attempt is stopped, the child is killed with every process that it started, and replaced. If a child dies, its
attempt fails in the category SYSTEM. A handler of a runner (``runners``) has a fresh process for every
attempt, and some seconds to stop before the kill.

The handler receives a `SyncRunningJob` whose calls travel over the pipe (``process_child``). The worker runs
them, and handles the child's log records (``forwarding``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from oxcart.engine.contexts import ContextPacker
from oxcart.engine.forwarding import Levels, handle, levels_now
from oxcart.engine.handler import Handler
from oxcart.engine.process_child import Run, portable, with_keys
from oxcart.engine.runners import Entry
from oxcart.engine.running import RunningJob
from oxcart.engine.sessions import kill_session
from oxcart.engine.sync_running import HandlerStopped, call_job
from oxcart.engine.tracing import run_span
from oxcart.model.errors import OxcartError, ValidationError


class HandlerCrashed(OxcartError):
    """The process of a handler ended before its job did."""


class RemoteTraceback(Exception):
    """The stack of an exception as it was in the handler's process."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


#: The code that a child runs first. It receives the import path, and does not run the parent's script.
_BOOT = """
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from oxcart.engine.process_child import serve
serve(pipe)
"""


class _Child:
    """One process and the pipe to it.

    Args:
        threads: Threads that send answers, because the event loop must not wait for a full pipe.
        session: Whether it begins a session. A kill then also reaches processes that left its group.
    """

    def __init__(self, threads: ThreadPoolExecutor, session: bool = False) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # So that a kill reaches processes that the handler started.
                start_new_session=session,
                process_group=None if session else 0,
            )
        self._session = session
        self.pipe: Connection[Any, Any] = Connection(ours.detach())
        self._threads = threads
        self._sending = threading.Lock()
        self._levels: Levels | None = None
        #: How many jobs the child was given.
        self.asked = 0
        with contextlib.suppress(OSError):  # it may have died already; the first job will show it
            self.pipe.send(list(sys.path))

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def new_levels(self) -> Levels | None:
        """Returns the levels of this process's loggers if they changed since the last call."""
        now = levels_now()
        if now == self._levels:
            return None
        self._levels = now
        return now

    def ask(self, job: RunningJob, run: Run, context: contextvars.Context, loop: Any) -> Any:
        """Runs one job in the child and waits for it; handles its log records and calls meanwhile.

        Runs in a thread of the pool.

        Args:
            job: The job.
            run: The same for the child.
            context: The context in which its log records are handled.
            loop: The worker's event loop.
        """
        number = self.asked
        try:
            self._send(("run", number, run))
            while True:
                kind, *message = self.pipe.recv()
                if kind == "end":
                    break
                owner = job if message[0] == number else None  # a thread may outlive its job
                if kind == "log":
                    context.run(handle, message[1], owner)
                else:
                    self._call(message[1], message[2], owner, loop)
            fine, value, trace = message
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise HandlerCrashed(
                f"the handler's process ended with {ending_of(self._process.returncode)}"
            ) from None
        if fine:
            return value
        value.__cause__ = RemoteTraceback(trace)
        if isinstance(value, StopIteration):  # a future cannot carry it: the attempt would never end
            raise RuntimeError("the handler raised StopIteration") from value
        raise value

    def cancel(self, number: int, job: RunningJob) -> None:
        """Tells the child that an attempt should stop; called in the event loop."""
        message = ("cancel", number, job.cancel_reason, job.cancel_text)
        with contextlib.suppress(RuntimeError):  # the pool is closed
            self._threads.submit(self._send_if_there, message)

    def kill(self) -> None:
        """Ends the process and its children now."""
        if self._session:
            kill_session(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self.pipe.close()

    def _call(self, call: int, packed: bytes, job: RunningJob | None, loop: Any) -> None:
        """Starts a call of the child; a failure before it starts is answered at once."""
        try:
            if job is None:
                raise HandlerStopped("the attempt of this job has ended")
            how, member, args, kwargs = pickle.loads(packed)
            if how == "get":
                self._answer(call, True, getattr(job, member))
                return
            if member == "add_trees":
                args = (with_keys(args[0], job),)
            doing = asyncio.run_coroutine_threadsafe(call_job(job, member, args, kwargs), loop)
        except Exception as error:
            self._answer(call, False, error)
            return

        def done(future: concurrent.futures.Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the pool is closed
                self._threads.submit(self._answer_with, call, future)

        doing.add_done_callback(done)

    def _answer_with(self, call: int, future: concurrent.futures.Future[Any]) -> None:
        try:
            value = future.result()
        except BaseException as error:
            self._answer(call, False, error)
        else:
            self._answer(call, True, value)

    def _answer(self, call: int, fine: bool, value: Any) -> None:
        try:
            packed = pickle.dumps((fine, value if fine else portable(value)))
        except Exception as error:
            kind = type(value).__name__
            refusal = ValidationError(
                "value", "what pickle can copy to a handler's process", kind, f"cannot copy {kind}: {error}"
            )
            packed = pickle.dumps((False, refusal))
        self._send_if_there(("answer", call, packed))

    def _send_if_there(self, message: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # the child was killed; no caller waits
            self._send(message)

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._sending:
            self.pipe.send(message)


class HandlerProcesses:
    """A pool of handler processes, as many as run at once."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._contexts = ContextPacker(_path_of)

    async def run(self, job: RunningJob, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Runs a handler in a child.

        Raises:
            HandlerCrashed: The child died.
            HandlerStopped: The attempt was stopped.
        """
        path, entry = import_path(handler), handler.entry
        loop = asyncio.get_running_loop()
        if self._threads is None:
            # One thread waits per child; the pool's own limit is the worker's concurrency.
            self._threads = ThreadPoolExecutor(1024, thread_name_prefix="oxcart-process")
        child = None if entry is not None else self._take_idle()
        if child is None:
            child = await loop.run_in_executor(self._threads, _Child, self._threads, entry is not None)
        self._busy.add(child)
        child.asked += 1
        number = child.asked
        context = contextvars.copy_context()
        run = Run(
            path,
            pickle.dumps(arguments),
            handler.takes_job,
            job.claim,
            job.queue,
            None if job.sealer is None else job.raw_data,
            job.worker_id,
            self._contexts.pack(context),
            child.new_levels(),
            None if (span := run_span(job)) is None else span.portable(),
            entry,
        )
        stopped = False
        last_resort: asyncio.TimerHandle | None = None

        def stop() -> None:
            nonlocal stopped, last_resort
            stopped = True
            if entry is None:
                child.kill()
            elif last_resort is None:
                last_resort = loop.call_later(entry.grace, self._kill_aside, child)

        before, job.stop = job.stop, stop
        job.on_cancel = lambda: child.cancel(number, job)
        if job.cancel_reason is not None:
            if entry is not None:  # it has time to stop, but must know
                child.cancel(number, job)
            stop()
        try:
            value = await loop.run_in_executor(self._threads, child.ask, job, run, context, loop)
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
        except BaseException as error:
            if stopped and entry is None:  # the pipe was closed while the thread used it
                self._busy.discard(child)
                raise HandlerStopped("the handler's process was killed") from None
            await self._settle(child, entry)
            if stopped:  # whatever it raised, it did so because it was stopped
                raise HandlerStopped("the handler was stopped") from error
            raise
        finally:
            if last_resort is not None:
                last_resort.cancel()
            job.on_cancel = None
            job.stop = before  # for the layers around the handler
        await self._settle(child, entry)
        return value

    def close(self) -> None:
        """Kills all children."""
        for child in [*self._idle, *self._busy]:
            child.kill()
        self._idle.clear()
        self._busy.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _take_idle(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            child.kill()
        return None

    async def _settle(self, child: _Child, entry: Entry | None) -> None:
        """Keeps a child for the next job; ends the child of a runner, whose process is for one attempt."""
        self._busy.discard(child)
        if entry is None:
            self._idle.append(child)
            return
        assert self._threads is not None
        await asyncio.get_running_loop().run_in_executor(self._threads, child.kill)

    def _kill_aside(self, child: _Child) -> None:
        """Kills a child in a thread: to find all of its processes may take a while."""
        with contextlib.suppress(RuntimeError):  # the pool is closed, and all children are killed
            assert self._threads is not None
            self._threads.submit(child.kill)


def import_path(handler: Handler) -> tuple[str, str]:
    """Returns the module and the name by which a child finds the handler.

    Raises:
        ValidationError: The function cannot be imported: it is nested, or lives in a script's ``__main__``.
    """
    function = handler.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        raise ValidationError("run", "'thread' for a function that cannot be imported by name", name)
    path = _path_of(str(module))
    if path == "__main__":
        raise ValidationError("run", "'thread' for a function typed into a prompt", name)
    return path, str(name)


def _path_of(module: str) -> str:
    """Returns the name by which a child imports a module: a script by its path."""
    if module != "__main__":
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    file = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.abspath(file) if file else module


def ending_of(code: int | None) -> str:
    """Returns how a process ended, in words: its signal, or its exit code."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
