"""A job's states, transitions and attempts, written by the scripts that move it or inferred from its hash."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import redis

from oxcart import Queue, Worker
from oxcart.broker.port import Ask
from oxcart.engine.running import RunningJob
from oxcart.model.failure import PermanentError, TemporaryError
from oxcart.model.graph import Edge, Existing, Kind, Node
from oxcart.model.history import Change, Known, attempts, transitions
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.outcome import Cancel, Snooze
from oxcart.model.retention import REMOVE
from oxcart.model.state import REPLAY, TRANSITIONS, State, can_move
from tests.broker.bullmq.making import Q
from tests.signals import eventually


async def look(q: Q, job_id: str = "a") -> Job:
    (job,) = await q.broker.look([job_id])
    assert job is not None
    return job


def ways(job: Job) -> list[tuple[str, str]]:
    return [(change.source.value, change.target.value) for change in job.transitions]


def check(job: Job) -> None:
    """Checks that every transition is allowed, has a reason of the model, and follows the previous one."""
    known = {(move.source, move.target, move.reason) for move in TRANSITIONS}
    changes = job.transitions
    assert all((one.source, one.target, one.why) in known for one in changes), changes
    assert all(one.target is two.source for one, two in pairwise(changes)), changes
    assert all(can_move(one.source, one.target, replay=one.why == REPLAY) for one in changes)
    if changes:
        assert changes[-1].target is job.state


class TestStates:
    @pytest.mark.parametrize(
        ("options", "state"),
        [({}, State.SCHEDULED), ({"priority": 3}, State.SCHEDULED), ({"delay": 5}, State.DELAYED)],
    )
    async def test_before_it_runs(self, q: Q, options: Any, state: State) -> None:
        await q.add("a", **options)
        assert (await look(q)).state is state

    @pytest.mark.parametrize(
        ("end", "state"),
        [
            ({"kind": "c"}, State.COMPLETED),
            ({"kind": "f", "attempts": 3, "category": "permanent"}, State.FAILED),
            ({"kind": "f", "attempts": 1, "category": "cancelled"}, State.CANCELLED),
            ({"kind": "f", "attempts": 3, "category": "timeout", "dead": "lifetime"}, State.DEAD_LETTER),
            ({"kind": "d", "delay_ms": 5000}, State.RETRYING),
            ({"kind": "d", "delay_ms": 5000, "counts": False}, State.DELAYED),
            ({"kind": "r"}, State.SCHEDULED),
            ({"kind": "w"}, State.SCHEDULED),
        ],
    )
    @pytest.mark.parametrize("history", [True, False])
    async def test_after_an_attempt(self, q: Q, end: dict[str, Any], state: State, history: bool) -> None:
        job = await q.active("a", history=history)
        assert (await look(q)).state is State.RUNNING
        await q.end(job, **end)
        seen = await look(q)
        assert seen.state is state
        check(seen)
        if history:
            assert not any(change.inferred for change in seen.transitions[1:])

    async def test_out_of_attempts_it_is_a_dead_letter(self, q: Q) -> None:
        job = await q.active("a", attempts=1, history=True)
        await q.end(job, "f", attempts=1, category="temporary")
        assert (await look(q)).state is State.DEAD_LETTER
        check(await look(q))

    async def test_a_page_has_the_state_too(self, queue: Queue) -> None:
        await queue.add("n", delay=60)
        assert [job.state for job in await queue.jobs.list("delayed")] == [State.DELAYED]

    async def test_missing_jobs_and_other_keys_are_none(self, q: Q, store: redis.Redis) -> None:
        store.set("bull:q:text", "x")
        assert await q.broker.look(["none", "text"]) == [None, None]


class TestTransitions:
    async def test_a_long_history_is_complete(self, q: Q) -> None:
        """Delayed, run, failed, retried, lost, returned, failed for good, replayed, completed."""
        await q.add("a", delay=5, attempts=9, history=True)
        q.clock.now += 5000
        (job,) = await q.claim(worker="w1")
        q.clock.now += 10
        await q.end(
            job, "d", value=b"not now", stack=b'["trace"]', delay_ms=100, category="temporary", code="X"
        )
        q.clock.now += 200
        (job,) = await q.claim(worker="w2")
        await q.end(job, "w")
        (job,) = await q.claim(worker="w3", lock_ms=1)
        await eventually(lambda: self.is_unlocked(q), "the lease has run out")
        await q.broker.recover(interval_ms=1)
        await eventually(lambda: self.recovered(q), "the job was recovered")
        (job,) = await q.claim(worker="w4")
        await q.end(
            job, "f", value=b"never", stack=b'["t1","t2"]', attempts=9, category="permanent", code="E7"
        )
        await q.broker.retry_job("a", "failed")
        (job,) = await q.claim(worker="w5")
        await q.end(job)
        seen = await look(q)
        check(seen)
        assert ways(seen) == [
            ("pending", "delayed"),
            ("delayed", "scheduled"),
            ("scheduled", "running"),
            ("running", "retrying"),
            ("retrying", "scheduled"),
            ("scheduled", "running"),
            ("running", "scheduled"),
            ("scheduled", "running"),
            ("running", "scheduled"),
            ("scheduled", "running"),
            ("running", "failed"),
            ("failed", "scheduled"),
            ("scheduled", "running"),
            ("running", "completed"),
        ]
        assert [change.inferred for change in seen.transitions] == [True] + 13 * [False]
        assert [one.worker for one in seen.past_attempts] == ["w1", "w2", "w3", "w4", "w5"]
        outcomes = [
            (one.outcome, one.category, one.code, one.message, one.stack) for one in seen.past_attempts
        ]
        assert outcomes == [
            ("retried", "temporary", "X", "not now", "trace"),
            ("given_back", None, None, None, None),
            ("stalled", "system", None, "the worker was lost", None),
            ("failed", "permanent", "E7", "never", "t2"),
            ("completed", None, None, None, None),
        ]
        first = seen.past_attempts[0]
        assert first.started is not None
        assert (first.id, first.ended) == ("a/1", first.started + 10)
        claimed, failed = seen.transitions[2:4]
        assert (claimed.at, failed.at) == (first.started, first.ended)
        assert [change.worker for change in seen.transitions if change.target is State.RUNNING] == [
            *("w1", "w2", "w3", "w4", "w5"),
        ]
        assert failed.worker == "w1"

    async def test_without_a_delay_it_is_scheduled_at_once(self, q: Q) -> None:
        """This holds before any worker has run it. A delayed job is not scheduled yet."""
        await q.add("a", history=True)
        await q.add("b", history=True, delay=5)
        assert ways(await look(q, "a")) == [("pending", "scheduled")]
        assert ways(await look(q, "b")) == [("pending", "delayed")]
        (job,) = await q.claim()
        await q.end(job)
        seen = await look(q)
        check(seen)
        assert ways(seen) == [("pending", "scheduled"), ("scheduled", "running"), ("running", "completed")]
        assert seen.transitions[0].at == seen.timestamp
        assert [change.why for change in seen.transitions] == [
            "immediate execution requested",
            "a worker accepts the job",
            "the handler succeeded",
        ]

    @pytest.mark.parametrize(("delay", "target"), [(0, "scheduled"), (5, "delayed")])
    async def test_a_dependent_is_pending_until_its_dependency_has_ended(
        self, q: Q, delay: int, target: str
    ) -> None:
        job = await q.active("first")
        options = JobOptions.build(job_id="a", history=True, delay=delay)
        node = Node("q", "bull", "n", None, options, (Edge(Existing("bull", "q", "first"), Kind.AFTER),))
        await q.broker.graphs.add([node])
        assert ((await look(q)).state, ways(await look(q))) == (State.PENDING, [])
        q.clock.now += 10
        await q.end(job)
        seen = await look(q)
        check(seen)
        assert ways(seen) == [("pending", target)]
        assert not seen.transitions[0].inferred

    async def is_unlocked(self, q: Q) -> bool:
        return not await q.broker.caller.command("EXISTS", q.broker.keys.lock("a"))

    async def recovered(self, q: Q) -> bool:
        await q.broker.recover(interval_ms=1)
        return await q.state() == "waiting"

    async def test_is_bounded(self, q: Q, store: redis.Redis) -> None:
        await q.add("a", attempts=1000, history=True)
        for _ in range(60):
            (job,) = await q.claim()
            await q.end(job, "r", value=b"x" * 5000, stack=b'["%s"]' % (b"y" * 9000))
        seen = await look(q)
        check(seen)
        assert len(seen.transitions) == 50
        assert [one.number for one in seen.past_attempts] == list(range(41, 61))
        assert store.hstrlen("bull:q:a", "ox:history") < 5000
        assert store.hstrlen("bull:q:a", "ox:attempts") < 70_000

    async def test_a_worker_with_a_strange_name(self, q: Q) -> None:
        await q.add("a", history=True)
        (job,) = await q.claim(worker="tab\tnew\nline")
        await q.end(job)
        assert (await look(q)).transitions[-1].worker == "tab new line"
        assert (await look(q)).past_attempts[0].worker == "tab\tnew\nline"

    async def test_of_a_job_that_is_not_kept_nothing_is_left(self, q: Q, store: redis.Redis) -> None:
        job = await q.active("a", history=True)
        await q.end(job, retention=REMOVE)
        assert not store.exists("bull:q:a")

    async def test_without_a_history_it_is_inferred(self, q: Q) -> None:
        job = await q.active("a")
        q.clock.now += 7
        await q.end(job)
        seen = await look(q)
        check(seen)
        assert ways(seen) == [("pending", "scheduled"), ("scheduled", "running"), ("running", "completed")]
        assert all(change.inferred for change in seen.transitions)
        assert [change.at for change in seen.transitions] == [
            seen.timestamp,
            seen.processed_on,
            seen.finished_on,
        ]
        (only,) = seen.past_attempts
        assert (only.id, only.outcome, only.started, only.ended) == (
            "a/1",
            "completed",
            seen.processed_on,
            seen.finished_on,
        )

    async def test_a_repeated_call_writes_it_once(self, q: Q, store: redis.Redis) -> None:
        job = await q.active("a", history=True)
        await q.end(job)
        before = store.hgetall("bull:q:a")
        assert await q.end(job) == -2
        assert store.hgetall("bull:q:a") == before

    async def test_batch_keeps_a_separate_history_per_job(self, q: Q) -> None:
        for job_id in "abcdefgh":
            await q.add(job_id, history=job_id in "bdf", attempts=3)
        jobs = await q.claim(8)
        ends = [q.outcome(job, "cfd"[place % 3], value=b"1", attempts=3) for place, job in enumerate(jobs)]
        codes, _ = await q.broker.finish(ends, Ask(0))
        assert codes == 8 * [1]
        for job_id in "abcdefgh":
            seen = await look(q, job_id)
            check(seen)
            assert (seen.attempt_records != "") == (job_id in "bdf")

    async def test_damaged_lines_are_passed_over(self) -> None:
        known = Known(State.COMPLETED, 5, False, 6, 7, "w")
        text = "nonsense\n1\tscheduled\trunning\tw\twhy\n2\tup\tdown\t\t\n"
        found = transitions(text, known)
        assert Change(State.SCHEDULED, State.RUNNING, 1, "why", "w") in found
        assert found[-1].target is State.COMPLETED
        assert len(attempts("{}\n[1]\nx\n", "a", 2, known)) == 2


class TestHandlersSee:
    async def test_attempt_ids_and_the_previous_one(self, queue: Queue) -> None:
        seen: list[tuple[int, str, str | None]] = []
        known: list[tuple[str, str | None]] = []

        @queue.job(backoff={"type": "fixed", "delay": 1}, attempts=3, history=True)
        async def work(job: RunningJob) -> str:
            seen.append((job.attempt, job.attempt_id, job.previous_attempt_id))
            known.append((job.id, job.idempotency_key))
            if len(seen) < 3:
                raise TemporaryError("not yet")
            return "done"

        handle = await work.using(idempotency_key="order-7").enqueue()
        async with Worker(queue, name="w1").running():
            assert await handle.result(20) == "done"
        one = handle.id
        assert known == [(one, "order-7")] * 3
        assert seen == [(1, f"{one}/1", None), (2, f"{one}/2", f"{one}/1"), (3, f"{one}/3", f"{one}/2")]
        job = await handle.get()
        check(job)
        assert [(one.outcome, one.worker) for one in job.past_attempts] == [
            ("retried", "w1"),
            ("retried", "w1"),
            ("completed", "w1"),
        ]

    async def test_every_end_of_a_handler_explains_itself(self, queue: Queue) -> None:
        async def act(how: str) -> Any:
            if how == "permanent":
                raise PermanentError("no such user", code="E404")
            if how == "temporary":
                raise TemporaryError("busy")
            if how == "system":
                raise MemoryError
            return Cancel("not wanted") if how == "cancel" else "fine"

        queue.job(name="act", attempts=1, history=True)(act)
        names = ["permanent", "temporary", "system", "cancel", "fine"]
        handles = await queue.add_many(
            [("act", {"how": name}, {"attempts": 1, "history": True}) for name in names]
        )
        async with Worker(queue, concurrency=5).running():
            await eventually(lambda: self.all_ended(handles), "all have ended")
        jobs = dict(zip(names, [await handle.get() for handle in handles], strict=True))
        for job in jobs.values():
            check(job)
        assert {name: job.state for name, job in jobs.items()} == {
            "permanent": State.FAILED,
            "temporary": State.DEAD_LETTER,
            "system": State.DEAD_LETTER,
            "cancel": State.CANCELLED,
            "fine": State.COMPLETED,
        }
        assert {name: job.category for name, job in jobs.items()} == {
            "permanent": "permanent",
            "temporary": "temporary",
            "system": "system",
            "cancel": "cancelled",
            "fine": None,
        }
        assert jobs["permanent"].code == "E404"
        assert jobs["permanent"].past_attempts[0].code == "E404"

    async def all_ended(self, handles: list[Any]) -> bool:
        return all([(await handle.get()).finished_on is not None for handle in handles])

    async def test_a_snooze_is_a_delay(self, queue: Queue) -> None:
        done: list[int] = []

        @queue.job(history=True)
        async def nap(job: RunningJob) -> Any:
            done.append(job.attempt)
            return Snooze("10ms") if len(done) < 3 else "awake"

        handle = await nap.enqueue()
        async with Worker(queue).running():
            assert await handle.result(20) == "awake"
        assert done == [1, 1, 1]
        job = await handle.get()
        check(job)
        assert ways(job).count(("running", "delayed")) == 2
