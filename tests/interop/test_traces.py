"""One trace over Node and Python: the context of a job is where BullMQ's telemetry reads and writes it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan

from oxcart import Queue, RunningJob, Worker
from oxcart.webhooks import Webhooks
from tests.engine.test_webhooks import HERE, SECRET, Receiver
from tests.nodes import NodeDriver, with_telemetry
from tests.observe.spans import Spans, header_of, id_of, linked, parent_of, trace_of
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["v5", "v6"])
async def node(server: ValkeyServer, request: pytest.FixtureRequest) -> AsyncIterator[NodeDriver]:
    """BullMQ with its telemetry."""
    folder = await asyncio.to_thread(with_telemetry, request.param)
    driver = await NodeDriver.start(folder, server.url, traced=True)
    yield driver
    await driver.stop()


@pytest.fixture
def name() -> str:
    """A queue that no test has used."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def spans() -> Spans:
    return Spans()


class Seen:
    """A span of either side."""

    def __init__(self, name: str, trace: str, own: str, parent: str | None) -> None:
        self.name, self.trace, self.id, self.parent = name, trace, own, parent


def ours(span: ReadableSpan) -> Seen:
    above = parent_of(span)
    parent = None if above is None else f"{above:016x}"
    return Seen(span.name, f"{trace_of(span):032x}", f"{id_of(span):016x}", parent)


async def theirs(node: NodeDriver) -> list[Seen]:
    return [Seen(one["name"], one["trace"], one["id"], one["parent"]) for one in await node.call("spans")]


async def all_of(node: NodeDriver, spans: Spans, trace: str) -> dict[str, Seen]:
    found = [*await theirs(node), *map(ours, spans.all)]
    return {one.id: one for one in found if one.trace == trace}


async def test_worker_continues_the_trace_of_a_node_producer(
    node: NodeDriver, server: ValkeyServer, name: str, spans: Spans
) -> None:
    async with Queue(name, url=server.url, tracing=spans.tracing) as queue:

        @queue.job
        async def work() -> None: ...

        job_id = await node.call("add", queue=name, name="work", data={}, opts={"attempts": 3})
        async with Worker(queue).running():
            await queue.jobs.handle(job_id).result(timeout=30)
        added = next(one for one in await theirs(node) if one.name == f"add {name}.work")
        run = ours(spans.one(f"process {name}"))
        assert (run.trace, run.parent) == (added.trace, added.id)
        stored = await queue.jobs.get(job_id)
        assert stored is not None
        assert stored.options.attempts == 3


async def test_node_worker_continues_our_trace(
    node: NodeDriver, server: ValkeyServer, name: str, spans: Spans
) -> None:
    async with Queue(name, url=server.url, tracing=spans.tracing) as queue:
        with spans.tracer.start_as_current_span("request"):
            job = await queue.add("work", {"result": 7})
        await node.call("workerStart", handle=name, queue=name)
        assert await job.result(timeout=30) == 7
        await node.call("workerStop", handle=name)
        run = next(one for one in await theirs(node) if one.name == f"process {name}")
        added = ours(spans.one(f"add {name}"))
        assert (run.trace, run.parent) == (added.trace, added.id)
        assert added.parent == ours(spans.one("request")).id


async def test_runs_of_a_node_schedule_are_traces_of_their_own(
    node: NodeDriver, server: ValkeyServer, name: str, spans: Spans
) -> None:
    async with Queue(name, url=server.url, tracing=spans.tracing) as queue:

        @queue.job
        async def tick() -> None: ...

        await node.call(
            "upsertScheduler", queue=name, key="tick", repeat={"every": 50}, template={"name": "tick"}
        )
        async with Worker(queue).running():
            await eventually(lambda: len(spans.named(f"process {name}")) >= 3, "three runs")
            await queue.schedules.remove("tick")
        runs = spans.named(f"process {name}")
        assert {parent_of(run) for run in runs} == {None}
        (at,) = {one for run in runs for one in linked(run)}
        assert f"{at:016x}" in {one.id for one in await theirs(node)}


async def test_flow_of_node_two_workers_a_step_a_retry_and_a_webhook_are_one_trace(
    node: NodeDriver, server: ValkeyServer, name: str, spans: Spans
) -> None:
    receiver = Receiver()
    hook = await asyncio.start_server(receiver, "127.0.0.1", 0)
    receiver.port = hook.sockets[0].getsockname()[1]
    hooks = Webhooks(SECRET, allow=HERE)
    orders = Queue(f"{name}-orders", url=server.url, tracing=spans.tracing, webhooks=hooks)
    images = Queue(f"{name}-images", url=server.url, tracing=spans.tracing)
    back = Queue(f"{name}-node", url=server.url, tracing=spans.tracing)

    async def draw(page: int) -> int:
        return page

    @images.job
    async def render(job: RunningJob, page: int) -> int:
        if page == 1 and job.attempt == 1:
            raise OSError("the disk is full")
        return await job.step("draw", draw, page)

    @orders.job
    async def assemble(job: RunningJob) -> list[Any]:
        pages = sorted((await job.children_values()).values())
        await orders.add("report", {}, callback_url=receiver.url)
        await back.add("archive", {"result": 1})
        return pages

    @orders.job
    async def report() -> str:
        return "sent"

    async with hook, orders, images, back:
        opts = {"attempts": 2, "backoff": {"type": "fixed", "delay": 10}}
        page = {"name": "render", "queueName": images.name, "opts": opts}
        flow = {
            "name": "assemble",
            "queueName": orders.name,
            "opts": {},  # BullMQ carries no context in a job of a flow that has no options
            "children": [{**page, "data": {"page": number}} for number in (1, 2)],
        }
        await node.call("workerStart", handle=name, queue=back.name)
        tree = await node.call("below", name=f"request {name}", command="addFlow", args={"flow": flow})
        async with Worker(orders).running(), Worker(images).running():
            assert await orders.jobs.handle(tree["id"]).result(timeout=30) == [1, 2]
            await eventually(lambda: spans.named(f"process {orders.name}.webhooks"), "the webhook")
            await node.call("workerWait", handle=name, finished=1)
        await node.call("workerStop", handle=name)

        request = next(one for one in await theirs(node) if one.name == f"request {name}")
        whole = await all_of(node, spans, request.trace)
        assert [one.name for one in whole.values() if one.parent not in whole] == [request.name]
        names = sorted(one.name for one in whole.values() if one.id in {ours(span).id for span in spans.all})
        assert names == sorted(
            [
                *[f"wait {images.name}"] * 3,
                *[f"process {images.name}"] * 3,
                *["step draw"] * 2,
                *[f"wait {orders.name}"] * 2,
                *[f"process {orders.name}"] * 2,
                f"add {orders.name}",
                f"add {back.name}",
                f"add {orders.name}.webhooks",
                f"wait {orders.name}.webhooks",
                f"process {orders.name}.webhooks",
                "POST",
            ]
        )
        in_node = {one.name for one in whole.values()} - set(names)
        assert {f"addFlow {orders.name}", f"process {back.name}"} <= in_node
        ((headers, _),) = receiver.got
        assert headers["traceparent"] == header_of(spans.one("POST"))
