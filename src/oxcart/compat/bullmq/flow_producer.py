"""Flows as in PyPI's package: a tree of jobs, written as dicts, added in one step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.port.results import AddedTree
from oxcart.compat.bullmq.event_emitter import EventEmitter
from oxcart.compat.bullmq.job import Job
from oxcart.compat.bullmq.options import policy_of, read_options
from oxcart.compat.bullmq.queue import add_below
from oxcart.compat.bullmq.record import dumps, name_of
from oxcart.compat.bullmq.redis_connection import check_backend, server_of
from oxcart.compat.bullmq.refusals import CodedError
from oxcart.compat.bullmq.store import store_of
from oxcart.model.errors import JobError, ReplyCode
from oxcart.model.flow import MOST_JOBS, Tree
from oxcart.queue import Queue as OxcartQueue


class MinimalQueue:
    """The part of a queue that a job of a flow needs."""

    def __init__(self, inner: OxcartQueue, opts: Mapping[str, Any]) -> None:
        self.inner = inner
        self.name = inner.name
        self.prefix = inner._core.prefix
        self.opts = opts
        self.qualifiedName = Keys(inner.name, inner._core.prefix, inner._core.server.is_cluster).base


class FlowProducer(EventEmitter):
    """Adds flows.

    Args:
        redisOpts: A connection; or all options, if it is a dict with ``connection`` or ``prefix``.
        opts: ``prefix``, ``connection``.
    """

    def __init__(self, redisOpts: Any = None, opts: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        named = ("prefix", "connection", "backend", "skipVersionCheck")
        if opts is None and isinstance(redisOpts, Mapping) and any(name in redisOpts for name in named):
            self.opts: dict[str, Any] = dict(redisOpts)
        else:
            self.opts = {**(opts or {}), **({} if redisOpts is None else {"connection": redisOpts})}
        check_backend(self.opts)
        self.prefix: str = self.opts.get("prefix") or "bull"
        self.closing = False
        self._server = server_of(self.opts.get("connection"))
        self._queues: dict[tuple[str, str], MinimalQueue] = {}

    async def add(self, flow: Mapping[str, Any], opts: Mapping[str, Any] | None = None) -> Any:
        """Adds a flow: all of it, or none.

        Args:
            flow: ``name``, ``queueName``, ``data``, ``opts``, ``prefix`` and ``children``, which are such
                dicts too.
            opts: ``queuesOptions``: by the names of queues their ``defaultJobOptions``.

        Returns:
            ``job`` and ``children`` of the same form; None once the producer is closed.

        Raises:
            ValidationError: The tree is invalid; nothing was written.
            Exception: The parent of the job at the top does not exist; ``code`` is the reply code.
        """
        if self.closing:
            return None
        entries: list[dict[str, Any]] = []
        tree = await self.addNode(flow, _above(flow), (opts or {}).get("queuesOptions"), entries)
        await self._add(tree)
        return tree

    async def addBulk(self, flows: Sequence[Mapping[str, Any]]) -> Any:
        """Adds several flows; up to 1000 jobs go in one step, all or none of them."""
        if self.closing:
            return None
        trees = await self.addNodes(flows, [])
        await self._add_all(trees)
        return trees

    async def addNodes(
        self, nodes: Sequence[Mapping[str, Any]], entries: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Makes the jobs of flows, and appends them to ``entries``; adds nothing yet."""
        return [await self.addNode(node, _above(node), None, entries) for node in nodes]

    async def addChildren(
        self,
        nodes: Sequence[Mapping[str, Any]],
        parent: Mapping[str, Any],
        queues_opts: Mapping[str, Any] | None,
        entries: list[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Does the same for the children of a job."""
        return [await self.addNode(node, parent, queues_opts, entries) for node in nodes]

    async def addNode(
        self,
        node: Mapping[str, Any],
        parent: Mapping[str, Any],
        queues_opts: Mapping[str, Any] | None,
        entries: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Makes the job of a node and the jobs below it, and appends them to ``entries``, parents first."""
        queue = self.queueFromNode(node, node.get("prefix") or self.prefix)
        defaults = ((queues_opts or {}).get(queue.name) or {}).get("defaultJobOptions") or {}
        own = node.get("opts") or {}
        opts = {**defaults, **own, "parent": parent.get("parentOpts")}
        job = Job(queue, node["name"], node.get("data"), opts, own.get("jobId") or uuid4().hex)
        below = node.get("children") or []
        entries.append({"job": job, "is_parent": bool(below)})
        if not below:
            return {"job": job}
        link = {"parentOpts": {"id": job.id, "queue": queue.qualifiedName}}
        return {"job": job, "children": await self.addChildren(below, link, queues_opts, entries)}

    def queueFromNode(self, node: Mapping[str, Any], prefix: str) -> MinimalQueue:
        """Returns the queue of a node."""
        name = node["queueName"]
        found = self._queues.get((prefix, name))
        if found is None:
            inner = OxcartQueue(name, server=self._server, prefix=prefix)
            found = self._queues[prefix, name] = MinimalQueue(inner, {"prefix": prefix})
        return found

    async def getFlow(self, opts: Mapping[str, Any]) -> Any:
        """Returns a job with the jobs below it, or None; as in Node.

        Args:
            opts: ``id`` and ``queueName``, ``depth`` and ``maxChildren``.
        """
        queue = self.queueFromNode(opts, opts.get("prefix") or self.prefix)
        depth, most = opts.get("depth", 10), opts.get("maxChildren", 20)
        found = await queue.inner.flows.get(opts["id"], depth=depth, limit=most)
        return None if found is None else await self._viewed(found, queue.prefix)

    async def _viewed(self, found: Any, prefix: str) -> dict[str, Any]:
        queue = self.queueFromNode({"queueName": found.job.queue}, prefix)
        job = await Job.fromId(queue, found.job.id)
        node: dict[str, Any] = {"job": job}
        if found.children:
            node["children"] = [await self._viewed(child, prefix) for child in found.children]
        return node

    # -- adding

    async def _add(self, node: dict[str, Any]) -> None:
        job: Job = node["job"]
        queue: MinimalQueue = job.queue
        tree = _tree(node)
        try:
            if job.parent is not None:
                job.id = await add_below(queue.inner, job, tree)
                return
            added = await store_of(queue).flows.add(tree, timeout=queue.inner._core.add_timeout)
        except JobError as error:
            raise _refused(error, job.parentKey) from error
        except CodedError as error:
            refused = Exception(str(error))
            refused.code = error.code  # type: ignore[attr-defined]
            raise refused from error
        _name(node, added)

    async def _add_all(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Adds nodes in one step if that is possible; a refused node is no error here, as in Node."""
        trees = [_tree(node) for node in nodes]
        tied = any(node["job"].parent or node["job"].deduplication_id for node in nodes)
        if trees and not tied and sum(map(_size, trees)) <= MOST_JOBS:
            queue: MinimalQueue = nodes[0]["job"].queue
            with contextlib.suppress(JobError):
                await store_of(queue).flows.add_many(trees, timeout=queue.inner._core.add_timeout)
                return
        for node in nodes:
            try:
                await self._add(node)
            except Exception as error:
                if not hasattr(error, "code"):
                    raise

    async def close(self) -> None:
        """Closes the connections."""
        self.closing = True
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            await queue.inner.close()

    async def disconnect(self) -> None:
        """Closes the connections."""
        await self.close()


def _above(node: Mapping[str, Any]) -> dict[str, Any]:
    return {"parentOpts": (node.get("opts") or {}).get("parent")}


def _tree(node: Mapping[str, Any]) -> Tree:
    job: Job = node["job"]
    options = msgspec.structs.replace(read_options(job.opts), job_id=job.id)
    return Tree(
        job.queue.name,
        job.queue.prefix,
        name_of(job.name),
        dumps(job.data),
        options,
        policy_of(job.opts),
        tuple(_tree(child) for child in node.get("children", ())),
    )


def _size(tree: Tree) -> int:
    return 1 + sum(map(_size, tree.children))


def _name(node: Mapping[str, Any], added: AddedTree) -> None:
    """Sets the ids under which jobs were added; a window that kept a job out gives that of its owner."""
    node["job"].id = added.id
    for child, one in zip(node.get("children", ()), added.children, strict=False):
        _name(child, one)


def _refused(error: JobError, parent_key: str | None) -> Exception:
    words: dict[int, str] = {
        ReplyCode.PARENT_NOT_FOUND: f"Missing key for parent job {parent_key}. addJob",
        ReplyCode.PARENT_CONFLICT: f"The parent job {parent_key} cannot be replaced. addJob",
    }
    refused = Exception(words.get(error.code or 0, f"Unknown code {error.code} error for addJob"))
    refused.code = error.code  # type: ignore[attr-defined]
    return refused
