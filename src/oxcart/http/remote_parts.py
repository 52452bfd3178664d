"""The parts of a queue behind an HTTP API that are about the whole queue: limits, workers and flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from oxcart.broker.workers import WorkerRecord
from oxcart.flow import Flows
from oxcart.http.refused import unsupported
from oxcart.http.remote_jobs import WIRE, job_of
from oxcart.http.times import parse_time_ms
from oxcart.http.values import JobBody
from oxcart.limits import Limit, Limits, Rate
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import JobNotFound
from oxcart.model.flow import FlowView
from oxcart.model.graph import Kind
from oxcart.model.job import Job
from oxcart.model.state import State
from oxcart.workers import Workers

if TYPE_CHECKING:
    from oxcart.http.remote import RemoteQueue


def _remote(queue: Any) -> RemoteQueue:
    found: RemoteQueue = queue
    return found


class RemoteLimits(Limits):
    """The limits of a queue behind an HTTP API."""

    async def _change(self, body: dict[str, Any] | None = None) -> dict[str, Any]:
        queue = _remote(self._queue)
        method = "GET" if body is None else "PUT"
        found: dict[str, Any] = await queue.client.call(method, f"{queue.path}/limits", dict[str, Any], body)
        return found

    async def set_concurrency(self, most: int) -> None:
        """Sets how many jobs run at once."""
        await self._change({"concurrency": most})

    async def concurrency(self) -> int | None:
        """Returns how many jobs run at once; None without a limit."""
        found: int | None = (await self._change()).get("concurrency")
        return found

    async def remove_concurrency(self) -> None:
        """Removes that limit."""
        await self._change({"concurrency": None})

    async def set_rate(self, most: int, *, per: Duration) -> None:
        """Sets how many jobs start in a time."""
        await self._change({"rate": {"most": most, "per": f"{parse_ms(per, 'per', minimum=1)}ms"}})

    async def rate(self) -> Rate | None:
        """Returns how many jobs start in a time; None without a limit."""
        found = (await self._change()).get("rate")
        return None if found is None else msgspec.convert(found, Rate)

    async def remove_rate(self) -> None:
        """Removes that limit."""
        await self._change({"rate": None})

    async def wait_ms(self, most: int | None = None) -> int:
        """Returns for how long, in ms, a rate or a hold blocks the next start."""
        if most is not None:
            raise unsupported("limits", "another number of jobs for wait_ms", "leave it out")
        return int((await self._change())["blocked_ms"])

    async def set_type_limit(
        self, name: str, *, concurrent: int | None = None, per_minute: int | None = None
    ) -> None:
        """Sets how many jobs of a type run at once, and start in a minute."""
        await self._change({"types": {name: {"concurrent": concurrent, "per_minute": per_minute}}})

    async def type_limits(self) -> dict[str, Limit]:
        """Returns the limits of job types."""
        return msgspec.convert((await self._change())["types"], dict[str, Limit])

    async def remove_type_limit(self, name: str) -> None:
        """Removes the limit of a type."""
        await self._change({"types": {name: None}})

    async def set_key_limit(self, *, concurrent: int | None = None, per_minute: int | None = None) -> None:
        """Sets how many jobs of each limit key run at once, and start in a minute."""
        await self._change({"key": {"concurrent": concurrent, "per_minute": per_minute}})

    async def key_limit(self) -> Limit | None:
        """Returns the limit of each limit key, or None."""
        found = (await self._change()).get("key")
        return None if found is None else msgspec.convert(found, Limit)

    async def remove_key_limit(self) -> None:
        """Removes the limit of limit keys."""
        await self._change({"key": None})


class _Worker(msgspec.Struct):
    id: str
    name: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    version: str
    started_at: str
    last_seen: str
    capabilities: tuple[str, ...]
    stack: tuple[str, ...]
    region: tuple[str, ...]
    routed: bool


class _Workers(msgspec.Struct):
    workers: list[_Worker]
    unroutable: dict[str, int]


class RemoteWorkers(Workers):
    """The workers of a queue behind an HTTP API."""

    async def _read(self) -> _Workers:
        queue = _remote(self._queue)
        return await queue.client.call("GET", f"{queue.path}/workers", _Workers)

    async def list(self) -> Sequence[WorkerRecord]:
        """Returns the live workers of the queue."""
        return [
            WorkerRecord(
                id=one.id,
                server=one.name,
                name=one.name,
                stack=one.stack,
                region=one.region,
                capabilities=one.capabilities,
                routed=one.routed,
                pid=one.pid,
                hostname=one.hostname,
                queues=one.queues,
                concurrency=one.concurrency,
                version=one.version,
                started_at=parse_time_ms(one.started_at, "started_at"),
                last_seen=parse_time_ms(one.last_seen, "last_seen"),
            )
            for one in (await self._read()).workers
        ]

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait whose target no live worker matches, by target."""
        return (await self._read()).unroutable

    async def unroutable_jobs(
        self, state: str = "waiting", *, first: int = 0, limit: int = 100, oldest: bool = False
    ) -> Sequence[Job]:
        """Refuses: the API only counts these jobs.

        Raises:
            NotSupported: Always.
        """
        raise unsupported("unroutable_jobs", "the jobs that no worker can take", "count them by unroutable")


class _Tree(msgspec.Struct):
    job: JobBody
    children: list[_Tree]
    more: int


class _Dependents(msgspec.Struct):
    dependents: dict[str, Kind]


class RemoteFlows(Flows):
    """The flows and graphs of the jobs of a queue behind an HTTP API."""

    async def get(self, job_id: str, *, depth: int = 10, limit: int = 20) -> FlowView | None:
        """Returns a job with the jobs below it, without payloads, or None.

        Args:
            job_id: The job at the top.
            depth: How many generations, the first included; at most 20.
            limit: How many children of one job at most; at most 200.
        """
        queue = _remote(self._queue)
        params = {"queue": queue.name, "depth": depth, "limit": limit}
        path = f"/jobs/{quote(job_id, safe='')}/flow"
        try:
            return _view(await queue.client.call("GET", path, _Tree, params=params, job_id=job_id))
        except JobNotFound:
            return None

    async def dependents(self, job_id: str) -> dict[str, Kind]:
        """Returns the jobs that wait for a job, by their full keys, and how; none once it has ended."""
        queue = _remote(self._queue)
        path = f"/jobs/{quote(job_id, safe='')}/dependents"
        params = {"queue": queue.name}
        return (await queue.client.call("GET", path, _Dependents, params=params, job_id=job_id)).dependents


def _view(tree: _Tree) -> FlowView:
    job = job_of(tree.job)
    state = WIRE[job.state or State.PENDING]
    return FlowView(job=job, state=state, children=[_view(child) for child in tree.children], more=tree.more)
