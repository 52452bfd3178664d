"""The seam between jobs and a tracer: what happens to a job, as moments that become spans.

The engine knows no tracing library. A queue with ``tracing=`` calls this port, and ``oxcart.observe.tracing``
turns its calls into spans of OpenTelemetry. Without ``tracing=``, an add or an attempt calls nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from oxcart.model.flow import Tree
from oxcart.model.options import JobOptions

if TYPE_CHECKING:
    from oxcart.broker.port import Outcome
    from oxcart.engine.running import RunningJob
    from oxcart.model.graph import Node


class AddSpan(Protocol):
    """The span of one add.

    Attributes:
        context: The trace context that the jobs carry; None to carry none.
        is_silent: Whether nothing is recorded, so that its block and `added` may be left out.
    """

    context: str | None

    @property
    def is_silent(self) -> bool:
        """See above."""

    def __enter__(self) -> AddSpan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def added(self, ids: Sequence[str], created: int) -> None:
        """The server has the jobs; ``created`` of them are new."""


class PostSpan(Protocol):
    """The span of one request of a webhook.

    Attributes:
        headers: The headers by which the receiver continues the trace.
    """

    headers: dict[str, str]

    def answered(self, status: int) -> None:
        """The receiver answered."""


class RunSpan(Protocol):
    """The span of one attempt, from the start of its handler to its outcome."""

    @property
    def text(self) -> str | None:
        """The trace context by which others continue the trace after this attempt."""

    @property
    def ids(self) -> dict[str, str]:
        """The trace id and the span id, as fields of a log line; empty if there is no trace."""

    def enter(self) -> Any:
        """Makes the span the current one of the calling task or thread; returns what `leave` takes."""

    def leave(self, token: Any) -> None:
        """Makes what was current before `enter` the current one again."""

    def ended(self, outcome: Outcome) -> None:
        """The attempt has an outcome."""

    def add(self, protocol: str, queue: str, names: Sequence[str]) -> AddSpan:
        """Traces an add of the handler's job, from any task or thread."""

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Traces one step of the handler."""

    def batch(self, jobs: Sequence[RunningJob]) -> AbstractContextManager[Any]:
        """Traces the one call for this job and others."""

    def portable(self) -> tuple[str, str]:
        """Returns how a handler's process continues the trace.

        Returns:
            A module, whose function ``attach`` the process calls, and the argument of that call. The
            function makes the trace the current one and returns its `RunSpan` for the steps of the process.
        """


class Tracing(Protocol):
    """Makes spans of what happens to jobs."""

    def add(self, protocol: str, queue: str, names: Sequence[str], *, operation: str = "add") -> AddSpan:
        """Traces an add of jobs.

        Args:
            protocol: ``bullmq``, ``bridge`` or ``memory``.
            queue: The queue.
            names: The names of the jobs; none if they are known only after the add.
            operation: ``add``, or ``schedule`` for a schedule whose runs are the jobs.
        """

    def claimed(self, protocol: str, queue: str, jobs: Sequence[RunningJob], seconds: float) -> None:
        """A call that took so many seconds claimed jobs."""

    def run(self, protocol: str, job: RunningJob) -> RunSpan | None:
        """Starts the span of an attempt; the job has waited until now. None if there is no trace."""

    def continued(self, context: str | None) -> AbstractContextManager[Any]:
        """Makes a stored trace context the current one."""

    def post(self, url: str) -> AbstractContextManager[PostSpan]:
        """Traces one request of a webhook."""


def run_span(job: Any) -> RunSpan | None:
    """Returns the span of a running job; None if its queue has no tracing."""
    # The slot is unset without tracing: a store per job is not free.
    return getattr(job, "span", None)


def step_span(job: Any, name: str) -> AbstractContextManager[Any]:
    """Traces one step of a job's handler; does nothing if its queue has no tracing."""
    span = run_span(job)
    return nullcontext() if span is None else span.step(name)


def traced_options(options: JobOptions, context: str | None) -> JobOptions:
    """Returns options that carry a trace context; options with a context of their own stay as they are."""
    return options.traced(context)


def traced_rows(
    rows: Iterable[tuple[str, Any, JobOptions]], context: str | None
) -> Iterator[tuple[str, Any, JobOptions]]:
    """Yields the rows of an add, whose options carry a trace context."""
    last = own = None
    for name, data, options in rows:
        if own is None or options is not last:  # most rows of one add share their options
            last, own = options, traced_options(options, context)
        yield name, data, own


def traced_trees(trees: Sequence[Tree], context: str | None) -> list[Tree]:
    """Returns trees whose jobs carry a trace context."""
    return [
        msgspec.structs.replace(
            tree,
            options=traced_options(tree.options, context),
            children=tuple(traced_trees(tree.children, context)),
        )
        for tree in trees
    ]


def traced_nodes(nodes: Sequence[Node], context: str | None) -> list[Node]:
    """Returns the jobs of a graph, each with a trace context."""
    return [msgspec.structs.replace(node, options=traced_options(node.options, context)) for node in nodes]


def names_in(trees: Sequence[Tree]) -> list[str]:
    """Returns the names of all jobs of trees."""
    names: list[str] = []
    for tree in trees:
        names += [tree.name, *names_in(tree.children)]
    return names
