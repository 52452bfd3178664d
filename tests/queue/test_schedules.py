"""Schedules on a real server: what is written, what follows, and how a worker fires them."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.errors import JobError, SchedulerOwned, ValidationError
from oxcart.model.schedule import Schedule
from oxcart.sync import Queue as SyncQueue
from tests.signals import eventually

NOW = 1_700_000_040_000
HOUR = 3_600_000


class Desk:
    """A queue whose clock the test sets."""

    def __init__(self, queue: Queue, store: redis.Redis) -> None:
        self.now = NOW
        self.store = store
        self.broker = BullMQBroker(queue._core.server, queue.name, clock=lambda: self.now)

    async def upsert(self, schedule: Schedule, key: str = "s", data: bytes = b"{}", **options: Any) -> str:
        run = await self.broker.schedules.write(key, schedule, "job", data, options)
        assert run is not None
        return run[0]

    async def claim(self) -> str:
        """Claims the next job and adds the next run, as a worker does. Returns the id of that run."""
        (job,) = (await self.broker.claim(Ask())).jobs
        self.held = job
        (made,) = await self.broker.schedules.advance([job])
        assert isinstance(made, str), made
        return made

    async def complete(self) -> None:
        await self.broker.finish(
            [Outcome(OutcomeKind.COMPLETED, self.held.id, self.held.token, -1, self.now, b"null")]
        )

    def next_ms(self, key: str = "s") -> int | None:
        score = self.store.zscore("bull:q:repeat", key)
        return None if score is None else int(score)

    def waiting(self) -> list[Any]:
        places = [self.store.zrange("bull:q:delayed", 0, -1), self.store.lrange("bull:q:wait", 0, -1)]
        return [one for place in places for one in place]


@pytest.fixture
async def desk(queue: Queue, store: redis.Redis) -> Any:
    desk = Desk(queue, store)
    yield desk
    await desk.broker.close()


class TestIntervals:
    async def test_the_first_run_is_now_and_each_next_an_interval_later(self, desk: Desk) -> None:
        assert await desk.upsert(Schedule(every=60_000)) == f"repeat:s:{NOW}"
        assert await desk.claim() == f"repeat:s:{NOW + 60_000}"
        assert desk.waiting() == [f"repeat:s:{NOW + 60_000}"]

    async def test_runs_that_were_missed_are_left_out_and_the_slots_kept(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=60_000, offset=20_000))
        desk.now = desk.next_ms() or 0  # :20
        await desk.claim()
        await desk.complete()
        desk.now += 5 * 60_000 + 50_000  # at :10, long after the next was due
        assert await desk.claim() == f"repeat:s:{NOW + 6 * 60_000 + 20_000}"

    async def test_an_offset_counts_from_a_multiple_of_the_interval(self, desk: Desk) -> None:
        at = NOW // HOUR * HOUR + 5 * 60_000
        at += HOUR if at <= NOW else 0
        assert await desk.upsert(Schedule(every=HOUR, offset=5 * 60_000)) == f"repeat:s:{at}"

    async def test_a_start_in_the_future_is_the_first_run(self, desk: Desk) -> None:
        assert await desk.upsert(Schedule(every=60_000, start=NOW + 5_000)) == f"repeat:s:{NOW + 5_000}"

    async def test_slots_that_are_taken_are_passed_over(self, desk: Desk, store: redis.Redis) -> None:
        for slot in range(3):
            store.hset(f"bull:q:repeat:s:{NOW + slot * 60_000}", "name", "of an older life")
        assert await desk.upsert(Schedule(every=60_000)) == f"repeat:s:{NOW + 180_000}"


class TestCron:
    async def test_each_run_follows_the_pattern_in_its_zone(self, desk: Desk) -> None:
        desk.now = int(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
        await desk.upsert(Schedule(cron="30 2 * * *", tz="Europe/Berlin"))
        times = []
        for _ in range(3):
            desk.now = desk.next_ms() or 0
            times.append(f"{datetime.fromtimestamp(desk.now / 1000, UTC):%d %H:%M}")
            await desk.claim()
            await desk.complete()
        assert times == ["28 01:30", "29 01:30", "30 00:30"]

    async def test_immediately_makes_the_first_run_now_and_only_that(self, desk: Desk) -> None:
        assert await desk.upsert(Schedule(cron="0 * * * *", tz="UTC", immediately=True)) == f"repeat:s:{NOW}"
        assert await desk.claim() == f"repeat:s:{NOW // HOUR * HOUR + HOUR}"

    async def test_a_time_that_is_taken_is_followed_by_the_next(self, desk: Desk, store: redis.Redis) -> None:
        await desk.upsert(Schedule(cron="* * * * *", tz="UTC"))
        desk.now = desk.next_ms() or 0
        store.hset(f"bull:q:repeat:s:{desk.now + 60_000}", "name", "of an older life")
        assert await desk.claim() == f"repeat:s:{desk.now + 120_000}"

    async def test_nothing_follows_after_the_limit_or_the_end(self, desk: Desk) -> None:
        await desk.upsert(Schedule(cron="* * * * *", tz="UTC", limit=2))
        await desk.upsert(Schedule(cron="* * * * *", tz="UTC", end=NOW + 90_000), "ending")
        desk.now += 60_000
        assert {(await desk.claim())[:9], (await desk.claim())[:9]} == {"repeat:s:", ""}
        desk.now += 60_000
        assert await desk.claim() == ""
        assert desk.waiting() == []


class TestRepeatables:
    async def test_the_next_run_is_due_on_time_though_its_call_came_late(
        self, queue: Queue, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A repeatable job of the old kind; the call waits for a server that is down for a moment."""
        broker, key = BullMQBroker(queue._core.server, queue.name), "name:::UTC:0 0 * * *"
        repeat = {"pattern": "0 0 * * *", "tz": "UTC", "count": 1}
        fields = {b"name": b"name", b"data": b"{}", b"opts": json.dumps({"repeat": repeat}).encode()}
        store.zadd("bull:q:repeat", {key: 1})
        store.hset("bull:q:repeat:x:1", mapping={"name": "name"})
        await broker.now()
        send = broker.caller.link.call_packed

        async def late(*call: Any) -> Any:
            await asyncio.sleep(0.5)
            return await send(*call)

        monkeypatch.setattr(broker.caller.link, "call_packed", late)
        monkeypatch.setattr(broker.caller.link, "send", lambda *_: None)  # as before a connection is made
        claim = BullMQClaim("repeat:x:1", "", 1, 0, fields | {b"rjk": key.encode()})
        (made,) = await broker.schedules.advance([claim])
        delayed: Any = store.zrange("bull:q:delayed", 0, -1, withscores=True)
        ((run, score),) = delayed
        assert run == made
        assert abs(int(score) // 4096 - int(str(made).rpartition(":")[2])) < 100
        await broker.close()


class TestExactlyOnce:
    async def test_only_the_current_run_adds_the_next(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=60_000))
        await desk.claim()
        claim = desk.held
        assert await desk.broker.schedules.advance([claim, claim]) == ["", ""]
        assert desk.waiting() == [f"repeat:s:{NOW + 60_000}"]
        assert desk.store.hget("bull:q:repeat:s", "ic") == "2"

    async def test_a_waiting_run_counts_as_the_next(self, desk: Desk, store: redis.Redis) -> None:
        await desk.upsert(Schedule(every=60_000))
        await desk.claim()
        store.zadd("bull:q:repeat", {"s": NOW})  # as a peer killed half-way leaves it
        claim = desk.held
        assert await desk.broker.schedules.advance([claim]) == [""]
        assert desk.next_ms() == NOW + 60_000

    @pytest.mark.slow
    async def test_a_run_whose_worker_died_before_adding_the_next_is_recovered(self, queue: Queue) -> None:
        @queue.job
        async def tick() -> str:
            return "run by another"

        job = await queue.schedules.upsert("s", every="1h", name="tick")
        assert (await queue._core.broker.claim(Ask(lock_ms=1))).jobs[0].id == job.id
        async with Worker(queue, stalled_interval="50ms").running():
            assert await job.result(timeout=20) == "run by another"
        found = await queue.schedules.get("s")
        assert found is not None
        assert found.runs == 2

    async def test_the_run_of_a_removed_schedule_is_the_last(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=60_000))
        assert await desk.broker.schedules.remove("s") is True
        assert await desk.claim() == ""
        assert await desk.broker.schedules.remove("s") is False


