"""Dead letters: which jobs they are, and the operations on one and on all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from oxcart import Flow, PermanentError, Queue, Worker
from oxcart.broker.bullmq import dead_letters
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.jobs import Progress
from oxcart.model.errors import JobNotFound, ValidationError, WrongState
from oxcart.model.state import State, formal_state
from tests.signals import eventually


async def die(
    queue: Queue,
    *ids: str,
    category: str = "temporary",
    attempts: int = 1,
    name: str = "a",
    at: int = 1000,
    **options: Any,
) -> None:
    """Jobs that a worker has failed at their first attempt."""
    for job_id in ids:
        await queue.add(name, job_id=job_id, attempts=attempts, **options)
    jobs = (await queue._core.broker.claim(Ask(len(ids)))).jobs
    ends = [
        Outcome(
            OutcomeKind.FAILED,
            job.id,
            job.token,
            job.starts,
            at,
            b"it broke",
            b'["trace"]',
            category=category,
        )
        for job in jobs
    ]
    codes, _ = await queue._core.broker.finish(ends)
    assert codes == [1] * len(ids)


async def listed(queue: Queue, **which: Any) -> list[str]:
    return [job.id for job in await queue.dead_letters.list(oldest=True, **which)]


class TestListing:
    async def test_jobs_that_used_up_their_attempts(self, queue: Queue, store: redis.Redis) -> None:
        await die(queue, "spent")
        await die(queue, "late", category="timeout")
        await die(queue, "bad", category="permanent")
        await die(queue, "some-left", attempts=3)
        await die(queue, "stopped", category="cancelled")
        await die(queue, "of-age", attempts=3)
        store.hset("bull:q:of-age", "ox:dead", "lifetime")
        await die(queue, "lost", attempts=3, category="system")
        store.hset("bull:q:lost", "stc", 2)
        assert await listed(queue) == ["late", "lost", "of-age", "spent"]
        assert await queue.dead_letters.count() == 4

    async def test_exhausted_jobs_of_a_node_worker_are_listed(self, queue: Queue, store: redis.Redis) -> None:
        for job_id, attempts, made in (("n1", 0, 1), ("n2", 3, 3), ("n3", 3, 1)):
            await queue.add("a", job_id=job_id)
            store.lrem("bull:q:wait", 1, job_id)
            store.hset(f"bull:q:{job_id}", mapping={"opts": f'{{"attempts":{attempts}}}', "atm": made})
            store.zadd("bull:q:failed", {job_id: 1})
        assert await listed(queue) == ["n1", "n2"]

    async def test_the_script_and_the_model_say_the_same(self, queue: Queue, store: redis.Redis) -> None:
        """Checks every combination of the deciding fields."""
        await queue.add("a", job_id="x")
        store.lrem("bull:q:wait", 1, "x")
        store.zadd("bull:q:failed", {"x": 1})
        for attempts in (0, 1, 3):
            for made in (0, 1, 3):
                for stalled in (0, 2):
                    for category in (None, "temporary", "permanent", "timeout", "cancelled", "system"):
                        for reason in (None, "lifetime"):
                            fields: dict[Any, Any] = {
                                "opts": f'{{"attempts":{attempts}}}',
                                "atm": made,
                                "stc": stalled,
                            }
                            store.hdel("bull:q:x", "ox:category", "ox:dead")
                            if category:
                                fields["ox:category"] = category
                            if reason:
                                fields["ox:dead"] = reason
                            store.hset("bull:q:x", mapping=fields)
                            state = formal_state(
                                "failed",
                                attempts_made=made,
                                attempts=attempts,
                                stalled=stalled,
                                category=category,
                                lifetime_over=reason is not None,
                            )
                            expected = ["x"] if state is State.DEAD_LETTER else []
                            assert await listed(queue) == expected, fields

    async def test_filters(self, queue: Queue) -> None:
        now = queue._core.broker.clock()
        await die(queue, "d1", at=now - 7_200_000, name="mail", tags={"tenant": "acme"})
        await die(queue, "d2", at=now - 60_000, name="sms", category="timeout", correlation_id="c")
        await die(queue, "d3", at=now - 1000, name="mail", category="system", tags={"tenant": "b"})
        assert await listed(queue, name="mail") == ["d1", "d3"]
        assert await listed(queue, name=["mail", "sms"]) == ["d1", "d2", "d3"]
        assert await listed(queue, category="timeout") == ["d2"]
        assert await listed(queue, category=["timeout", "system"]) == ["d2", "d3"]
        assert await listed(queue, tags={"tenant": "acme"}) == ["d1"]
        assert await listed(queue, correlation_id="c") == ["d2"]
        assert await listed(queue, older_than="1h") == ["d1"]
        assert await listed(queue, newer_than="1h", name="mail") == ["d3"]
        assert await listed(queue, limit=2) == ["d1", "d2"]
        assert [job.id for job in await queue.dead_letters.list(limit=2)] == ["d3", "d2"]

    async def test_get_returns_dead_letters_only(self, queue: Queue) -> None:
        await die(queue, "d")
        await die(queue, "f", category="permanent")
        job = await queue.dead_letters.get("d")
        assert (job.failed_reason, job.stacktrace) == ("it broke", ["trace"])
        with pytest.raises(WrongState, match="job f is no dead letter"):
            await queue.dead_letters.get("f")
        with pytest.raises(JobNotFound):
            await queue.dead_letters.get("none")

    async def test_failures_in_a_worker_become_dead_letters(self, queue: Queue) -> None:
        @queue.job(attempts=2, backoff="1ms")
        async def breaks() -> None:
            raise ConnectionError("not now")

        @queue.job(attempts=2)
        async def never() -> None:
            raise PermanentError("no")

        async with Worker(queue).running():
            spent, bad = await breaks.enqueue(), await never.enqueue()
            for job in (spent, bad):
                await eventually(lambda job=job: _is(job, "failed"), "it failed")  # type: ignore[misc]
        assert await listed(queue) == [spent.id]


async def _is(job: Any, state: str) -> bool:
    return bool(await job.state() == state)


class TestReplay:
    async def test_replay_resets_the_job(self, queue: Queue, store: redis.Redis) -> None:
        await die(queue, "d", attempts=1)
        store.hset("bull:q:d", "ox:dead", "lifetime")
        await queue.dead_letters.replay("d")
        job = await queue.jobs.get("d")
        assert job is not None
        assert await queue.jobs.state("d") == "waiting"
        assert (job.attempts_made, job.failed_reason, job.finished_on) == (0, None, None)
        assert (job.category, job.dead_reason, job.code) == (None, None, None)
        assert await queue.dead_letters.count() == 0

    async def test_replay_without_reset_tries_once_more(self, queue: Queue) -> None:
        await die(queue, "d")
        await queue.dead_letters.replay("d", reset=False)
        job = await queue.jobs.get("d")
        assert job is not None
        assert job.attempts_made == 1
        tries = []

        @queue.job
        async def a() -> None:
            tries.append(1)
            raise ConnectionError("again")

        async with Worker(queue).running():
            await eventually(lambda: _is(queue.jobs.handle("d"), "failed"), "it died again")
        assert len(tries) == 1
        assert await listed(queue) == ["d"]

    async def test_a_job_whose_lifetime_was_over_gets_a_new_one(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        now = queue._core.broker.clock()
        job = await queue.add("a", lifetime="1h", timestamp=now - 7_200_000)

        @queue.job
        async def a() -> int:
            return 5

        async with Worker(queue).running():
            await eventually(lambda: _is(job, "failed"), "its lifetime is over")
            assert await listed(queue) == [job.id]
            await queue.dead_letters.replay(job.id)
            assert await job.result(10) == 5
        assert not store.exists("bull:q:ox:expiring")

    async def test_replay_refuses_other_jobs(self, queue: Queue) -> None:
        await queue.add("a", job_id="w")
        with pytest.raises(WrongState):
            await queue.dead_letters.replay("w")
        with pytest.raises(JobNotFound):
            await queue.dead_letters.replay("none")
        assert await queue.jobs.state("w") == "waiting"

    async def test_replay_all_goes_in_steps(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "STEP", 10)
        for number in range(0, 35, 5):
            ids = [f"d{number + each:02}" for each in range(5)]
            await die(queue, *ids, at=1000 + number, category="permanent" if number == 10 else "system")
        seen: list[Progress] = []
        found = await queue.dead_letters.replay_all(progress=seen.append)
        assert (found.matched, found.done, found.dry_run) == (30, 30, False)
        assert (
            [job.id for job in await queue.jobs.list("waiting", oldest=True)]
            == found.ids
            == sorted(found.ids)
        )
        assert (await queue.counts())["failed"] == 5
        assert [at.done for at in seen] == sorted(at.done for at in seen)
        assert seen[-1].done == seen[-1].total == 35

    async def test_a_dry_run_and_a_limit(self, queue: Queue) -> None:
        await die(queue, "d1", "d2", "d3")
        found = await queue.dead_letters.replay_all(dry_run=True)
        assert (found.ids, found.done, found.dry_run) == (["d1", "d2", "d3"], 0, True)
        assert (await queue.counts())["failed"] == 3
        assert (await queue.dead_letters.replay_all(limit=2)).ids == ["d1", "d2"]
        assert await listed(queue) == ["d3"]

    async def test_at_a_rate(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        until: list[float] = []
        really, loop = asyncio.sleep, asyncio.get_running_loop()

        async def sleep(seconds: float) -> None:
            until.append(loop.time() + seconds)
            await really(0)

        await die(queue, "d1", "d2", "d3", "d4", "d5")
        monkeypatch.setattr("oxcart.broker.pace.asyncio.sleep", sleep)
        began = loop.time()
        found = await queue.dead_letters.replay_all(rate=2)
        assert found.done == 5
        # Two at a time, one second for each two: it waited after 2 and after 4.
        assert len(until) >= 2
        assert until[0] >= began + 1
        assert until[1] >= began + 2

    async def test_a_job_that_fails_again_meanwhile_is_not_replayed_again(self, queue: Queue) -> None:
        await die(queue, "d1", at=queue._core.broker.clock() + 60_000)
        assert (await queue.dead_letters.replay_all()).matched == 0

    async def test_a_child_is_waited_for_again(self, queue: Queue) -> None:
        tree = await Flow(queue, "p", children=[Flow(queue, "a", job_id="c", attempts=1)]).add()
        (job,) = (await queue._core.broker.claim(Ask(1))).jobs
        await queue._core.broker.finish(
            [Outcome(OutcomeKind.FAILED, job.id, job.token, job.starts, 1, b"x", b"[]", category="temporary")]
        )
        await queue.dead_letters.replay("c")
        assert (await queue.jobs.handle(tree.id).dependency_counts()).unprocessed == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rate": 0}, "rate must be a number of jobs per second above 0"),
            ({"rate": -1}, "rate must be"),
            ({"rate": float("nan")}, "rate must be"),
            ({"rate": True}, "rate must be"),
            ({"limit": 0}, "limit must be"),
            ({"category": "odd"}, "category must be one of temporary, permanent, timeout"),
            ({"older_than": "soon"}, "older_than must be"),
        ],
    )
    async def test_bad_input(self, queue: Queue, options: Any, message: str) -> None:
        await die(queue, "d")
        with pytest.raises(ValidationError, match=message):
            await queue.dead_letters.replay_all(**options)
        assert await listed(queue) == ["d"]


class TestPurge:
    async def test_purge_removes_every_key_of_the_job(self, queue: Queue, store: redis.Redis) -> None:
        await die(queue, "d", "e", deduplication=None)
        await queue.jobs.handle("d").log("line")
        await queue.dead_letters.purge("d")
        assert [key for key in store.keys("bull:q:d*") if "delayed" not in str(key)] == []
        assert await listed(queue) == ["e"]
        with pytest.raises(JobNotFound):
            await queue.dead_letters.purge("d")
        last: Any = store.xrevrange("bull:q:events", count=1)
        assert last[0][1] == {"event": "removed", "jobId": "d", "prev": "failed"}

    async def test_purge_all_removes_matching_jobs(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "STEP", 10)
        await die(queue, *(f"d{n:02}" for n in range(25)), tags={"t": "1"})
        await die(queue, *(f"e{n:02}" for n in range(25)))
        await die(queue, "bad", category="permanent")
        assert (await queue.dead_letters.purge_all(tags={"t": "1"}, dry_run=True)).matched == 25
        assert (await queue.dead_letters.purge_all(tags={"t": "1"})).done == 25
        assert (await queue.dead_letters.purge_all()).done == 25
        assert [job.id for job in await queue.jobs.list("failed")] == ["bad"]

    async def test_a_parent_goes_on(self, queue: Queue) -> None:
        tree = await Flow(
            queue, "p", children=[Flow(queue, "a", job_id="c", attempts=1, on_failure="wait")]
        ).add()
        (job,) = (await queue._core.broker.claim(Ask(1))).jobs
        await queue._core.broker.finish(
            [Outcome(OutcomeKind.FAILED, job.id, job.token, job.starts, 1, b"x", b"[]", category="temporary")]
        )
        assert await queue.jobs.state(tree.id) == "waiting-children"
        await queue.dead_letters.purge("c")
        assert await queue.jobs.state(tree.id) == "waiting"
