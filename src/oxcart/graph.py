"""Graphs: jobs that wait for others, written one after another.

    graph = Graph(pages)
    fetch = graph.job("fetch", {"url": "…"})
    parts = graph.fan_out(fetch, [("parse", {"part": 1}), ("parse", {"part": 2})])
    graph.fan_in("join", after=parts, queue=reports)
    jobs = await graph.add()

``after`` waits until all of the given jobs have completed, ``after_any`` until one of them has ended in any
state. Both take jobs of the graph, handles on existing jobs of any queue of the server, and ids of the job's
own queue. A single job needs no graph: ``queue.add("join", after=handles)``. Nothing is written before
``add``, which writes the whole graph in one step, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from oxcart.broker.port.results import AddedNode
from oxcart.engine.running import carry
from oxcart.engine.tracing import traced_nodes
from oxcart.flow import Flow
from oxcart.handle import JobHandle
from oxcart.model.errors import Unacknowledged, ValidationError
from oxcart.model.graph import Edge, Existing, Kind, Node
from oxcart.model.names import check_job_name
from oxcart.model.options import Durability, JobOptions, OptionKwargs
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.queue import Queue

Row = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]


class GraphJob:
    """A job of a graph that is not added yet.

    Attributes:
        queue: Its queue.
        name: Its name.
    """

    __slots__ = ("_after", "_any", "_data", "_options", "name", "queue")

    def __init__(self, queue: Queue, name: str, data: Any, options: JobOptions) -> None:
        self.queue = queue
        self.name: str = check_job_name(name)
        self._data = data
        self._options = options
        self._after: list[Dependency] = []
        self._any: list[Dependency] = []

    def __repr__(self) -> str:
        return f"GraphJob({self.queue.name}/{self.name})"

    def after(self, *others: Dependency) -> GraphJob:
        """Makes the job wait until all of these have completed, in addition to earlier ones."""
        self._after += others
        return self

    def after_any(self, *others: Dependency) -> GraphJob:
        """Makes the job wait until one of these, or of those passed before, has ended."""
        self._any += others
        return self

    @property
    def _named(self) -> Existing | None:
        """Returns the existing job that an id of the graph's own names, or None."""
        known = self._options.job_id
        return None if known is None else Existing(self.queue._core.prefix, self.queue.name, known)

    def _node(self, numbers: Mapping[int, int], named: Mapping[Existing, int]) -> Node:
        edges = [Edge(self._of(one, numbers), Kind.AFTER) for one in self._after]
        edges += [Edge(self._of(one, numbers), Kind.AFTER_ANY) for one in self._any]
        edges = [
            Edge(named[one.of], one.kind) if isinstance(one.of, Existing) and one.of in named else one
            for one in edges
        ]
        return Node(
            self.queue.name,
            self.queue._core.prefix,
            self.name,
            self._data,
            carry(self._options),
            tuple(dict.fromkeys(edges)),
            self.queue._core.sealer,
        )

    def _of(self, other: Dependency, numbers: Mapping[int, int]) -> int | Existing:
        if isinstance(other, GraphJob):
            if id(other) not in numbers:
                raise ValidationError("after", "jobs of the same graph", other)
            return numbers[id(other)]
        if isinstance(other, JobHandle):
            if other.queue._core.place != self.queue._core.place:
                raise ValidationError("after", "jobs of one server", other)
            return Existing(other.queue._core.prefix, other.queue.name, other.id)
        if isinstance(other, str) and other:
            return Existing(self.queue._core.prefix, self.queue.name, other)
        raise ValidationError("after", "jobs of the graph, handles or ids", other)


#: The ways to name a dependency.
Dependency = GraphJob | JobHandle[Any] | str