class TestUpsert:
    async def test_setting_the_same_schedule_keeps_the_time_of_a_waiting_run(self, desk: Desk) -> None:
        schedule = Schedule(cron="0 * * * *", tz="UTC")
        first = await desk.upsert(schedule)
        desk.now = (desk.next_ms() or 0) + 10  # due, not yet claimed
        assert await desk.upsert(schedule, data=b'{"new": 1}') == first
        assert json.loads(desk.store.hget(f"bull:q:{first}", "data")) == {"new": 1}  # type: ignore[arg-type]
        assert desk.waiting() == [first]

    async def test_changed_schedule_applies_at_once(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=24 * HOUR, offset=HOUR))
        assert await desk.upsert(Schedule(every=60_000)) == f"repeat:s:{NOW}"
        assert (
            await desk.upsert(Schedule(cron="* * * * *", tz="UTC"))
            == f"repeat:s:{NOW // 60_000 * 60_000 + 60_000}"
        )
        assert len(desk.waiting()) == 1
        assert desk.store.hget("bull:q:repeat:s", "every") is None

    async def test_a_refused_upsert_changes_nothing(self, desk: Desk, store: redis.Redis) -> None:
        await desk.upsert(Schedule(cron="0 * * * *", tz="UTC"))
        before = store.hgetall("bull:q:repeat:s"), desk.waiting()
        store.hset(f"bull:q:repeat:s:{NOW}", "name", "of an older life")
        with pytest.raises(JobError, match="already exists"):
            await desk.upsert(Schedule(cron="* * * * *", tz="UTC", immediately=True))
        assert (store.hgetall("bull:q:repeat:s"), desk.waiting()) == before

    async def test_an_upsert_while_a_run_is_active_makes_the_one_after_it(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=60_000))
        await desk.claim()
        desk.now += 1_000
        assert await desk.upsert(Schedule(every=60_000)) == f"repeat:s:{NOW + 60_000}"
        assert desk.waiting() == [f"repeat:s:{NOW + 60_000}"]


