"""Changes of single jobs: the state that each leaves, and its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from oxcart.model.errors import JobLocked, JobNotFound, WrongState
from tests.broker.bullmq.hashes import hash_of
from tests.broker.bullmq.making import Q

#: Verb, how to prepare its job, the call, the state afterwards.
Call = Callable[[Q], Awaitable[Any]]
CHANGES: list[tuple[str, Call, str]] = [
    ("set_progress", lambda q: q.broker.set_progress("a", 5), "delayed"),
    ("add_log", lambda q: q.broker.logs.append("a", ["x"], 10), "delayed"),
    ("update_data", lambda q: q.broker.update_data("a", 5), "delayed"),
    ("change_priority", lambda q: q.broker.updates.change_priority("a", 5), "delayed"),
    ("change_delay", lambda q: q.broker.change_delay("a", 5), "delayed"),
    ("promote_job", lambda q: q.broker.promote_job("a"), "waiting"),
    ("remove_job", lambda q: q.broker.remove_job("a"), "unknown"),
]


class TestChanges:
    @pytest.mark.parametrize(("verb", "change", "state"), CHANGES, ids=[row[0] for row in CHANGES])
    async def test_of_a_delayed_job(self, q: Q, verb: str, change: Call, state: str) -> None:
        await q.add("a", delay=60)
        await change(q)
        assert await q.state() == state

    @pytest.mark.parametrize(("verb", "change", "state"), CHANGES, ids=[row[0] for row in CHANGES])
    async def test_of_a_job_that_is_not_there(
        self, q: Q, whole: Callable[[], Any], verb: str, change: Call, state: str
    ) -> None:
        wanted = WrongState if verb == "promote_job" else JobNotFound
        before = whole()
        with pytest.raises(wanted, match=r"cannot .* job a: "):
            await change(q)
        assert whole() == before

    async def test_of_a_job_in_another_state(self, q: Q) -> None:
        await q.add("a")
        for change in (q.broker.change_delay("a", 5), q.broker.promote_job("a")):
            with pytest.raises(WrongState):
                await change
        for state in ("failed", "completed"):
            with pytest.raises(WrongState):
                await q.broker.retry_job("a", state)

    @pytest.mark.parametrize(("kind", "state"), [("c", "completed"), ("f", "failed")])
    async def test_retry(self, q: Q, store: redis.Redis, kind: str, state: str) -> None:
        job = await q.active()
        await q.end(job, kind, category="permanent" if kind == "f" else "")
        await q.add("b")
        await q.broker.retry_job("a", state, lifo=True)
        assert [one.id for one in await q.claim(5)] == ["a", "b"]
        gone = ["finishedOn", "returnvalue", "failedReason", "ox:category"]
        assert store.hmget("bull:q:a", *gone) == [None] * 4
        assert store.hget("bull:q:a", "atm") == "1"

    async def test_retry_from_the_beginning(self, q: Q, store: redis.Redis) -> None:
        await q.end(await q.active())
        store.hset("bull:q:a", mapping={"stc": 1, "attemptsMade": 1})
        await q.broker.retry_job("a", "completed", reset=True)
        (job,) = await q.claim()
        assert [hash_of(job).get(name) for name in (b"atm", b"stc", b"attemptsMade")] == [None] * 3

    async def test_retry_from_the_beginning_keeps_the_fencing_number_growing(self, q: Q) -> None:
        first = await q.active()
        await q.end(first, "f")
        await q.broker.retry_job("a", "failed", reset=True)
        (again,) = await q.claim()
        assert again.starts == first.starts + 1

    @pytest.mark.parametrize("garbage", ["many", "", "nan", "1e999", "-"])
    async def test_a_queue_wide_concurrency_that_is_no_number_bounds_nothing(
        self, q: Q, store: redis.Redis, garbage: str
    ) -> None:
        store.hset("bull:q:meta", "concurrency", garbage)
        assert len([await q.active("a"), await q.active("b")]) == 2

    async def test_remove_of_a_held_job(self, q: Q, whole: Callable[[], Any]) -> None:
        await q.active()
        before = whole()
        with pytest.raises(JobLocked):
            await q.broker.remove_job("a")
        assert whole() == before

    async def test_remove_leaves_nothing_of_the_job(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        await q.broker.logs.append("a", ["x"], None)
        await q.broker.remove_job("a")
        assert [key for key in map(str, store.scan_iter()) if key.startswith("bull:q:a")] == []

    async def test_counts(self, q: Q) -> None:
        await q.end(await q.active("done"))
        await q.active("busy")
        await q.add("w")
        await q.add("p", priority=1)
        await q.add("d", delay=9)
        counts = await q.broker.counts()
        assert {state: number for state, number in counts.items() if number} == {
            "wait": 1,
            "active": 1,
            "prioritized": 1,
            "delayed": 1,
            "completed": 1,
        }
