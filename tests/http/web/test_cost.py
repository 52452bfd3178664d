"""What pages cost the server: commands are counted, however many viewers, queues and jobs there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import redis

from oxcart import Abilities, Queue, Target, Worker
from oxcart.http.application import Application, app
from oxcart.http.server import Server
from oxcart.http.web import pulse
from oxcart.http.web.pulse import Track
from tests.conftest import MakeQueue
from tests.signals import eventually


def commands(store: redis.Redis) -> int:
    """How many commands the server has processed, those of scripts included."""
    return sum(int(row["calls"]) for row in store.info("commandstats").values())


@contextlib.asynccontextmanager
async def served(*queues: Queue) -> AsyncIterator[tuple[Application, httpx.AsyncClient]]:
    made = app(queues, keys=False)
    async with Server(made, grace=1) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield made, client


async def spent(store: redis.Redis, client: httpx.AsyncClient, path: str) -> int:
    """Returns the commands of one page, without those of the queues' first connections."""
    assert (await client.get(path)).status_code == 200
    before = commands(store)
    assert (await client.get(path)).status_code == 200
    return commands(store) - before - 1  # the count itself


async def test_overview_of_200_queues_costs_15_commands_each_in_two_pipelines(
    store: redis.Redis, make_queue: MakeQueue
) -> None:
    others = {client["id"] for client in store.client_list()}  # of tests before this one on the same server
    queues = [make_queue(f"q{number:03}") for number in range(200)]
    for queue in queues[:3]:
        await queue.add("welcome", {})
    async with served(*queues) as (made, client):
        before = commands(store)
        page = await client.get("/")
        first = commands(store) - before
        assert page.text.count("data-row") == 200
        # 15 commands per queue, the workers of each, a clock per pipeline, and reads of waiting jobs.
        assert first <= 200 * 16 + 20
        assert made.litestar.state.dashboard.pulse.samples == 1
        # No queue opened a connection of its own: all share that of the first.
        assert len({client["id"] for client in store.client_list()} - others) <= 5


async def test_viewers_of_a_page_share_one_poller(store: redis.Redis, make_queue: MakeQueue) -> None:
    queue = make_queue("q")
    await queue.add_many([("welcome", {})] * 5)
    async with served(queue) as (made, client), contextlib.AsyncExitStack() as stack:
        board = made.litestar.state.dashboard

        async def watch() -> AsyncIterator[str]:
            answer = await stack.enter_async_context(client.stream("GET", "/events", timeout=60))
            return answer.aiter_lines()

        viewers = [await watch() for _ in range(20)]
        for lines in viewers:
            async for line in lines:
                if line.startswith("event: parts"):
                    break
        assert board.live.viewers == 20
        assert len(board.live._pollers) == 1
        samples, before = board.pulse.samples, commands(store)
        await eventually(lambda: board.pulse.samples >= samples + 3, "three more samples")
        per_sample = (commands(store) - before) / (board.pulse.samples - samples)
        assert per_sample <= 40  # for all 20 viewers together
    await eventually(lambda: board.live.viewers == 0, "the viewers have gone")


async def test_without_viewers_nothing_is_polled(store: redis.Redis, make_queue: MakeQueue) -> None:
    queue = make_queue("q")
    async with served(queue) as (made, client):
        board = made.litestar.state.dashboard
        async with client.stream("GET", "/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: parts"):
                    break
        await eventually(lambda: not board.live._pollers, "the poller has ended")
        samples = board.pulse.samples
        await asyncio.sleep(pulse.FRESH + 0.5)  # longer than a poller's pause
        assert board.pulse.samples == samples


async def test_a_page_of_jobs_costs_the_same_with_ten_and_with_many_thousand(
    store: redis.Redis, make_queue: MakeQueue
) -> None:
    queue = make_queue("q")
    async with served(queue) as (made, client):
        for state, key in (
            ("completed", "bull:q:completed"),
            ("ready", "bull:q:wait"),
            ("failed", "bull:q:failed"),
        ):
            costs = []
            for count in (60, 10_000):
                _fill(store, key, count)
                made.litestar.state.dashboard.pulse._sampled = 0.0  # the lengths are sampled anew
                for path in (
                    f"/jobs?state={state}&queue=q",
                    f"/jobs?state={state}&queue=q&first={count - 10}",
                ):
                    costs.append(await spent(store, client, path))
            assert max(costs) <= 400, (state, costs)
            assert max(costs) - min(costs) <= 200, (state, costs)  # a page of 50 jobs or of 10
            store.delete(key)


