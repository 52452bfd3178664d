"""Flows: a tree of jobs in the user's hand, written as it looks.

    flow = Flow(reports, "assemble", {"month": "May"}).after(
        Flow(images, "render", {"page": 1}),
        Flow(images, "render", {"page": 2}, on_failure="ignore"),
        Flow(texts, "translate", {"to": "de"}).after(Flow(texts, "fetch", {"url": "…"})),
    )
    job = await flow.add()
    print(await job.result(timeout=60))

A job runs after those below it have ended. With typed handlers the same reads
``assemble.flow(month="May").after(render.flow(page=1), …)``. A flow is a value: ``after`` and ``on_failure``
make another one, and the same part may be used in several trees. Nothing is written before ``add``, and then
all of it in one step, or nothing.

May touch: the server, through the queue at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from oxcart.broker.bullmq.flows import AddedTree, add_tree
from oxcart.broker.factory import native
from oxcart.engine.running import carry
from oxcart.handle import JobHandle
from oxcart.model.errors import ValidationError
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.names import check_job_name
from oxcart.model.options import JobOptions, OptionKwargs

if TYPE_CHECKING:
    from oxcart.queue import Queue


class Flow:
    """A job, and the jobs that it waits for.

    Args:
        queue: The queue of the job. Those of its children may be others of the same server; on a cluster
            they must share a hash tag.
        name: What kind of job it is.
        data: Its payload.
        children: The jobs that it waits for.
        on_failure: What its final failure means for the job above it: ``fail`` (that one fails too),
            ``continue`` (that one runs at once), ``ignore`` (that one does not wait for it, and can read
            why it failed), ``remove`` (the same without a trace) or ``wait`` (until somebody retries or
            removes it).
        **options: As in ``JobOptions``. A delay or priority of a job with children holds from the moment at
            which they have ended.
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
        self._fill(queue, name, data, queue.read_options(options), OnFailure.parse(on_failure), children)

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
        self.name = check_job_name(name)
        self.data = data
        self.options = options.without_target("flows and graphs")
        self.policy = policy
        self.children = tuple(children)
        for child in self.children:
            if not isinstance(child, Flow):
                raise ValidationError("children", "flows", child)
        return self

    @classmethod
    def of(cls, queue: Queue, name: str, data: Any, options: JobOptions) -> Flow:
        """A job without children, with options that are already read."""
        return cls.__new__(cls)._fill(queue, name, data, options, OnFailure.FAIL, ())

    def __repr__(self) -> str:
        below = f".after({', '.join(map(repr, self.children))})" if self.children else ""
        return f"Flow({self.queue.name}/{self.name}){below}"

    def after(self, *children: Flow) -> Flow:
        """This job, after those: they are added to the ones that it already waits for."""
        return self._changed(self.policy, (*self.children, *children))

    def on_failure(self, policy: OnFailure | str) -> Flow:
        """This job with another meaning of its failure for the job above it."""
        return self._changed(OnFailure.parse(policy), self.children)

    def _changed(self, policy: OnFailure, children: Sequence[Flow]) -> Flow:
        return Flow.__new__(Flow)._fill(self.queue, self.name, self.data, self.options, policy, children)

    def tree(self) -> Tree:
        """The tree as a value of the model.

        Raises:
            ValidationError: Its queues are on different servers.
        """
        return self._tree(_place(self.queue))

    def _tree(self, place: tuple[str, str]) -> Tree:
        if _place(self.queue) != place:
            raise ValidationError("flow", "on one server", self.queue.name)
        return Tree(
            self.queue.name,
            self.queue.prefix,
            self.name,
            self.data,
            carry(self.options),
            self.policy,
            tuple(child._tree(place) for child in self.children),
            self.queue.sealer,
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
        broker = native(
            self.queue.broker,
            "flows",
            "flows need a server: oxcart.testing runs single jobs in memory; use drain",
        )
        queue = self.queue
        added = await add_tree(
            broker, self.tree(), timeout=queue.add_timeout, replicated=queue.is_replicated()
        )
        await _expect_callbacks(self, added)
        return _handles(self, added)


class FlowHandle(JobHandle[Any]):
    """A job of a tree that was added.

    Attributes:
        children: The jobs below it; none where a deduplication window kept the tree out.
    """

    __slots__ = ("children",)

    def __init__(self, queue: Queue, added: AddedTree, children: tuple[FlowHandle, ...]) -> None:
        super().__init__(queue, added.id, added.name, added.created)
        self.children = children


def _handles(flow: Flow, added: AddedTree) -> FlowHandle:
    below = zip(flow.children, added.children, strict=False)
    return FlowHandle(flow.queue, added, tuple(_handles(child, one) for child, one in below))


async def _expect_callbacks(flow: Flow, added: AddedTree) -> None:
    if flow.options.callback_url is not None:
        await flow.queue.expect_callbacks([added.id])
    for child, one in zip(flow.children, added.children, strict=False):
        await _expect_callbacks(child, one)


def _place(queue: Queue) -> tuple[str, str]:
    facts = queue.station_facts()
    return facts["url"], facts["folder"]
