"""The soak: a short one holds, and each of its judgements can fail."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterator
from inspect import getmembers, ismethod, signature
from pathlib import Path
from typing import Any

import pytest
from benchmarks.soak.__main__ import Soak
from benchmarks.soak.keys import account, classify, leftovers
from benchmarks.soak.mix import MAIN, NAMESPACE
from benchmarks.soak.verdict import LONG, SERVER_BOUND, WORKER_BOUND, Sample, judge

from oxcart import Queue
from oxcart.broker.bridge.keys import BridgeKeys
from tests.servers import ValkeyServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def client(server: ValkeyServer) -> Any:
    client = server.client()
    client.flushall()
    return client


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_short_soak_holds() -> None:
    soak = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.soak", "--jobs", "3000", "--workers", "1", "--every", "3"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await soak.communicate()
    assert soak.returncode == 0, printed.decode()


async def test_jobs_of_a_queue_are_accounted_for_until_they_are_removed(
    server: ValkeyServer, client: Any
) -> None:
    async with Queue(MAIN, url=server.url) as queue:
        await queue.add("once", idempotency_key="k", lifetime="1h", delay="1m")
        await queue.add("routed", target={"capabilities": "gpu"})
        await queue.schedules.upsert("tick", every="1h", name="tick")
        assert account(client).strays == {}
        assert account(client).jobs() >= 2
        left = leftovers(client)
        assert {why for why in left.values() if "is left" in why} == {"a job is left", "a schedule is left"}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (f"bull:{MAIN}:ox:unheard-of:1", "no rule"),
        (f"bull:{MAIN}:no-such-job:logs", "is gone"),
        (f"bull:{MAIN}:ox:call:client:0", "does not expire"),
        (f"{NAMESPACE}:ox:job:no-such-job", "is gone"),
        (f"{NAMESPACE}:ox:unheard-of", "no rule"),
        ("another:key", "no rule"),
    ],
)
def test_a_stray_key_is_found(client: Any, key: str, why: str) -> None:
    client.set(key, "1")
    assert why in account(client).strays[key]


def test_every_key_of_a_bridge_namespace_has_a_rule() -> None:
    keys = BridgeKeys("work", NAMESPACE)
    methods = [method for name, method in getmembers(keys, ismethod) if not name.startswith("_")]
    plain = [str(method()) for method in methods if not signature(method).parameters]
    assert f"{NAMESPACE}:ox:front" in plain
    assert [key for key in plain if key.startswith(f"{NAMESPACE}:") and not classify(key)[0]] == []


@pytest.mark.parametrize("key", [f"bull:{MAIN}:ox:held", f"bull:{MAIN}:delayed", f"{NAMESPACE}:ox:pending"])
def test_an_entry_of_an_index_is_left_over(client: Any, key: str) -> None:
    client.zadd(key, {"gone": 1})
    assert leftovers(client) == {key: "it has 1 entries"}


@pytest.mark.parametrize(("worker", "server"), [(WORKER_BOUND + 1, 0.0), (0.0, SERVER_BOUND + 1)])
def test_growing_memory_does_not_hold(worker: float, server: float) -> None:
    samples = [
        Sample(share * LONG // 20, 100 + worker * share / 10, 10 + server * share / 10, 100)
        for share in range(1, 21)
    ]
    assert [finding.holds for finding in judge(samples, LONG)] == [not worker, not server]


def test_a_long_soak_needs_samples() -> None:
    assert [finding.holds for finding in judge([Sample(LONG, 1, 1, 1)], LONG)] == [False]


class _SlowCrew:
    """A crew whose workers take as long to start as the test wants."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.replaced = 0

    async def replace(self) -> None:
        self.began.set()
        await self.may_end.wait()
        self.replaced += 1


async def test_a_soak_that_is_ended_early_adds_no_more() -> None:
    nothing: Any = None
    producer: Any = Namespace(added=5)
    run = Soak(Namespace(jobs=1000, every=1.0), nothing, None, nothing)
    run.enough.set()
    await asyncio.wait_for(run.produce(producer), 60)
    assert run.samples == []


async def test_a_soak_that_ends_waits_for_the_worker_that_is_being_started() -> None:
    crew: Any = _SlowCrew()
    queues: Any = None
    run = Soak(Namespace(every=0.01), queues, None, crew)
    replacing = asyncio.create_task(run.replace())
    await crew.began.wait()
    run.enough.set()
    crew.may_end.set()
    await asyncio.wait_for(replacing, 60)
    assert crew.replaced == 1
