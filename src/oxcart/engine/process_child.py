"""The child's side of a handler's process: runs one job after another, and carries its calls to the worker.

A thread reads the pipe, so that answers and cancellations arrive while the handler runs in the main thread.

Messages to the child are ``("run", number, Run)``, ``("answer", call, packed)`` and ``("cancel", number,
reason, text)``; ``number`` counts the child's jobs. Messages to the worker are ``("log", number, packed)``,
``("call", number, call, packed)`` and ``("end", fine, value, trace)``. What a user's code may have defined is
packed by pickle within its message, so that one bad value spoils no other message.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import itertools
import os
import pickle
import queue
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast

import msgspec

from oxcart.broker.port import Broker, ClaimedJob
from oxcart.engine.contexts import Packed, unpack
from oxcart.engine.forwarding import Levels, forward, set_levels
from oxcart.engine.runners import Entry
from oxcart.engine.running import Place, RunningJob, current_place
from oxcart.engine.sessions import kill_session
from oxcart.engine.sync_running import Link, SyncRunningJob
from oxcart.model.errors import PayloadError
from oxcart.model.flow import Tree

#: Seconds between looks whether the worker still runs.
LOOK = 0.5

#: The name of the parent's script in a child. It is also an alias of the script in the parent, as long as
#: ``multiprocessing`` is loaded there, so objects of its classes can be sent both ways.
SCRIPT = "__mp_main__"


class Run(NamedTuple):
    """A job for the child.

    Attributes:
        path: The handler's module, or the path of its script, and its name.
        arguments: Its arguments, pickled.
        takes_job: The parameter that receives the job, or None.
        claim: The claimed job.
        base: The queue.
        opened: The payload in plaintext, if it is sealed.
        worker_id: The worker.
        context: Context variables.
        levels: The levels of the worker's loggers, if they changed.
        trace: The module that continues the trace, and its argument; None without tracing.
        entry: Makes the call in place of the child; None if the child calls the handler itself.
    """

    path: tuple[str, str]
    arguments: bytes
    takes_job: str | None
    claim: ClaimedJob
    base: str
    opened: bytes | None
    worker_id: str
    context: Packed
    levels: Levels | None
    trace: tuple[str, str] | None = None
    entry: Entry | None = None


class Call(NamedTuple):
    """A call of a handler that an `Entry` makes.

    Attributes:
        function: The handler.
        arguments: Its arguments, apart from the job and those that the runner fills.
        takes_job: The parameter that receives the job, or None.
        job: The job, without a connection.
        link: Carries calls to the job in the worker.
        place: Where code of the handler finds the job.
        settings: The entry's own settings.
    """

    function: Any
    arguments: dict[str, Any]
    takes_job: str | None
    job: RunningJob
    link: Link
    place: Place
    settings: Any


class Child:
    """The process of a handler.

    Args:
        pipe: The pipe to the worker.
    """

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._runs: queue.SimpleQueue[tuple[int, Run] | None] = queue.SimpleQueue()
        self._answers: dict[int, queue.SimpleQueue[bytes]] = {}
        self._calls = itertools.count(1)
        self._number = 0
        self._job: RunningJob | None = None
        self._cancelled: dict[int, tuple[str, str]] = {}  # also of jobs that have not begun

    def serve(self) -> None:
        """Runs one job after another until the worker is gone."""
        forward(self._send_record)
        threading.Thread(target=self._read, name="oxcart-pipe", daemon=True).start()
        while (given := self._runs.get()) is not None:
            number, run = given
            try:
                answer = ("end", True, contextvars.Context().run(self._run, number, run), "")
            except BaseException as error:
                answer = ("end", False, portable(error), traceback.format_exc())
            self._job = None
            self._cancelled.clear()
            try:
                self._send(answer)
            except OSError:
                return
            except Exception as error:  # the result cannot be pickled
                text = f"the handler's result cannot be sent back: {error}"
                self._send(("end", False, TypeError(text), ""))

    def call(self, number: int, what: tuple[str, str, tuple[Any, ...], dict[str, Any]]) -> Any:
        """Calls or reads a member of a job in the worker.

        Raises:
            PayloadError: An argument cannot be pickled.
        """
        try:
            packed = pickle.dumps(what)
        except Exception as error:
            raise PayloadError(
                what[1], "called with what pickle can send to the worker", repr(what[2]), str(error)
            ) from error
        call = next(self._calls)
        answers = self._answers[call] = queue.SimpleQueue()
        try:
            self._send(("call", number, call, packed))
            fine, value = pickle.loads(answers.get())
        finally:
            del self._answers[call]
        if fine:
            return value
        raise value

    def _run(self, number: int, run: Run) -> Any:
        self._number = number
        if run.levels is not None:
            set_levels(run.levels)
        function = find(run.path)  # first, because its module may define the types of the arguments
        job = RunningJob(cast(Broker, _Away(run.base)), run.claim, run.worker_id, None)
        job.set_opened(run.opened)
        place, link = Place(), _ProcessLink(self, number, job)
        place.job = face = SyncRunningJob(job, link)
        current_place.set(place)
        self._job = job
        if (early := self._cancelled.get(number)) is not None:
            self._cancel(job, *early)
        unpack(run.context, load)
        if run.trace is not None:
            job.span = importlib.import_module(run.trace[0]).attach(run.trace[1])
        arguments = pickle.loads(run.arguments)
        if run.entry is not None:
            call = Call(function, arguments, run.takes_job, job, link, place, run.entry.settings)
            return find(run.entry.path)(call)
        if run.takes_job is not None:
            arguments[run.takes_job] = face
        return function(**arguments)

    def _read(self) -> None:
        while True:
            try:
                kind, number, *rest = self._pipe.recv()
            except (EOFError, OSError):
                self._runs.put(None)
                return
            if kind == "run":
                self._runs.put((number, rest[0]))
            elif kind == "answer":
                if (waiting := self._answers.get(number)) is not None:
                    waiting.put(rest[0])
            else:
                self._cancelled[number] = rest[0], rest[1]
                job = self._job
                if job is not None and number == self._number:
                    self._cancel(job, *rest)

    @staticmethod
    def _cancel(job: RunningJob, reason: str, text: str) -> None:
        job.cancel_text = text
        job.cancel(reason)

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._sending:
            self._pipe.send(message)

    def _send_record(self, packed: bytes) -> None:
        self._send(("log", self._number, packed))


class _ProcessLink:
    """Carries the calls of a handler in a process to its job in the worker."""

    def __init__(self, child: Child, number: int, job: RunningJob) -> None:
        self._child = child
        self._number = number
        self._job = job

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the job in the worker's event loop."""
        if method == "add_trees":
            args = ([without_keys(tree) for tree in args[0]],)
        value = self._child.call(self._number, ("call", method, args, kwargs))
        if method == "update_data":
            self._job.set_data(args[0])
        return value

    def get(self, member: str) -> Any:
        """Reads a member of the job in the worker."""
        return self._child.call(self._number, ("get", member, (), {}))


