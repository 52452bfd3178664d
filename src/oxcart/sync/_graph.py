"""Graphs for code without an event loop: the same face as ``oxcart.Graph``, without ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from oxcart import graph as _graph
from oxcart.graph import GraphJob, Row
from oxcart.model.errors import ValidationError
from oxcart.model.options import Durability, OptionKwargs
from oxcart.sync._flow import Flow
from oxcart.sync._handle import JobHandle

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue

#: What a job can wait for.
Dependency = GraphJob | JobHandle[Any] | str


def unwrapped(given: Iterable[Dependency]) -> list[_graph.Dependency]:
    """What a job is to wait for, as ``oxcart`` has it."""
    if isinstance(given, str):
        raise ValidationError("after", "a list of jobs", given)
    return [one._handle if isinstance(one, JobHandle) else one for one in given]


class Graph:
    """Jobs that wait for each other, and for jobs that exist; see ``oxcart.Graph``.

    Args:
        queue: The queue of jobs that do not say theirs.

    Attributes:
        asynchronous: The ``oxcart.Graph`` behind it.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.asynchronous: _graph.Graph = _graph.Graph(queue.asynchronous)
        self._queues: list[Queue] = []

    def __repr__(self) -> str:
        return f"sync.{self.asynchronous!r}"

    def job(
        self,
        name: str,
        data: Any = None,
        *,
        queue: Queue | None = None,
        after: Iterable[Dependency] = (),
        after_any: Iterable[Dependency] = (),
        **options: Unpack[OptionKwargs],
    ) -> GraphJob:
        """One more job; arguments as in ``oxcart.Graph.job``."""
        where = self.queue if queue is None else queue
        made = self.asynchronous.job(
            name,
            data,
            queue=where.asynchronous,
            after=unwrapped(after),
            after_any=unwrapped(after_any),
            **options,
        )
        self._queues.append(where)
        return made

    def take(
        self, flow: Flow, *, after: Iterable[Dependency] = (), after_any: Iterable[Dependency] = ()
    ) -> GraphJob:
        """One more job, of a typed handler: ``graph.take(render.flow(page=1), after=[fetch])``."""
        made = self.asynchronous.take(
            flow.asynchronous, after=unwrapped(after), after_any=unwrapped(after_any)
        )
        self._queues.append(flow.queue)
        return made

    def chain(self, *rows: Row, after: Iterable[Dependency] = ()) -> list[GraphJob]:
        """Jobs one behind the other: what does not complete stops the chain."""
        made = self.asynchronous.chain(*rows, after=unwrapped(after))
        self._queues += [self.queue] * len(made)
        return made

    def fan_out(self, of: Dependency, rows: Iterable[Row]) -> list[GraphJob]:
        """Jobs that run beside each other once one has completed."""
        made = self.asynchronous.fan_out(unwrapped([of])[0], rows)
        self._queues += [self.queue] * len(made)
        return made

    def fan_in(
        self,
        name: str,
        data: Any = None,
        *,
        after: Iterable[Dependency],
        queue: Queue | None = None,
        **options: Unpack[OptionKwargs],
    ) -> GraphJob:
        """A job that runs once all of these have completed."""
        return self.job(name, data, queue=queue, after=after, **options)

    def add(self, *, durability: Durability | None = None) -> list[JobHandle[Any]]:
        """Adds all jobs in one step; takes and raises what ``oxcart.Graph.add`` does."""
        handles = self.queue.run(self.asynchronous.add(durability=durability))
        return [JobHandle(queue, one) for queue, one in zip(self._queues, handles, strict=True)]