def _fill(store: redis.Redis, key: str, count: int) -> None:
    """Puts so many jobs into a list of the wire."""
    pipe = store.pipeline(transaction=False)
    pipe.delete(key)
    for number in range(count):
        job = f"job-{number}"
        pipe.hset(
            f"bull:q:{job}", mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": 1_700_000_000_000}
        )
        if key.endswith("wait"):
            pipe.lpush(key, job)
        else:
            pipe.zadd(key, {job: 1_700_000_000_000 + number})
        if number % 5000 == 4999:
            pipe.execute()
    pipe.execute()


async def test_rates_come_from_the_events_of_any_client(queue: Queue) -> None:
    made = pulse.Pulse([queue])

    @queue.job
    async def welcome() -> None:
        pass

    async with Worker(queue, concurrency=10).running():
        await asyncio.gather(*[job.result(60) for job in await queue.add_many([("welcome", {})] * 50)])
        track = (await made.fresh())["q"]
    assert 50 / 35 <= track.rate() <= 50 / 30
    assert track.median("waits") is not None
    assert track.median("runs") is not None
    assert sum(one.completed for one in track._bins) == 50
    assert (track.ready, track.count("completed")) == (0, 50)


async def test_a_fast_stream_is_extrapolated(queue: Queue) -> None:
    made = pulse.Pulse([queue])
    await made.fresh()
    await queue.add_many([("welcome", {})] * 2000)
    made._sampled -= pulse.FRESH
    track = (await made.fresh())["q"]
    added = sum(one.added for one in track._bins)
    assert track.sample.cut
    assert added >= 100  # what one sample reads, and more for what it left out
    assert track.ready == 2000


async def test_rates_include_jobs_with_a_target(queue: Queue) -> None:
    made = pulse.Pulse([queue])

    @queue.job
    async def render() -> None:
        pass

    async def run(count: int) -> Track:
        target = Target(capabilities=["gpu"])
        for job in await queue.add_many([("render", None, {"target": target})] * count):
            await job.result(60)
        await asyncio.sleep(0.002)  # the events of this millisecond belong to the next sample
        made._sampled -= pulse.FRESH
        return (await made.fresh())["q"]

    async with Worker(queue, concurrency=10, abilities=Abilities(capabilities=["gpu"])).running():
        for total in (20, 50):  # the second sample counts nothing again
            track = await run(30 if total == 50 else 20)
            assert sum(one.completed for one in track._bins) == total
    assert track.median("waits") is not None


async def test_the_oldest_ready_job_may_be_in_a_lane(make_queue: MakeQueue) -> None:
    queue, other = make_queue("q"), make_queue("other")
    made = pulse.Pulse([queue, other])
    first = await queue.add("render", None, target=Target(capabilities="gpu"))
    await asyncio.sleep(0.005)  # both jobs have times of their own
    await queue.add("render", None, target=Target(region="eu"), priority=3)
    await queue.add("render")
    await other.add("render")
    track = (await made.fresh())["q"]
    job = await queue.jobs.get(first.id)
    assert job is not None
    assert track.sample.oldest_ms == job.timestamp
    assert track.ready == 3


async def test_rates_of_a_partitioned_queue_are_those_of_all_partitions(make_queue: MakeQueue) -> None:
    queue = make_queue("events", partitions=4)
    made = pulse.Pulse([queue])

    @queue.job
    async def work() -> None:
        pass

    async with Worker(queue, concurrency=10).running():
        for total in (20, 40):
            for number in range(20):  # a sample reads 75 events of each partition
                await (await queue.add("work", partition_key=f"k{number}")).result(60)
            await asyncio.sleep(0.002)  # the events of this millisecond belong to the next sample
            made._sampled -= pulse.FRESH
            track = (await made.fresh())["events"]
            assert sum(one.completed for one in track._bins) == total
    assert (track.ready, track.count("completed"), len(track.sample.partitions)) == (0, 40, 4)
