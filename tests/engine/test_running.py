"""A running job: what a handler can read and do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart.model.errors import PayloadError, ValidationError
from tests.broker.bullmq.hashes import hash_of
from tests.engine.making import NOW, NoBroker, make_job


class TestReading:
    def test_running_job_shows_its_fields(self) -> None:
        job = make_job(
            {"x": 1}, job_id="7", name="greet", starts=3, fields={"atm": "1", "stc": "1"}, attempts=5
        )
        assert (job.id, job.name, job.queue, job.data) == ("7", "greet", "q", {"x": 1})
        assert (job.fencing, job.attempt, job.attempts_made, job.stalls) == (3, 3, 1, 1)
        assert (job.options.attempts, job.worker_id, job.started_ms) == (5, "worker-1", NOW)
        assert repr(job) == "RunningJob(q/7 'greet', attempt 3)"

    def test_attempts_of_an_old_peer(self) -> None:
        assert make_job(fields={"attemptsMade": "2"}).attempt == 3

    def test_data_that_is_no_json(self) -> None:
        job = make_job()
        hash_of(job.claim)[b"data"] = b"undefined"
        with pytest.raises(PayloadError):
            _ = job.data

    def test_a_job_without_data(self) -> None:
        job = make_job()
        del hash_of(job.claim)[b"data"]
        assert job.data is None

    @pytest.mark.parametrize("junk", ["many", "", "1e400", "-"])
    def test_numbers_that_a_peer_spoilt(self, junk: str) -> None:
        job = make_job(fields={"atm": junk, "stc": junk})
        assert (job.attempt, job.stalls) == (1, 0)

    def test_snapshot(self) -> None:
        value = make_job({"x": 1}, starts=2, name="greet").snapshot()
        assert (value.id, value.name, value.data, value.attempts_started) == ("1", "greet", {"x": 1}, 2)
        assert (value.worker_id, value.processed_on) == ("worker-1", NOW)


class TestDoing:
    async def test_progress_log_and_data(self) -> None:
        broker = NoBroker()
        job = make_job({"x": 1}, broker=broker, keep_logs=5)
        await job.update_progress({"step": 2})
        await job.log("one", "two")
        await job.update_data({"x": 2})
        assert broker.calls == [
            ("progress", "1", {"step": 2}),
            ("log", "1", ["one", "two"], 5),
            ("data", "1", {"x": 2}),
        ]
        assert job.data == {"x": 2}

    @pytest.mark.parametrize("progress", [-1, 101, "half", None, True])
    async def test_a_bad_progress(self, progress: Any) -> None:
        broker = NoBroker()
        with pytest.raises(ValidationError, match="progress must be a number from 0 to 100 or an object"):
            await make_job(broker=broker).update_progress(progress)
        assert broker.calls == []


class TestCancelling:
    async def test_the_first_reason_counts(self) -> None:
        job = make_job()
        assert not job.is_cancelled
        job.cancel("timeout")
        job.cancel("shutdown")
        assert (job.is_cancelled, job.cancel_reason) == (True, "timeout")
        assert await job.cancelled() == "timeout"

    async def test_waiting_for_it(self) -> None:
        job = make_job()
        waiting = [asyncio.create_task(job.cancelled()) for _ in range(2)]
        await asyncio.sleep(0)
        job.cancel("lease lost")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == ["lease lost"] * 2
