"""Deduplication windows: which add creates a job, which job owns the window, and when it closes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.codec import FIELD_TIMEOUT
from oxcart.broker.connection import Server
from oxcart.broker.port import Added, Ask, Outcome, OutcomeKind
from oxcart.model.options import JobOptions

NOW = 1_700_000_000_000


class Windows:
    """A queue whose jobs all belong to one window."""

    def __init__(self, url: str, store: redis.Redis) -> None:
        self.broker = BullMQBroker(Server(url), "q", clock=lambda: NOW)
        self._store = store

    async def add(self, job_id: str, rule: dict[str, Any] | None = None, **options: Any) -> Added:
        made = JobOptions.build(job_id=job_id, deduplication={"id": "d", **(rule or {})}, **options)
        (added,) = await self.broker.add([self.broker.encode("n", job_id, made)])
        assert added.at_ms > 0
        return msgspec.structs.replace(added, at_ms=0)

    async def run(self, kind: str = "c", job_id: str | None = None) -> str:
        """Claims a job and finishes it. Returns its id."""
        (job,) = (await self.broker.claim(Ask())).jobs
        assert job_id in (None, job.id)
        outcome = Outcome(OutcomeKind(kind), job.id, job.token, job.starts, NOW, b"1", b"[]")
        assert (await self.broker.finish([outcome]))[0] == [1]
        return job.id

    @property
    def owner(self) -> Any:
        return self._store.get("bull:q:de:d")

    @property
    def rest(self) -> Any:
        return self._store.pttl("bull:q:de:d")

    def window_events(self) -> list[tuple[str, str, str]]:
        """Returns the `deduplicated` events as (window, kept job, dropped job)."""
        stream: Any = self._store.xrange("bull:q:events")
        entries = [fields for _, fields in stream]
        assert [e["jobId"] for e in entries if e["event"] == "debounced"] == [
            e["jobId"] for e in entries if e["event"] == "deduplicated"
        ]
        return [
            (e["deduplicationId"], e["jobId"], e["deduplicatedJobId"])
            for e in entries
            if e["event"] == "deduplicated"
        ]


@pytest_asyncio.fixture
async def windows(url: str, store: redis.Redis) -> AsyncIterator[Windows]:
    made = Windows(url, store)
    yield made
    await made.broker.close()


class TestSimple:
    async def test_until_its_owner_has_ended(self, windows: Windows, store: redis.Redis) -> None:
        assert await windows.add("a") == Added("a", True)
        assert await windows.add("b") == Added("a", False)
        assert windows.window_events() == [("d", "a", "b")]
        assert store.exists("bull:q:b") == 0
        assert windows.rest == -1
        (job,) = (await windows.broker.claim(Ask())).jobs
        assert await windows.add("c") == Added("a", False), "also while it runs"
        await windows.broker.finish(
            [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, NOW, b"1")]
        )
        assert windows.owner is None
        assert await windows.add("d") == Added("d", True)

    async def test_until_its_owner_has_failed_for_good(self, windows: Windows) -> None:
        await windows.add("a")
        await windows.run("r")
        assert await windows.add("b") == Added("a", False), "a retry is not the end"
        await windows.run("f")
        assert await windows.add("c") == Added("c", True)

    async def test_until_its_owner_is_removed(self, windows: Windows) -> None:
        await windows.add("a")
        await windows.broker.remove_job("a")
        assert await windows.add("b") == Added("b", True)

    async def test_of_many_in_one_call_the_first_is_added(self, windows: Windows, store: redis.Redis) -> None:
        encode = windows.broker.encode
        jobs = [
            encode("n", None, JobOptions.build(job_id=name, deduplication=rule))
            for name, rule in (("a", None), ("b", "d"), ("c", None), ("e", "d"), ("f", "other"), ("g", None))
        ]
        added = await windows.broker.add(jobs)
        assert [(one.id, one.created) for one in added] == [
            ("a", True),
            ("b", True),
            ("c", True),
            ("b", False),
            ("f", True),
            ("g", True),
        ]
        assert store.lrange("bull:q:wait", 0, -1) == ["g", "f", "c", "b", "a"]
        assert store.get("bull:q:id") == "6"

    async def test_a_window_whose_owner_is_gone_is_taken_over(
        self, windows: Windows, store: redis.Redis
    ) -> None:
        """Nothing would ever close the window: BullMQ up to 6.2 drops every later add."""
        await windows.add("a")
        store.delete("bull:q:a")
        assert await windows.add("b") == Added("b", True)
        assert windows.owner == "b"


class TestWithATime:
    async def test_the_window_outlives_its_owner(self, windows: Windows) -> None:
        await windows.add("a", {"ttl": 60})
        assert 30_000 < windows.rest <= 60_000
        await windows.run()
        assert await windows.add("b", {"ttl": 600}) == Added("a", False)
        assert windows.rest <= 60_000, "not made longer"

    async def test_it_ends_by_itself(self, windows: Windows, store: redis.Redis) -> None:
        await windows.add("a", {"ttl": 60})
        store.delete("bull:q:de:d")  # as the server's clock does
        assert await windows.add("b", {"ttl": 60}) == Added("b", True)

    async def test_extended_by_every_add(self, windows: Windows) -> None:
        await windows.add("a", {"ttl": 60, "extend": True})
        assert await windows.add("b", {"ttl": 600, "extend": True}) == Added("a", False)
        assert windows.rest > 60_000
        assert windows.owner == "a"


class TestReplace:
    async def test_last_add_replaces_a_delayed_owner(self, windows: Windows, store: redis.Redis) -> None:
        rule = {"ttl": 60, "replace": True}
        await windows.add("a", rule, delay=30)
        assert await windows.add("b", {**rule, "ttl": 600}, delay=30) == Added("b", True)
        assert (windows.owner, windows.rest <= 60_000) == ("b", True)
        assert store.exists("bull:q:a") == 0
        assert store.zrange("bull:q:delayed", 0, -1) == ["b"]
        assert windows.window_events() == [("d", "b", "a")]
        await windows.add("c", {**rule, "ttl": 600, "extend": True}, delay=30)
        assert windows.rest > 60_000

    async def test_ready_owner_is_not_replaced(self, windows: Windows) -> None:
        await windows.add("a", {"replace": True})
        assert await windows.add("b", {"replace": True}) == Added("a", False)
        assert windows.window_events() == []

    async def test_a_parent_does_not_wait_for_a_child_that_was_replaced(
        self, windows: Windows, store: redis.Redis
    ) -> None:
        """A peer made it, which allows windows for children."""
        await windows.add("a", {"replace": True}, delay=30)
        store.hset("bull:q:top", mapping={"name": "n", "data": "1", "opts": "{}", "timestamp": NOW})
        store.zadd("bull:q:waiting-children", {"top": NOW})
        store.sadd("bull:q:top:dependencies", "bull:q:a")
        store.hset(
            "bull:q:a", mapping={"parentKey": "bull:q:top", "parent": '{"id":"top","queueKey":"bull:q"}'}
        )
        await windows.add("b", {"replace": True}, delay=30)
        assert await windows.broker.states(["top"]) == ["waiting"]


RULE = {"keep_last_if_active": True}


class TestKeepLast:
    async def test_the_last_add_during_the_run_becomes_a_job(
        self, windows: Windows, store: redis.Redis
    ) -> None:
        await windows.add("a", RULE)
        assert await windows.add("early", RULE) == Added("a", False)
        assert store.exists("bull:q:dn:d") == 0, "nothing is kept for an owner that has not begun"
        (job,) = (await windows.broker.claim(Ask())).jobs
        for name in ("b", "c"):
            assert await windows.add(name, RULE, timeout="7s", priority=2) == Added("a", False)
        assert store.hget("bull:q:dn:d", "jid") == "c"
        assert store.exists("bull:q:c") == 0
        await windows.broker.finish(
            [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, NOW, b"1")]
        )
        assert (windows.owner, store.exists("bull:q:dn:d")) == ("c", 0)
        (kept,) = await windows.broker.get(["c"])
        assert kept is not None
        assert (kept.data, kept.priority, kept.options.timeout) == ("c", 2, 7000)
        assert store.hget("bull:q:c", FIELD_TIMEOUT) == "7000"
        assert await windows.run(job_id="c") == "c"
        assert windows.owner is None

    async def test_a_time_does_not_end_the_window_while_its_owner_runs(self, windows: Windows) -> None:
        rule = {**RULE, "ttl": 60}
        await windows.add("a", rule)
        assert windows.rest == -1
        await windows.broker.claim(Ask())
        await windows.add("b", rule)
        assert windows.rest == -1

    async def test_removing_the_owner_drops_the_kept_job(self, windows: Windows, store: redis.Redis) -> None:
        await windows.add("a", RULE)
        await windows.broker.claim(Ask())
        await windows.add("b", RULE)
        store.delete("bull:q:a:lock")
        await windows.broker.remove_job("a")
        assert store.keys("bull:q:d?:d") == []

    async def test_a_replacement_drops_what_was_kept(self, windows: Windows, store: redis.Redis) -> None:
        rule = {**RULE, "replace": True}
        await windows.add("a", rule)
        (job,) = (await windows.broker.claim(Ask())).jobs
        await windows.add("b", rule)
        await windows.broker.finish(
            [Outcome(OutcomeKind.DELAY, "a", job.token, job.starts, NOW, b"", delay_ms=5000)]
        )
        assert await windows.add("c", rule) == Added("c", True)
        assert store.exists("bull:q:dn:d") == 0


class TestRelease:
    async def test_by_its_name(self, windows: Windows) -> None:
        await windows.add("a")
        assert await windows.broker.deduplication.owner("d") == "a"
        assert await windows.broker.deduplication.release("d") is True
        assert await windows.broker.deduplication.release("d") is False
        assert await windows.broker.deduplication.owner("d") is None
        assert await windows.add("b") == Added("b", True)

    async def test_by_its_owner_alone(self, windows: Windows) -> None:
        await windows.add("a")
        assert await windows.broker.deduplication.release("d", "b") is False
        assert await windows.broker.deduplication.release("d", "a") is True

    async def test_kept_job_is_added_after_a_release(self, windows: Windows) -> None:
        await windows.add("a", {"keep_last_if_active": True})
        (job,) = (await windows.broker.claim(Ask())).jobs
        await windows.add("b", {"keep_last_if_active": True})
        await windows.broker.deduplication.release("d")
        await windows.broker.finish(
            [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, NOW, b"1")]
        )
        assert await windows.run() == "b"


async def test_a_key_of_the_wrong_type_refuses_that_job_alone(windows: Windows, store: redis.Redis) -> None:
    store.lpush("bull:q:de:d", "x")
    encode = windows.broker.encode
    jobs = [
        encode("n", None, JobOptions.build(job_id=name, deduplication=rule))
        for name, rule in (("a", None), ("b", "d"), ("c", None))
    ]
    added = await windows.broker.add_each(jobs)
    assert "WRONGTYPE" in str(added[1])
    assert store.lrange("bull:q:wait", 0, -1) == ["c", "a"]
    assert store.exists("bull:q:b") == 0
