"""Trees and graphs of a partitioned queue: each is in one partition, as a script cannot span two."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oxcart.broker.partitioned.bulk import SpreadPart
from oxcart.broker.port.flows import Flows, Graphs
from oxcart.broker.port.results import AddedNode, AddedTree
from oxcart.model.errors import NotSupported
from oxcart.model.flow import Child as FlowChild
from oxcart.model.flow import DependencyCounts, DependencyPage, FlowView, Tree
from oxcart.model.graph import Edge, Existing, Kind, Node
from oxcart.model.partitions import partition_name


class SpreadFlows(SpreadPart, Flows):
    """Trees of jobs; the options of the top decide about the partition."""

    async def add(self, tree: Tree, *, timeout: float | None = None, replicated: bool = False) -> AddedTree:
        await self._spread.ready()
        number = self._spread.choose(tree.options)
        added = await self._spread.broker(number).flows.add(
            self._placed(tree, number), timeout=timeout, replicated=replicated
        )
        return added

    async def add_many(self, trees: Sequence[Tree], *, timeout: float | None = None) -> list[AddedTree]:
        await self._spread.ready()
        number = self._spread.choose(trees[0].options)
        placed = [self._placed(tree, number) for tree in trees]
        return await self._spread.broker(number).flows.add_many(placed, timeout=timeout)

    async def add_children(
        self, job_id: str, trees: Sequence[Tree], *, token: str = "", timeout: float | None = None
    ) -> list[AddedTree]:
        number = await self._number_of(job_id)
        placed = [self._placed(tree, number) for tree in trees]
        flows = self._spread.broker(number).flows
        return await flows.add_children(job_id, placed, token=token, timeout=timeout)

    def _placed(self, tree: Tree, number: int) -> Tree:
        children = tuple(self._placed(child, number) for child in tree.children)
        own = tree.queue == self._spread.queue
        if own:
            self._spread.check(tree.options)
        queue = partition_name(tree.queue, number) if own else tree.queue
        return msgspec.structs.replace(tree, queue=queue, children=children)

    async def counts(self, job_id: str) -> DependencyCounts:
        return await (await self._spread.holder(job_id)).flows.counts(job_id)

    async def page(self, job_id: str, kind: str, cursor: str = "0", limit: int = 100) -> DependencyPage:
        return await (await self._spread.holder(job_id)).flows.page(job_id, kind, cursor, limit)

    async def every(self, job_id: str, kind: str) -> dict[str, FlowChild]:
        return await (await self._spread.holder(job_id)).flows.every(job_id, kind)

    async def view(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        return await (await self._spread.holder(job_id)).flows.view(job_id, depth=depth, limit=limit)

    async def remove_unprocessed(self, job_id: str) -> None:
        await (await self._spread.holder(job_id)).flows.remove_unprocessed(job_id)

    async def leave_parent(self, job_id: str) -> bool:
        return await (await self._spread.holder(job_id)).flows.leave_parent(job_id)

    async def _number_of(self, job_id: str) -> int:
        return self._spread.number(await self._spread.holder(job_id))


class SpreadGraphs(SpreadPart, Graphs):
    """Graphs of jobs. A graph that waits for existing jobs goes to their partition."""

    async def add(
        self, nodes: Sequence[Node], *, timeout: float | None = None, replicated: bool = False
    ) -> list[AddedNode]:
        spread = self._spread
        await spread.ready()
        existing = {
            edge.of.id
            for node in nodes
            for edge in node.edges
            if isinstance(edge.of, Existing) and edge.of.queue == spread.queue
        }
        holders = await spread.find(existing)
        numbers = {spread.number(one) for one in holders.values()}
        if len({spread.broker(number).site for number in numbers}) > 1:
            raise NotSupported(
                "partitioned",
                "graphs",
                "waiting for jobs of partitions on several servers or slots",
                "give jobs that wait for each other the same partition_key",
            )
        number = min(numbers) if numbers else spread.choose(nodes[0].options)
        places = {job_id: spread.number(one) for job_id, one in holders.items()}
        placed = [self._placed(node, number, places) for node in nodes]
        graphs = spread.broker(number).graphs
        return await graphs.add(placed, timeout=timeout, replicated=replicated)

    def _placed(self, node: Node, number: int, places: dict[str, int]) -> Node:
        own = self._spread.queue
        edges = []
        for edge in node.edges:
            of = edge.of
            if isinstance(of, Existing) and of.queue == own:
                of = Existing(of.prefix, partition_name(own, places[of.id]), of.id)
            edges.append(Edge(of, edge.kind))
        if node.queue == own:
            self._spread.check(node.options)
        queue = partition_name(own, number) if node.queue == own else node.queue
        return msgspec.structs.replace(node, queue=queue, edges=tuple(edges))

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        return await (await self._spread.holder(job_id)).graphs.dependents(job_id)

    async def released(self, job_id: str) -> list[str]:
        return await (await self._spread.holder(job_id)).graphs.released(job_id)
