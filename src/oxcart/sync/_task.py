"""What ``@queue.job`` makes of a function, for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from oxcart import task as _task
from oxcart.engine.handler import Handler
from oxcart.engine.running import RunningJob
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.sync._flow import Flow
from oxcart.sync._handle import JobHandle

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Task(Generic[P, C, R]):
    """A handler that can be enqueued; still callable as the function it was made from."""

    def __init__(self, queue: Queue, task: _task.Task[P, C, R]) -> None:
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

    def flow(self, *args: P.args, **kwargs: P.kwargs) -> Flow:
        """A job that will call the function with these arguments, as part of a flow.

        Raises:
            ValidationError: The arguments do not fit the signature.
        """
        return Flow.of(self.queue, self._task.flow(*args, **kwargs))

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