class Graph:
    """Jobs that wait for each other, and for existing jobs.

    Args:
        queue: The queue of jobs without their own. Other queues may be any of the same server; on a
            cluster they must share a hash tag.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.jobs: list[GraphJob] = []

    def __repr__(self) -> str:
        return f"Graph({self.queue.name}, {len(self.jobs)} jobs)"

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
        """Adds a job to the graph.

        Args:
            name: The kind of job.
            data: Its payload.
            queue: Its queue; the graph's by default.
            after: Jobs that must have completed before it runs.
            after_any: Jobs of which one must have ended before it runs.
            **options: As in ``JobOptions``.
        """
        where = self.queue if queue is None else queue
        read = where._core.prepare(name, data, options).without_target("flows and graphs")
        return self._join(GraphJob(where, name, data, read), after, after_any)

    def take(
        self, flow: Flow, *, after: Iterable[Dependency] = (), after_any: Iterable[Dependency] = ()
    ) -> GraphJob:
        """Adds a job of a typed handler to the graph: ``graph.take(render.flow(page=1), after=[fetch])``.

        Raises:
            ValidationError: It has children of its own.
        """
        if flow.children:
            raise ValidationError("flow", "a job without children: let it wait for them by after", flow)
        return self._join(GraphJob(flow.queue, flow.name, flow.data, flow.options), after, after_any)

    def _join(self, made: GraphJob, after: Iterable[Dependency], after_any: Iterable[Dependency]) -> GraphJob:
        made.after(*_listed(after, "after")).after_any(*_listed(after_any, "after_any"))
        self.jobs.append(made)
        return made

    def chain(self, *rows: Row, after: Iterable[Dependency] = ()) -> list[GraphJob]:
        """Adds jobs that run one after another; a job that does not complete stops the chain."""
        made: list[GraphJob] = []
        first = _listed(after, "after")
        for row in rows:
            made.append(self._row(row, [made[-1]] if made else first))
        return made

    def fan_out(self, of: Dependency, rows: Iterable[Row]) -> list[GraphJob]:
        """Adds jobs that run in parallel once one has completed."""
        return [self._row(row, [of]) for row in rows]

    def fan_in(
        self,
        name: str,
        data: Any = None,
        *,
        after: Iterable[Dependency],
        queue: Queue | None = None,
        **options: Unpack[OptionKwargs],
    ) -> GraphJob:
        """Adds a job that runs once all of these have completed."""
        return self.job(name, data, queue=queue, after=after, **options)

    def _row(self, row: Row, after: Sequence[Dependency]) -> GraphJob:
        options = cast(OptionKwargs, dict(row[2])) if len(row) > 2 else cast(OptionKwargs, {})
        return self.job(row[0], row[1], after=after, **options)

    def nodes(self) -> list[Node]:
        """Returns the graph as values of the model.

        Raises:
            ValidationError: A job waits for a job of another graph, or of another server.
        """
        numbers = {id(job): number for number, job in enumerate(self.jobs)}
        for job in self.jobs:
            if job.queue._core.place != self.queue._core.place:
                raise ValidationError("graph", "on one server", job.queue.name)
        named = {job._named: number for number, job in enumerate(self.jobs) if job._named is not None}
        return [job._node(numbers, named) for job in self.jobs]

    async def add(self, *, durability: Durability | None = None) -> list[JobHandle[Any]]:
        """Adds all jobs in one step; returns handles in the order in which the jobs were made.

        Args:
            durability: ``"replicated"`` or ``"acknowledged"``, instead of the queue's.

        Raises:
            ValidationError: Something is wrong with the graph, a cycle for example; nothing was written.
            UnknownDependency: A job to wait for does not exist; nothing was written.
            ChainTooLong: More than 100 jobs would wait in a row; nothing was written.
            CrossSlotError: Its queues are in different slots of a cluster; nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time; with ids of your own it is safe to repeat.
        """
        if not self.jobs:
            return []
        tracing, nodes = self.queue._core.tracing, self.nodes()
        try:
            if tracing is None:
                added = await self._add(nodes, durability)
            else:
                protocol, names = self.queue.capabilities.protocol, [node.name for node in nodes]
                with tracing.add(protocol, base_of(self.queue.name), names) as span:
                    added = await self._add(traced_nodes(nodes, span.context), durability)
                    span.added([one.id for one in added], sum(one.created for one in added))
        except Unacknowledged as error:
            named = (job._options.job_id for job in self.jobs)
            raise error.of_jobs(one for one in named if one is not None) from error
        for job, one in zip(self.jobs, added, strict=True):
            if job._options.callback_url is not None:
                await job.queue._core.expect_webhooks([one.id])
        return [
            JobHandle(job.queue, one.id, job.name, one.created, one.duplicate)
            for job, one in zip(self.jobs, added, strict=True)
        ]

    async def _add(self, nodes: Sequence[Node], durability: Durability | None) -> list[AddedNode]:
        core = self.queue._core
        graphs = core.part(core.broker.graphs, "graphs")
        return await graphs.add(nodes, timeout=core.add_timeout, replicated=core.is_replicated(durability))


def _listed(given: Iterable[Dependency], field: str) -> list[Dependency]:
    if isinstance(given, str | JobHandle | GraphJob):
        raise ValidationError(field, "a list of jobs", given)
    return list(given)


def ids_of(queue: Queue, after: Iterable[Dependency]) -> list[str]:
    """Returns the ids of dependencies, for a protocol whose jobs can wait only for jobs of their namespace.

    Raises:
        ValidationError: One of them is neither an id nor a handle of the namespace.
    """
    ids: list[str] = []
    for one in _listed(after, "after"):
        if isinstance(one, JobHandle):
            if (one.queue._core.place, one.queue._core.prefix) != (queue._core.place, queue._core.prefix):
                raise ValidationError("after", "jobs of one namespace", one)
            ids.append(one.id)
        elif isinstance(one, str):
            ids.append(one)
        else:
            raise ValidationError("after", "handles or ids", one)
    return ids
