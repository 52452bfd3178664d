"""The queue: adding, handlers, reading, changing, and its use over several event loops."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from typing import Any

import pytest
import redis

from oxcart import JobHandle, Queue, RunningJob, Worker
from oxcart.broker.bullmq.adding import ADD_CHUNK
from oxcart.model.errors import (
    BrokerTimeout,
    JobLocked,
    JobNotFound,
    ScriptError,
    ValidationError,
    WrongState,
)
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually


def scripts_run(store: redis.Redis) -> int:
    stats = store.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


class TestAdd:
    async def test_a_job_waits(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("welcome", {"to": "ada"})
        assert isinstance(job, JobHandle)
        assert (job.name, job.created, job.queue) == ("welcome", True, queue)
        assert store.lrange("bull:q:wait", 0, -1) == [job.id]
        assert store.hget(f"bull:q:{job.id}", "data") == '{"to":"ada"}'
        assert repr(job) == f"JobHandle(q/{job.id})"

    @pytest.mark.parametrize(
        ("options", "state"),
        [
            ({}, "waiting"),
            ({"priority": 1}, "prioritized"),
            ({"delay": 60}, "delayed"),
            ({"delay": 60, "priority": 5}, "delayed"),
            ({"lifo": True}, "waiting"),
        ],
    )
    async def test_goes_to_its_state(self, queue: Queue, options: Any, state: str) -> None:
        job = await queue.add("n", **options)
        assert await job.state() == state
        counts = await queue.counts()
        assert counts.pop(state) == 1
        assert set(counts.values()) == {0}

    async def test_the_prefix_and_the_name_are_the_keys(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        await make_queue("videos", prefix="app").add("n", job_id="1x")
        assert store.exists("app:videos:1x", "app:videos:wait", "app:videos:meta") == 3

    async def test_the_same_id_twice_is_one_job(self, queue: Queue) -> None:
        first = await queue.add("n", {"x": 1}, job_id="user-42")
        second = await queue.add("n", {"x": 2}, job_id="user-42")
        assert (first.created, second.created, first.id) == (True, False, second.id)
        assert (await second.get()).data == {"x": 1}

    async def test_defaults_of_the_queue_beneath_options_of_the_job(self, make_queue: MakeQueue) -> None:
        queue = make_queue(attempts=7, remove_on_complete=True)
        job = await (await queue.add("n", attempts=2)).get()
        assert (job.options.attempts, job.options.remove_on_complete) == (
            2,
            queue._core.defaults.remove_on_complete,
        )

    async def test_bad_defaults_raise_at_once(self) -> None:
        with pytest.raises(ValidationError, match="attempts must be at least 1, got 0"):
            Queue("q", attempts=0)


class TestAddMany:
    async def test_rows_with_and_without_options(self, queue: Queue) -> None:
        jobs = await queue.add_many(
            [("a", 1), ("b", 2, {"priority": 3}), ("c", 3, {"delay": "1m", "attempts": 1})], attempts=9
        )
        assert [job.name for job in jobs] == ["a", "b", "c"]
        assert [await job.state() for job in jobs] == ["waiting", "prioritized", "delayed"]
        assert [(await job.get()).options.attempts for job in jobs] == [9, 9, 1]

    async def test_keeps_the_order(self, queue: Queue) -> None:
        await queue.add_many([("n", number) for number in range(1000)])
        assert [job.data for job in await queue.jobs.list("waiting", limit=1000, oldest=True)] == list(
            range(1000)
        )

    async def test_one_call_per_chunk(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add("warm")
        before = scripts_run(store)
        await queue.add_many([("n", number) for number in range(1000)])
        assert scripts_run(store) - before == math.ceil(1000 / ADD_CHUNK)

    async def test_large_payloads_make_smaller_chunks(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add("warm")
        before = scripts_run(store)
        await queue.add_many([("n", "x" * 400_000) for _ in range(6)])
        assert scripts_run(store) - before == 3

    async def test_nothing_is_written_when_one_is_wrong(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(ValidationError, match="finite"):
            await queue.add_many([("n", 1), ("n", float("nan"))])
        assert store.dbsize() == 0

    async def test_empty_list_adds_nothing(self, queue: Queue) -> None:
        assert await queue.add_many([]) == []


class TestSharedCalls:
    async def test_adds_of_one_turn_share_a_call(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add("warm")
        before = scripts_run(store)
        jobs = await asyncio.gather(*(queue.add("n", number) for number in range(100)))
        assert scripts_run(store) - before <= 2  # the first one goes at once
        assert len({job.id for job in jobs}) == 100
        waiting = await queue.jobs.list("waiting", limit=200, oldest=True)
        assert [job.data for job in waiting[1:]] == list(range(100))

    async def test_invalid_add_does_not_affect_the_others(self, queue: Queue) -> None:
        bad = [queue.add("n", float("inf")), queue.add(""), queue.add("n", attempts=0)]
        answers = await asyncio.gather(queue.add("n"), *bad, queue.add("n"), return_exceptions=True)
        assert [isinstance(answer, ValidationError) for answer in answers] == [False, True, True, True, False]
        assert (await queue.counts())["waiting"] == 2

    async def test_a_refused_job_does_not_affect_the_others(self, queue: Queue, store: redis.Redis) -> None:
        store.set("bull:q:prioritized", "not a sorted set")
        answers = await asyncio.gather(
            *(queue.add("n", number, priority=number % 2) for number in range(6)), return_exceptions=True
        )
        assert [isinstance(answer, ScriptError) for answer in answers] == [False, True] * 3
        assert store.llen("bull:q:wait") == 3

    async def test_a_caller_that_gives_up_does_not_take_the_others_along(self, queue: Queue) -> None:
        adds = [asyncio.create_task(queue.add("n", number)) for number in range(3)]
        await asyncio.sleep(0)
        adds[1].cancel()
        answers = await asyncio.gather(*adds, return_exceptions=True)
        assert isinstance(answers[0], JobHandle)
        assert isinstance(answers[2], JobHandle)


class TestHandlers:
    async def test_a_task_is_still_the_function(self, queue: Queue) -> None:
        @queue.job
        async def welcome(to: str, name: str = "you") -> str:
            """Says hello."""
            return f"{name} at {to}"

        assert await welcome("home") == "you at home"
        assert (welcome.__doc__, welcome.name) == ("Says hello.", "welcome")

    async def test_the_signature_is_the_payload(self, queue: Queue) -> None:
        @queue.job
        async def welcome(job: RunningJob, to: str, name: str = "you") -> None: ...

        assert (await (await welcome.enqueue("ada")).get()).data == {"to": "ada"}
        assert (await (await welcome.enqueue("ada", name="Ada")).get()).data == {"to": "ada", "name": "Ada"}
        assert (await (await welcome.enqueue(to="ada")).get()).name == "welcome"

    @pytest.mark.parametrize(
        ("arguments", "keywords", "message"),
        [
            ((), {}, "missing required field `to`"),
            ((5,), {}, "Expected `str`, got `int`"),
            (("a", "b", "c"), {}, "arguments must be at most 2 for 'welcome', got 3"),
            (("a",), {"to": "b"}, "given once each"),
            (("a",), {"nmae": "b"}, "arguments must be among to, name, got ['nmae']"),
        ],
    )
    async def test_arguments_that_do_not_fit(
        self, queue: Queue, store: redis.Redis, arguments: Any, keywords: Any, message: str
    ) -> None:
        @queue.job
        async def welcome(to: str, name: str = "you") -> None: ...

        with pytest.raises(ValidationError, match=re.escape(message)):
            await welcome.enqueue(*arguments, **keywords)
        assert store.dbsize() == 0

    async def test_a_handler_of_any_field_takes_any(self, queue: Queue) -> None:
        @queue.job
        async def loose(**fields: Any) -> None: ...

        assert (await (await loose.enqueue(a=1, b=[2])).get()).data == {"a": 1, "b": [2]}

    async def test_options_of_queue_handler_and_call(self, make_queue: MakeQueue) -> None:
        queue = make_queue(attempts=2, priority=1)

        @queue.job(attempts=5, delay="1m")
        async def welcome() -> None: ...

        options = (await (await welcome.enqueue()).get()).options
        assert (options.attempts, options.priority, options.delay) == (5, 1, 60_000)
        other = welcome.using(delay=0, priority=0)
        options = (await (await other.enqueue()).get()).options
        assert (options.attempts, options.priority, options.delay) == (5, 0, 0)
        assert welcome.options.delay == 60_000

    def test_a_name_of_its_own(self, queue: Queue) -> None:
        @queue.job(name="say:hello")
        def welcome() -> None: ...

        assert queue._core.handlers.names == ["say:hello"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "\ud800"}, "job name"),
            ({"run": "async"}, "run must be 'thread' or 'process'"),
            ({"run": "magic"}, "run must be one of 'async', 'thread', 'process', 'spark', got 'magic'"),
            ({"attempts": -1}, "attempts must be at least 1"),
            ({"atempts": 3}, "did you mean attempts"),
        ],
    )
    def test_bad_options_raise_at_the_decorator(self, queue: Queue, options: Any, message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            queue.job(**options)(lambda: None)

    def test_a_name_is_taken_once(self, queue: Queue) -> None:
        @queue.job(name="n")
        def one() -> None: ...

        queue.job(name="n")(one.__wrapped__)  # the same function again: a module that is loaded twice
        with pytest.raises(ValidationError, match="new: the queue has a handler of this name"):
            queue.job(name="n")(lambda: None)

    async def test_a_job_without_a_handler_is_put_off_and_runs_once_a_worker_has_one(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = await queue.add("later", {"x": 3})
        async with Worker(queue).running():
            await eventually(lambda: _is(job, "delayed"), "put off")
            assert "no handler for job name 'later'" in caplog.text
        now = await job.get()
        assert (now.attempts_made, now.failed_reason, now.delay) == (0, None, 1000)

        @queue.job
        async def later(x: int) -> int:
            return x

        async with Worker(queue).running():
            await job.promote()
            assert await job.result(timeout=20) == 3
        assert (await job.get()).attempts_made == 1


async def _is(job: JobHandle[Any], state: str) -> bool:
    return await job.state() == state


class TestLooking:
    async def test_get(self, queue: Queue) -> None:
        job = await queue.add("n", [1])
        found = await queue.jobs.get(job.id)
        assert found is not None
        assert (found.id, found.queue, found.data) == (job.id, "q", [1])
        assert await queue.jobs.get("none") is None
        assert [one and one.id for one in await queue.jobs.get_many([job.id, "none"])] == [job.id, None]
        assert await queue.jobs.get_many([]) == []

    async def test_state(self, queue: Queue) -> None:
        assert await queue.jobs.state("none") == "unknown"
        job = await queue.add("n")
        await queue.pause()
        assert await queue.jobs.state(job.id) == "waiting"

    @pytest.mark.parametrize("options", [{}, {"priority": 2}, {"delay": 60}])
    async def test_pages(self, queue: Queue, options: Any) -> None:
        jobs = [await queue.add("n", number, **options) for number in range(5)]
        state = await jobs[0].state()
        assert [job.data for job in await queue.jobs.list(state)] == [4, 3, 2, 1, 0]
        assert [job.data for job in await queue.jobs.list(state, oldest=True)] == [0, 1, 2, 3, 4]
        assert [job.data for job in await queue.jobs.list(state, first=1, limit=2)] == [3, 2]
        assert [job.data for job in await queue.jobs.list(state, first=1, limit=2, oldest=True)] == [1, 2]
        assert await queue.jobs.list(state, first=5) == []
        assert await queue.jobs.list(state, limit=0) == []

    async def test_waiting_jobs_of_a_paused_queue(self, queue: Queue) -> None:
        await queue.add("n")
        await queue.pause()
        assert len(await queue.jobs.list("waiting")) == 1
        assert (await queue.counts())["waiting"] == 1

    async def test_no_such_state(self, queue: Queue) -> None:
        with pytest.raises(
            ValidationError, match=r"state must be one of waiting, prioritized, .*, got 'wait'"
        ):
            await queue.jobs.list("wait")

    async def test_ids_without_a_job_are_left_out(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add("n")
        store.lpush("bull:q:wait", "ghost")
        assert len(await queue.jobs.list("waiting")) == 1


class TestSteering:
    async def test_pause_and_resume(self, queue: Queue, store: redis.Redis) -> None:
        await queue.add("n")
        await queue.pause()
        assert await queue.is_paused()
        assert (store.llen("bull:q:wait"), store.llen("bull:q:paused")) == (0, 1)
        await queue.add("n")
        await queue.resume()
        assert not await queue.is_paused()
        assert (store.llen("bull:q:wait"), store.llen("bull:q:paused")) == (2, 0)

    async def test_remove(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("n")
        store.set(f"bull:q:{job.id}:lock", "held")
        with pytest.raises(JobLocked, match="a worker runs it"):
            await queue.jobs.remove(job.id)
        store.delete(f"bull:q:{job.id}:lock")
        await queue.jobs.remove(job.id)
        with pytest.raises(JobNotFound):
            await queue.jobs.remove(job.id)

    async def test_retry(self, queue: Queue) -> None:
        job = await queue.add("n")
        with pytest.raises(WrongState):
            await queue.jobs.retry(job.id)
        with pytest.raises(JobNotFound):
            await queue.jobs.retry("none")


class TestLife:
    def test_costs_nothing_and_shows_its_name(self) -> None:
        assert repr(Queue("emails")) == "Queue('emails')"

    @pytest.mark.parametrize("name", ["", "a:b", ":"])
    def test_a_bad_name_raises_at_once(self, name: str) -> None:
        with pytest.raises(ValidationError, match="queue name"):
            Queue(name)

    def test_one_loop_after_another(self, url: str, store: redis.Redis) -> None:
        queue = Queue("q", url=url)

        async def use() -> None:
            await queue.add("n")
            await queue.close()

        for _ in range(3):
            asyncio.run(use())
        assert store.llen("bull:q:wait") == 3

    async def test_can_be_used_again_after_close(self, queue: Queue) -> None:
        async with queue as same:
            assert same is queue
            await queue.add("n")
        await queue.add("n")
        assert (await queue.counts())["waiting"] == 2

    @pytest.mark.parametrize("count", [1, 3], ids=["one", "some"])
    async def test_close_cuts_off_no_add_of_this_turn(
        self, queue: Queue, store: redis.Redis, count: int
    ) -> None:
        await queue.add("first")
        adding = [asyncio.create_task(queue.add("n")) for _ in range(count)]
        await asyncio.sleep(0)
        assert queue._core.broker.caller.link.in_flight == 1, "the first goes alone, the others wait"
        await queue.close()
        assert all(job.created for job in await asyncio.gather(*adding))
        assert store.llen("bull:q:wait") == 1 + count

    async def test_close_waits_for_adds_under_way(self, queue: Queue, store: redis.Redis) -> None:
        adds = [asyncio.create_task(queue.add("n")) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await queue.close()
        answers = await asyncio.gather(*adds, return_exceptions=True)
        assert [answer for answer in answers if not isinstance(answer, JobHandle)] == []
        assert store.llen("bull:q:wait") == 10

    async def test_a_server_that_is_not_there(self) -> None:
        queue = Queue("q", url="redis://127.0.0.1:1/0", add_timeout=0.02)
        with pytest.raises(BrokerTimeout, match="no connection within"):
            await queue.add("n")
        with pytest.raises(BrokerTimeout):
            await queue.add_many([("n", 1)])
        await queue.close()

    async def test_a_server_that_comes_back_in_time(self) -> None:
        with ValkeyServer() as server:
            queue = Queue("q", url=server.url)
            await queue.add("n")
            await asyncio.to_thread(server.kill)
            adding = asyncio.create_task(queue.add("n"))
            await asyncio.to_thread(server.start)
            assert (await asyncio.wait_for(adding, 20)).created
            await queue.close()

    async def test_a_refusal_for_lack_of_memory_raises(self) -> None:
        with ValkeyServer() as server:
            client = server.client()
            queue = Queue("q", url=server.url)
            client.config_set("maxmemory", 1)
            with pytest.raises(ScriptError, match="OOM"):
                await queue.add("n")
            assert client.dbsize() == 0
            client.config_set("maxmemory", 0)
            assert (await queue.add("n")).created
            await queue.close()

    async def test_station_facts_name_the_server_for_another_process(self, queue: Queue, url: str) -> None:
        facts = queue._core.station_facts()
        assert (facts["queue"], facts["prefix"], facts["folder"]) == ("q", "bull", "")
        assert url.startswith(facts["url"])


async def test_loops_of_several_threads_keep_their_connections(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    queue = make_queue("shared")
    turns = [threading.Event(), threading.Event()]

    async def adds(me: int) -> None:
        for _ in range(10):
            await asyncio.to_thread(turns[me].wait, 60)
            turns[me].clear()
            await queue.add("n")
            turns[1 - me].set()
        await queue.close()

    before = int(store.info("stats")["total_connections_received"])
    threads = [threading.Thread(target=lambda me=me: asyncio.run(adds(me))) for me in (0, 1)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    made = int(store.info("stats")["total_connections_received"]) - before
    assert (await queue.counts())["waiting"] == 20
    assert made <= 4
