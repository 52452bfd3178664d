"""Operations on many jobs: what each moves, what stays, and that steps are bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from oxcart.broker.bullmq import bulk
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.results import DeadWork
from oxcart.broker.progress import Progress
from oxcart.model.filter import JobFilter
from tests.broker.bullmq.hashes import hash_of
from tests.broker.bullmq.making import Q, add, events_of, finish, lost, names


@pytest.mark.usefixtures("small_steps")
class TestRetryAll:
    @pytest.mark.parametrize(("state", "kind"), [("completed", "c"), ("failed", "f")])
    async def test_all_in_the_order_of_their_ends(
        self, q: Q, store: redis.Redis, state: Any, kind: str
    ) -> None:
        await finish(q, *names(8), kind=kind)
        store.delete("bull:q:marker")
        assert await q.broker.bulk.retry_all(state) == 8
        assert store.zrange("bull:q:marker", 0, -1) == ["0"]
        jobs = await q.claim(20)
        assert [job.id for job in jobs] == names(8)
        gone = (b"finishedOn", b"processedOn", b"returnvalue", b"failedReason")
        assert not [name for job in jobs for name in gone if name in hash_of(job)]
        assert events_of(store).count("waiting") == 16

    async def test_by_time(self, q: Q, store: redis.Redis) -> None:
        begin = q.clock.now
        await finish(q, *names(8), kind="f")
        moved = await q.broker.bulk.retry_all("failed", since_ms=begin + 3, until_ms=begin + 6)
        assert moved == 4
        assert store.zrange("bull:q:failed", 0, -1) == names(8)[:2] + names(8)[6:]

    async def test_a_limit(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(8), kind="f")
        assert await q.broker.bulk.retry_all("failed", limit=5) == 5
        assert store.zrange("bull:q:failed", 0, -1) == names(8)[5:]

    async def test_from_the_beginning(self, q: Q) -> None:
        await finish(q, *names(4), kind="f")
        await q.broker.bulk.retry_all("failed", reset=True)
        jobs = await q.claim(9)
        assert {(hash_of(job).get(b"atm"), job.starts) for job in jobs} == {(None, 2)}

    async def test_an_id_without_a_job_is_dropped(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(4), kind="f")
        store.delete("bull:q:j001")
        assert await q.broker.bulk.retry_all("failed") == 3
        assert not store.exists("bull:q:failed")

    async def test_the_same_state_as_single_retries(self, q: Q, store: redis.Redis) -> None:
        dumps, begun = [], q.clock.now
        for at_once in (True, False):
            store.flushall()
            q.clock.now = begun
            await finish(q, *names(7), kind="f")
            store.delete("bull:q:events")
            if at_once:
                await q.broker.bulk.retry_all("failed", reset=True)
            else:
                for job_id in names(7):
                    await q.broker.retry_job(job_id, "failed", reset=True)
            entries: Any = store.xrange("bull:q:events")
            hashes = [store.hgetall(f"bull:q:{job_id}") for job_id in names(7)]
            for one in hashes:
                one.pop("timestamp")
            dumps.append((store.lrange("bull:q:wait", 0, -1), hashes, [fields for _, fields in entries]))
        assert dumps[0] == dumps[1]

    async def test_a_job_that_fails_again_meanwhile_stays_failed(self, q: Q, store: redis.Redis) -> None:
        await finish(q, *names(4), kind="f")

        def on_progress(_: Progress) -> None:
            if store.lrem("bull:q:wait", 1, "j000"):
                store.zadd("bull:q:failed", {"j000": q.clock.now + 1})

        assert await q.broker.bulk.retry_all("failed", progress=on_progress) == 4
        assert store.zrange("bull:q:failed", 0, -1) == ["j000"]


@pytest.mark.usefixtures("small_steps")
class TestPromoteAll:
    async def test_promote_all_respects_priorities(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5), delay=60)
        await add(q, *names(4, "p"), delay=30, priority=2)
        assert await q.broker.bulk.promote_all() == 9
        assert [job.id for job in await q.claim(9)] == names(5) + names(4, "p")
        assert store.hget("bull:q:j000", "delay") == "0"

    async def test_promote_all_may_take_only_jobs_due_soon(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(5), delay=60)
        await add(q, *names(4, "p"), delay=30)
        assert await q.broker.bulk.promote_all(until_ms=q.clock.now + 30_000) == 4
        assert store.zrange("bull:q:delayed", 0, -1) == names(5)

    async def test_a_limit(self, q: Q, store: redis.Redis) -> None:
        await add(q, *names(8), delay=60)
        assert await q.broker.bulk.promote_all(limit=5) == 5
        assert store.zrange("bull:q:delayed", 0, -1) == names(8)[5:]

    async def test_nothing_to_do(self, q: Q) -> None:
        assert await q.broker.bulk.promote_all() == 0


class TestOrphans:
    async def lose(self, q: Q, store: redis.Redis) -> None:
        await finish(q, "e1")
        await add(q, "a1", "a2", "a3")
        await q.broker.logs.append("a2", ["x"], None)
        store.lrem("bull:q:wait", 0, "a2")
        store.zrem("bull:q:completed", "e1")

    async def test_orphans_are_removed_with_their_keys(self, q: Q, store: redis.Redis) -> None:
        await self.lose(q, store)
        assert sorted(await q.broker.rescue.remove_orphans(dry_run=True)) == ["a2", "e1"]
        assert lost(store) == {"a1", "a2", "a3", "e1"}
        assert sorted(await q.broker.rescue.remove_orphans()) == ["a2", "e1"]
        assert lost(store) == {"a1", "a3"}
        assert not store.exists("bull:q:a2:logs")
        assert await q.broker.rescue.remove_orphans() == []

    async def test_an_orphan_with_a_lease_stays(self, q: Q, store: redis.Redis) -> None:
        await self.lose(q, store)
        store.set("bull:q:a2:lock", "token")
        assert await q.broker.rescue.remove_orphans() == ["e1"]


class TestRepeats:
    """A call is repeated after its reply was lost: it must change nothing and reply the same."""

    CALLS = (
        ("sweep", ("completed", "", 10, 0, "", 0, "")),
        ("sweep", ("wait", "", 2, 1, "", "", "")),
        ("retry_jobs", ("failed", 0, "+inf", 10, 0, "1")),
        ("publish", ("", "deployed", "by", "ada")),
        ("remove_orphans", ("", "orphan")),
        ("obliterate", (10,)),
    )

    @pytest.mark.parametrize(("verb", "args"), CALLS, ids=[f"{verb}-{args[0]}" for verb, args in CALLS])
    async def test_repeated_call_changes_nothing_more(
        self, q: Q, store: redis.Redis, whole: Callable[[], Any], verb: str, args: tuple[Any, ...]
    ) -> None:
        if verb == "obliterate":
            await q.broker.pause()
        else:
            await finish(q, "e1")
            await finish(q, "e2", kind="f")
            await add(q, "a1", "a2", "a3", "a4", "orphan")
            store.lrem("bull:q:wait", 1, "orphan")
        before = whole()
        first = self.call(store, verb, 1, args)
        after = whole()
        assert after != before
        assert self.call(store, verb, 1, args) == first
        assert whole() == after
        with pytest.raises(redis.ResponseError, match="OXSTALE"):
            self.call(store, verb, 0, args)

    def call(self, store: redis.Redis, verb: str, number: int, args: tuple[Any, ...]) -> Any:
        return store.eval(load(verb).text.decode(), 1, "bull:q:meta", "s", number, *args)


class TestBounds:
    """No call handles more than one step, so none blocks the server for longer than that.

    A clean that pinned the server for hours is a pain of BullMQ's users (its pull request 2357).
    """

    COUNT = 1_100

    async def prepare(self, q: Q, store: redis.Redis, state: str) -> None:
        ids = [f"j{number:04}" for number in range(self.COUNT)]
        await add(q, *ids, **({"delay": 60} if state == "delayed" else {}))
        if state in ("completed", "failed"):
            store.delete("bull:q:wait")
            store.zadd(f"bull:q:{state}", {job_id: place + 1 for place, job_id in enumerate(ids)})

    @pytest.mark.parametrize(
        ("state", "verb", "operate"),
        [
            ("completed", "sweep", lambda b: b.bulk.clean(["completed"], 2**53)),
            ("failed", "sweep", lambda b: b.bulk.clean(["failed"], 2**53)),
            ("wait", "sweep", lambda b: b.bulk.clean(["wait"], 2**53)),
            ("wait", "sweep", lambda b: b.bulk.clear()),
            ("wait", "sweep", lambda b: b.bulk.obliterate()),
            ("failed", "retry_jobs", lambda b: b.bulk.retry_all("failed")),
            ("delayed", "promote", lambda b: b.bulk.promote_all()),
        ],
        ids=["clean-completed", "clean-failed", "clean-wait", "drain", "obliterate", "retry", "promote"],
    )
    async def test_pain_a_clean_that_blocks_the_server(
        self, q: Q, store: redis.Redis, state: str, verb: str, operate: Any
    ) -> None:
        await self.prepare(q, store, state)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)
        assert await operate(q.broker) == self.COUNT
        assert calls.count(verb) >= self.COUNT / bulk.MOST

    @pytest.mark.parametrize("state", ["wait", "delayed", "prioritized"])
    async def test_clean_passes_jobs_that_stay_in_few_calls(
        self, q: Q, store: redis.Redis, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "MOST", bulk.STEP)
        many = 6_000
        options: dict[str, Any] = {"wait": {}, "delayed": {"delay": 60}, "prioritized": {"priority": 1}}[
            state
        ]
        await add(q, *(f"j{number:04}" for number in range(many)), **options)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)
        assert await q.broker.bulk.clean([state], 1) == 0
        assert calls.count("sweep") < many / bulk.STEP / 4, "sized by the time they take"
        store.hset("bull:q:j3000", "timestamp", 1)  # one old job behind a run of young ones
        assert await q.broker.bulk.clean([state], 1) == 1
        assert not store.exists("bull:q:j3000")
        assert (await q.broker.counts())[state] == many - 1

    async def test_a_long_page_is_not_read_in_one_call(self, q: Q, store: redis.Redis) -> None:
        await self.prepare(q, store, "wait")
        answer = await q.broker.caller.again(load("page"), "bull:q:meta", "wait", 0, self.COUNT, "")
        assert len(answer) == 2 * self.COUNT
        assert sum(fields != 0 for fields in answer[1::2]) == 100

    @pytest.mark.parametrize("verb", ["cancel_jobs", "dead_jobs"])
    async def test_jobs_that_a_filter_leaves_out_take_few_calls(
        self, q: Q, store: redis.Redis, verb: str
    ) -> None:
        many = 6_000
        ids = [f"j{number:04}" for number in range(many)]
        await add(q, *ids)
        if verb == "dead_jobs":
            store.delete("bull:q:wait")
            store.zadd("bull:q:failed", {job_id: place + 1 for place, job_id in enumerate(ids)})
            for job_id in ids:
                store.hset(f"bull:q:{job_id}", "atm", 3)
        calls: list[str] = []
        q.broker.caller.on_script = lambda called, _: calls.append(called)

        async def chosen() -> list[str]:
            chosen = JobFilter(names=("other",))
            if verb == "cancel_jobs":
                return (await q.broker.cancelling.cancel_all(chosen, ["wait"], "no")).ids
            return (await q.broker.dead_letters.run(DeadWork("purge", chosen))).ids

        assert await chosen() == []
        assert calls.count(verb) < many / bulk.STEP / 2, "sized by the time they take"
        store.hset("bull:q:j3000", "name", "other")  # between jobs that are left out
        store.hset("bull:q:j3001", "name", "other")
        assert set(await chosen()) == {"j3000", "j3001"}
        counts = await q.broker.counts()
        assert counts["wait" if verb == "cancel_jobs" else "failed"] == many - 2
