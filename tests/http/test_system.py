"""Health, statistics, metrics, request ids, and the shape of errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.http import counting
from oxcart.http.application import app
from oxcart.http.server import Server
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.signals import eventually


async def test_health_live_and_ready_need_no_token(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens={"a-long-enough-token": "admin"})
    for path in ("/health", "/live", "/ready"):
        answer = await client.get(path)
        assert (answer.status_code, set(answer.json())) == (200, {"status"})


async def test_stats_count_formal_states(make_queue: MakeQueue, serve: Serve) -> None:
    queue, other = make_queue("q"), make_queue("other")

    @queue.job
    async def fine() -> None: ...

    @queue.job
    async def bad() -> None:
        raise PermanentError("no")

    @queue.job
    async def busy() -> None:
        raise TemporaryError("busy", retry_after="1h")

    client = await serve(queue, other)
    async with Worker(queue).running():
        for name, attempts in (("fine", 1), ("bad", 1), ("busy", 1), ("busy", 2)):
            await queue.add(name, attempts=attempts)
        await eventually(
            lambda: _counted(queue, completed=1, failed=2, delayed=1), "all have ended or wait for a retry"
        )
        stats = (await client.get("/api/v1/stats")).json()
    assert stats["workers"]["total_workers"] >= 1
    gone = await other.add("t")
    await other.jobs.cancel(gone.id)
    await other.add("t")
    await other.add("t", delay="1h")
    await other.add("t", priority=3)
    stats = (await client.get("/api/v1/stats")).json()["queue"]
    expected = {
        "pending": 0, "scheduled": 2, "running": 0, "delayed": 1, "retrying": 1, "completed": 1, "failed": 1,
        "dead_letter": 1, "cancelled": 1, "total_jobs": 8, "exact": True,
    }  # fmt: skip
    assert {name: stats[name] for name in expected} == expected


async def _counted(queue: Queue, **wanted: int) -> bool:
    counts = await queue.counts()
    return all(counts[name] == count for name, count in wanted.items())


async def test_metrics_are_prometheus_text(queue: Queue, serve: Serve) -> None:
    await queue.add("t")
    answer = await (await serve(queue)).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {one.name: one for one in text_string_to_metric_families(answer.text)}
    lengths = {tuple(s.labels.values()): s.value for s in families["bullmq_queue_length"].samples}
    assert lengths["q", "waiting"] == 1


async def test_about_names_the_endpoints(queue: Queue, serve: Serve) -> None:
    body = (await (await serve(queue)).get("/api/v1")).json()
    assert body["name"] == "oxcart"
    assert "/api/v1/jobs/batch" in body["endpoints"].values()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/api/v1/jobs/a/b/c", 404, "not_found"),
        ("PUT", "/api/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/api/v1/jobs?limit=x", 400, "validation_error"),
    ],
)
async def test_every_error_has_the_shape(
    queue: Queue, serve: Serve, method: str, path: str, status: int, code: str
) -> None:
    answer = await (await serve(queue)).request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


async def test_an_unexpected_error_shows_no_stack(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serve(queue)
    monkeypatch.setattr("oxcart.http.counting.FormalCounts.of", lambda *_: 1 / 0)
    answer = await client.get("/api/v1/stats")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_idle_connections_stay_open_longer_than_clients_keep_them(queue: Queue) -> None:
    assert Server(app([queue]))._server.config.timeout_keep_alive > 60


async def test_a_request_id_is_echoed_or_made(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    assert (await client.get("/health", headers={"X-Request-ID": "abc-1"})).headers["x-request-id"] == "abc-1"
    for given in ("", "a b", "x" * 200):
        made = (await client.get("/health", headers={"X-Request-ID": given})).headers["x-request-id"]
        assert uuid.UUID(made).version == 4


async def test_a_request_that_takes_too_long_is_a_503(
    queue: Queue, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serve(queue)
    monkeypatch.setattr("oxcart.http.middleware.REQUEST_SECONDS", 0.0)
    answer = await client.get("/api/v1/stats")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


async def test_stats_have_the_fields_of_a_worker_pool(queue: Queue, serve: Serve) -> None:
    await queue.add("t")
    workers = (await (await serve(queue)).get("/api/v1/stats")).json()["workers"]
    assert workers.keys() - {"capacity"} == {
        "total_workers", "active_workers", "idle_workers", "queued_jobs", "processed_jobs", "succeeded_jobs",
        "failed_jobs", "retried_jobs", "avg_processing_time", "max_processing_time", "p99_processing_time",
        "processing_ids", "uptime", "healthy",
    }  # fmt: skip
    assert (workers["queued_jobs"], workers["healthy"]) == (1, False)


async def test_counts_of_many_failed_jobs_are_shared(
    queue: Queue, serve: Serve, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "SCAN", 200)
    monkeypatch.setattr(counting, "SMALL", 100)

    def fail(first: int, count: int) -> None:
        with store.pipeline(transaction=False) as pipe:
            for number in range(first, first + count):
                fields = {"name": "a", "finishedOn": number, "ox:category": "cancelled"}
                pipe.hset(f"bull:q:j{number}", mapping=fields)  # type: ignore[arg-type]
                pipe.zadd("bull:q:failed", {f"j{number}": number})
            pipe.execute()

    await queue.add("a")
    fail(0, 300)
    client = await serve(queue)

    async def read() -> dict[str, Any]:
        found: dict[str, Any] = (await client.get("/api/v1/stats")).json()["queue"]
        return {name: found[name] for name in ("failed", "cancelled", "exact")}

    assert await read() == {"failed": 100, "cancelled": 200, "exact": False}
    store.config_resetstat()
    fail(300, 10)
    assert await read() == {"failed": 110, "cancelled": 200, "exact": False}
    assert "cmdstat_hgetall" not in store.info("commandstats")
    monkeypatch.setattr(counting, "FRESH", 0.0)
    monkeypatch.setattr(counting, "SCAN", 1000)
    assert await read() == {"failed": 0, "cancelled": 310, "exact": True}


async def test_an_address_may_not_probe_without_bound(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    codes = [(await client.get("/ready")).status_code for _ in range(120)]
    assert codes[:50] == [200] * 50
    assert 429 in codes
    assert (await client.get("/live")).status_code == 200
