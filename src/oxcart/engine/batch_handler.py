"""Handlers that take many jobs in one call: ``@queue.job(batch=100, within="2s")``.

The first parameter, a ``list[T]``, receives the payloads: each job's data is one ``T``. A list of jobs of the
handler's kind receives the jobs. All other parameters are dependencies, which are opened once per call.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from oxcart.engine.handler import FACES, Handler, RunKind
from oxcart.engine.injection import Need
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.failure import PermanentError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

#: The most jobs of one batch.
LARGEST = 10_000

_FACES = tuple(set(FACES.values()))


class BatchHandler(Handler):
    """A function that runs many jobs of one name at once.

    Args:
        name: The name of its jobs.
        function: The function.
        batch: The most jobs of one call, 2 to 10 000.
        within: How long the first job of a batch waits for others.
        run: ``async`` or ``thread``.
        options: The options of jobs that are enqueued through it.

    Attributes:
        takes_items: The parameter that receives the payloads, or None.
        takes_jobs: The parameter that receives the jobs, or None.
    """

    __slots__ = ("_item", "batch", "takes_items", "takes_jobs", "within")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any] | str | Path,
        *,
        batch: int,
        within: Duration = 1,
        run: RunKind | str | None = None,
        options: JobOptions = DEFAULT_OPTIONS,
    ) -> None:
        if type(batch) is not int or not 2 <= batch <= LARGEST:
            raise ValidationError("batch", f"an integer from 2 to {LARGEST}", batch)
        if run not in (None, "async", "thread"):
            raise ValidationError("run", "'async' or 'thread' for a batch handler", run)
        self.batch = batch
        self.within = parse_ms(within, "within", minimum=1) / 1000
        super().__init__(name, function, run=run, options=options)
        if _takes_job(self.needs.values()):
            raise ValidationError("job", "left out of dependencies: a batch has many jobs", name)

    def _read_parameters(self) -> None:
        try:
            hints = typing.get_type_hints(self.function)
        except Exception:  # a name that exists only for the type checker
            hints = {}
        self.takes_job, self.takes_items, self.takes_jobs = None, None, None
        self._item: Any = Any
        face = FACES[self.kind]
        for name in inspect.signature(self.function).parameters:
            if name in self.needs:
                continue
            hint = hints.get(name, list)
            element = (typing.get_args(hint) or (Any,))[0]
            if typing.get_origin(hint) is not list and hint is not list:
                raise ValidationError(name, "a list in a batch handler, or a dependency", hint)
            if element in _FACES:
                if element is not face:
                    raise ValidationError(name, f"list[{face.__name__}] in this handler", element.__name__)
                self.takes_jobs = name
            elif self.takes_items is None:
                self.takes_items, self._item = name, element
            else:
                raise ValidationError(name, "a list of jobs: the payloads are in the first list", hint)
        if self.takes_items is None and self.takes_jobs is None:
            raise ValidationError("handler", "a function that takes a list of payloads or jobs", self.name)
        self.takes_data = self.takes_items is not None

    def arguments(self, raw: bytes) -> dict[str, Any]:
        """Returns the item of a job as ``{"item": …}``.

        Raises:
            PermanentError: The data is no such item; a retry cannot help.
            Undecodable: The data is no JSON.
        """
        if not self.takes_data:
            return {}
        try:
            if b'"$bytes"' in raw:
                return {"item": msgspec.convert(payload.decode_stored(raw, "data"), self._item)}
            return {"item": self._read(raw, self._item)}
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise PermanentError(
                f"the payload of job {self.name!r} does not fit its handler: {error}",
                cause=error,
                code="payload",
            ) from error


def _takes_job(needs: Iterable[Need]) -> bool:
    return any(need.takes_job is not None or _takes_job(need.needs.values()) for need in needs)
