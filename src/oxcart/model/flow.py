"""A tree of jobs: what it is, what is checked before any of it is written, and what can be read of it.

A parent runs when its children have ended. What a child's failure means for its parent is said by the child.
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

#: How many jobs one tree may have: they are added in one call, which holds the server for about 30 ms then
#: (`make bench-bounds`).
MOST_JOBS = 1000
#: How many generations it may have.
DEEPEST = 100


class OnFailure(enum.StrEnum):
    """What the final failure of a child means for its parent."""

    #: The parent fails too, at once.
    FAIL = "fail"
    #: The parent runs at once, whatever its other children do.
    CONTINUE = "continue"
    #: The parent does not wait for it any more, and can read why it failed.
    IGNORE = "ignore"
    #: The parent does not wait for it any more, and nothing of it is noted.
    REMOVE = "remove"
    #: The parent goes on waiting, until somebody retries or removes the child.
    WAIT = "wait"

    @classmethod
    def parse(cls, value: Any, field: str = "on_failure") -> OnFailure:
        """Reads a policy by its word.

        Raises:
            ValidationError: There is no such policy.
        """
        try:
            return cls(value)
        except ValueError:
            raise ValidationError(field, "one of " + ", ".join(one.value for one in cls), value) from None


class Tree(msgspec.Struct, frozen=True):
    """A job with the jobs that it waits for.

    Attributes:
        queue: The name of its queue.
        prefix: What stands before the queue's name in keys.
        name: Which handler runs it.
        data: Its payload.
        options: How it is to be run and kept.
        on_failure: What its failure means for its parent; nothing for the job at the top.
        children: The jobs it waits for.
        sealer: Seals its payload when it is encoded; None where its queue has no keys.
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
    """Something that stands for a tree of jobs."""

    def tree(self) -> Tree:
        """The tree."""


class Placed(msgspec.Struct, frozen=True):
    """A job of a tree by its place: the number of its parent in the same list, or -1 at the top."""

    tree: Tree
    parent: int


def arrange(
    trees: Sequence[Tree], *, below: bool, ids: set[tuple[str, str, str]] | None = None
) -> list[Placed]:
    """The jobs of trees, generation by generation: the order in which they are added.

    Args:
        trees: The trees.
        below: Whether the trees are themselves added below a job.
        ids: The ids (prefix, queue, id) of other trees that are added with these; theirs are added to it.

    Raises:
        ValidationError: There are too many jobs or generations, two of one id, a child with a deduplication
            window, or an id that cannot be part of a tree.
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
    """How many children a job has, by what became of them.

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
        """All of them; those that failed with the policy ``remove`` are not known any more."""
        return self.processed + self.unprocessed + self.ignored + self.failed


class Child(msgspec.Struct, frozen=True):
    """A child of a job.

    Attributes:
        key: Its full key on the wire.
        queue: Its queue.
        id: Its id.
        value: Its result, if it is processed.
        reason: Why it failed, if it is ignored.
    """

    key: str
    queue: str
    id: str
    value: Any = None
    reason: str | None = None


class DependencyPage(msgspec.Struct, frozen=True):
    """Some of a job's children, and where to go on.

    Attributes:
        children: The children.
        cursor: What to ask for next; None when there are no more.
    """

    children: list[Child]
    cursor: str | None = None


class FlowView(msgspec.Struct, frozen=True):
    """A job as it was when it was read, with its children.

    Attributes:
        job: The job.
        state: Its state in the words of the wire.
        children: Its children that still exist, as far as they were asked for.
        more: How many children there are that are not shown.
    """

    job: Job
    state: str
    children: list[FlowView] = []
    more: int = 0
