"""Flows for code without an event loop: the same face as ``oxcart.Flow``, without ``await``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from oxcart import flow as _flow
from oxcart.model.errors import ValidationError
from oxcart.model.flow import OnFailure, Tree
from oxcart.model.options import OptionKwargs
from oxcart.sync._handle import JobHandle

if TYPE_CHECKING:
    from oxcart.sync._queue import Queue


class Flow:
    """A job, and the jobs that it waits for; see ``oxcart.Flow``.

    Args:
        queue: The queue of the job.
        name: What kind of job it is.
        data: Its payload.
        children: The jobs that it waits for.
        on_failure: What its final failure means for the job above it: ``fail``, ``continue``, ``ignore``,
            ``remove`` or ``wait``.
        **options: As in ``JobOptions``.

    Attributes:
        asynchronous: The ``oxcart.Flow`` behind it.
    """

    __slots__ = ("asynchronous", "children", "queue")

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
        self.queue = queue
        self.children = _checked(children)
        self.asynchronous: _flow.Flow = _flow.Flow(
            queue.asynchronous,
            name,
            data,
            children=[child.asynchronous for child in self.children],
            on_failure=on_failure,
            **options,
        )

    @classmethod
    def of(cls, queue: Queue, flow: _flow.Flow, children: tuple[Flow, ...] = ()) -> Flow:
        """The face of a flow whose children have one already."""
        made = cls.__new__(cls)
        made.queue = queue
        made.asynchronous = flow
        made.children = children
        return made

    def __repr__(self) -> str:
        return f"sync.{self.asynchronous!r}"

    def after(self, *children: Flow) -> Flow:
        """This job, after those: they are added to the ones that it already waits for."""
        below = _checked(children)
        flow = self.asynchronous.after(*(child.asynchronous for child in below))
        return Flow.of(self.queue, flow, (*self.children, *below))

    def on_failure(self, policy: OnFailure | str) -> Flow:
        """This job with another meaning of its failure for the job above it."""
        return Flow.of(self.queue, self.asynchronous.on_failure(policy), self.children)

    def tree(self) -> Tree:
        """The tree as a value of the model."""
        return self.asynchronous.tree()

    def add(self) -> FlowHandle:
        """Adds the whole tree in one step; raises what ``oxcart.Flow.add`` raises."""
        return _handles(self, self.queue.run(self.asynchronous.add()))


class FlowHandle(JobHandle[Any]):
    """A job of a tree that was added.

    Attributes:
        children: The jobs below it; none where a deduplication window kept the tree out.
    """

    __slots__ = ("children",)

    def __init__(self, queue: Queue, handle: _flow.FlowHandle, children: tuple[FlowHandle, ...]) -> None:
        super().__init__(queue, handle)
        self.children = children


def _handles(flow: Flow, handle: _flow.FlowHandle) -> FlowHandle:
    below = zip(flow.children, handle.children, strict=False)
    return FlowHandle(flow.queue, handle, tuple(_handles(child, one) for child, one in below))


def _checked(children: Sequence[Flow]) -> tuple[Flow, ...]:
    for child in children:
        if not isinstance(child, Flow):
            raise ValidationError("children", "flows of oxcart.sync", child)
    return tuple(children)
