"""The four producers of a mixed fleet: each adds its part of the plan through its own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from benchmarks.systems import pypi_environment

from oxcart import Flow, Queue
from tests.interop.mixed.crews import PYPI
from tests.interop.mixed.plan import QUEUES, Plan, Planned, Scheduled
from tests.nodes import NodeDriver, node_driver

CHUNK = 25
_ON_FAILURE = {
    "ignoreDependencyOnFailure": "ignore",
    "removeDependencyOnFailure": "remove",
    "continueParentOnFailure": "continue",
    "failParentOnFailure": "fail",
}


#: Waits until more than this share of all jobs may be added.
Room = Callable[[float], Awaitable[None]]


async def produce(url: str, plan: Plan, room: Room) -> None:
    """Adds all jobs through all four producers at once, each part when there is room."""
    async with (
        node_driver("v5", url) as node5,
        node_driver("v6", url) as node6,
        _pypi(url) as pypi,
        _ours(url) as queues,
    ):
        peers = {"node5": node5, "node6": node6, "pypi": pypi}
        for one in plan.schedules:
            if one.by == "oxcart":
                await _schedule_ours(queues[one.queue], one)
            else:
                template = {"name": one.key, "data": one.data, "opts": {}}
                options: dict[str, Any] = {"queue": one.queue, "key": one.key, "repeat": one.repeat}
                await peers[one.by].call("upsertScheduler", **options, template=template)
        await asyncio.gather(
            *(_add_by_peer(driver, plan.trees[name], room) for name, driver in peers.items()),
            _add_ours(queues, plan.trees["oxcart"], room),
        )


@contextlib.asynccontextmanager
async def _pypi(url: str) -> AsyncIterator[NodeDriver]:
    """PyPI bullmq behind the protocol of the Node driver."""
    process = await asyncio.create_subprocess_exec(
        str(pypi_environment() / "bin" / "python"),
        str(PYPI),
        json.dumps({"role": "add", "url": url}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    driver = NodeDriver(process)
    try:
        yield driver
    finally:
        await driver.stop()


@contextlib.asynccontextmanager
async def _ours(url: str) -> AsyncIterator[dict[str, Queue]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(Queue(name, url=url)) for name in QUEUES}


async def _parts(trees: list[Planned], room: Room) -> AsyncIterator[tuple[list[Planned], list[Planned]]]:
    """Adds jobs in parts, single jobs and trees separately."""
    for start in range(0, len(trees), CHUNK):
        await room(start / len(trees))
        part = trees[start : start + CHUNK]
        yield [one for one in part if not one.children], [one for one in part if one.children]


async def _add_by_peer(driver: NodeDriver, trees: list[Planned], room: Room) -> None:
    async for singles, flows in _parts(trees, room):
        for queue in QUEUES:
            jobs = [_node(one) for one in singles if one.queue == queue]
            await driver.call("addBulk", queue=queue, jobs=jobs)
        for one in flows:
            await driver.call("addFlow", flow=_node(one))


def _node(one: Planned) -> dict[str, Any]:
    node: dict[str, Any] = {
        "name": "job",
        "queueName": one.queue,
        "data": one.data,
        "opts": {**one.options, "jobId": one.id},
    }
    if one.children:
        node["children"] = [_node(child) for child in one.children]
    return node


async def _add_ours(queues: dict[str, Queue], trees: list[Planned], room: Room) -> None:
    async for singles, flows in _parts(trees, room):
        for name, queue in queues.items():
            rows = [("job", one.data, _options(one)) for one in singles if one.queue == name]
            await queue.add_many(rows)
        for one in flows:
            await _flow(queues, one).add()


def _options(one: Planned) -> dict[str, Any]:
    """Converts options to ours. We always write a policy; the nearest to Node's "at once" is 1 ms."""
    options: dict[str, Any] = {"backoff": {"type": "fixed", "delay": 1}, "job_id": one.id}
    options |= {name: value for name, value in one.options.items() if name not in _ON_FAILURE}
    if "delay" in options:
        options["delay"] = f"{options['delay']}ms"
    return options


def _flow(queues: dict[str, Queue], one: Planned) -> Flow:
    policy = next((word for name, word in _ON_FAILURE.items() if name in one.options), "wait")
    children = [_flow(queues, child) for child in one.children]
    return Flow(queues[one.queue], "job", one.data, on_failure=policy, children=children, **_options(one))


async def _schedule_ours(queue: Queue, one: Scheduled) -> None:
    every, cron = one.repeat.get("every"), one.repeat.get("pattern")
    await queue.schedules.upsert(
        one.key,
        every=None if every is None else f"{every}ms",
        cron=cron,
        limit=one.limit,
        data=one.data,
        attempts=20,
    )
