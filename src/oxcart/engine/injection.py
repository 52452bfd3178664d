"""Dependency injection: handler parameters that the worker fills, not the payload.

    async def open_pool(settings: Annotated[Settings, Depends()]) -> AsyncIterator[Pool]:
        async with create_pool(settings.url) as pool:
            yield pool

    @queue.job
    async def welcome(to: str, pool: Pool = Depends(open_pool, scope="worker")) -> None: ...

``plan`` reads a signature into needs when a handler is registered, and refuses there what cannot be met.
`Injector` opens the needs of a job, and those of the worker. ``Annotated[Pool, Depends(open_pool)]`` means
the same as the default value, which lets type checkers see that ``enqueue`` takes no pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import run_in_loop
from oxcart.model.errors import ValidationError

Scope = Literal["job", "worker"]

#: Replacements of tests by the function of a dependency, or by the type of a value of the state.
overrides: dict[Any, Need] = {}


class Dependency:
    """The marker that `Depends` returns."""

    __slots__ = ("call", "scope")

    def __init__(self, call: Callable[..., Any] | None, scope: Scope) -> None:
        self.call = call
        self.scope = scope

    def __repr__(self) -> str:
        return f"Depends({getattr(self.call, '__name__', self.call)}, scope={self.scope!r})"


def Depends(call: Callable[..., Any] | None = None, *, scope: Scope = "job") -> Any:  # noqa: N802
    """Marks a parameter that the worker fills: as its default value, or in ``Annotated``.

    Args:
        call: A function or class whose result fills the parameter: async or plain, or a generator or context
            manager whose clean-up follows the job's end. Its own parameters may be dependencies. An async
            function may also take the ``job``. None takes the value of the parameter's type from what the
            worker's lifespan yields.
        scope: ``job`` opens it once for every job that needs it. ``worker`` opens it when a worker starts
            and closes it when the worker ends.

    Raises:
        ValidationError: The scope is unknown, or the call cannot be called.
    """
    if scope not in ("job", "worker"):
        raise ValidationError("scope", "'job' or 'worker'", scope)
    if call is not None and not callable(call):
        raise ValidationError("call", "a function or a class", call)
    return Dependency(call, scope)


class Need:
    """A dependency with the needs of its own parameters.

    Attributes:
        key: Its function, or the type of a value of the worker's state.
        call: Its function; None for a value of the state.
        scope: How long it stays open.
        needs: The needs of its parameters.
        takes_job: The parameter that receives the job, or None.
        is_async: Whether it must be opened in the event loop.
    """

    __slots__ = ("call", "is_async", "key", "needs", "scope", "takes_job")

    def __init__(self, key: Any, call: Callable[..., Any] | None, scope: Scope) -> None:
        self.key = key
        self.call = call
        self.scope = scope
        self.needs: dict[str, Need] = {}
        self.takes_job: str | None = None
        self.is_async = False

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return getattr(self.key, "__name__", None) or str(self.key)

    def open(self, arguments: Mapping[str, Any]) -> Any:
        """Calls its function: returns a value, an awaitable, or a context manager that yields the value."""
        assert self.call is not None
        if inspect.isasyncgenfunction(self.call):
            return contextlib.asynccontextmanager(self.call)(**arguments)
        if inspect.isgeneratorfunction(self.call):
            return contextlib.contextmanager(self.call)(**arguments)
        return self.call(**arguments)


def plan(function: Callable[..., Any]) -> dict[str, Need]:
    """Returns the needs of a function by the names of its parameters.

    Raises:
        ValidationError: A dependency cannot be opened: it needs a parameter that nothing fills, or itself;
            or a dependency of the worker needs one of a job.
    """
    return {
        name: _need(dependency, hint, ())
        for name, (dependency, hint) in _marked(function).items()
        if dependency is not None
    }


def replacement(key: Any, call: Callable[..., Any]) -> Need:
    """Returns the need that stands in for a dependency in a test."""
    found = _need(Dependency(call, "job"), None, ())
    found.key = key
    return found


def _marked(function: Callable[..., Any]) -> dict[str, tuple[Dependency | None, Any]]:
    """Returns the marker and the type of each parameter."""
    target = function.__init__ if inspect.isclass(function) else function
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that exists only for the type checker
        hints = {}
    found: dict[str, tuple[Dependency | None, Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        marks = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Dependency)]
        if isinstance(parameter.default, Dependency):
            marks.append(parameter.default)
        if not marks and name not in hints and "Depends(" in str(parameter.annotation):
            raise ValidationError(name, "annotated with names that exist at run time", parameter.annotation)
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        found[name] = (marks[-1] if marks else None), hint
    return found


def _need(dependency: Dependency, hint: Any, above: tuple[Any, ...]) -> Need:
    call = dependency.call
    if call is None:
        if not isinstance(hint, type):
            raise ValidationError("Depends()", "with a class as the type of its parameter", hint)
        return Need(hint, None, "worker")
    need = Need(call, call, dependency.scope)
    if call in above:
        names = [getattr(one, "__name__", str(one)) for one in (*above, call)]
        raise ValidationError("dependency", "without a cycle", " needs ".join(names))
    need.is_async = inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
    # A context manager of contextlib wraps a generator, which shows its kind.
    need.is_async = need.is_async or inspect.isasyncgenfunction(inspect.unwrap(call))
    signature = inspect.signature(call).parameters
    for name, (marker, kind) in _marked(call).items():
        parameter = signature[name]
        if marker is not None:
            below = need.needs[name] = _need(marker, kind, (*above, call))
            if need.scope == "worker" and below.scope == "job":
                raise ValidationError("scope", f"'worker' too: {need.name} needs it", f"{below.name}: job")
        elif name == "job" or kind is RunningJob:
            if need.scope == "worker" or not need.is_async:
                bound = "that of an async dependency with the scope 'job'"
                raise ValidationError("job", bound, f"{need.name}: {need.scope}")
            need.takes_job = name
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ValidationError(name, f"a dependency or optional in {need.name}", str(parameter))
    return need


class Injector:
    """Opens the dependencies of a worker and of its jobs.

    Args:
        state: What the worker's lifespan yields.
        stack: Closes the dependencies of the worker.
    """

    def __init__(self, state: Any = None, stack: contextlib.AsyncExitStack | None = None) -> None:
        self._state = state
        self._stack = stack
        self._opened: dict[Any, Any] = {}  # of the worker
        self._opening = asyncio.Lock()

    async def start(self, needs: Iterable[Need]) -> None:
        """Opens the dependencies of the worker.

        Raises:
            ValidationError: The state has no value of a type that is needed, or several.
        """
        for one in needs:
            need = overrides.get(one.key, one)
            if need.scope == "worker":
                await self._open(need, None, self._opened, self._stack)
            else:
                await self.start(need.needs.values())

    @contextlib.asynccontextmanager
    async def job(self, needs: Mapping[str, Need], job: RunningJob) -> typing.AsyncIterator[dict[str, Any]]:
        """Opens the dependencies of a job in the event loop; yields the arguments of its handler."""
        opened: dict[Any, Any] = {}
        async with contextlib.AsyncExitStack() as stack:
            yield {name: await self._open(need, job, opened, stack) for name, need in needs.items()}

    @contextlib.contextmanager
    def job_in_thread(
        self, needs: Mapping[str, Need], job: RunningJob, loop: asyncio.AbstractEventLoop
    ) -> Iterator[dict[str, Any]]:
        """The same in the thread of a plain handler: plain dependencies are opened and closed there too."""
        opened: dict[Any, Any] = {}

        def run(doing: Any) -> Any:
            return run_in_loop(_awaited(doing), loop, "a dependency")

        def enter(need: Need) -> Any:
            need = overrides.get(need.key, need)
            if need.scope == "worker":
                return run(self._open(need, None, opened, None))
            if need.key not in opened:
                arguments = {name: enter(below) for name, below in need.needs.items()}
                if need.takes_job is not None:
                    arguments[need.takes_job] = job
                made = need.open(arguments)
                if _is_manager(made, of_loop=True):
                    value = run(made.__aenter__())
                    stack.push(lambda *error: run(_left(made, error)))
                elif _is_manager(made):
                    value = made.__enter__()
                    stack.push(lambda *error: (made.__exit__(*error), False)[1])
                else:
                    value = run(made) if inspect.isawaitable(made) else made
                opened[need.key] = value
            return opened[need.key]

        with contextlib.ExitStack() as stack:
            yield {name: enter(need) for name, need in needs.items()}

    async def _open(
        self,
        need: Need,
        job: RunningJob | None,
        opened: dict[Any, Any],
        stack: contextlib.AsyncExitStack | None,
    ) -> Any:
        need = overrides.get(need.key, need)
        if need.scope == "worker" and opened is not self._opened:
            async with self._opening:  # of a handler that was registered after the worker's start
                return await self._open(need, None, self._opened, self._stack)
        if need.key not in opened:
            if need.call is None:
                opened[need.key] = self._from_state(need.key)
                return opened[need.key]
            assert stack is not None
            arguments = {
                name: await self._open(below, job, opened, stack) for name, below in need.needs.items()
            }
            if need.takes_job is not None:
                arguments[need.takes_job] = job
            made = need.open(arguments)
            if _is_manager(made, of_loop=True):
                value = await made.__aenter__()
                stack.push_async_exit(lambda *error: _left(made, error))
            elif _is_manager(made):
                value = made.__enter__()
                stack.push(lambda *error: (made.__exit__(*error), False)[1])
            else:
                value = await made if inspect.isawaitable(made) else made
            opened[need.key] = value
        return opened[need.key]

    def _from_state(self, kind: type[Any]) -> Any:
        state = self._state
        if isinstance(state, kind):
            return state
        values = state.values() if isinstance(state, Mapping) else getattr(state, "__dict__", {}).values()
        fields = [getattr(state, name) for name in getattr(state, "__struct_fields__", ())]
        found = [one for one in [*values, *fields] if isinstance(one, kind)]
        if len(found) != 1:
            have = "nothing" if state is None else f"{type(state).__name__} with {len(found)} of them"
            raise ValidationError("lifespan", f"one that yields one value of type {kind.__name__}", have)
        return found[0]


def _is_manager(made: Any, *, of_loop: bool = False) -> bool:
    """Whether a call returned a context manager of contextlib; other objects are the value themselves."""
    kind = contextlib._AsyncGeneratorContextManager if of_loop else contextlib._GeneratorContextManager
    return isinstance(made, kind)


async def _left(manager: Any, error: tuple[Any, ...]) -> bool:
    # A clean-up may see the handler's error, but not hide it: the job would complete.
    await manager.__aexit__(*error)
    return False


async def _awaited(doing: Any) -> Any:
    return await doing
