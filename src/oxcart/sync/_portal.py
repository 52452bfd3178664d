"""The portal: one thread per process with an event loop, which runs the calls of code that blocks.

The first call starts it, also in a forked child; the end of the process ends it. The generated twins use
``run`` and ``iterate`` to wait for coroutines, ``Twin._of`` and ``twin_of`` to wrap what comes out, and
``within``, ``behind`` and ``inward`` to unwrap what goes in.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import os
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from oxcart._core import Core
from oxcart.model.errors import ValidationError
from oxcart.queue import Queue

if TYPE_CHECKING:
    from oxcart import sync

# The modules that the background thread would import later. A child that is forked in the midst of an import
# would wait for ever, because it does not have the thread that finishes the import.
for _module in ("concurrent.futures.thread", "encodings.idna", "importlib.readers"):
    with contextlib.suppress(ImportError):  # another version of Python may have it elsewhere
        importlib.import_module(_module)

T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)


class Closing(Protocol):
    """What owns a connection."""

    async def close(self) -> None: ...


C_co = TypeVar("C_co", covariant=True, bound=Closing)

#: Seconds that the end of the process waits for connections to be closed.
_LAST_WAIT = 2.0


class Portal:
    """The background thread and its event loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="oxcart-sync", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for it."""
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

    def close_soon(self, owner: Closing) -> None:
        """Closes a connection without waiting for it; may be called by the garbage collector."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(owner.close()))

    def stop(self) -> None:
        """Closes all connections and ends the thread."""
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(Exception):
            closing.result(_LAST_WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LAST_WAIT)

    async def _close(self) -> None:
        for known in _twins.keyrefs():
            if (queue := known()) is not None:
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


_current: Portal | None = None
_lock = threading.Lock()

#: Portals of the processes that this one was forked from. Kept for ever: an event loop that is cleaned up in
#: the child would reach into the parent's, because both share one epoll instance.
_of_parents: list[Portal] = []

#: The twin of every queue that has one.
_twins: weakref.WeakKeyDictionary[Queue, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def is_running() -> bool:
    """Whether this process has a portal."""
    return _current is not None and _current.pid == os.getpid()


def portal() -> Portal:
    """The portal of this process; started by the first call."""
    global _current
    current = _current
    if current is not None and current.pid == os.getpid():
        return current
    with _lock:
        if _current is not None and _current.pid != os.getpid():
            _of_parents.append(_current)  # a fork that bypassed Python's hooks
            _current = None
        if _current is None:
            _current = Portal()
        return _current


def run(doing: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the background loop and waits for it.

    Raises:
        RuntimeError: The caller runs in the background loop itself.
    """
    return portal().run(doing)


def iterate(
    run: Callable[[Coroutine[Any, Any, T]], T], stream: AsyncIterable[T], twin: object
) -> Iterator[T]:
    """Iterates over an async iterable, one item per call; keeps its twin, whose end would close it."""
    items = aiter(stream)
    while (item := run(_next(items))) is not _END:
        yield item


_END: Any = object()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items, _END)


def close_soon(owner: Closing) -> None:
    """Closes the connection of a queue or an event stream whose twin was garbage-collected."""
    if _current is not None and is_running():
        _current.close_soon(owner)


class Twin(Generic[A_co]):
    """Base of the generated classes.

    Attributes:
        asynchronous: The object of ``oxcart`` that the twin stands for.
    """

    __slots__ = ("asynchronous",)

    asynchronous: A_co

    @classmethod
    def _of(cls, asynchronous: Any) -> Self:
        made = cls.__new__(cls)
        made._stand_for(asynchronous)
        return made

    def _stand_for(self, asynchronous: Any) -> None:
        self.asynchronous = asynchronous

    def __repr__(self) -> str:
        return f"sync.{self.asynchronous!r}"


class Owner(Twin[C_co]):
    """Base of the generated classes that own a connection, but for the queue."""

    def _stand_for(self, asynchronous: Any) -> None:
        super()._stand_for(asynchronous)
        # Without this the connection of a forgotten stream would stay open until the process ends.
        weakref.finalize(self, close_soon, asynchronous).atexit = False


class QueueTwin(Twin[Queue]):
    """Base of the generated queue, which owns a connection."""

    def _stand_for(self, asynchronous: Queue) -> None:
        self.asynchronous = asynchronous
        _twins[asynchronous] = weakref.ref(self)
        # Without this the connection of a forgotten queue would stay open until the process ends.
        weakref.finalize(self, close_soon, asynchronous).atexit = False

    @classmethod
    def _of(cls, asynchronous: Queue) -> Self:
        found = _twins.get(asynchronous)
        twin: Any = None if found is None else found()
        if twin is None:
            twin = cls.__new__(cls)
            twin.asynchronous = asynchronous
            _twins[asynchronous] = weakref.ref(twin)
            if asynchronous._root is not None:
                # A lane shares the connection of its queue, which closes with the twin of that queue.
                twin._root = cls._of(asynchronous._root)
        known: Self = twin
        return known

    #: Waits for coroutines in the place of the background loop, within `running_with`.
    _runner: Callable[[Coroutine[Any, Any, Any]], Any] | None = None

    @property
    def _core(self) -> Core:
        return self.asynchronous._core

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine in the background loop, for example one of ``asynchronous``.

        Raises:
            RuntimeError: The caller runs in the background loop itself.
        """
        waited: T = (self._runner or run)(doing)
        return waited

    @contextlib.contextmanager
    def _running_with(self, runner: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[None]:
        """Waits for coroutines in another way within the block; for `oxcart.testing`."""
        before, self._runner = self._runner, runner
        try:
            yield
        finally:
            self._runner = before


def twin_of(queue: Queue) -> sync.Queue:
    """The queue of this package that stands for a queue of ``oxcart``; always the same while it is in use."""
    from oxcart.sync._queue import Queue as SyncQueue

    return SyncQueue._of(queue)


def within(field: str, twin: Twin[T]) -> T:
    """The object that a twin stands for.

    Raises:
        ValidationError: It is no twin, for example a queue of ``oxcart`` instead of ``oxcart.sync``.
    """
    if not isinstance(twin, Twin):
        raise ValidationError(field, "one of oxcart.sync", twin)
    return twin.asynchronous


def behind(field: str, kind: type[Twin[T]], twins: Iterable[Twin[T]]) -> list[T]:
    """The objects that twins stand for.

    Raises:
        ValidationError: One of them is no twin of that kind.
    """
    listed = list(twins)
    for one in listed:
        if not isinstance(one, kind):
            raise ValidationError(field, f"{kind.__name__.lower()}s of oxcart.sync", one)
    return [one.asynchronous for one in listed]


def inward(value: Any) -> Any:
    """An argument for the background loop: twins replaced, iterables read here.

    A generator may belong to the caller's database connection, which another thread may not use.
    """
    if isinstance(value, Twin):
        return value.asynchronous
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return value
    return [one.asynchronous if isinstance(one, Twin) else one for one in value]


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _of_parents.append(_current)
        _current = None


def _stop_at_exit() -> None:
    if _current is not None and is_running():
        _current.stop()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
