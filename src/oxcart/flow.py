"""Flows: a tree of jobs, written in the shape of the tree.

    flow = Flow(reports, "assemble", {"month": "May"}).after(
        Flow(images, "render", {"page": 1}),
        Flow(images, "render", {"page": 2}, on_failure="ignore"),
        Flow(texts, "translate", {"to": "de"}).after(Flow(texts, "fetch", {"url": "…"})),
    )
    job = await flow.add()
    print(await job.result(timeout=60))

A job runs after the jobs below it have ended. With typed handlers the same reads
``assemble.flow(month="May").after(render.flow(page=1), …)``. A flow is a value: ``after`` and ``on_failure``
return another one, and the same part may be used in several trees. Nothing is written before ``add``, which
writes the whole tree in one step, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from oxcart.broker.port.results import AddedTree
from oxcart.engine.running import carry
from oxcart.engine.tracing import names_in, traced_trees
from oxcart.handle import JobHandle
from oxcart.model.errors import ValidationError
from oxcart.model.flow import FlowView, OnFailure, Tree
from oxcart.model.graph import Kind
from oxcart.model.names import check_job_name
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.model.target import base_of

if TYPE_CHECKING:
    from oxcart.queue import Queue


class Flow:
    """A job, and the jobs that it waits for.

    Args:
        queue: The queue of the job. Its children may be in other queues of the same server; on a cluster
            they must share a hash tag.
        name: The kind of job.
        data: Its payload.
        children: The jobs that it waits for.
        on_failure: The effect of its final failure on its parent: ``fail`` (the parent fails too),
            ``continue`` (the parent runs at once), ``ignore`` (the parent does not wait for it, and can read
            why it failed), ``remove`` (the same without a trace) or ``wait`` (until an operator retries or
            removes it).
        **options: As in ``JobOptions``. Delay and priority of a job with children apply from the end of the
            last child on.
    """

    __slots__ = ("children", "data", "name", "options", "policy", "queue")

    def __init__(
        self,
        queue: Queue,
        name: str,
        data: Any = None,
        *,
        children: Sequence[Flow] = (),
        on_failure: OnFailure | str = OnFailure.FAIL,
        **options: Unpack[OptionKwargs],
    ) -> None:
        self._fill(
            queue, name, data, queue._core.prepare(name, data, options), OnFailure.parse(on_failure), children
        )

    def _fill(
        self,
        queue: Queue,
        name: str,
        data: Any,
        options: JobOptions,
        policy: OnFailure,
        children: Sequence[Flow],
    ) -> Flow:
        self.queue = queue
        self.name: str = check_job_name(name)
        self.data = data
        self.options: JobOptions = options.without_target("flows and graphs")
        self.policy = policy
        self.children: tuple[Flow, ...] = tuple(children)
        for child in self.children:
            if not isinstance(child, Flow):
                raise ValidationError("children", "flows", child)
        return self

    @classmethod
    def of(cls, queue: Queue, name: str, data: Any, options: JobOptions) -> Flow:
        """Returns a job without children, with options that are already read."""
        return cls.__new__(cls)._fill(queue, name, data, options, OnFailure.FAIL, ())

    def __repr__(self) -> str:
        below = f".after({', '.join(map(repr, self.children))})" if self.children else ""
        return f"Flow({self.queue.name}/{self.name}){below}"

    def after(self, *children: Flow) -> Flow:
        """Returns this job with more children to wait for."""
        return self._changed(self.policy, (*self.children, *children))

    def on_failure(self, policy: OnFailure | str) -> Flow:
        """Returns this job with another effect of its failure on its parent."""
        return self._changed(OnFailure.parse(policy), self.children)

    def _changed(self, policy: OnFailure, children: Sequence[Flow]) -> Flow:
        return Flow.__new__(Flow)._fill(self.queue, self.name, self.data, self.options, policy, children)

    def tree(self) -> Tree:
        """Returns the tree as a value of the model.

        Raises:
            ValidationError: Its queues are on different servers.
        """
        return self._tree(self.queue._core.place)

    def _tree(self, place: tuple[str, str]) -> Tree:
        if self.queue._core.place != place:
            raise ValidationError("flow", "on one server", self.queue.name)
        return Tree(
            self.queue.name,
            self.queue._core.prefix,
            self.name,
            self.data,
            carry(self.options),
            self.policy,
            tuple(child._tree(place) for child in self.children),
            self.queue._core.sealer,
        )

    async def add(self) -> FlowHandle:
        """Adds the whole tree in one step.

        Raises:
            ValidationError: Something is wrong with the tree; nothing was written.
            CrossSlotError: Its queues are in different slots of a cluster; nothing was written.
            ParentConflict: A job of an id in the tree belongs to another parent; nothing was written.
            BrokerTimeout: The server could not be reached in time; nothing was written.
            OutcomeUnknown: No answer in time; with ids of your own it is safe to repeat.
        """
        tracing, tree = self.queue._core.tracing, self.tree()
        if tracing is None:
            added = await self._add(tree)
        else:
            protocol, names = self.queue.capabilities.protocol, names_in([tree])
            with tracing.add(protocol, base_of(self.queue.name), names) as span:
                added = await self._add(traced_trees([tree], span.context)[0])
                span.added([added.id], int(added.created))
        await _expect_webhooks(self, added)
        return _handles(self, added)

    async def _add(self, tree: Tree) -> AddedTree:
        core = self.queue._core
        flows = core.part(core.broker.flows, "flows")
        return await flows.add(tree, timeout=core.add_timeout, replicated=core.is_replicated())


class FlowHandle(JobHandle[Any]):
    """A job of a tree that was added.

    Attributes:
        children: The jobs below it; none if a deduplication window kept the tree out.
    """

    __slots__ = ("children",)

    def __init__(self, queue: Queue, added: AddedTree, children: tuple[FlowHandle, ...]) -> None:
        super().__init__(queue, added.id, added.name, added.created)
        self.children = children


class Flows:
    """The flows and graphs of a queue's jobs."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def get(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        """Returns a job with the jobs below it as they are now, or None.

        Args:
            job_id: The job at the top.
            depth: How many generations, the first included.
            limit: How many children of one job at most.
        """
        core = self._queue._core
        return await core.part(core.broker.flows, "flows").view(job_id, depth=depth, limit=limit)

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        """Returns the jobs that wait for a job, by their full keys, and how; none once it has ended."""
        core = self._queue._core
        return await core.part(core.broker.graphs, "graphs").dependents(job_id)


def _handles(flow: Flow, added: AddedTree) -> FlowHandle:
    below = zip(flow.children, added.children, strict=False)
    return FlowHandle(flow.queue, added, tuple(_handles(child, one) for child, one in below))


async def _expect_webhooks(flow: Flow, added: AddedTree) -> None:
    if flow.options.callback_url is not None:
        await flow.queue._core.expect_webhooks([added.id])
    for child, one in zip(flow.children, added.children, strict=False):
        await _expect_webhooks(child, one)
