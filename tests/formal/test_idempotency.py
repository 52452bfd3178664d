"""Idempotency keys: one job per name and key within the window, even for racing producers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
import redis

import oxcart.sync
from oxcart import Queue
from oxcart.broker.bullmq.keys import Keys
from oxcart.model.errors import ValidationError
from tests.broker.bullmq.making import Q
from tests.conftest import MakeQueue


class TestKey:
    async def test_a_duplicate_returns_the_existing_job_and_reports_it(
        self, queue: Queue, store: redis.Redis
    ) -> None:
        first = await queue.add("welcome", {"n": 1}, idempotency_key="user-42")
        second = await queue.add("welcome", {"n": 2}, idempotency_key="user-42")
        assert (first.created, first.duplicate) == (True, False)
        assert (second.id, second.created, second.duplicate) == (first.id, False, True)
        job = await second.get()
        assert (job.data, job.idempotency_key) == ({"n": 1}, "user-42")
        assert store.llen("bull:q:wait") == 1
        key = Keys("q").idempotency("welcome", "user-42")
        assert store.get(key) == first.id
        assert 86_000_000 < int(store.pttl(key)) <= 86_400_000

    async def test_the_scope_is_the_name(self, queue: Queue) -> None:
        jobs = [
            await queue.add(name, idempotency_key=key)
            for name, key in (("a", "x"), ("b", "x"), ("a:b", "c"), ("a", "b:c"), ("é", "x"))
        ]
        assert all(job.created for job in jobs)
        assert (await queue.add("é", idempotency_key="x")).duplicate

    async def test_the_window_ends(self, queue: Queue, store: redis.Redis) -> None:
        first = await queue.add("n", idempotency_key="k", idempotency_window="1h")
        key = Keys("q").idempotency("n", "k")
        assert 3_500_000 < int(store.pttl(key)) <= 3_600_000
        store.delete(key)  # as its expiry would
        second = await queue.add("n", idempotency_key="k")
        assert second.created
        assert second.id != first.id

    async def test_key_outlives_the_end_of_the_job(self, q: Q) -> None:
        job = await q.active("a", idempotency_key="k")
        await q.end(job)
        (again,) = await q.broker.add([q.broker.encode("n", None, _options("k"))])
        assert (again.id, again.duplicate) == ("a", True)

    async def test_key_of_a_removed_job_is_free_again(self, queue: Queue) -> None:
        first = await queue.add("n", idempotency_key="k")
        await first.remove()
        second = await queue.add("n", idempotency_key="k")
        assert second.created
        assert (await queue.add("n", idempotency_key="k")).id == second.id

    async def test_survives_a_clean_of_completed_jobs_that_are_kept(self, q: Q, store: redis.Redis) -> None:
        """Unlike BullMQ's own deduplication keys, which a clean drops with the job that owns them."""
        job = await q.active("a", idempotency_key="k")
        await q.end(job)
        assert store.exists(Keys("q").idempotency("n", "k"))

    async def test_with_every_place_that_a_job_can_begin_in(self, queue: Queue, store: redis.Redis) -> None:
        options: list[dict[str, Any]] = [
            {},
            {"delay": 60},
            {"priority": 2},
            {"lifo": True},
            {"job_id": "own"},
        ]
        for number, option in enumerate(options):
            first = await queue.add("n", idempotency_key=f"k{number}", **option)
            assert first.created
            other = {**option, **({"job_id": "other"} if "job_id" in option else {})}
            again = await queue.add("n", idempotency_key=f"k{number}", **other)
            assert (again.id, again.duplicate) == (first.id, True)
        assert not store.exists("bull:q:other")

    async def test_lifo_stays_lifo(self, q: Q, store: redis.Redis) -> None:
        await q.add("a")
        await q.add("b", lifo=True, idempotency_key="k")
        assert store.lrange("bull:q:wait", 0, -1) == ["a", "b"]


def _options(key: str) -> Any:
    from oxcart.model.options import JobOptions

    return JobOptions.build(idempotency_key=key)


class TestRaces:
    async def test_two_producers_make_one_job_always(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queues = [make_queue() for _ in range(4)]
        for number in range(50):
            handles = await asyncio.gather(
                *(queue.add("n", idempotency_key=f"k{number}") for queue in queues for _ in range(3))
            )
            assert len({handle.id for handle in handles}) == 1
            assert [handle.created for handle in handles].count(True) == 1
            assert [handle.duplicate for handle in handles].count(True) == 11
        assert store.llen("bull:q:wait") == 50

    async def test_racing_batches_add_each_key_once(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        rows: list[Any] = [("n", number, {"idempotency_key": f"k{number % 100}"}) for number in range(600)]
        plain: list[Any] = [("n", "plain")] * 50
        batches = await asyncio.gather(*(make_queue().add_many([*rows, *plain]) for _ in range(3)))
        owners: dict[str, set[str]] = {}
        for batch in batches:
            for row, handle in zip(rows, batch[:600], strict=True):
                owners.setdefault(row[2]["idempotency_key"], set()).add(handle.id)
            assert all(handle.created for handle in batch[600:])
        assert [len(ids) for ids in owners.values()] == 100 * [1]
        made = [handle for batch in batches for handle in batch if handle.created]
        assert len(made) == 100 + 3 * 50
        assert store.llen("bull:q:wait") == len(made)


class TestOtherFaces:
    def test_sync(self, url: str) -> None:
        with oxcart.sync.Queue("q", url=url) as queue:
            first = queue.add("n", idempotency_key="k")
            again = queue.add("n", idempotency_key="k")
            assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)

    def test_command_line(self, url: str) -> None:
        command = [
            sys.executable,
            "-m",
            "oxcart.cli",
            "--url",
            url,
            "add",
            "q",
            "n",
            "--idempotency-key",
            "k",
        ]
        outputs = [
            subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
        ]
        assert outputs[1] == f"{outputs[0].strip()} (was there already)\n"

    async def test_inline(self) -> None:
        from oxcart import testing

        queue = Queue("q")
        with testing.manual(queue):
            first = await queue.add("n", idempotency_key="k")
            again = await queue.add("n", idempotency_key="k")
            assert (again.id, again.duplicate) == (first.id, True)
            assert (await queue.add("other", idempotency_key="k")).created


class TestBadInput:
    @pytest.mark.parametrize("key", ["", "x" * 257, 5, b"k", "\ud800"])
    async def test_a_bad_key_writes_nothing(self, queue: Queue, store: redis.Redis, key: Any) -> None:
        with pytest.raises(ValidationError, match="idempotency_key"):
            await queue.add("n", idempotency_key=key)
        assert store.dbsize() == 0

    async def test_256_characters_are_fine(self, queue: Queue) -> None:
        key = "é" * 256
        assert (await queue.add("n", idempotency_key=key)).created
        assert (await queue.add("n", idempotency_key=key)).duplicate

    @pytest.mark.parametrize("window", [0, -1, "0s", "soon"])
    async def test_a_bad_window_writes_nothing(self, queue: Queue, store: redis.Redis, window: Any) -> None:
        with pytest.raises(ValidationError, match="idempotency_window"):
            await queue.add("n", idempotency_key="k", idempotency_window=window)
        assert store.dbsize() == 0

    async def test_not_together_with_a_deduplication(self, queue: Queue, store: redis.Redis) -> None:
        with pytest.raises(ValidationError, match="idempotency_key"):
            await queue.add("n", idempotency_key="k", deduplication="d")
        assert store.dbsize() == 0
