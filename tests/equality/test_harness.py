"""The comparison itself: it is repeatable, and it finds every difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from tests.equality.dump import difference, take_dump
from tests.equality.ops import Op
from tests.equality.sequences import START
from tests.equality.sides import DivergenceError, NodeSide, Pair
from tests.nodes import NodeDriver, NodeError, installed, node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

STEPS = [
    Op("add", START, {"queue": "q", "id": "a", "name": "n", "data": {}, "opts": {}}),
    Op("pause", START, {"queue": "q"}),
    Op("resume", START, {"queue": "q"}),
    Op("claim", START + 5, {"queue": "q", "token": "t", "worker": {"name": "w1", "lockDuration": 60_000}}),
]


@pytest.fixture
async def drivers(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[tuple[NodeDriver, NodeDriver]]:
    async with node_driver("v5", servers[0].url) as one, node_driver("v5", servers[1].url) as other:
        yield one, other


@pytest.fixture
def pair(servers: tuple[ValkeyServer, ValkeyServer], drivers: tuple[NodeDriver, NodeDriver]) -> Pair:
    sides = [
        NodeSide(driver, server.client(decode_responses=False))
        for driver, server in zip(drivers, servers, strict=True)
    ]
    return Pair(sides[0], sides[1], ("one", "two"))


async def test_node_equals_node(pair: Pair) -> None:
    for seed in range(20):
        await pair.generate(seed)


async def test_a_seed_makes_the_same_sequence(pair: Pair) -> None:
    first = await pair.generate(7)
    again = await pair.generate(7)
    assert first == again
    assert [Op.from_json(op.to_json()) for op in first] == first


async def test_a_difference_is_found_and_made_small(
    servers: tuple[ValkeyServer, ValkeyServer], drivers: tuple[NodeDriver, NodeDriver]
) -> None:
    class Forgetful(NodeSide):
        """Resumes without waking the workers."""

        async def run(self, op: Op):  # type: ignore[no-untyped-def]
            outcome = await super().run(op)
            if op.kind == "resume" and not self._client.delete("bull:q:marker"):
                self._client.delete("bull:q:meta")  # a shorter sequence with another difference
            return outcome

    one, other = (server.client(decode_responses=False) for server in servers)
    pair = Pair(NodeSide(drivers[0], one), Forgetful(drivers[1], other))
    with pytest.raises(DivergenceError) as caught:
        await pair.play(STEPS)
    assert any("bull:q:marker" in line for line in caught.value.lines)
    small = await pair.shrink(STEPS)
    assert [op.kind for op in small.ops] == ["add", "resume"]


def test_every_kind_of_difference_is_reported(servers: tuple[ValkeyServer, ValkeyServer]) -> None:
    one, other = (server.client(decode_responses=False) for server in servers)
    one.flushall()
    other.flushall()

    def fill(client: redis.Redis, n: int) -> None:
        client.set("bull:q:id", n)
        client.set("bull:q:a:lock", "t", px=n * 30_000)
        client.rpush("bull:q:wait", *(["a", "b"] if n == 1 else ["b", "a"]))
        client.sadd("bull:q:stalled", f"s{n}")
        client.zadd("bull:q:delayed", {"a": n})
        client.hset("bull:q:a", mapping={"data": f'{{"n": {n}}}', "opts": '{"a":1,"b":[]}'})
        client.xadd("bull:q:events", {"event": "waiting", "jobId": str(n)})
        client.set(f"bull:q:only{n}", "x")

    fill(one, 1)
    fill(other, 2)
    # Our own keys and the same JSON in another form are no differences.
    other.hset("bull:q:a", mapping={"opts": '{ "b": [], "a": 1.0 }', "ox:extra": "1"})
    other.set("bull:q:ox:replies:c1", "x")
    lines = difference(take_dump(one), take_dump(other), ("one", "two"))
    keys = {line.split(" ")[0].rstrip(":") for line in lines if not line.startswith(" ")}
    assert keys == {
        "bull:q:id",
        "bull:q:a:lock",
        "bull:q:wait",
        "bull:q:stalled",
        "bull:q:delayed",
        "bull:q:a.data",
        "bull:q:events",
        "bull:q:only1",
        "bull:q:only2",
    }
    assert difference(take_dump(one), take_dump(one)) == []


async def test_the_driver_has_the_clock_it_is_given(drivers: tuple[NodeDriver, NodeDriver]) -> None:
    driver = drivers[0]
    await driver.call("reset", queues=["q"])
    await driver.call("add", queue="q", name="n", data={}, opts={"jobId": "a"}, now=START)
    assert (await driver.call("getJob", queue="q", jobId="a"))["timestamp"] == START
    await driver.call("clock", now=None)
    await driver.call("add", queue="q", name="n", data={}, opts={"jobId": "b"})
    assert (await driver.call("getJob", queue="q", jobId="b"))["timestamp"] > START


async def test_the_driver_returns_codes(drivers: tuple[NodeDriver, NodeDriver]) -> None:
    driver = drivers[0]
    await driver.call("reset", queues=["q"])
    with pytest.raises(NodeError) as caught:
        await driver.call("promote", queue="q", jobId="nobody", now=START)
    assert caught.value.code == -3
    with pytest.raises(NodeError, match="no such operation"):
        await driver.call("fly")
    results = await driver.batch([("getState", {"queue": "q", "jobId": "nobody"}), ("fly", {})])
    assert results[0] == "unknown"
    assert isinstance(results[1], NodeError)


async def test_the_driver_ends_with_its_pipe(servers: tuple[ValkeyServer, ValkeyServer]) -> None:
    driver = await NodeDriver.start(await asyncio.to_thread(installed, "v5"), servers[0].url)
    await driver.stop()
    with pytest.raises(NodeError, match="gone"):
        await driver.call("clock")
