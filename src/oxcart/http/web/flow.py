"""The graph of a flow, live: each job to the right of those that it waits for, and the critical path."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from oxcart.drawing.graphs import Node, critical_path, graph
from oxcart.drawing.timeline import duration
from oxcart.http.errors import not_found
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.job import place_of
from oxcart.http.web.page import link, state_name
from oxcart.model.flow import FlowView
from oxcart.model.job import Job
from oxcart.observe.terminal import clean
from oxcart.queue import Queue

#: Generations below the top, children of one job, and generations above the job that are read.
DEPTH, CHILDREN, CLIMB = 12, 40, 12
#: Dependents of the top that are shown.
DEPENDENTS = 20


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
        """Reads the whole flow of the job, from its topmost parent."""
        queue, job = await self.service.find(self._id, self._in)
        queue.capabilities.require("flows")
        top_queue, top = await self._top(queue, job)
        view = await top_queue.flows.get(top.id, depth=DEPTH, limit=CHILDREN)
        if view is None:
            raise not_found(f"job {top.id}")
        now = await queue._core.broker.now()
        nodes, edges, hidden = self._nodes(view, job, now)
        for key in list(await top_queue.flows.dependents(top.id))[:DEPENDENTS]:
            name, job_id = place_of(self.service, key)
            nodes[key] = Node(
                key, clean(job_id), f"{clean(name)} · waits", "s-pending", self._link(name, job_id)
            )
            edges[_key(view.job), key] = None
        path = critical_path({key: node.cost for key, node in nodes.items()}, list(edges))
        spent = sum(nodes[key].cost for key in path)
        words = f"flow of {len(nodes)} jobs; the critical path took {duration(spent)}"
        return {
            "job": job,
            "queue": queue.name,
            "top": top,
            "top_queue": top_queue.name,
            "graph": Markup(graph(list(nodes.values()), list(edges), path, words)),
            "path": [nodes[key] for key in path if nodes[key].cost],
            "spent": spent,
            "count": len(nodes),
            "hidden": hidden,
            "done": sum(node.kind == "s-completed" for node in nodes.values()),
        }

    async def _top(self, queue: Queue, job: Job) -> tuple[Queue, Job]:
        """Climbs to the topmost parent whose queue the caller may see."""
        for _ in range(CLIMB):
            name, job_id = place_of(self.service, job.parent_key) if job.parent_key else ("", "")
            if not name:
                break
            queue, job = await self.service.find(job_id, name)
        return queue, job

    def _nodes(
        self, view: FlowView, shown: Job, now: int
    ) -> tuple[dict[str, Node], dict[tuple[str, str], None], int]:
        nodes: dict[str, Node] = {}
        edges: dict[tuple[str, str], None] = {}
        hidden = 0

        def visit(one: FlowView) -> str:
            nonlocal hidden
            job, key = one.job, _key(one.job)
            if key in nodes:
                return key
            if job.queue not in self.service.queues:  # of a queue that the caller may not see
                nodes[key] = Node(key, "a job of another queue", "", "s-unknown", "#main")
                return key
            state = one.state if job.state is None else job.state.value
            cost = max(0, (job.finished_on or now) - job.processed_on) if job.processed_on else 0
            place = f"{job.queue} · " if job.queue != view.job.queue else ""
            text = f"{place}{state_name(state).lower()}" + (f" · {duration(cost)}" if cost else "")
            nodes[key] = Node(
                key,
                clean(job.name),
                clean(text),
                f"s-{state}",
                self._link(job.queue, job.id),
                cost,
                job.id == shown.id,
            )
            hidden += one.more
            for child in one.children:
                edges[visit(child), key] = None
            return key

        visit(view)
        return nodes, edges, hidden

    def _link(self, queue: str, job_id: str) -> str:
        return self.base + link("/job", queue=queue, id=job_id) if queue in self.service.queues else "#main"


def _key(job: Job) -> str:
    return f"{job.queue}/{job.id}"


ROUTES = page("/flow", FlowPage)
