"""Handlers: functions, how to run them, and the conversion of a payload to their arguments.

The signature describes the payload: ``async def welcome(to: str, name: str)`` takes jobs whose data has these
fields. Their types are checked before the call. A parameter named ``job``, or annotated as one, receives the
job itself: a `RunningJob` in an async function, a `SyncRunningJob` in a plain one. A function without other
parameters receives no payload.
"""

from __future__ import annotations

import inspect
import keyword
import os
import sys
import types
import typing
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from oxcart.engine import injection
from oxcart.engine.runners import BUILT_IN, Entry, find_runner
from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.model import payload
from oxcart.model.errors import ValidationError
from oxcart.model.failure import PermanentError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions
from oxcart.model.schedule import Schedule

RunKind = Literal["async", "thread", "process"]

#: The class of the job that each kind of handler receives.
FACES: dict[RunKind, type[Any]] = {"async": RunningJob, "thread": SyncRunningJob, "process": SyncRunningJob}

_FUNCTIONS = {
    "async": "an async function",
    "thread": "a plain function",
    "process": "a function in a process of its own",
}

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler:
    """A function that runs jobs of one name.

    Attributes:
        name: The name of its jobs.
        function: The function.
        kind: ``async`` in the loop, ``thread`` in a thread, ``process`` in a process of its own.
        options: The options of jobs that are enqueued through it.
        takes_job: The name of the parameter that receives the job, or None.
        takes_data: Whether any parameter is filled from the payload.
        needs: Dependencies by the names of the parameters that they fill.
        fills: Parameters that a runner fills.
        entry: How a runner calls it in a process; None without a runner.
        schedule: The schedule that it declares, or None.
        module: The module that defines it; of a script its file name.
    """

    #: The most jobs of one call, and the seconds that the first one waits for others; None without batches.
    batch: int | None = None
    within: float = 0.0

    __slots__ = (
        "_face",
        "_shape",
        "_spread",
        "entry",
        "fills",
        "function",
        "kind",
        "module",
        "name",
        "needs",
        "options",
        "schedule",
        "takes_data",
        "takes_job",
    )

    def __init__(
        self,
        name: str,
        function: Callable[..., Any] | str | Path,
        *,
        run: RunKind | str | None = None,
        options: JobOptions = DEFAULT_OPTIONS,
        schedule: Schedule | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        module, self.fills, face = None, frozenset[str](), None
        self.entry: Entry | None = None
        if run is not None and run not in BUILT_IN:
            runner = find_runner(run)
            function, self.entry, module = runner.prepare(function, settings or {})
            run, self.fills, face = "process", runner.fills, runner.face
        elif isinstance(function, str | Path):
            raise ValidationError("handler", "a function, unless a runner can run a script", str(function))
        self.function = function
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        if run == "async" and not is_async:
            raise ValidationError("run", "'thread' or 'process' for a function that is not async", run)
        if run in ("thread", "process") and is_async:
            raise ValidationError("run", "'async' for an async function", run)
        self.kind: RunKind = cast(RunKind, run or ("async" if is_async else "thread"))
        self._face = face or FACES[self.kind]
        self.options = options
        self.needs = injection.plan(function)
        if self.needs and self.kind == "process":
            bound = "'async' or 'thread' for a handler with dependencies, which cannot leave the worker"
            raise ValidationError("run", bound, ", ".join(self.needs))
        self.takes_job: str | None = None
        self._read_parameters()
        self.module = module or _module_of(function)
        self.schedule = schedule
        if schedule is not None:
            options.without_target("schedules")
            self._check_run(name)

    def _read_parameters(self) -> None:
        filled = {*self.needs, *self.fills}
        try:
            self.takes_job, fields, self._spread = _read_signature(
                self.function, self.kind, filled, self._face
            )
        except ValidationError as error:
            message = f"handler {self.name}: {error}"
            raise ValidationError(error.field, error.bound, error.value, message) from None
        self.takes_data = bool(fields) or self._spread
        self._shape = _shape(self.name, fields) if fields else None

    def arguments(self, raw: bytes) -> dict[str, Any]:
        """Returns the keyword arguments from a job's raw data.

        Raises:
            PermanentError: The data does not fit the signature; a retry cannot help.
            Undecodable: The data is no JSON.
        """
        if not self.takes_data:
            return {}
        if raw == b"null":
            raw = b"{}"  # a job that was added without data: every argument is its default
        try:
            if self._spread or b'"$bytes"' in raw:
                data = payload.decode_stored(raw, "data")
                if self._shape is None:
                    return _as_dict(data)
                known = msgspec.convert(data, self._shape)
            else:
                known = self._read(raw, self._shape)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise PermanentError(
                f"the payload of job {self.name!r} does not fit its handler: {error}",
                cause=error,
                code="payload",
            ) from error
        arguments = {
            name: value
            for name in known.__struct_fields__
            if (value := getattr(known, name)) is not msgspec.UNSET
        }
        if self._spread:
            for name, value in _as_dict(data).items():
                if name not in self.needs and name not in self.fills and name != self.takes_job:
                    arguments.setdefault(name, value)
        return arguments

    @staticmethod
    def _read(raw: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(raw, type=shape)
        except msgspec.ValidationError:
            payload.decode_stored(raw, "data")  # a number with too many digits is no fault of the signature
            raise
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # The typed decoder is strict. Data that only the lenient one accepts is checked here.
            return msgspec.convert(payload.decode_stored(raw, "data"), shape, str_keys=True)

    def check(self, data: Any) -> None:
        """Checks a payload before it is enqueued.

        Raises:
            ValidationError: The data does not fit the signature.
        """
        if not self.takes_data:
            return
        try:
            self.arguments(payload.encode(data))
        except PermanentError as error:
            raise ValidationError("data", "what the handler takes", data, str(error)) from error

    def _check_run(self, name: str) -> None:
        try:
            self.check({})
        except ValidationError as error:
            message = f"handler {name!r} needs a payload, but a schedule on the decorator has none: {error}"
            raise ValidationError("schedule", "that of a handler without a payload", name, message) from error


class Handlers:
    """The handlers of a queue by job name, and the fallback for every other name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}
        self._any: Handler | None = None

    def add(self, handler: Handler, *, fallback: bool = False) -> None:
        """Registers a handler.

        Raises:
            ValidationError: The name is taken by another function.
        """
        if fallback:
            self._any = handler
            return
        taken = self._by_name.get(handler.name)
        is_other = taken is not None and (
            taken.function is not handler.function or taken.entry != handler.entry
        )
        if is_other:
            raise ValidationError("name", "new: the queue has a handler of this name", handler.name)
        self._by_name[handler.name] = handler

    def find(self, name: str) -> Handler | None:
        """Returns the handler of a job name, or None."""
        return self._by_name.get(name, self._any)

    def named(self, name: object) -> Handler | None:
        """Returns the handler that was registered under a name, the fallback excluded, or None."""
        return self._by_name.get(name) if isinstance(name, str) else None

    @property
    def all(self) -> list[Handler]:
        """All handlers, the fallback included."""
        return [*self._by_name.values(), *([self._any] if self._any is not None else [])]

    @property
    def names(self) -> list[str]:
        """The job names that have a handler of their own."""
        return sorted(self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name) or self._any is not None


def _read_signature(
    function: Callable[..., Any], kind: RunKind, filled: Container[str], face: type[Any]
) -> tuple[str | None, list[Any], bool]:
    """Returns the parameter for the job, the fields of the payload, and whether others are allowed.

    Raises:
        ValidationError: A parameter cannot be given by name, or asks for a job that this kind does not get.
    """
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a name that exists only for the type checker: fields without a type
        hints = {}
    takes_job: str | None = None
    fields: list[Any] = []
    spread = False
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        of_job = hint if name in hints else parameter.annotation
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            spread = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL or name in filled:
            continue
        elif name == "job" or _name_of(of_job) in _NAMES:
            if not _is_met(of_job, face):
                bound = f"{face.__name__} for {_FUNCTIONS[kind]}"
                raise ValidationError(name, bound, _name_of(of_job))
            takes_job = name
        elif parameter.kind not in _NAMED:
            raise ValidationError("handler", "a function whose parameters can be given by name", name)
        elif parameter.default is inspect.Parameter.empty:
            fields.append((name, hint))
        else:
            fields.append((name, hint | msgspec.UnsetType if _joins(hint) else Any, msgspec.UNSET))
    return takes_job, fields, spread


#: The names of classes by whose annotation a parameter of any name receives the job.
_NAMES = ("RunningJob", "SyncRunningJob")


def _module_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or ""
    if module != "__main__":
        return str(module)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec else os.path.basename(getattr(main, "__file__", None) or "__main__")


def _name_of(annotation: Any) -> str:
    """Returns the name of a class, also if the annotation is text that only a type checker can resolve."""
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2]
    return getattr(annotation, "__name__", None) or str(annotation)


def _is_met(annotation: Any, face: type[Any]) -> bool:
    if annotation is inspect.Parameter.empty or annotation is Any:
        return True
    if isinstance(annotation, str):  # the name of a class that only a type checker can import
        return _name_of(annotation) not in {*_NAMES, "Job"} - {face.__name__}
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_met(one, face) for one in typing.get_args(annotation))
    try:
        return issubclass(face, annotation)
    except TypeError:  # a protocol with attributes, or a generic type: not known before the call
        return True


def _joins(hint: Any) -> bool:
    try:
        hint | msgspec.UnsetType
    except TypeError:
        return False
    return True


def _shape(name: str, fields: list[Any]) -> Any:
    """Makes a struct type with the handler's fields, untyped if msgspec does not support one of the types."""
    title = "".join(part for part in name.title() if part.isalnum()) or "Payload"
    title = title if title.isidentifier() and not keyword.iskeyword(title) else f"Payload{abs(hash(name))}"
    ordered = [field for field in fields if len(field) == 2] + [field for field in fields if len(field) == 3]
    shape = msgspec.defstruct(title, ordered, kw_only=True)
    try:
        msgspec.json.Decoder(shape)
    except TypeError:
        loose = [(field[0], Any, *field[2:]) for field in ordered]
        shape = msgspec.defstruct(title, loose, kw_only=True)
    return shape


def _as_dict(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PermanentError(
            "the payload is not an object, so it has no fields for the handler", code="payload"
        )
    return data
