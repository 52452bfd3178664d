"""Notes on jobs that were lost before: which of their losses count."""

from __future__ import annotations

import pytest
import redis

from oxcart.broker.port import ClaimedJob, Lease
from tests.broker.bullmq.making import Q

LIMIT = "job stalled more than allowable limit"


async def _lose(q: Q, store: redis.Redis, job: ClaimedJob) -> None:
    store.delete(f"bull:q:{job.id}:lock")
    for _ in range(2):  # the first check notes the active jobs
        store.delete("bull:q:stalled-check")
        await q.broker.recover()


async def _claim(q: Q, isolates: bool = True) -> ClaimedJob:
    (job,) = await q.claim(isolates=isolates)
    return job


async def _note(q: Q, job: ClaimedJob, *, alone: bool) -> list[str]:
    return await q.broker.suspects.start([Lease(job.id, job.token, job.starts)], alone=alone)


def _counts(store: redis.Redis) -> tuple[int, int, bool]:
    """Stalls that count, stalls beside others, and whether the next worker fails the job."""
    stalls, shared, failed = store.hmget("bull:q:a", "stc", "ox:shared", "defa")
    return int(stalls or 0), int(shared or 0), failed is not None


class TestSuspects:
    async def test_the_first_loss_counts(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        job = await _claim(q)
        await _lose(q, store, job)
        assert _counts(store) == (1, 0, False)
        assert store.hget("bull:q:a", "ox:beside") is None

    @pytest.mark.parametrize(
        ("alone", "counts"), [(None, (1, 0, False)), (False, (1, 1, False)), (True, (2, 0, True))]
    )
    async def test_a_later_loss_counts_only_alone(
        self,
        q: Q,
        store: redis.Redis,
        alone: bool | None,
        counts: tuple[int, int, bool],
    ) -> None:
        await q.add("a")
        await _lose(q, store, await _claim(q))
        job = await _claim(q)
        assert (job.stalls, job.shared_stalls) == (1, 0)
        if alone is not None:
            assert await _note(q, job, alone=alone) == []
        await _lose(q, store, job)
        assert _counts(store) == counts

    async def test_a_worker_that_does_not_isolate_makes_the_note_void(
        self,
        q: Q,
        store: redis.Redis,
    ) -> None:
        await q.add("a")
        await _lose(q, store, await _claim(q))
        job = await _claim(q)
        await _note(q, job, alone=False)
        assert await q.end(job, "w") == 1
        await _lose(q, store, await _claim(q, isolates=False))
        assert _counts(store) == (2, 0, True)

    async def test_a_job_without_its_lease_must_not_start(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        await _lose(q, store, await _claim(q))
        job = await _claim(q)
        await _lose(q, store, job)
        later = await _claim(q)
        assert await _note(q, job, alone=True) == ["a"]
        assert store.hget("bull:q:a", "ox:beside") == f"w{later.starts}"
        assert await _note(q, later, alone=True) == []

    async def test_a_claim_beside_a_suspect_notes_nothing(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        await q.add("b")
        (a,) = await q.claim()
        await _lose(q, store, a)
        assert {job.id for job in await q.claim(2, isolates=True)} == {"a", "b"}
        assert store.hget("bull:q:b", "ox:beside") is None
        assert store.hget("bull:q:a", "ox:beside") == "w2"

    async def test_a_job_that_survived_alone_runs_beside_others_again(
        self,
        q: Q,
        store: redis.Redis,
    ) -> None:
        await q.add("a")
        await _lose(q, store, await _claim(q))
        job = await _claim(q)
        await _note(q, job, alone=False)
        await _lose(q, store, job)
        job = await _claim(q)
        assert (job.stalls, job.shared_stalls) == (1, 1)
        await _note(q, job, alone=True)
        assert await q.end(job, "w") == 1  # as a snooze or a failed attempt would: it was not lost
        job = await _claim(q)
        assert (job.stalls, job.shared_stalls) == (1, 0)

    async def test_a_count_of_zero_makes_no_suspect(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        store.hset("bull:q:a", "stc", 0)
        await _lose(q, store, await _claim(q))
        assert _counts(store) == (1, 0, False)
