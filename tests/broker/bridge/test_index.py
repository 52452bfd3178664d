"""The side index does not grow with what other clients do, and counts are right."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart.broker.factory import DEFAULTS
from tests.broker.bridge.conftest import Desk
from tests.broker.bridge.typescript import TypeScriptClient


@pytest.fixture
def client(store: redis.Redis) -> TypeScriptClient:
    return TypeScriptClient(store)


def index_size(store: Any) -> tuple[int, int, int]:
    lanes = sum(store.zcard(key) for key in store.scan_iter("bridge:ox:lane:*"))
    return store.hlen("bridge:ox:facts"), store.scard("bridge:ox:listed"), lanes


@pytest.mark.parametrize("keeps_status", [True, False])
async def test_a_producer_alone_keeps_the_index_small(desk: Desk, keeps_status: bool) -> None:
    """Only workers of other clients run, so Oxcart does no maintenance."""
    broker = desk.broker()
    for _ in range(80):
        added = await broker.add([broker.encode("email", n, DEFAULTS["bridge"]) for n in range(100)])
        ids = [one.id for one in added]
        pipe = desk.store.pipeline()
        pipe.lpop("bridge:jobs:waiting", len(ids))
        for job_id in ids:
            pipe.set(
                f"bridge:jobs:result:{job_id}", '{"success":true,"completedAt":1700000000000}', ex=86_400
            )
            if keeps_status:
                pipe.set(f"bridge:jobs:status:{job_id}", "completed")
        pipe.execute()
    for size in index_size(desk.store):
        assert size < 3000, "of 8000 that have ended"
    assert (await broker.counts())["wait"] == 0


async def test_single_adds_keep_the_index_small(desk: Desk) -> None:
    broker = desk.broker()
    jobs = [broker.encode("email", n, DEFAULTS["bridge"]) for n in range(1500)]
    await broker.add(jobs)
    pipe = desk.store.pipeline()
    pipe.delete("bridge:jobs:waiting")
    for job_id, _ in jobs:
        pipe.set(f"bridge:jobs:status:{job_id}", "completed")
    pipe.execute()
    for _ in range(200):
        await desk.add()
        desk.store.delete("bridge:jobs:waiting")
    assert max(index_size(desk.store)) < 1400


async def test_waiting_jobs_keep_their_place_in_the_index(desk: Desk) -> None:
    broker = desk.broker()
    await broker.add([broker.encode("email", n, DEFAULTS["bridge"]) for n in range(2500)])
    assert index_size(desk.store) == (2500, 2500, 2500)
    assert (await broker.counts())["wait"] == 2500


async def test_an_add_asks_little_of_the_server_about_the_index(desk: Desk) -> None:
    await desk.add()
    desk.store.config_resetstat()
    await desk.add()
    stats = desk.store.info("commandstats")
    assert stats["cmdstat_hlen"]["calls"] == 1
    assert "cmdstat_hrandfield" not in stats


async def test_counts_equal_the_list(desk: Desk, client: TypeScriptClient) -> None:
    ours = [await desk.add() for _ in range(3)]
    desk.foreign("f1", "video")
    job = client.take()
    assert job is not None
    assert job["jobId"] == ours[0]
    assert (await desk.broker().counts())["wait"] == 2
    assert (await desk.broker("video").counts())["wait"] == 1, "though no worker of ours has read it"
    assert [one.id for one in await desk.broker("video").page("wait", 0, 9)] == ["f1"]
    assert [one.id for one in await desk.broker().page("wait", 0, 9, oldest=True)] == ours[1:]
    assert (await desk.broker().counts())["active"] == 0


async def test_dead_letters_of_other_clients_are_counted_and_listed(
    desk: Desk, client: TypeScriptClient
) -> None:
    for n in range(3):
        desk.foreign(f"f{n}", retry={"attempts": 0})
        job = client.take()
        assert job is not None
        client.fail(job, f"boom {n}")
    assert (await desk.broker().counts())["failed"] == 3
    listed = await desk.broker().page("failed", 0, 9)
    assert [job.failed_reason for job in listed] == ["boom 2", "boom 1", "boom 0"]
    assert await desk.broker("video").page("failed", 0, 9) == []


async def test_jobs_that_other_workers_hold_are_counted_and_listed(desk: Desk) -> None:
    mine = await desk.active()
    desk.store.sadd("bridge:jobs:active", desk.foreign("f1", push=""), desk.foreign("v1", "video", push=""))
    assert (await desk.broker().counts())["active"] == 2
    assert {job.id for job in await desk.broker().page("active", 0, 9)} == {mine.id, "f1"}


async def test_dead_letters_that_are_noted_are_counted_without_their_records(desk: Desk) -> None:
    for _ in range(3):
        job = await desk.active(attempts=1)
        await desk.end(job, "f", value=b"no")
    desk.store.config_resetstat()
    assert (await desk.broker().counts())["failed"] == 3
    assert "cmdstat_mget" not in desk.store.info("commandstats")
    desk.store.lpush("bridge:jobs:deadletter", desk.foreign("f1", push=""))
    assert (await desk.broker().counts())["failed"] == 4
