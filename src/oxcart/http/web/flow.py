"""The graph of a flow, live: each job to the right of those that it waits for, and the critical path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from oxcart.drawing.graphs import Node, critical_path, graph
from oxcart.drawing.timeline import duration
from oxcart.http.errors import not_found
from oxcart.http.service import look
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.job import place_of
from oxcart.http.web.page import link, state_name
from oxcart.model.flow import FlowView
from oxcart.model.job import Job
from oxcart.observe.terminal import clean
from oxcart.queue import Queue

#: Generations below the top, children of one job, and generations above the job that are read.
DEPTH, CHILDREN, CLIMB = 12, 40, 12
#: Dependents of one job that are shown, and jobs whose dependents are read.
DEPENDENTS, MOST = 20, 100


class FlowPage(View):
    """A flow."""

    title = "Flow"
    template = "flow.html"
    parts = ("flow",)
    nav = "jobs"

    def read_address(self) -> None:
        """Reads which job."""
        self._id = self.query.get("id", "")
        self._in = self.query.get("queue") or None

    async def load(self) -> dict[str, Any]:
        """Reads the whole flow of the job: what it waits for and what waits for it, over generations."""
        queue, job = await self.service.find(self._id, self._in)
        queue.capabilities.require("flows")
        now = await queue._core.broker.now()
        found = await self._read(queue, job)
        nodes, edges, hidden = self._nodes(found.views, job, now)
        for key, (name, one) in found.jobs.items():
            if key not in nodes:
                nodes[key] = self._node(one, name, name, job, now)
        edges |= {edge: None for edge in found.edges if edge[0] in nodes and edge[1] in nodes}
        path = critical_path({key: node.cost for key, node in nodes.items()}, list(edges))
        spent = sum(nodes[key].cost for key in path)
        words = f"flow of {len(nodes)} jobs; the critical path took {duration(spent)}"
        top = found.views[0].job if len(found.views) == 1 else job
        return {
            "job": job,
            "queue": queue.name,
            "top": top,
            "top_queue": self.service.served(top.queue),
            "graph": Markup(graph(list(nodes.values()), list(edges), path, words)),
            "path": [nodes[key] for key in path if nodes[key].cost],
            "spent": spent,
            "count": len(nodes),
            "hidden": hidden,
            "is_cut": found.is_cut,
            "done": sum(node.kind == "s-completed" for node in nodes.values()),
        }

    async def _read(self, queue: Queue, job: Job) -> _Flow:
        """Climbs from the job to all that nothing waits for, and reads the trees below these."""
        found = _Flow()
        frontier = left = [(queue, job)]
        found.jobs[self._key(job)] = queue.name, job
        for _ in range(CLIMB):
            frontier, cut = frontier[: MOST - found.climbed], len(frontier) > MOST - found.climbed
            found.is_cut |= cut
            if not frontier:
                break
            left = frontier
            found.climbed += len(frontier)
            above = await asyncio.gather(*(self._above(of, one) for of, one in frontier))
            tops, following = [], list[tuple[Queue, Job]]()
            for (of, one), waiting in zip(frontier, above, strict=True):
                if not waiting and self._key(one) not in found.seen:
                    tops.append((of, one))
                for at, dependent in waiting:
                    found.edges[self._key(one), self._key(dependent)] = None
                    following += self._new(found, at, dependent)
            for view in await asyncio.gather(
                *(of.flows.get(one.id, depth=DEPTH, limit=CHILDREN) for of, one in tops)
            ):
                if view is None:
                    continue
                found.views.append(view)
                for below in _jobs_of(view):
                    found.seen.add(self._key(below))
                    name = self.service.served(below.queue)
                    if name in self.service.queues:
                        following += self._new(found, self.service.queues[name], below)
            frontier = following
        else:
            found.is_cut |= bool(frontier)
            left = frontier or left
        if not found.views:  # the climb was cut below the tops: the highest that it met stand for them
            views = await asyncio.gather(
                *(of.flows.get(one.id, depth=DEPTH, limit=CHILDREN) for of, one in left[:DEPENDENTS])
            )
            found.views += [view for view in views if view is not None]
        if not found.views:
            raise not_found(f"job {job.id}")
        return found

    def _new(self, found: _Flow, queue: Queue, job: Job) -> list[tuple[Queue, Job]]:
        key = self._key(job)
        if key in found.jobs:
            return []
        found.jobs[key] = queue.name, job
        return [(queue, job)]

    async def _above(self, queue: Queue, job: Job) -> list[tuple[Queue, Job]]:
        """Returns the parent of a job and its dependents, whose queues the caller may see."""
        keys = [job.parent_key] if job.parent_key else []
        if queue.capabilities.can("graphs") and job.lane is None:
            keys += await queue.flows.dependents(job.id)
            keys += await queue._core.part(queue._core.broker.graphs, "graphs").released(job.id)
        places = [place_of(self.service, key) for key in dict.fromkeys(keys)][:DEPENDENTS]
        named = [(self.service.queues[name], job_id) for name, job_id in places if name]
        jobs = await asyncio.gather(*(look(at, job_id) for at, job_id in named))
        return [(at, one) for (at, _), one in zip(named, jobs, strict=True) if one is not None]

    def _nodes(
        self, views: list[FlowView], shown: Job, now: int
    ) -> tuple[dict[str, Node], dict[tuple[str, str], None], int]:
        nodes: dict[str, Node] = {}
        edges: dict[tuple[str, str], None] = {}
        hidden = 0

        def visit(one: FlowView, top: str) -> str:
            nonlocal hidden
            key = self._key(one.job)
            if key not in nodes:
                name = self.service.served(one.job.queue)
                nodes[key] = self._node(one.job, name, top, shown, now, one.state)
                if name not in self.service.queues:
                    return key
                hidden += one.more
                for child in one.children:
                    edges[visit(child, top), key] = None
            return key

        for view in views:
            visit(view, self.service.served(view.job.queue))
        return nodes, edges, hidden

    def _node(self, job: Job, name: str, top: str, shown: Job, now: int, wire: str = "") -> Node:
        key = self._key(job)
        if name not in self.service.queues:  # of a queue that the caller may not see
            return Node(key, "a job of another queue", "", "s-unknown", "#main")
        state = wire if job.state is None else job.state.value
        cost = max(0, (job.finished_on or now) - job.processed_on) if job.processed_on else 0
        place = f"{name} · " if name != top else ""
        text = f"{place}{state_name(state).lower()}" + (f" · {duration(cost)}" if cost else "")
        is_shown = job.id == shown.id
        link_to = self._link(name, job.id)
        return Node(key, clean(job.name), clean(text), f"s-{state}", link_to, cost, is_shown)

    def _key(self, job: Job) -> str:
        return f"{self.service.served(job.queue)}/{job.id}"

    def _link(self, queue: str, job_id: str) -> str:
        return self.base + link("/job", queue=queue, id=job_id) if queue in self.service.queues else "#main"


class _Flow:
    """What was read of a flow.

    Attributes:
        jobs: The queue's name and the job of each key that was found.
        seen: The keys of the views.
        edges: Pairs of a job and one that waited for it.
        views: The trees below the jobs that nothing waits for.
        climbed: How many jobs were asked for what waits for them.
        is_cut: Whether there may be more than was read.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, Job]] = {}
        self.seen: set[str] = set()
        self.edges: dict[tuple[str, str], None] = {}
        self.views: list[FlowView] = []
        self.climbed = 0
        self.is_cut = False


def _jobs_of(view: FlowView) -> Iterator[Job]:
    yield view.job
    for child in view.children:
        yield from _jobs_of(child)


ROUTES = page("/flow", FlowPage)
