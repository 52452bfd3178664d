"""Schedules on Bridge: one leader, and each due time fires once despite crashes and clock changes."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import count
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.schedules import FIRINGS, LATE, CronKeeper, due_times
from oxcart.broker.connection import Server
from oxcart.broker.factory import DEFAULTS
from oxcart.model.errors import NotSupported, ValidationError
from oxcart.model.schedule import Schedule
from tests.broker.bridge.conftest import Desk
from tests.conftest import MakeQueue
from tests.signals import eventually

#: How many schedules; `make bridge-cron` has 10 000.
SCHEDULES = int(os.environ.get("OXCART_BRIDGE_CRON", "1000"))
#: Ms of a leader's term in these tests: the term of a dead leader must not take 30 s to end.
LEADS = 400

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


async def schedule(desk: Desk, name: str = "s", cron: str = "0 * * * *", **more: object) -> str:
    tz = str(more.pop("tz", "UTC"))
    made = await desk.broker().schedules.upsert(
        name,
        Schedule.build(cron=cron, tz=tz),
        "email",
        b'{"n":1}',
        DEFAULTS["bridge"],
        **more,  # type: ignore[arg-type]
    )
    assert made is not None
    return made


def next_of(desk: Desk, job_id: str) -> int:
    return int(desk.store.zscore("bridge:jobs:cron", job_id))


def fired(desk: Desk) -> list[tuple[str, int]]:
    """Returns the schedule and the due time of every added job."""
    jobs = [desk.record(job_id) for job_id in desk.waiting()]
    return sorted((job["ox"]["schedule"], job["ox"]["due"]) for job in jobs)


async def test_a_schedule_is_the_documents(desk: Desk) -> None:
    job_id = await schedule(desk, cron="30 9 * * *", tz="Europe/Berlin")
    record = desk.record(job_id)
    assert record["schedule"] == {"cron": "30 9 * * *", "timezone": "Europe/Berlin"}
    assert desk.status(job_id) == "cron"
    due = datetime.fromtimestamp(next_of(desk, job_id) / 1000, UTC)
    assert (due.hour, due.minute) == (8, 30)


async def test_1_a_due_time_fires_once_and_the_schedule_moves_on(desk: Desk) -> None:
    job_id = await schedule(desk)
    due = next_of(desk, job_id)
    keeper = CronKeeper(desk.broker(), "s1")
    assert await keeper.tick() == 0
    desk.clock.now = due
    assert await keeper.tick() == 1
    assert await keeper.tick() == 0
    assert fired(desk) == [(job_id, due)]
    assert next_of(desk, job_id) == due + HOUR
    (job,) = await desk.claim()
    assert job.id != job_id
    assert job.payload == b'{"n":1}'
    assert job.schedule_id == job_id


async def test_1_a_second_reader_fires_nothing(desk: Desk) -> None:
    job_id = await schedule(desk)
    desk.clock.now = next_of(desk, job_id)
    keeper = CronKeeper(desk.broker(), "s1")
    await keeper.lead()
    read = await keeper._due()
    assert await keeper._fire(read) == 1
    assert await keeper._fire(read) == 0
    assert len(desk.waiting()) == 1


async def test_one_leads_and_an_old_term_is_refused(desk: Desk) -> None:
    job_id = await schedule(desk)
    desk.clock.now = next_of(desk, job_id)
    first, second = CronKeeper(desk.broker(), "s1"), CronKeeper(desk.broker(worker="w2"), "s2")
    assert await first.lead()
    assert not await second.lead()
    assert desk.store.get("bridge:scheduler:lock") == "s1"
    assert 9 < desk.store.ttl("bridge:scheduler:lock") <= 30
    read = await first._due()
    desk.store.delete("bridge:scheduler:lock")  # it slept for too long
    assert await second.tick() == 1
    assert await first._fire(read) == -1
    # It leads again later, but does not fire the times that it read in its old term.
    await second.resign()
    old = first.term
    assert await first.lead()
    assert first.term > old
    assert len(desk.waiting()) == 1


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", [0]), ("once", [-5, 0]), ("all", [-5, -4, -3, -2, -1, 0])],
)
async def test_missed_firings_follow_the_missed_policy(desk: Desk, missed: str, expected: list[int]) -> None:
    job_id = await schedule(desk, missed=missed)
    due = next_of(desk, job_id)
    now = desk.clock.now = due + 5 * HOUR + 1000
    assert await CronKeeper(desk.broker(), "s1").tick() == len(expected)
    assert fired(desk) == [(job_id, due + (5 + hours) * HOUR) for hours in expected]
    assert next_of(desk, job_id) == due + 6 * HOUR > now


async def test_all_missed_firings_come_in_one_look(desk: Desk) -> None:
    """It takes several calls, each of which blocks the server only for a moment."""
    several = [await schedule(desk, f"s{n}", "* * * * *", missed="all") for n in range(3)]
    due = next_of(desk, several[0])
    desk.clock.now = due + 99 * MINUTE
    desk.store.config_resetstat()
    assert await CronKeeper(desk.broker(), "s1").tick() == 300
    assert fired(desk) == sorted((one, due + n * MINUTE) for one in several for n in range(100))
    stats = desk.store.info("commandstats")
    assert (
        sum(one["calls"] for name, one in stats.items() if name.startswith("cmdstat_eval")) >= 300 / FIRINGS
    )


def test_many_missed_firings_come_in_parts() -> None:
    every = Schedule.build(cron="* * * * *", tz="UTC")
    start = 1_700_000_040_000
    times, following = due_times(every, start, start + DAY, "all")
    assert len(times) == FIRINGS
    assert following == times[-1] + MINUTE
    times, following = due_times(every, start, start + DAY, "once")
    assert times == [start, start + DAY]
    assert following == start + DAY + MINUTE
    assert LATE < MINUTE


async def test_a_firing_may_be_left_out_while_the_last_one_runs(desk: Desk) -> None:
    job_id = await schedule(desk, overlap="skip")
    keeper = CronKeeper(desk.broker(), "s1")
    desk.clock.now = next_of(desk, job_id)
    assert await keeper.tick() == 1
    desk.clock.now += HOUR
    assert await keeper.tick() == 0, "it waits still"
    (job,) = await desk.claim()
    desk.clock.now += HOUR
    assert await keeper.tick() == 0, "it runs"
    await desk.end(job)
    desk.clock.now += HOUR
    assert await keeper.tick() == 1
    assert desk.store.hget(f"bridge:ox:schedule:{job_id}", "skipped") == "2"


async def test_one_firing_may_wait_for_the_last_one(desk: Desk) -> None:
    job_id = await schedule(desk, overlap="queue")
    keeper = CronKeeper(desk.broker(), "s1")
    desk.clock.now = next_of(desk, job_id)
    assert await keeper.tick() == 1
    (job,) = await desk.claim()
    for made in (1, 0):
        desk.clock.now += HOUR
        assert await keeper.tick() == made
    assert await desk.claim() == []
    await desk.end(job, "f", value=b"boom")
    assert len(await desk.claim()) == 1, "however it ended"


async def test_firings_run_beside_each_other_otherwise(desk: Desk) -> None:
    job_id = await schedule(desk)
    keeper = CronKeeper(desk.broker(), "s1")
    desk.clock.now = next_of(desk, job_id)
    for _ in range(3):
        assert await keeper.tick() == 1
        desk.clock.now += HOUR
    assert len(await desk.claim(9)) == 3


async def test_the_same_schedule_keeps_its_time_and_another_does_not(desk: Desk) -> None:
    job_id = await schedule(desk)
    due = next_of(desk, job_id)
    desk.clock.now = due + 5
    assert await schedule(desk) == job_id
    assert next_of(desk, job_id) == due, "the firing that is due is not lost"
    await schedule(desk, cron="30 * * * *")
    assert next_of(desk, job_id) == due + HOUR // 2


async def test_looking_and_removing(desk: Desk) -> None:
    store = desk.broker().schedules
    job_id = await schedule(desk, "daily", "0 0 * * *")
    await schedule(desk, "hourly")
    await desk.broker("video").schedules.upsert(
        "other", Schedule.build(cron="0 * * * *"), "video", b"{}", DEFAULTS["bridge"]
    )
    assert [one.id for one in await store.page(0, 9)] == ["hourly", "daily"]
    assert await store.count() == 2
    one = await store.get("daily")
    assert one is not None
    assert (one.name, one.data, one.schedule.cron, one.runs) == ("email", {"n": 1}, "0 0 * * *", 0)
    assert await store.remove("daily")
    assert not await store.remove("daily")
    assert [key for key in desk.store.scan_iter() if job_id in key] == []


async def test_invalid_schedules_are_refused_before_any_write(desk: Desk) -> None:
    store = desk.broker().schedules
    with pytest.raises(ValidationError, match="missed"):
        await schedule(desk, missed="later")
    with pytest.raises(ValidationError, match="overlap"):
        await schedule(desk, overlap="maybe")
    with pytest.raises(NotSupported):
        await store.upsert("x", Schedule.build(every="1s"), "email", b"{}", DEFAULTS["bridge"])
    assert list(desk.store.scan_iter()) == []


async def test_a_schedule_of_another_client_fires(desk: Desk) -> None:
    desk.foreign("theirs", push="", schedule={"cron": "* * * * *", "timezone": "America/New_York"})
    desk.store.zadd(
        "bridge:jobs:cron", {"theirs": desk.clock.now - 0.25}
    )  # as a client with such a clock writes
    assert await CronKeeper(desk.broker(), "s1").tick() == 1
    (job,) = await desk.claim(9)
    assert desk.record(job.id)["ox"] == {"schedule": "theirs", "due": desk.clock.now - 1}
    assert desk.store.zscore("bridge:jobs:cron", "theirs") % MINUTE == 0


@pytest.mark.parametrize(
    ("member", "fires"),
    [
        ({"ox": {"corr": "\ud83d"}}, True),
        ({"ox": {"scheduler": "\ud83d"}}, True),
        ({"metadata": {"note": "\ud83d"}}, True),
        ({"ox": {"start": 10**30}}, False),
        ({"schedule": {"cron": "* * * * *", "timezone": "Europe/Berlin"}, "ox": {"start": 10**30}}, False),
    ],
    ids=["correlation id", "name", "tag", "start", "start in a zone"],
)
async def test_an_odd_schedule_ends_no_worker_and_stops_no_other_schedule(
    desk: Desk, member: dict[str, Any], fires: bool
) -> None:
    ours = await schedule(desk, cron="* * * * *")
    desk.foreign("odd", push="", **{"schedule": {"cron": "* * * * *"}, **member})
    due = next_of(desk, ours)
    desk.store.zadd("bridge:jobs:cron", {"odd": due})
    desk.clock.now = due
    keeper = CronKeeper(desk.broker(), "s1")
    assert await keeper.tick() == 1 + fires
    assert [one for one, _ in fired(desk)] == sorted([ours, *["odd"] * fires])
    assert await keeper.tick() == 0
    assert next_of(desk, "odd") == due + MINUTE, "it is looked at again"


async def test_a_schedule_that_only_others_understand_stays(desk: Desk) -> None:
    ours = await schedule(desk, cron="* * * * *")
    desk.clock.now = next_of(desk, ours)
    desk.foreign("broken", push="", schedule={"cron": "whenever"})
    desk.foreign("nowhere", push="", schedule={"cron": "* * * * *", "timezone": "Nowhere/Land"})
    desk.foreign("none", push="", schedule={})
    records = {one: desk.record(one) for one in ("broken", "nowhere", "none")}
    desk.store.zadd("bridge:jobs:cron", dict.fromkeys([*records, "gone"], 5))
    keeper = CronKeeper(desk.broker(), "s1")
    assert await keeper.tick() == 1, "they do not block others"
    assert desk.store.zscore("bridge:jobs:cron", "gone") is None, "it has no record"
    for one, record in records.items():
        assert desk.store.zscore("bridge:jobs:cron", one) == desk.clock.now + MINUTE
        assert desk.record(one) == record
    assert await keeper.tick() == 0


@pytest.mark.parametrize("score", ["-inf", "+inf", "-1e300"])
async def test_any_score_is_read(desk: Desk, score: str) -> None:
    desk.foreign("theirs", push="", schedule={"cron": "0 0 * * *"})
    desk.store.zadd("bridge:jobs:cron", {"theirs": score})
    assert len(await desk.broker().schedules.page(0, 9)) == 1
    assert await CronKeeper(desk.broker(), "s1").tick() == (score != "+inf")


async def test_a_schedule_that_is_over_leaves_nothing(desk: Desk) -> None:
    times = Schedule.build(cron="* * * * *", end=desk.clock.now + 2 * MINUTE)
    await desk.broker().schedules.upsert("s", times, "email", b"{}", DEFAULTS["bridge"])
    made = 0
    for _ in range(4):
        desk.clock.now += MINUTE
        made += await CronKeeper(desk.broker(), "s1").tick()
    assert made == 2
    assert desk.store.zcard("bridge:jobs:cron") == 0
    assert desk.store.keys("bridge:ox:schedule:*") == []


async def test_a_schedule_whose_own_id_was_run_stays_a_schedule(desk: Desk) -> None:
    """The document's scheduler pushes the schedule's id itself."""
    job_id = await schedule(desk)
    desk.store.rpush("bridge:jobs:waiting", job_id)
    (job,) = await desk.claim()
    assert job.id == job_id
    await desk.end(job)
    assert desk.store.ttl(f"bridge:jobs:data:{job_id}") == -1
    assert desk.status(job_id) == "cron"


@pytest.mark.slow
async def test_a_worker_fires_what_is_due(make_queue: MakeQueue, store: redis.Redis) -> None:
    queue: Queue = make_queue("email", protocol="bridge")
    ran: list[str] = []
    queue.fallback(lambda job: ran.append(job.name))
    await queue.schedules.upsert("often", cron="* * * * * *", name="tick", overlap="skip")
    async with Worker(queue, concurrency=2).running():
        await eventually(lambda: len(ran) >= 2, "it fired twice")
        listed = await queue.schedules.list()
        assert [one.id for one in listed] == ["often"]
        assert store.get("bridge:scheduler:lock") is not None
        await queue.schedules.remove("often")
    assert set(ran) == {"tick"}
    assert store.get("bridge:scheduler:lock") is None, "another may lead at once"


# -- every due time, over both changes of the clocks, with leaders that die

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")
SPANS = (
    (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 3, 29, 6, tzinfo=UTC)),
    (datetime(2026, 10, 24, 20, tzinfo=UTC), datetime(2026, 10, 25, 6, tzinfo=UTC)),
)


def expressions(seed: int) -> Iterator[tuple[str, str]]:
    rand = random.Random(seed)
    while True:
        hour = rand.choice(["0", "1", "2", "3", "*/2", "*/3", "22-23", "1-2"])
        yield f"{rand.randrange(0, 60, 5)} {hour} * * *", rand.choice(ZONES)


@cache
def due_between(cron: str, tz: str, start: int, end: int) -> list[int]:
    times, at = [], Schedule(cron=cron, tz=tz).following(start)
    while at is not None and at <= end:
        times.append(at)
        at = Schedule(cron=cron, tz=tz).following(at)
    return times


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_every_due_time_fires_exactly_once(url: str, store: redis.Redis) -> None:
    """Over both clock changes of a year, with three leaders killed after they read the due times."""
    now = [0]
    names = count()

    def keeper() -> CronKeeper:
        broker = BridgeBroker(Server(url), "email", clock=lambda: now[0])
        brokers.append(broker)
        return CronKeeper(broker, f"s{next(names)}", leads=LEADS)

    brokers: list[BridgeBroker] = []
    producer = BridgeBroker(Server(url), "email", clock=lambda: now[0])
    brokers.append(producer)
    expected: Counter[tuple[str, int]] = Counter()
    made: Counter[tuple[str, int]] = Counter()
    kills = 3
    for begin, end in SPANS:
        first, last = int(begin.timestamp() * 1000), int(end.timestamp() * 1000)
        now[0] = first
        store.flushall()
        for number, (cron, tz) in zip(range(SCHEDULES // 2), expressions(first), strict=False):
            one = await producer.schedules.upsert(
                str(number), Schedule(cron=cron, tz=tz), "email", b"{}", DEFAULTS["bridge"], missed="all"
            )
            assert one is not None
            expected.update((one, due) for due in due_between(cron, tz, first, last))
        leader, other = keeper(), keeper()
        while now[0] < last:
            now[0] = min(last, now[0] + 17 * MINUTE)
            if kills and now[0] > first + (4 - kills) * HOUR:
                kills -= 1
                # Killed between its look and its call; its call arrives long after another leads.
                await eventually(leader.lead, "it leads")
                read = await leader._due()
                assert read
                await eventually(other.lead, "another leads")
                await other.tick()
                assert await leader._fire(read) == -1
                leader, other = other, keeper()
            else:
                await eventually(leader.lead, "it leads")
                await leader.tick()
                await other.tick()
        while store.zcount("bridge:jobs:cron", "-inf", last):  # whose leader ended in the middle of it
            await other.tick()
            await leader.tick()
        made.update(_made(store))
    for broker in brokers:
        await broker.close()
    assert kills == 0
    assert sum(expected.values()) > SCHEDULES
    assert made == expected
    assert set(made.values()) == {1}


def _made(store: redis.Redis) -> Iterator[tuple[str, int]]:
    any_store: object = store
    ids = any_store.lrange("bridge:jobs:waiting", 0, -1)  # type: ignore[attr-defined]
    for start in range(0, len(ids), 1000):
        keys = [f"bridge:jobs:data:{job_id}" for job_id in ids[start : start + 1000]]
        for raw in any_store.mget(keys):  # type: ignore[attr-defined]
            ox = json.loads(raw)["ox"]
            yield ox["schedule"], ox["due"]


async def test_every_run_of_a_schedules_own_id_has_all_its_attempts(desk: Desk) -> None:
    job_id = await schedule(desk)
    runs = []
    for _ in range(4):
        desk.store.rpush("bridge:jobs:waiting", job_id)
        desk.clock.now += 2000
        (job,) = await desk.claim()
        runs.append(job.attempts_made)
        await desk.end(job)
    assert runs == [0] * 4
    assert await desk.broker().schedules.remove("s")
    assert [key for key in desk.store.scan_iter() if job_id in key and "result" not in key] == []


async def test_a_dead_run_of_a_schedule_may_go_and_the_schedule_stays(desk: Desk) -> None:
    job_id = await schedule(desk)
    desk.store.rpush("bridge:jobs:waiting", job_id)
    (job,) = await desk.claim()
    await desk.end(job, "f", value=b"x", category="permanent")
    assert desk.store.lrange("bridge:jobs:deadletter", 0, -1) == [job_id]
    await desk.broker().remove_job(job_id)
    assert desk.store.llen("bridge:jobs:deadletter") == 0
    assert desk.status(job_id) == "cron"
    assert desk.record(job_id)["schedule"]["cron"] == "0 * * * *"
    assert desk.store.zscore("bridge:jobs:cron", job_id) is not None
    await desk.broker().remove_job(job_id)
    assert desk.store.zscore("bridge:jobs:cron", job_id) is None
