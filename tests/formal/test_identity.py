"""The id of a job: generated at submission, and the same through every state and a restart."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable

import pytest

import oxcart.sync
from oxcart import Flow, Graph, Queue, Worker
from oxcart.model.failure import TemporaryError
from oxcart.model.state import State
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer
from tests.signals import eventually

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


async def one(queue: Queue, url: str) -> list[str]:
    return [(await queue.add("n")).id]


async def many(queue: Queue, url: str) -> list[str]:
    return [handle.id for handle in await queue.add_many([("n", number) for number in range(20)])]


async def typed(queue: Queue, url: str) -> list[str]:
    async def work() -> None: ...

    return [(await queue.job(name=uuid.uuid4().hex)(work).enqueue()).id]


async def delayed(queue: Queue, url: str) -> list[str]:
    handles = [await queue.add("n", delay=60), await queue.add("n", priority=3, idempotency_key="k")]
    return [handle.id for handle in handles]


async def flow(queue: Queue, url: str) -> list[str]:
    made = await Flow(queue, "top").after(Flow(queue, "leaf")).add()
    return [made.id, *(child.id for child in made.children)]


async def graph(queue: Queue, url: str) -> list[str]:
    made = Graph(queue)
    made.chain(("a", None), ("b", None))
    return [handle.id for handle in await made.add()]


async def without_await(queue: Queue, url: str) -> list[str]:
    def add() -> str:
        with oxcart.sync.Queue("q", url=url) as own:
            return own.add("n").id

    return [await asyncio.to_thread(add)]


async def command_line(queue: Queue, url: str) -> list[str]:
    done = await asyncio.to_thread(Commands(url), "add", "q", "n")
    return [done.out.strip()]


WAYS = [one, many, typed, delayed, flow, graph, without_await, command_line]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_way_to_add_makes_a_random_uuid(
    queue: Queue, url: str, way: Callable[[Queue, str], Awaitable[list[str]]]
) -> None:
    ids = await way(queue, url) + await way(queue, url)
    assert len(set(ids)) == len(ids) - (way is delayed)  # its key makes one of two jobs
    for job_id in ids:
        assert UUID4.fullmatch(job_id), job_id
        assert await queue.jobs.get(job_id) is not None


async def test_a_client_may_name_its_own(queue: Queue) -> None:
    handle = await queue.add("n", 1, job_id="order-7")
    again = await queue.add("n", 2, job_id="order-7")
    assert (handle.id, again.id, again.created) == ("order-7", "order-7", False)
    assert (await handle.get()).data == 1


async def test_the_id_stays_through_every_state_and_a_restart() -> None:
    """Delayed, promoted, retried, failed and replayed, with a restart of the server before each step."""
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        queue = Queue("q", url=server.url)
        seen: list[str] = []

        @queue.job(name="n")
        async def work(job: oxcart.RunningJob) -> str:
            seen.append(job.id)
            if len(seen) < 3:
                raise TemporaryError("not yet")
            return job.id

        async def is_now(state: State) -> bool:
            return (await handle.get()).state is state

        handle = await queue.add("n", delay="1h", attempts=2, backoff="1h")
        for step, state, place in (
            (handle.promote, State.RETRYING, "delayed"),
            (handle.promote, State.DEAD_LETTER, "failed"),
            (handle.retry, State.COMPLETED, "completed"),
        ):
            await asyncio.to_thread(server.restart, kill=True)
            await step()
            async with Worker(queue).running():
                await eventually(lambda state=state: is_now(state), f"it is {state}")  # type: ignore[misc]
            assert [job.id for job in await queue.jobs.list(place)] == [handle.id]
        assert seen == [handle.id] * 3
        assert await handle.result(20) == handle.id
        await queue.close()
