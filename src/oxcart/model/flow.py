"""Flows: trees of jobs, the checks before an add, and the views of a stored tree.

A parent runs when its children have ended. A child's policy decides what its failure means for the parent.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.masking import masked
from oxcart.model.names import check_new_id
from oxcart.model.options import JobOptions

#: The most jobs of one tree. One call adds them and blocks the server for about 30 ms (`make bench-bounds`).
MOST_JOBS = 1000
#: The most generations of one tree.
DEEPEST = 100


class OnFailure(enum.StrEnum):
    """What the parent does after the final failure of a child."""

    #: The parent fails too, at once.
    FAIL = "fail"
    #: The parent runs at once, before its other children end.
    CONTINUE = "continue"
    #: The parent no longer waits for the child, and can read the reason.
    IGNORE = "ignore"
    #: The parent no longer waits for the child, and nothing is recorded.
    REMOVE = "remove"
    #: The parent waits until an operator retries or removes the child.
    WAIT = "wait"

    @classmethod
    def parse(cls, value: Any, field: str = "on_failure") -> OnFailure:
        """Parses the name of a policy.

        Raises:
            ValidationError: There is no such policy.
        """
        try:
            return cls(value)
        except ValueError:
            raise ValidationError(field, "one of " + ", ".join(one.value for one in cls), value) from None


class Tree(msgspec.Struct, frozen=True):
    """A job and its children.

    Attributes:
        queue: The name of its queue.
        prefix: The prefix of the queue's keys.
        name: The name of its handler.
        data: Its payload.
        options: Its options.
        on_failure: What its failure means for its parent; unused for the root.
        children: The jobs that it waits for.
        sealer: Encrypts its payload, or None if its queue has no keys.
    """

    queue: str
    prefix: str
    name: str
    data: Any = None
    options: JobOptions = JobOptions()
    on_failure: OnFailure = OnFailure.FAIL
    children: tuple[Tree, ...] = ()
    sealer: Any = None

    def __repr__(self) -> str:
        return masked(self, "data")


class HasTree(Protocol):
    """An object that has a tree of jobs, such as a `Flow`."""

    def tree(self) -> Tree:
        """The tree of jobs."""


class Placed(msgspec.Struct, frozen=True):
    """A job of a tree and the index of its parent in the same list, or -1 for a root."""

    tree: Tree
    parent: int


def arrange(
    trees: Sequence[Tree], *, below: bool, ids: set[tuple[str, str, str]] | None = None
) -> list[Placed]:
    """Returns the jobs of trees in the order of their add, generation by generation.

    Args:
        trees: The trees.
        below: Whether the roots become children of a running job.
        ids: The ids (prefix, queue, id) of other trees of the same add; those of these trees are added.

    Raises:
        ValidationError: There are too many jobs or generations, two equal ids, a child with a deduplication
            window, or an invalid id.
    """
    placed = [Placed(tree, -1) for tree in trees]
    ids = set() if ids is None else ids
    start, depth = 0, 0
    while start < len(placed):
        depth += 1
        if depth > DEEPEST:
            raise ValidationError("flow", f"at most {DEEPEST} generations deep", depth)
        end = len(placed)
        for number in range(start, end):
            tree = placed[number].tree
            _check(tree, top=depth == 1 and not below, ids=ids)
            placed += [Placed(child, number) for child in tree.children]
            if len(placed) > MOST_JOBS:
                hint = "a running job may add any number of children"
                raise ValidationError(
                    "flow",
                    f"at most {MOST_JOBS} jobs",
                    len(placed),
                    f"a flow must have at most {MOST_JOBS} jobs, because it is added in one call; {hint}",
                )
        start = end
    return placed


def _check(tree: Tree, *, top: bool, ids: set[tuple[str, str, str]]) -> None:
    options = tree.options
    if options.deduplication is not None:
        if not top:
            raise ValidationError(
                "deduplication",
                "left to the job at the top of a flow: a parent waits for its children",
                tree.name,
            )
        if options.deduplication.replace:
            raise ValidationError("replace", "False for a flow: its children would be left behind", True)
    check_new_id(options.job_id, (tree.prefix, tree.queue), "flow", ids)


# --- what can be read -----------------------------------------------------------------------------


class DependencyCounts(msgspec.Struct, frozen=True):
    """The number of a job's children by their end.

    Attributes:
        processed: Completed.
        unprocessed: Not ended yet, or failed with the policy ``wait``.
        ignored: Failed, with the policies ``ignore`` and ``continue``.
        failed: Failed, with the policy ``fail``.
    """

    processed: int = 0
    unprocessed: int = 0
    ignored: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All children except those that failed with the policy ``remove``."""
        return self.processed + self.unprocessed + self.ignored + self.failed


class Child(msgspec.Struct, frozen=True):
    """A child of a job.

    Attributes:
        key: Its full key on the wire.
        queue: Its queue.
        id: Its id.
        value: Its result, if it completed.
        reason: The reason of its failure, if the policy ignored it.
    """

    key: str
    queue: str
    id: str
    value: Any = None
    reason: str | None = None


class DependencyPage(msgspec.Struct, frozen=True):
    """A page of a job's children.

    Attributes:
        children: The children.
        cursor: The cursor of the next page, or None after the last.
    """

    children: list[Child]
    cursor: str | None = None


class FlowView(msgspec.Struct, frozen=True):
    """A snapshot of a job with its children.

    Attributes:
        job: The job.
        state: Its state on the wire.
        children: Its existing children, up to the requested depth and limit.
        more: The number of children that are not included.
    """

    job: Job
    state: str
    children: list[FlowView] = []
    more: int = 0
