"""Invalid settings that a peer wrote to a queue never stop it silently."""

from __future__ import annotations

import logging

import pytest
import redis

from oxcart import Queue, RunningJob, Worker
from tests.signals import eventually

#: Values that are not valid bounds.
ODD = ("-1", "many", "", "nan", "inf", "-inf", "1e400", "[]", "\x00\xff", "-0.5")
FIELDS = (
    "concurrency",
    "max",
    "duration",
    "opts.maxLenEvents",
    "ox:limits",
    "ox:keep",
    "ox:until",
    "version",
)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "bounds that make no sense" in one.getMessage()]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", FIELDS)
async def test_an_invalid_setting_stops_no_queue(
    queue: Queue, store: redis.Redis, field: str, value: str
) -> None:
    @queue.fallback
    async def work(job: RunningJob) -> str:
        return "done"

    if field in ("max", "duration"):
        store.hset("bull:q:meta", mapping={"max": "100", "duration": "1000"})
    store.hset("bull:q:meta", field, value)
    added = [await queue.add("job") for _ in range(3)]
    delayed = await queue.add("job", delay=0.01)
    async with Worker(queue).running():
        for one in (*added, delayed):
            assert await one.result(20) == "done"
    await queue.limits.concurrency()
    await queue.limits.rate()


@pytest.mark.parametrize(("field", "value"), [("concurrency", "-1"), ("max", "-5"), ("duration", "soon")])
async def test_it_is_logged_once_per_queue(
    queue: Queue, store: redis.Redis, caplog: pytest.LogCaptureFixture, field: str, value: str
) -> None:
    store.hset("bull:q:meta", field, value)
    with caplog.at_level(logging.WARNING, "oxcart"):
        for _ in range(5):
            await queue._core.broker.promote()
    assert warnings(caplog) == [
        f"queue q: its meta key holds bounds that make no sense: {field}={value} (ignored)"
    ]


async def test_a_worker_logs_a_concurrency_of_nothing(
    queue: Queue, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops the queue, as with Node, but the worker logs it."""

    @queue.fallback
    async def work(job: RunningJob) -> str:
        return "done"

    store.hset("bull:q:meta", "concurrency", "0")
    added = await queue.add("job")
    with caplog.at_level(logging.WARNING, "oxcart"):
        async with Worker(queue).running():
            await eventually(lambda: warnings(caplog), "it is logged")
            assert "concurrency=0 (no job starts)" in warnings(caplog)[0]
            assert await added.state() == "waiting"
            store.hset("bull:q:meta", "concurrency", "-1")
            assert await added.result(20) == "done"


async def test_a_lane_ignores_invalid_bounds_of_its_queue(queue: Queue, store: redis.Redis) -> None:
    @queue.fallback
    async def work(job: RunningJob) -> str:
        return "done"

    store.hset("bull:q:meta", mapping={"concurrency": "-1", "max": "x", "duration": "inf"})
    added = await queue.add("job", target="all;c=gpu")
    async with Worker(queue, abilities={"capabilities": ["gpu"]}).running():
        assert await added.result(20) == "done"