class TestFace:
    async def test_a_schedule_is_read_as_it_was_set(self, queue: Queue) -> None:
        job = await queue.schedules.upsert(
            "nightly",
            cron="0 3 * * *",
            tz="Europe/Berlin",
            start="2098-01-01T00:00:00+00:00",  # later than the other at any hour
            end="2099-01-01T00:00:00+00:00",
            limit=5,
            name="report",
            data={"kind": "sales"},
            attempts=7,
            priority=2,
        )
        await queue.schedules.upsert("poll", every="30s", offset="10s")
        found = await queue.schedules.get("nightly")
        assert found is not None
        assert (found.name, found.data, found.options["attempts"], found.runs) == (
            "report",
            {"kind": "sales"},
            7,
            1,
        )
        assert (found.schedule.cron, found.schedule.tz, found.schedule.limit) == (
            "0 3 * * *",
            "Europe/Berlin",
            5,
        )
        assert found.next_job_id == job.id
        assert not found.legacy
        assert [one.id for one in await queue.schedules.list()] == ["poll", "nightly"]
        assert [one.id for one in await queue.schedules.list(latest=True, limit=1)] == ["nightly"]
        assert await queue.schedules.count() == 2
        run = await job.get()
        assert (run.scheduler_id, run.priority, await job.state()) == ("nightly", 2, "delayed")
        with pytest.raises(SchedulerOwned):
            await job.remove()
        assert await queue.schedules.remove("nightly") is True
        assert await queue.schedules.get("nightly") is None
        assert await queue.jobs.get(job.id) is None

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "either every or cron"),
            ({"every": 1, "cron": "* * * * *"}, "either every or cron"),
            ({"cron": "61 * * * *"}, "minute from 0 to 59"),
            ({"cron": "* * * * *", "tz": "Nowhere/Else"}, "Nowhere/Else"),
            ({"cron": "0 0 31 4,6 *"}, "fires before its end"),
            ({"every": 1, "end": "2001-01-01T00:00:00Z"}, "fires before its end"),
            ({"every": 1, "start": "2030-01-01"}, "time zone"),
            ({"every": 0}, "every"),
            ({"every": "1m", "offset": "1m"}, "less than every"),
            ({"cron": "* * * * *", "offset": 1}, "with every alone"),
            ({"every": 1, "limit": 0}, "limit"),
            ({"every": 1, "immediately": True}, "immediately"),
            ({"every": 1, "delay": 5}, "delay"),
            ({"every": 1, "job_id": "x"}, "job_id"),
        ],
    )
    async def test_an_invalid_schedule_is_refused_before_any_write(
        self, queue: Queue, store: redis.Redis, given: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValidationError, match=message):
            await queue.schedules.upsert("s", **given)
        assert store.keys() == []

    async def test_an_id_that_peers_take_for_a_repeatable_job_is_refused(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="scheduler id"):
            await queue.schedules.upsert("a:b:c:d:e", every=1)

    def test_without_await(self, url: str) -> None:
        queue = SyncQueue("q", url=url)
        job = queue.schedules.upsert("s", every="1h", start=4_000_000_000_000)
        assert job.id == "repeat:s:4000000000000"
        found = queue.schedules.get("s")
        assert found is not None
        assert found.next_at.year == 2096
        assert [one.id for one in queue.schedules.list()] == ["s"]
        assert queue.schedules.count() == 1
        assert queue.schedules.remove("s")
        queue.close()


