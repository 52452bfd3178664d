"""What runs for a job: a function, how it wants to be run, and how a payload becomes its arguments.

The signature is the payload: ``async def welcome(to: str, name: str)`` takes a job whose data has these
fields, checked against their types before the function is called. A parameter named ``job`` (or annotated
``RunningJob``) receives the job itself; a function that takes nothing else is handed no payload.

May touch: nothing; looks at functions.
"""

from __future__ import annotations

import inspect
import keyword
import typing
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from oxcart.model import payload
from oxcart.model.errors import ValidationError
from oxcart.model.failure import PermanentError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

RunKind = Literal["async", "thread", "process"]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler:
    """A function that does a kind of job.

    Attributes:
        name: The job name it answers to.
        function: The function.
        kind: ``async`` in the loop, ``thread`` in a thread, ``process`` in a process of its own.
        options: The options of jobs that are enqueued through it.
        takes_job: The name of the parameter that receives the job, or None.
        takes_data: Whether any parameter is filled from the payload.
    """

    __slots__ = ("_shape", "_spread", "function", "kind", "name", "options", "takes_data", "takes_job")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        run: RunKind | None = None,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.name = name
        self.function = function
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        if run == "async" and not is_async:
            raise ValidationError("run", "'thread' or 'process' for a function that is not async", run)
        if run in ("thread", "process") and is_async:
            raise ValidationError("run", "'async' for an async function", run)
        if run not in (None, "async", "thread", "process"):
            raise ValidationError("run", "'async', 'thread' or 'process'", run)
        self.kind: RunKind = run or ("async" if is_async else "thread")
        self.options = options
        self.takes_job, fields, self._spread = _read_signature(function)
        self.takes_data = bool(fields) or self._spread
        self._shape = _shape(name, fields) if fields else None

    def arguments(self, raw: bytes) -> dict[str, Any]:
        """The keyword arguments from a job's raw data.

        Raises:
            PermanentError: The data does not fit the signature; no retry can mend that.
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
                arguments.setdefault(name, value)
        return arguments

    @staticmethod
    def _read(raw: bytes, shape: Any) -> Any:
        try:
            return msgspec.json.decode(raw, type=shape)
        except msgspec.ValidationError:
            payload.decode_stored(raw, "data")  # a number of too many digits is no matter of the signature
            raise
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # The typed reader is strict. What only the lenient one accepts meets the signature here.
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


class Registry:
    """The handlers of a queue, by job name; one of them may answer to every name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}
        self._any: Handler | None = None

    def add(self, handler: Handler, *, every_name: bool = False) -> None:
        """Registers a handler.

        Raises:
            ValidationError: The name is taken by another function.
        """
        if every_name:
            self._any = handler
            return
        taken = self._by_name.get(handler.name)
        if taken is not None and taken.function is not handler.function:
            raise ValidationError("name", "new: the queue has a handler of this name", handler.name)
        self._by_name[handler.name] = handler

    def find(self, name: str) -> Handler | None:
        """The handler for a job name, or None."""
        return self._by_name.get(name, self._any)

    @property
    def names(self) -> list[str]:
        """The job names that have a handler of their own."""
        return sorted(self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name) or self._any is not None


def _read_signature(function: Callable[..., Any]) -> tuple[str | None, list[Any], bool]:
    """The parameter for the job, the fields of the payload, and whether any field is welcome."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a name that exists only while type checking: fields without a type
        hints = {}
    takes_job: str | None = None
    fields: list[Any] = []
    spread = False
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            spread = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif name == "job" or getattr(hint, "__name__", "") == "RunningJob":
            takes_job = name
        elif parameter.kind not in _NAMED:
            raise ValidationError("handler", "a function whose parameters can be given by name", name)
        elif parameter.default is inspect.Parameter.empty:
            fields.append((name, hint))
        else:
            fields.append((name, hint | msgspec.UnsetType if _joins(hint) else Any, msgspec.UNSET))
    return takes_job, fields, spread


def _joins(hint: Any) -> bool:
    try:
        hint | msgspec.UnsetType
    except TypeError:
        return False
    return True


def _shape(name: str, fields: list[Any]) -> Any:
    """A struct type with the handler's fields, or one without types where msgspec knows a type not."""
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
