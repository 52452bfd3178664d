"""Schedules that Node's workers and ours share: set by either, fired by either or by both at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import redis

from oxcart import Queue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask
from oxcart.model.schedule import Schedule
from tests.interop.conftest import Drivers
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver
from tests.servers import ValkeyServer
from tests.signals import eventually

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="session")]

RUNS = 40


def runs_of(client: redis.Redis, queue: str, key: str) -> list[str]:
    """The ids of all runs that ended, in their order."""
    ended: Any = client.zrange(f"bull:{queue}:completed", 0, -1)
    return sorted(
        (one for one in ended if one.startswith(f"repeat:{key}:")), key=lambda one: int(one.split(":")[-1])
    )


def check_runs(client: redis.Redis, queue: str, key: str, count: int) -> None:
    """Checks the number of runs, that each ran once, and that record and runs have the same count."""
    ids = runs_of(client, queue, key)
    assert len(ids) == count
    numbers = []
    for one in ids:
        fields: Any = client.hgetall(f"bull:{queue}:{one}")
        assert fields["ats"] == fields["atm"] == "1", one
        numbers.append(json.loads(fields["opts"])["repeat"]["count"])
    assert numbers == list(range(1, count + 1))
    assert client.hget(f"bull:{queue}:repeat:{key}", "ic") == str(count)


async def all_ended(client: redis.Redis, queue: str, count: int) -> None:
    await eventually(lambda: client.zcard(f"bull:{queue}:completed") == count, "all runs ended", LIMIT)


async def test_a_schedule_of_nodes_is_fired_by_us(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    template = {"name": "tick", "data": {"result": 5}, "opts": {"attempts": 2}}
    repeat = {"every": 20, "limit": 10}
    await node.call("upsertScheduler", queue=queue.name, key="n", repeat=repeat, template=template)
    async with obeying(queue, name="ox") as worker:
        await all_ended(server.client(), queue.name, 10)
    check_runs(server.client(), queue.name, "n", 10)
    assert len(worker.runs) == 10
    found = await queue.schedules.get("n")
    assert found is not None
    assert (found.name, found.data, found.runs, found.legacy) == ("tick", {"result": 5}, 10, False)
    assert found.options["attempts"] == 2


async def test_a_schedule_of_ours_is_fired_by_node(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    await queue.schedules.upsert("o", every="20ms", limit=10, name="tick", data={"result": 5})
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"name": "nd"})
    await all_ended(server.client(), queue.name, 10)
    stats = await node.call("workerStop", handle=queue.name)
    assert stats["errors"] == []
    check_runs(server.client(), queue.name, "o", 10)


async def test_no_client_makes_a_run_of_a_schedule_that_we_paused(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    """A run that was due is the last, even if Node claims it; and Node may set the schedule again."""
    await queue.schedules.upsert("o", every="1h", name="tick", data={"result": 5})
    assert await queue.schedules.pause("o")  # its first run is due
    await node.call("workerStart", handle=queue.name, queue=queue.name, options={"name": "nd"})
    await all_ended(server.client(), queue.name, 1)
    template = {"name": "tick", "data": {"result": 6}}
    await node.call(
        "upsertScheduler", queue=queue.name, key="o", repeat={"every": 3_600_000}, template=template
    )
    found = await queue.schedules.get("o")
    assert found is not None
    assert (found.paused, found.data) == (True, {"result": 6})
    assert await queue.schedules.resume("o")
    stats = await node.call("workerStop", handle=queue.name)
    assert stats["errors"] == []
    delayed = server.client().zrange(f"bull:{queue.name}:delayed", 0, -1)
    found = await queue.schedules.get("o")
    assert found is not None
    assert delayed == [found.next_job_id]


@pytest.mark.timeout(120)
async def test_both_kinds_of_worker_at_once_fire_each_run_once_and_miss_none(
    node: NodeDriver, queue: Queue, server: ValkeyServer
) -> None:
    client = server.client()
    work = {"delay": 3}
    for key in ("n1", "n2"):
        repeat = {"every": 30, "limit": RUNS} if key == "n1" else {"pattern": "* * * * * *", "limit": 3}
        await node.call("upsertScheduler", queue=queue.name, key=key, repeat=repeat, template={"data": work})
    await queue.schedules.upsert("o1", every="30ms", limit=RUNS, data=work, priority=1)
    await queue.schedules.upsert("o2", cron="* * * * * *", limit=3, data=work)
    await node.call(
        "workerStart", handle=queue.name, queue=queue.name, options={"name": "nd", "concurrency": 2}
    )
    try:
        async with obeying(queue, name="ox", concurrency=2) as worker:
            await all_ended(client, queue.name, 2 * RUNS + 6)
    finally:
        stats = await node.call("workerStop", handle=queue.name)
    assert stats["errors"] == []
    for key, count in {"n1": RUNS, "n2": 3, "o1": RUNS, "o2": 3}.items():
        check_runs(client, queue.name, key, count)
    runs = Counter(one for one, _ in worker.runs) + Counter(run["id"] for run in stats["runs"])
    assert set(runs.values()) == {1}
    print(f"runs: ours {len(worker.runs)}, Node's {len(stats['runs'])}")
    assert worker.runs
    assert stats["runs"]


async def test_each_reads_the_others_as_its_own(node: NodeDriver, queue: Queue) -> None:
    far = 4_000_000_000_000
    repeat = {"pattern": "0 3 * * *", "tz": "Europe/Berlin", "startDate": far, "limit": 4}
    template = {
        "name": "r",
        "data": {"a": [1]},
        "opts": {"attempts": 4, "backoff": {"type": "fixed", "delay": 7}},
    }
    await node.call("upsertScheduler", queue=queue.name, key="n", repeat=repeat, template=template)
    await queue.schedules.upsert(
        "o",
        cron="0 3 * * *",
        tz="Europe/Berlin",
        start=far,
        limit=4,
        name="r",
        data={"a": [1]},
        attempts=4,
        backoff={"type": "fixed", "delay": "7ms"},
    )
    ours, theirs = [await queue.schedules.get(key) for key in ("o", "n")]
    assert ours is not None
    assert theirs is not None
    assert (ours.schedule, ours.next_ms, ours.data, ours.options) == (
        theirs.schedule,
        theirs.next_ms,
        theirs.data,
        theirs.options,
    )
    seen = {one["key"]: one for one in await node.call("getSchedulers", queue=queue.name)}
    assert {**seen["o"], "key": "n"} == seen["n"]
    assert await node.call("countSchedulers", queue=queue.name) == await queue.schedules.count() == 2
    assert await node.call("removeScheduler", queue=queue.name, key="o") is True
    assert await queue.schedules.remove("n") is True
    assert (await queue.counts())["delayed"] == 0


class TestRepeatables:
    """Jobs added with `repeat`, from before there were schedulers: only BullMQ 5 makes them."""

    async def test_repeatable_job_is_listed_and_continues_with_us(
        self, drivers: Drivers, queue: Queue, server: ValkeyServer
    ) -> None:
        node = await drivers.get("v5")
        opts = {"repeat": {"every": 30, "limit": 5}}
        await node.call("add", queue=queue.name, name="old", data={"result": 1}, opts=opts)
        (found,) = await queue.schedules.list()
        assert (found.name, found.schedule.every, found.legacy, found.runs) == ("old", 30, True, None)
        async with obeying(queue):
            await all_ended(server.client(), queue.name, 5)
        assert await queue.schedules.count() == 1  # still listed, and never dropped silently

    async def test_the_oldest_form_goes_on_with_us_as_with_node(
        self, drivers: Drivers, queue: Queue, server: ValkeyServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        node, client = await drivers.get("v5"), server.client()
        key = "old::::* * * * * *"
        # Newer versions keep an existing key of this form.
        client.zadd(f"bull:{queue.name}:repeat", {key: 1})
        opts = {"repeat": {"pattern": "* * * * * *", "limit": 100}}  # more than there is time for
        await node.call("add", queue=queue.name, name="old", data={}, opts=opts)
        listed = {one.id: one for one in await queue.schedules.list()}
        assert (listed[key].name, listed[key].legacy) == ("old", True)
        await node.call("workerStart", handle=queue.name, queue=queue.name)
        await eventually(lambda: client.zcard(f"bull:{queue.name}:completed") >= 2, "fired by Node", LIMIT)
        await node.call("workerStop", handle=queue.name)
        fired = int(str(client.zcard(f"bull:{queue.name}:completed")))
        async with obeying(queue):
            await eventually(
                lambda: client.zcard(f"bull:{queue.name}:completed") >= fired + 2, "fired by us", LIMIT
            )
        ended: Any = client.zrange(f"bull:{queue.name}:completed", 0, -1)
        assert len({one.split(":")[1] for one in ended}) == 1  # both make the same ids
        assert "is a repeatable job from before" in caplog.text


async def test_where_we_leave_5_62_we_do_as_6_7(drivers: Drivers, queue: Queue, server: ValkeyServer) -> None:
    """A changed interval applies at once, an offset is respected, and no run is skipped needlessly."""
    node, client, rand = await drivers.get("v6"), server.client(), random.Random(6)
    now = 1_700_000_000_000
    broker = BullMQBroker(queue._core.server, f"{queue.name}-ours", clock=lambda: now)
    theirs = f"{queue.name}-theirs"
    differing = []
    try:
        for number in range(30):
            key, last = f"k{number}", 0
            steps: list[Any] = []
            for _ in range(rand.randint(2, 5)):
                now += rand.choice((0, 1, 977, 12_345, 60_000, 3_600_000))
                if last and rand.random() < 0.5:
                    steps.append("claim")
                    await _fire(node, theirs, broker, now)
                else:
                    last = rand.choice([every for every in (1_000, 7_000, 60_000) if every != last])
                    repeat: dict[str, Any] = {"every": last}
                    # In 6.7.0 a changed interval without an offset keeps the old offset; not here.
                    if steps or rand.random() < 0.4:
                        repeat["offset"] = rand.randrange(1, last)
                    steps.append(repeat)
                    options: dict[str, Any] = {"key": key, "repeat": repeat, "template": {}}
                    await node.call("upsertScheduler", queue=theirs, **options, now=now)
                    schedule = Schedule(every=last, offset=repeat.get("offset"))
                    await broker.schedules.write(key, schedule, key, b"{}", {})
                scores = [client.zscore(f"bull:{one}:repeat", key) for one in (theirs, broker.queue)]
                if scores[0] != scores[1]:
                    differing.append((key, now, steps, scores))
                    break
            await node.call("removeScheduler", queue=theirs, key=key)
            await broker.schedules.remove(key)
    finally:
        await node.call("clock", now=None)
        await broker.close()
    assert differing == []


async def _fire(node: NodeDriver, theirs: str, broker: BullMQBroker, now: int) -> None:
    """Lets each side claim the ready jobs."""
    while (await node.call("claim", queue=theirs, token="t", worker={"name": "w"}, now=now))["job"]:
        pass
    while jobs := (await broker.claim(Ask())).jobs:
        await broker.schedules.advance(jobs)