class TestWorkers:
    async def test_runs_are_made_and_run_one_after_another(self, queue: Queue, store: redis.Redis) -> None:
        ran: list[tuple[str, Any]] = []

        @queue.job
        async def tick(job: Any, n: int) -> None:
            ran.append((job.id, n))

        await queue.schedules.upsert("s", every="50ms", name="tick", data={"n": 1}, limit=5, timeout="9s")
        async with Worker(queue).running():
            await eventually(lambda: len(ran) == 5, "five runs")
        assert len({job_id for job_id, _ in ran}) == 5
        assert {n for _, n in ran} == {1}
        assert store.hget("bull:q:repeat:s", "ic") == "5"
        assert {store.hget(f"bull:q:{job_id}", "ox:timeout") for job_id, _ in ran} == {"9000"}
        assert (await queue.counts())["delayed"] == 0

    async def test_a_retried_run_adds_no_second_next(self, queue: Queue) -> None:
        ran: list[int] = []

        @queue.job(attempts=3, backoff={"type": "fixed", "delay": "1ms"})
        async def tick(job: Any) -> None:
            ran.append(job.attempt)
            raise RuntimeError("no")

        await queue.schedules.upsert("s", every="1h", name="tick", attempts=3, backoff="1ms")
        async with Worker(queue).running():
            await eventually(lambda: ran == [1, 2, 3], "three attempts")
        found = await queue.schedules.get("s")
        assert found is not None
        assert found.runs == 2

    async def test_a_run_without_a_handler_does_not_stop_its_schedule(self, queue: Queue) -> None:
        await queue.schedules.upsert("s", every="1h", name="unknown")
        async with Worker(queue).running() as worker:
            await eventually(lambda: worker.processed == 1, "put off")
        found = await queue.schedules.get("s")
        assert found is not None
        assert found.runs == 2

    async def test_a_run_whose_next_cannot_be_added_is_delayed_and_logged(
        self, queue: Queue, store: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        ran = asyncio.Event()

        @queue.job
        async def tick() -> None:
            ran.set()

        job = await queue.schedules.upsert("s", cron="* * * * *", name="tick", immediately=True)
        opts = json.loads(store.hget(f"bull:q:{job.id}", "opts"))  # type: ignore[arg-type]
        opts["repeat"]["pattern"] = "not a pattern"
        store.hset(f"bull:q:{job.id}", "opts", json.dumps(opts))
        with caplog.at_level(logging.ERROR, "oxcart.worker"):
            async with Worker(queue).running() as worker:
                await eventually(lambda: worker.processed == 1, "put off")
        assert await job.state() == "delayed"
        assert (await job.get()).attempts_made == 0
        assert not ran.is_set()
        assert "next run of schedule s could not be made" in caplog.text

    async def test_stopped_worker_returns_runs_and_keeps_their_schedule(self, queue: Queue) -> None:
        held = asyncio.Event()

        @queue.job
        async def tick() -> None:
            held.set()
            await asyncio.sleep(60)

        job = await queue.schedules.upsert("s", every="1h", name="tick")
        async with Worker(queue, shutdown_timeout=0).running():
            await held.wait()
        assert await job.state() == "waiting"
        found = await queue.schedules.get("s")
        assert found is not None
        assert found.runs == 2


class TestPaused:
    async def test_runs_by_interval_keep_their_offset(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=HOUR, offset=300_000))
        assert await desk.broker.schedules.pause("s")
        assert desk.waiting() == []
        desk.now += 5 * HOUR
        assert await desk.broker.schedules.resume("s")
        due = NOW - NOW % HOUR + 5 * HOUR + 300_000
        due += HOUR if due <= desk.now else 0
        assert desk.next_ms() == due
        assert desk.waiting() == [f"repeat:s:{due}"]

    @pytest.mark.parametrize(
        "spoiled",
        [{"every": "often"}, {"every": "0"}, {"every": "nan"}, {"offset": "inf"}, {"startDate": "inf"}],
    )
    async def test_a_record_that_a_peer_spoiled_has_no_next_run(
        self, desk: Desk, store: redis.Redis, spoiled: dict[str, str]
    ) -> None:
        await desk.upsert(Schedule(every=HOUR))
        assert await desk.broker.schedules.pause("s")
        for field, value in spoiled.items():
            store.hset("bull:q:repeat:s", field, value)
        before = desk.waiting()
        assert not await desk.broker.schedules.resume("s")
        assert desk.waiting() == before

    async def test_a_due_run_is_the_last_until_it_is_resumed(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=HOUR))
        desk.now += 1
        assert await desk.broker.schedules.pause("s")
        assert await desk.claim() == ""
        await desk.complete()
        assert desk.waiting() == []
        assert await desk.broker.schedules.resume("s")
        assert len(desk.waiting()) == 1
        found = await desk.broker.schedules.get("s")
        assert found is not None
        assert (found.runs, found.fired) == (2, 1)

    async def test_runs_are_counted_against_the_limit(self, desk: Desk) -> None:
        await desk.upsert(Schedule(every=HOUR, limit=2))
        await desk.claim()
        await desk.complete()
        await desk.broker.schedules.pause("s")
        await desk.broker.schedules.resume("s")
        desk.now += 2 * HOUR
        assert await desk.claim() == ""
        await desk.complete()
        await desk.broker.schedules.pause("s")
        with pytest.raises(ValidationError, match="fires before its end"):
            await desk.broker.schedules.resume("s")

    async def test_fields_and_options_of_runs_stay(self, desk: Desk) -> None:
        run = await desk.upsert(Schedule(cron="0 7 * * *"), data=b'{"a":1}', attempts=7, priority=3)
        kept = desk.store.hgetall(f"bull:q:{run}")
        await desk.broker.schedules.pause("s")
        await desk.broker.schedules.resume("s")
        again = desk.store.hgetall(f"bull:q:{run}")
        assert json.loads(again.pop("opts")) == json.loads(kept.pop("opts"))
        assert again == kept

    async def test_a_repeatable_job_cannot_be_paused(self, desk: Desk) -> None:
        with pytest.raises(ValidationError, match="repeatable job"):
            await desk.broker.schedules.pause("name:::UTC:* * * * *")