class _Away:
    """The broker of a job in a handler's process, which has no connection."""

    sealer = None

    def __init__(self, base: str) -> None:
        self.base = base


def serve(pipe: Connection[Any, Any]) -> None:
    """Runs in the child: one job after another until the parent is gone; log records go to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    # So is a SIGTERM that a supervisor sends to every process of the service: the job may finish.
    # A function, because programs that a handler starts would inherit an ignored signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    Child(pipe).serve()


def _end_with(parent: int) -> None:
    """Ends this process, and those that the handler started, when the worker is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    if os.getsid(0) == os.getpid():
        kill_session(os.getpid())
    os.killpg(0, signal.SIGKILL)


def find(path: tuple[str, str]) -> Any:
    """Imports a function by its module, or the path of its script, and its name."""
    module, name = path
    found = load(module)
    for part in name.split("."):
        found = getattr(found, part)
    # A decorated handler is a Task object; the function is inside.
    return getattr(found, "__wrapped__", found)


def load(module: str) -> Any:
    """Imports a module by its name, or a script by its path."""
    return _load_script(module) if os.path.isabs(module) else importlib.import_module(module)


@functools.cache
def _load_script(path: str) -> types.ModuleType:
    script = types.ModuleType(SCRIPT)
    script.__dict__.update(runpy.run_path(path, run_name=SCRIPT))
    sys.modules[SCRIPT] = sys.modules["__main__"] = script
    return script


def portable(error: BaseException) -> BaseException:
    """Returns the error if pickle can copy it, otherwise its type and text as a `RuntimeError`."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def without_keys(tree: Tree) -> Tree:
    """Returns a tree with the fingerprints of its keys instead of the keys, which cannot be pickled."""
    return msgspec.structs.replace(
        tree,
        sealer=None if tree.sealer is None else tree.sealer.ring.fingerprint,
        children=tuple(without_keys(child) for child in tree.children),
    )


def with_keys(trees: Sequence[Tree], job: RunningJob) -> list[Tree]:
    """Returns trees with the keys of the job's queue, in the worker.

    Raises:
        PayloadError: The queue of a child has other keys than the queue of the job.
    """
    return [_with_keys(tree, job) for tree in trees]


def _with_keys(tree: Tree, job: RunningJob) -> Tree:
    sealer = job.sealer
    if tree.sealer is not None:
        if sealer is None or sealer.ring.fingerprint != tree.sealer:
            raise PayloadError("key_ring", f"that of queue {job.queue} in a handler's process", tree.queue)
        sealer = sealer.beside(tree.prefix, tree.queue)
    else:
        sealer = None
    return msgspec.structs.replace(
        tree, sealer=sealer, children=tuple(_with_keys(child, job) for child in tree.children)
    )
