"""Tasks: ``@queue.job`` turns a function into a task, which is enqueued by its own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from oxcart.engine.handler import Handler
from oxcart.engine.running import RunningJob, carry
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.flow import Flow
from oxcart.handle import JobHandle
from oxcart.model.errors import ValidationError
from oxcart.model.options import JobOptions, OptionKwargs

if TYPE_CHECKING:
    from oxcart.queue import Queue

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")


class Task(Generic[P, C, R]):
    """A handler that can be enqueued; still callable as its function.

    Its types: the function's parameters without the job, the return type of a call (a coroutine for an async
    function), and the job's result.
    """

    def __init__(
        self, queue: Queue, handler: Handler, function: Callable[P, C], options: JobOptions | None = None
    ):
        update_wrapper(self, function)
        self.queue = queue
        self.handler = handler
        self.options: JobOptions = handler.options if options is None else options
        self.__wrapped__ = function
        parameters = inspect.signature(function).parameters.values()
        filled = {handler.takes_job, *handler.needs, *handler.fills}
        self._fields = [parameter.name for parameter in parameters if parameter.name not in filled]
        self._takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)

    @property
    def name(self) -> str:
        """The job name."""
        return self.handler.name

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Calls the function itself, with the job if it takes one; enqueues nothing."""
        return self.__wrapped__(*args, **kwargs)

    def using(self, **options: Unpack[OptionKwargs]) -> Task[P, C, R]:
        """Returns the same task with other options, e.g. ``welcome.using(delay="5m").enqueue(…)``."""
        read = self.queue._core.read_options(options, self.options)
        return Task(self.queue, self.handler, self.__wrapped__, read)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Adds a job that will call the function with these arguments.

        Raises:
            ValidationError: The arguments do not fit the signature; nothing was written.
        """
        job = await self.queue._add_one(self.name, self.payload(*args, **kwargs), carry(self.options))
        return cast(JobHandle[R], job)

    def flow(self, *args: P.args, **kwargs: P.kwargs) -> Flow:
        """Returns a job that will call the function with these arguments, as part of a flow.

        Raises:
            ValidationError: The arguments do not fit the signature.
        """
        return Flow.of(self.queue, self.name, self.payload(*args, **kwargs), self.options)

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Returns the checked payload of a call with these arguments."""
        if self.handler.batch is not None:
            if kwargs or len(args) != 1:
                raise ValidationError("arguments", f"one item for the batches of {self.name!r}", len(args))
            self.handler.check(args[0])
            return args[0]
        given: Mapping[str, Any] = kwargs
        if args:
            names = self._fields
            if len(args) > len(names):
                raise ValidationError("arguments", f"at most {len(names)} for {self.name!r}", len(args))
            clash = set(names[: len(args)]) & kwargs.keys()
            if clash:
                raise ValidationError("arguments", "given once each", sorted(clash))
            given = dict(zip(names, args, strict=False)) | kwargs
        data = dict(given)
        if not self._takes_any and (unknown := data.keys() - set(self._fields)):
            raise ValidationError("arguments", f"among {', '.join(self._fields) or 'none'}", sorted(unknown))
        self.handler.check(data)
        return data


class BatchMaker(Protocol):
    """What ``@queue.job(batch=…)`` is: takes a function of a list, gives a task that enqueues one item."""

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, Sequence[R] | None]], /
    ) -> Task[[T], Coroutine[Any, Any, Sequence[R] | None], R]: ...

    @overload
    def __call__(
        self, function: Callable[[list[T]], Sequence[R] | None], /
    ) -> Task[[T], Sequence[R] | None, R]: ...

    @overload
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any, Any]: ...


class SparkTaskMaker(Protocol):
    """The decorator ``@queue.job(run="spark", …)``: takes a function of a session, or a script's path."""

    @overload
    def __call__(self, function: Callable[..., R], /) -> Task[..., R, R]: ...

    @overload
    def __call__(self, script: str | Path, /) -> Task[..., Any, Any]: ...


class TaskMaker(Protocol):
    """The decorator ``@queue.job(…)``: takes a function, async or not, and returns a task."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunningJob, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[SyncRunningJob, P], R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
