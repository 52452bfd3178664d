"""The parts of a broker for jobs that wait for each other: trees and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oxcart.broker.port.results import AddedNode, AddedTree
from oxcart.model.flow import Child, DependencyCounts, DependencyPage, FlowView, Tree
from oxcart.model.graph import Kind, Node


class Flows(Protocol):
    """Trees of jobs: parents that wait for their children. All queues of a tree are in one slot."""

    async def add(self, tree: Tree, *, timeout: float | None = None, replicated: bool = False) -> AddedTree:
        """Adds a tree whose top is in this queue, all of it or none.

        Raises:
            ValidationError: Something is wrong with the tree; nothing was written.
            CrossSlotError: Its queues are in different slots of the cluster; nothing was written.
            ParentConflict: A job of an id in the tree belongs to another parent; nothing was written.
        """

    async def add_many(self, trees: Sequence[Tree], *, timeout: float | None = None) -> list[AddedTree]:
        """Adds trees without a deduplication window, all of them or none; errors are those of ``add``."""

    async def add_children(
        self, job_id: str, trees: Sequence[Tree], *, token: str = "", timeout: float | None = None
    ) -> list[AddedTree]:
        """Adds trees as children of a job of this queue; long lists go in several calls, each tree whole.

        Args:
            job_id: The parent.
            trees: Its new children.
            token: The lease under which the parent runs; empty to require none.
            timeout: Seconds after which a call without an answer fails.

        Raises:
            ValidationError: Something is wrong with a tree; nothing was written.
            CrossSlotError: A queue is in another slot of the cluster; nothing was written.
            LeaseLost: The parent no longer runs under this lease.
            JobNotFound: The parent is gone.
            ParentConflict: A job of an id in the trees belongs to another parent.
        """

    async def counts(self, job_id: str) -> DependencyCounts:
        """Returns how many children a job has, by how each of them ended."""

    async def page(self, job_id: str, kind: str, cursor: str = "0", limit: int = 100) -> DependencyPage:
        """Reads some of a job's children of a kind; a child may come twice while children are added.

        Raises:
            ValidationError: There is no such kind.
        """

    async def every(self, job_id: str, kind: str) -> dict[str, Child]:
        """Reads all children of a kind in steps; returns them by their keys."""

    async def view(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        """Reads a job with its children and theirs, a generation at a time; None if there is no job.

        Args:
            job_id: The job at the top.
            depth: How many generations, the first included.
            limit: How many children of one job at most.
        """

    async def remove_unprocessed(self, job_id: str) -> None:
        """Removes the jobs below a job that have not ended; leased and failed ones stay."""

    async def leave_parent(self, job_id: str) -> bool:
        """Detaches a job from the parent that waits for it; returns whether one did."""


class Graphs(Protocol):
    """Jobs that wait for any others. All queues of a graph are in one slot."""

    async def add(
        self, nodes: Sequence[Node], *, timeout: float | None = None, replicated: bool = False
    ) -> list[AddedNode]:
        """Adds the jobs of a graph, all of them or none.

        Raises:
            ValidationError: Something is wrong with the graph; nothing was written.
            CrossSlotError: Its queues are in different slots of the cluster; nothing was written.
            UnknownDependency: A job to wait for does not exist; nothing was written.
            ChainTooLong: Too many jobs would wait in a row; nothing was written.
        """

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        """Returns the jobs that wait for a job of this queue, by their full keys; none once it has ended."""

    async def released(self, job_id: str) -> list[str]:
        """Returns the jobs that waited for a job of this queue until it ended: at most 20 full keys."""
