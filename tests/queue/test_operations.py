"""Operations on a whole queue through the public API: states, bounds, errors, and without await."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
import redis

from oxcart import Queue, sync
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.strays import remove_strays
from oxcart.jobs import CLEANABLE, Progress
from oxcart.model.errors import OxcartError, QueueBusy, ValidationError
from oxcart.model.state import State
from oxcart.testing import drain, inline
from tests.conftest import MakeQueue
from tests.whole_queue import fill

OPERATIONS = [
    "events.publish",
    "events.trim",
    "jobs.clean",
    "jobs.clear",
    "jobs.counts_per_priority",
    "jobs.metrics",
    "jobs.obliterate",
    "jobs.promote_all",
    "jobs.remove_orphans",
    "jobs.retry_all",
]
#: The keys of a queue that only Oxcart uses. The key of the lanes lists further queues.
OURS = sorted(
    name
    for name, value in vars(Keys).items()
    if inspect.isfunction(value) and "(ours" in (value.__doc__ or "") and name != "lanes"
)


async def fail(queue: Queue, count: int) -> None:
    def refuse() -> None:
        raise ValueError("no")

    queue.fallback(refuse)
    await queue.add_many([("n", None)] * count, attempts=1)
    await drain(queue)


class TestBadArguments:
    @pytest.mark.parametrize(
        ("operation", "arguments", "message"),
        [
            ("jobs.clean", {"state": "done"}, "state must be one of completed, failed, waiting, "),
            ("jobs.clean", {"state": "waiting-children"}, "state must be one of"),
            ("jobs.clean", {"grace": -1}, "grace must be at least 0"),
            ("jobs.clean", {"limit": 0}, "limit must be an integer, at least 1, got 0"),
            ("jobs.retry_all", {"state": "waiting"}, "state must be one of failed, completed"),
            ("jobs.retry_all", {"since": -5}, "since must be a duration back from now"),
            ("jobs.retry_all", {"until": datetime(2026, 1, 1)}, "until must be a time with a zone"),
            ("jobs.retry_all", {"limit": "all"}, "limit must be an integer"),
            ("jobs.retry_all", {"since": "soon"}, "since must be a duration back from now"),
            ("jobs.promote_all", {"until": "soon"}, "until must be a datetime with a zone"),
            ("jobs.promote_all", {"until": timedelta(hours=1)}, "until must be a datetime with a zone"),
            ("jobs.promote_all", {"limit": True}, "limit must be an integer"),
            (
                "jobs.counts_per_priority",
                {"priorities": [-1]},
                "priorities must be integers from 0 to 2097151",
            ),
            ("jobs.metrics", {"state": "waiting"}, "state must be one of failed, completed"),
            ("events.trim", {"keep": -1}, "keep must be an integer, at least 0"),
        ],
    )
    async def test_progress_is_reported(
        self, queue: Queue, operation: str, arguments: dict[str, Any], message: str, store: redis.Redis
    ) -> None:
        with pytest.raises(ValidationError, match=message):
            await attrgetter(operation)(queue)(**arguments)
        assert store.dbsize() == 0

    @pytest.mark.parametrize(
        ("name", "fields", "message"),
        [
            ("completed", {}, "event must be a name that the queue itself does not use, got 'completed'"),
            ("", {}, "event must be a name"),
            ("mine", {"event": "other"}, "event must be given once"),
            ("mine", {"x": object()}, "x must be something JSON can hold"),
            ("mine", {"keep_events": 0}, "keep_events must be an integer, at least 1"),
        ],
    )
    async def test_of_publish(self, queue: Queue, name: str, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            await queue.events.publish(name, **fields)

    @pytest.mark.parametrize("keep", [-1, "all"])
    async def test_of_clear_logs(self, queue: Queue, keep: Any) -> None:
        with pytest.raises(ValidationError, match="keep must be an integer, at least 0"):
            await queue.jobs.handle("a").clear_logs(keep)


class TestOperations:
    async def test_clean_by_age(self, queue: Queue) -> None:
        await fail(queue, 3)
        assert await queue.jobs.clean("failed", grace="1h") == 0
        assert await queue.jobs.clean("failed", limit=2) == 2
        assert await queue.jobs.clean("failed") == 1

    async def test_a_clean_that_removes_nothing_takes_few_calls(self, queue: Queue) -> None:
        """A call passes jobs that stay for as long as it may take: steps of 25 would be 200 calls."""
        await queue.add_many([("n", number) for number in range(5000)])
        calls: list[str] = []
        queue._core.broker.attach(holding=lambda: False, on_script=lambda verb, _: calls.append(verb))
        assert await queue.jobs.clean("waiting", grace="1h") == 0
        assert calls.count("sweep") < 100
        assert (await queue.counts())["waiting"] == 5000

    async def test_clean_of_waiting_jobs_looks_at_both_lists(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add_many([("n", None)] * 3)
        await queue.pause()
        store.rpush("bull:q:wait", "left-by-another-generation")
        reported: list[Progress] = []
        assert await queue.jobs.clean("waiting", limit=3, progress=reported.append) == 3
        assert reported[-1].done == 3
        assert (await queue.counts())["waiting"] == 1
        assert set(CLEANABLE) == {*await queue.counts()} - {"waiting-children"}

    async def test_retry_since_a_time(self, queue: Queue) -> None:
        await fail(queue, 3)
        assert await queue.jobs.retry_all(since=datetime.now(UTC) + timedelta(minutes=1)) == 0
        assert await queue.jobs.retry_all(until=datetime.now(UTC) - timedelta(minutes=1)) == 0
        assert await queue.jobs.retry_all(until=timedelta(minutes=1)) == 0
        assert (
            await queue.jobs.retry_all(since=datetime.now(UTC) - timedelta(minutes=1), limit=1, reset=True)
            == 1
        )
        assert await queue.jobs.retry_all(since="1m", reset=True) == 2
        assert (await queue.counts())["waiting"] == 3

    async def test_promote_those_due_within_an_hour(self, queue: Queue) -> None:
        await queue.add("n", delay="30m")
        await queue.add("n", delay="2h")
        assert await queue.jobs.promote_all(until=datetime.now(UTC) + timedelta(hours=1)) == 1
        assert await queue.jobs.promote_all() == 1

    async def test_obliterate(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add_many([("n", None)] * 3)
        store.lpush("bull:q:active", "busy")
        with pytest.raises(QueueBusy):
            await queue.jobs.obliterate()
        assert await queue.jobs.obliterate(force=True) == 4
        assert not any((await queue.counts()).values())

    async def test_obliterate_leaves_no_key(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue, other = make_queue(), make_queue("other")
        jobs = await fill(queue, other)
        store.hset("bull:q:orphan", mapping={"name": "n", "timestamp": 1, "opts": "{}"})
        store.set("bull:q:dead:lock", "token")
        store.rpush("bull:q:dead:logs", "row")
        store.hset("bull:q:repeat:lost", "name", "n")
        store.set("bull:q:ox:call:killed:0", "1:x")
        store.set("bull:q@all;c=gpu:ox:worker:killed", "{}")
        assert len(store.keys("bull:q*")) > 50
        assert await queue.jobs.obliterate() == jobs
        assert store.keys("bull:q*") == []
        (dependent,) = await other.jobs.list("failed")
        assert (dependent.name, dependent.state) == ("elsewhere", State.CANCELLED)

    @pytest.mark.parametrize("name", OURS)
    async def test_obliterate_removes_every_kind_of_key(
        self, queue: Queue, store: redis.Redis, name: str
    ) -> None:
        await queue.add("n")
        method = getattr(Keys("q"), name)
        key = method(*["x"] * len(inspect.signature(method).parameters))
        store.set(key, "nobody's")
        await queue.jobs.obliterate()
        assert store.keys("bull:q:*") == []

    async def test_obliterate_leaves_what_belongs_to_others(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        """These are a queue with this name as prefix, a queue with a longer name, and keys of a user."""
        queue = make_queue()
        await queue.add("n", idempotency_key="k")
        for one in (make_queue("r", prefix="bull:q"), make_queue("q2")):
            await one.add("n", idempotency_key="k", job_id="a")
        store.set("bull:q:own:thing", "x")
        before = {
            key: store.dump(key) for key in store.scan_iter() if key.startswith(("bull:q:r:", "bull:q2:"))
        }
        await queue.jobs.obliterate()
        assert {key: store.dump(key) for key in store.scan_iter() if key != "bull:q:own:thing"} == before

    @pytest.mark.parametrize("name", ["q@example.com", "q~gates2", "q*", "[q]?"])
    async def test_obliterate_leaves_queues_whose_names_begin_alike(
        self, make_queue: MakeQueue, store: redis.Redis, name: str
    ) -> None:
        """An address is not a lane. Its keys without a job guard ended jobs, and stay."""
        queue, other = make_queue(), make_queue(name)
        await queue.add("n")
        job = await other.add("n", idempotency_key="k")
        await other.jobs.remove(job.id)
        store.set(f"bull:{name}:ox:idem:1:n:ended", "gone")
        store.set(f"bull:{name}:ox:call:alive:0", "1:x")
        before = {key: store.dump(key) for key in store.scan_iter() if key.startswith(f"bull:{name}:")}
        await queue.jobs.obliterate()
        assert {key: store.dump(key) for key in store.scan_iter()} == before

    async def test_obliterate_of_a_name_with_wildcards_leaves_other_queues(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        queue, other = make_queue("[q]*?"), make_queue("qxy")
        for one in (queue, other):
            await one.add("n", idempotency_key="k")
        before = {key: store.dump(key) for key in store.scan_iter() if key.startswith("bull:qxy:")}
        await queue.jobs.obliterate()
        assert {key: store.dump(key) for key in store.scan_iter()} == before

    @pytest.mark.parametrize("job_id", ["repeat:daily:1700000000000", "de:a:b", "ox:a:b"])
    async def test_job_whose_id_looks_like_a_key_keeps_its_parts(
        self, queue: Queue, store: redis.Redis, job_id: str
    ) -> None:
        store.hset(f"bull:q:{job_id}", mapping={"name": "n", "timestamp": 1, "opts": "{}"})
        store.zadd("bull:q:failed", {job_id: 1})
        store.rpush(f"bull:q:{job_id}:logs", "row")
        store.sadd(f"bull:q:{job_id}:dependencies", "child")
        store.rpush("bull:q:repeat:gone:1:logs", "row")
        store.set("bull:q:ox:call:killed:0", "1:x")
        broker = queue._core.broker
        assert isinstance(broker, BullMQBroker)
        assert await remove_strays(broker) == 2
        parts = {f"bull:q:{job_id}{part}" for part in ("", ":logs", ":dependencies")}
        assert {*store.keys("bull:q:*")} == {"bull:q:failed", *parts}

    async def test_obliterate_keeps_whole_what_is_added_meanwhile(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        queue, producer = make_queue(), make_queue()
        await queue.add_many([("n", None)] * 60)
        added: list[asyncio.Task[Any]] = []

        def on_step(step: Progress) -> None:
            if len(added) < 20:
                added.append(asyncio.create_task(producer.add("n", idempotency_key=str(len(added)))))

        await queue.jobs.obliterate(progress=on_step)
        late = {job.id for job in await asyncio.gather(*added)}
        left = {job.id for job in await queue.jobs.list("waiting")}
        assert left <= late
        keys = {key for key in store.keys("bull:q:*") if ":ox:idem:" in key}
        assert {store.get(key) for key in keys} == left, "a job added meanwhile keeps all its keys"
        assert await queue.jobs.remove_orphans() == []

    async def test_obliterate_for_a_user_without_scan(
        self, queue: Queue, store: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        await queue.add("n", idempotency_key="k", remove_on_complete=True)
        store.execute_command("ACL", "SETUSER", "default", "-scan")
        try:
            assert await queue.jobs.obliterate() == 1
        finally:
            store.execute_command("ACL", "SETUSER", "default", "+scan")
        assert store.keys("bull:q:*") == ["bull:q:ox:idem:1:n:k"]
        assert "queue q: keys of removed jobs were left" in caplog.text

    async def test_publish_and_read(self, queue: Queue) -> None:
        async with queue.events() as events:
            event_id = await queue.events.publish("deployed", version="1.2", hosts=["a", "b"], dry=False)
            event = await anext(aiter(events))
        assert (event.id, event.name) == (event_id, "deployed")
        assert event.fields == {"version": "1.2", "hosts": '["a","b"]', "dry": "false"}

    async def test_orphans(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("n")
        store.delete("bull:q:wait")
        reported: list[Progress] = []
        assert await queue.jobs.remove_orphans(dry_run=True) == [job.id]
        assert await queue.jobs.remove_orphans(progress=reported.append) == [job.id]
        assert reported[-1].done <= reported[-1].total

    async def test_priorities_events_and_logs(self, queue: Queue) -> None:
        for priority in (0, 3, 3):
            job = await queue.add("n", priority=priority)
        assert await queue.jobs.counts_per_priority() == {0: 1, 3: 2}
        assert await queue.jobs.counts_per_priority(range(3)) == {0: 1, 1: 0, 2: 0}
        await job.log("one", "two")
        await job.clear_logs(1)
        assert await job.logs() == ["two"]
        assert await queue.events.trim(0) == 6
        assert (await queue.jobs.metrics()).points == []

    @pytest.mark.parametrize("name", OPERATIONS)
    async def test_need_a_server(self, make_queue: MakeQueue, name: str) -> None:
        queue = make_queue()
        required = {"events.trim": (5,), "events.publish": ("mine",)}.get(name, ())
        with inline(queue), pytest.raises(OxcartError, match="needs a server"):
            await attrgetter(name)(queue)(*required)


class TestWithoutAwait:
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_takes_the_same_arguments(self, name: str) -> None:
        queues = (sync.Queue("q"), Queue("q"))
        ours, theirs = (inspect.signature(attrgetter(name)(queue)) for queue in queues)
        assert list(ours.parameters.values()) == list(theirs.parameters.values())

    def test_every_operation_works_without_await(self, url: str, store: redis.Redis) -> None:
        with sync.Queue("q", url=url) as queue:
            queue.add_many([("n", None, {"priority": number % 3}) for number in range(6)])
            assert queue.jobs.counts_per_priority(iter([0, 1])) == {0: 2, 1: 2}
            assert queue.jobs.clear() == 6
            job = queue.add("n", delay=60)
            job.log("x")
            job.clear_logs()
            assert job.logs() == []
            assert queue.jobs.promote_all(limit=1) == 1
            assert queue.jobs.clean("waiting") == 1
            assert queue.jobs.retry_all("completed") == 0
            assert queue.jobs.metrics("failed").count == 0
            assert queue.events.publish("mine", by="ada") > "0"
            assert queue.events.trim(0) > 0
            assert queue.jobs.remove_orphans() == []
            steps: list[Progress] = []
            assert queue.jobs.obliterate(progress=steps.append) == 0
            assert steps
