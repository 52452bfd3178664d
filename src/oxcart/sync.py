"""The queue for code without an event loop: the same face as ``oxcart.Queue``, without ``await``.

    from oxcart.sync import Queue

    emails = Queue("emails")
    job = emails.add("welcome", {"to": "ada@example.com"})
    print(job.result(timeout=10))

One background thread per process runs an event loop for all queues of this module. Any number of threads
may use one queue; their adds share calls. The thread is started by the first call, and again in a forked
child, so a queue made at import time serves a pre-forking server (gunicorn, uWSGI, Celery's prefork) as
it is. The connections are closed at exit.

A ``Worker`` takes a queue of this module as well; handlers are registered the same way.

May touch: a thread, and the server through the queue it stands for.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from oxcart import events as _events
from oxcart import handle as _handle
from oxcart import queue as _queue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Reconnect, Server
from oxcart.engine.handler import Handler, Registry, RunKind
from oxcart.engine.running import RunningJob
from oxcart.model.duration import Duration
from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.queue import ADD_TIMEOUT, Row

__all__ = ["JobHandle", "Queue", "QueueEvents", "Task"]

# What the background thread would import by and by. A process that is forked while it does so would wait
# for ever for the import to end, in a thread that the child does not have.
for _module in ("concurrent.futures.thread", "encodings.idna", "importlib.readers"):
    with contextlib.suppress(ImportError):  # another version of Python may have it elsewhere
        importlib.import_module(_module)

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

#: Seconds that the end of the process waits for connections to be closed.
_LAST_WAIT = 2.0


class Queue:
    """A named queue, for code without an event loop.

    Args:
        name: The queue's name; the same name in a Node service is the same queue.
        url: The server; without one ``OXCART_URL``, and without that the embedded Valkey.
        prefix: What stands before the name in keys; must equal that of peers.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
        add_timeout: Seconds after which an add that cannot be acknowledged fails; it is safe to repeat.
        server: A server object to share between queues, instead of ``url``.
        **defaults: Options for every job that does not say otherwise.

    Attributes:
        asynchronous: The ``oxcart.Queue`` behind it.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        prefix: str = "bull",
        folder: str | Path | None = None,
        add_timeout: float = ADD_TIMEOUT,
        server: Server | None = None,
        **defaults: Unpack[OptionKwargs],
    ) -> None:
        self.asynchronous = _queue.Queue(
            name,
            url=url,
            prefix=prefix,
            folder=folder,
            add_timeout=add_timeout,
            server=server,
            **defaults,
        )
        # A queue that nobody holds any more must not keep its connection until the process ends.
        weakref.finalize(self, _close_soon, self.asynchronous).atexit = False

    def __repr__(self) -> str:
        return f"sync.Queue({self.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.asynchronous.name

    @property
    def prefix(self) -> str:
        """What stands before the name in keys."""
        return self.asynchronous.prefix

    @property
    def defaults(self) -> JobOptions:
        """Options for every job that does not say otherwise."""
        return self.asynchronous.defaults

    @property
    def registry(self) -> Registry:
        """The queue's handlers."""
        return self.asynchronous.registry

    # -- adding

    def add(self, name: str, data: Any = None, **options: Unpack[OptionKwargs]) -> JobHandle[Any]:
        """Adds a job.

        Args:
            name: What kind of job it is; a handler of this name runs it.
            data: The payload: anything JSON can hold, and bytes.
            **options: As in ``JobOptions``: attempts, backoff, delay, priority and others.

        Raises:
            ValidationError: Something is wrong with the job; nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time; repeat with the same ``job_id`` to be sure.
        """
        return JobHandle(self, self.run(self.asynchronous.add(name, data, **options)))

    def add_many(self, jobs: Iterable[Row], **options: Unpack[OptionKwargs]) -> list[JobHandle[Any]]:
        """Adds many jobs, in a round trip per chunk; all are checked before the first is written.

        Args:
            jobs: ``(name, data)`` or ``(name, data, options)`` per job.
            **options: Options for all of them, beneath their own.
        """
        rows = list(jobs)  # here, not in the thread: a generator may belong to the caller's database
        return [JobHandle(self, one) for one in self.run(self.asynchronous.add_many(rows, **options))]

    # -- handlers

    @overload
    def job(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def job(self, function: Callable[Concatenate[RunningJob, P], R], /) -> Task[P, R, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def job(
        self, *, name: str | None = None, run: RunKind | None = None, **options: Unpack[OptionKwargs]
    ) -> TaskMaker: ...

    def job(  # type: ignore[misc]  # mypy does not match unpacked options with **options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        run: RunKind | None = None,
        **options: Any,
    ) -> Any:
        """Makes a function the handler of a kind of job. Its signature is the payload.

        Args:
            function: The function, when used as ``@queue.job`` without arguments.
            name: The job name; the function's own unless given.
            run: ``thread`` (what a plain function gets) or ``process``; async functions run in the loop.
            **options: Options of jobs enqueued through it.
        """
        register = self.asynchronous.job(name=name, run=run, **options)

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            return Task(self, register(function))

        return decorate if function is None else decorate(function)

    def process(self, function: Callable[..., Any], *, run: RunKind | None = None) -> Callable[..., Any]:
        """Makes a function the handler of every job name that has none of its own."""
        return self.asynchronous.process(function, run=run)

    # -- looking

    def get(self, job_id: str) -> Job | None:
        """A job as it is now, or None."""
        return self.run(self.asynchronous.get(job_id))

    def get_many(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Jobs as they are now."""
        return self.run(self.asynchronous.get_many(job_ids))

    def handle(self, job_id: str, name: str = "") -> JobHandle[Any]:
        """A handle on a job whose id is known; nothing is read."""
        return JobHandle(self, self.asynchronous.handle(job_id, name))

    def state(self, job_id: str) -> str:
        """A job's state in the words of the wire, ``unknown`` for none."""
        return self.run(self.asynchronous.state(job_id))

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return self.run(self.asynchronous.counts())

    def jobs(self, state: str, *, first: int = 0, limit: int = 100, oldest: bool = False) -> list[Job]:
        """A page of jobs in a state, newest first unless ``oldest``.

        Raises:
            ValidationError: There is no such state.
        """
        return self.run(self.asynchronous.jobs(state, first=first, limit=limit, oldest=oldest))

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.run(self.asynchronous.is_paused())

    # -- steering

    def pause(self) -> None:
        """Lets no worker take a job until ``resume``. Running jobs go on."""
        self.run(self.asynchronous.pause())

    def resume(self) -> None:
        """Lets workers take jobs again."""
        self.run(self.asynchronous.resume())

    def remove(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job that no worker holds.

        Raises:
            JobNotFound: There is none.
            JobLocked: A worker holds it.
        """
        self.run(self.asynchronous.remove(job_id, children=children))

    def retry(self, job_id: str, *, reset: bool = False) -> None:
        """Lets a finished job run again.

        Args:
            job_id: The job.
            reset: Whether to count its attempts from the beginning.

        Raises:
            JobNotFound: There is none.
            WrongState: It is neither failed nor completed.
        """
        self.run(self.asynchronous.retry(job_id, reset=reset))

    def events(self, since: str = "$", names: Iterable[str] | None = None) -> QueueEvents:
        """What happens in the queue, as an iterator.

        Args:
            since: The id of the last event already seen; ``$`` for only new ones, ``0`` from the oldest.
            names: Only events of these names.
        """
        return QueueEvents(self, self.asynchronous.events(since, names=names))

    # -- life

    def close(self) -> None:
        """Closes the connection. The queue can be used again afterwards."""
        if _is_running():
            self.run(self.asynchronous.close())

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for something async that was made for this queue, e.g. of ``asynchronous``.

        Raises:
            RuntimeError: Called by code that runs in the background loop itself.
        """
        portal = _portal()
        portal.queues.add(self.asynchronous)
        return portal.run(doing)

    # -- what a worker needs to know

    @property
    def server(self) -> Server:
        """Where the queue lives."""
        return self.asynchronous.server

    def open_broker(self, reconnect: Reconnect | None = None) -> BullMQBroker:
        """A broker with a connection of its own."""
        return self.asynchronous.open_broker(reconnect)

    def station_facts(self) -> dict[str, Any]:
        """What another process needs to find this queue."""
        return self.asynchronous.station_facts()


class Task(Generic[P, C, R]):
    """A handler that can be enqueued; still callable as the function it was made from."""

    def __init__(self, queue: Queue, task: _queue.Task[P, C, R]) -> None:
        update_wrapper(self, task.__wrapped__)
        self.queue = queue
        self.__wrapped__ = task.__wrapped__
        self._task = task

    @property
    def name(self) -> str:
        """The job name."""
        return self._task.name

    @property
    def handler(self) -> Handler:
        """What runs for the job."""
        return self._task.handler

    @property
    def options(self) -> JobOptions:
        """Options of jobs enqueued through it."""
        return self._task.options

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Calls the function itself, with the job where it takes one; nothing is enqueued."""
        return self.__wrapped__(*args, **kwargs)

    def using(self, **options: Unpack[OptionKwargs]) -> Task[P, C, R]:
        """The same task with other options, e.g. ``welcome.using(delay="5m").enqueue(…)``."""
        return Task(self.queue, self._task.using(**options))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Adds a job that will call the function with these arguments.

        Raises:
            ValidationError: The arguments do not fit the signature; nothing was written.
        """
        return JobHandle(self.queue, self.queue.run(self._task.enqueue(*args, **kwargs)))

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The payload of a call with these arguments, checked."""
        return self._task.payload(*args, **kwargs)


class TaskMaker(Protocol):
    """What ``@queue.job(…)`` is: takes a function, async or not, and gives a task."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[RunningJob, P], R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class JobHandle(Generic[R_co]):
    """A job of a queue, by its id.

    Attributes:
        queue: The queue it is in.
    """

    __slots__ = ("_handle", "queue")

    def __init__(self, queue: Queue, handle: _handle.JobHandle[R_co]) -> None:
        self.queue = queue
        self._handle = handle

    def __repr__(self) -> str:
        return f"sync.JobHandle({self.queue.name}/{self.id})"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._handle.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._handle.name

    @property
    def created(self) -> bool:
        """Whether this add made the job; False when a job of this id existed."""
        return self._handle.created

    def get(self) -> Job:
        """The job as it is now.

        Raises:
            JobNotFound: It was removed.
        """
        return self.queue.run(self._handle.get())

    def state(self) -> str:
        """The job's state in the words of the wire."""
        return self.queue.run(self._handle.state())

    def result(self, timeout: Duration | None = None) -> R_co:
        """Waits for the job's result; works as well when the job is removed on completion.

        Args:
            timeout: How long to wait; None for ever.

        Raises:
            JobFailed: The job failed for good.
            ResultTimeout: It has not ended in time.
            JobNotFound: It was removed, and no event tells how it ended.
        """
        return self.queue.run(self._handle.result(timeout))

    def logs(self) -> list[str]:
        """The job's log."""
        return self.queue.run(self._handle.logs())

    def log(self, *lines: str) -> int:
        """Appends to the job's log; returns how many lines it has."""
        return self.queue.run(self._handle.log(*lines))

    def update_progress(self, progress: Any) -> None:
        """Writes the job's progress: a number from 0 to 100, or an object."""
        self.queue.run(self._handle.update_progress(progress))

    def update_data(self, data: Any) -> None:
        """Replaces the job's payload."""
        self.queue.run(self._handle.update_data(data))

    def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Changes the priority; ``lifo`` puts the job in front of its equals."""
        self.queue.run(self._handle.change_priority(priority, lifo=lifo))

    def change_delay(self, delay: Duration) -> None:
        """Changes the delay of a delayed job, counted from now."""
        self.queue.run(self._handle.change_delay(delay))

    def promote(self) -> None:
        """Lets a delayed job run now."""
        self.queue.run(self._handle.promote())

    def retry(self, *, reset: bool = False) -> None:
        """Lets a finished job run again; ``reset`` counts its attempts from the beginning."""
        self.queue.run(self._handle.retry(reset=reset))

    def remove(self, *, children: bool = False) -> None:
        """Removes the job, unless a worker holds it."""
        self.queue.run(self._handle.remove(children=children))


class QueueEvents:
    """The events of a queue, one after another, for ever. Not to be carried over a fork."""

    def __init__(self, queue: Queue, events: _events.QueueEvents) -> None:
        self.queue = queue
        self._events = events

    @property
    def position(self) -> str:
        """The id of the last event read; give it as ``since`` to go on from here."""
        return self._events.position

    def ready(self) -> None:
        """Fixes the position: every event after this call will be seen."""
        self.queue.run(self._events.ready())

    def read(self, block: float = _events.BLOCK) -> list[Event]:
        """The next events; waits for one for so many seconds, then returns an empty list."""
        return self.queue.run(self._events.read(block))

    def close(self) -> None:
        """Closes the connection."""
        self.queue.run(self._events.close())

    def __enter__(self) -> QueueEvents:
        self.ready()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        while True:
            for event in self.queue.run(self._events._peek()):
                self._events.position = event.id
                if self._events._wants(event):
                    yield event


class _Portal:
    """The background thread and its event loop: the way from code that blocks to code that does not."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.queues: weakref.WeakSet[_queue.Queue] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="oxcart-sync", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Does something in the loop and waits for it."""
        if threading.current_thread() is self._thread:
            doing.close()
            raise RuntimeError(
                "oxcart.sync was called by code that runs in its own event loop, which would wait for "
                "itself; await the queue's `asynchronous` there"
            )
        future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the caller does not wait any more
            raise

    def close_soon(self, queue: _queue.Queue) -> None:
        """Closes a queue's connection without waiting for it; may be called by the garbage collector."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(queue.close()))

    def stop(self) -> None:
        """Closes all connections and ends the thread."""
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(Exception):
            closing.result(_LAST_WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LAST_WAIT)

    async def _close(self) -> None:
        for queue in list(self.queues):
            await queue.close()
        left = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


_current: _Portal | None = None
_lock = threading.Lock()

#: Of the processes this one was forked from. Kept for ever: an event loop that is cleaned up in the child
#: would reach into the parent's, because both share one epoll instance.
_of_parents: list[_Portal] = []


def _is_running() -> bool:
    return _current is not None and _current.pid == os.getpid()


def _portal() -> _Portal:
    global _current
    portal = _current
    if portal is not None and portal.pid == os.getpid():
        return portal
    with _lock:
        if _current is not None and _current.pid != os.getpid():
            _of_parents.append(_current)  # a fork that Python was not told of
            _current = None
        if _current is None:
            _current = _Portal()
        return _current


def _close_soon(queue: _queue.Queue) -> None:
    if _current is not None and _is_running():
        _current.close_soon(queue)


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _of_parents.append(_current)
        _current = None


def _stop_at_exit() -> None:
    if _current is not None and _is_running():
        _current.stop()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
