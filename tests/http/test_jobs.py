"""Adding, reading, steering and awaiting jobs over HTTP, as a GopherQueue client does."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import redis

from oxcart import PermanentError, Queue, RunningJob, TemporaryError, Worker
from tests.conftest import MakeQueue
from tests.http.conftest import Serve

REQUIRED = {
    "id", "type", "state", "priority", "attempt", "max_attempts", "progress", "progress_message", "tags",
    "created_at", "updated_at",
}  # fmt: skip


async def submit(client: httpx.AsyncClient, job_type: str = "welcome", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/api/v1/jobs", json={"type": job_type, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_submit_returns_the_job(formal: Queue, serve: Serve) -> None:
    client = await serve(formal)
    job = await submit(
        client,
        payload={"to": "ada"},
        priority=1,
        max_attempts=5,
        correlation_id="order-7",
        tags={"tenant": "acme"},
        timeout="30m",
    )
    assert job.keys() >= REQUIRED
    assert uuid.UUID(job["id"]).version == 4
    assert (job["type"], job["state"], job["priority"], job["attempt"], job["max_attempts"]) == (
        "welcome", "scheduled", 1, 0, 5,
    )  # fmt: skip
    assert job["tags"] == {"tenant": "acme"}
    stored = await formal.jobs.get(job["id"])
    assert stored is not None
    assert stored.data == {"to": "ada"}
    assert stored.options.timeout == 30 * 60_000
    assert stored.options.lifetime == 7 * 86_400_000


async def test_priority_is_normal_unless_given(formal: Queue, serve: Serve) -> None:
    assert (await submit(await serve(formal)))["priority"] == 2


async def test_times_have_milliseconds_and_a_zone(formal: Queue, serve: Serve) -> None:
    job = await submit(await serve(formal))
    for field in ("created_at", "updated_at"):
        assert job[field][-5] == "."
        assert datetime.fromisoformat(job[field]).tzinfo is not None


async def test_a_second_submit_of_a_key_returns_the_first_job(formal: Queue, serve: Serve) -> None:
    client = await serve(formal)
    first = await submit(client, idempotency_key="user-42")
    again = await client.post("/api/v1/jobs", json={"type": "welcome", "idempotency_key": "user-42"})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    other = await client.post("/api/v1/jobs", json={"type": "goodbye", "idempotency_key": "user-42"})
    assert other.status_code == 201


@pytest.mark.parametrize(
    ("text", "ms"), [("1h30m", 5_400_000), ("1.5h", 5_400_000), ("300ms", 300), ("10us", 1)]
)
async def test_delays_are_go_durations(formal: Queue, serve: Serve, text: str, ms: int) -> None:
    job = await submit(await serve(formal), delay=text)
    stored = await formal.jobs.get(job["id"])
    assert stored is not None
    assert (stored.options.delay, job["state"]) == (ms, "delayed")


async def test_scheduled_at_is_an_absolute_time(formal: Queue, serve: Serve) -> None:
    client = await serve(formal)
    at = datetime.now(UTC) + timedelta(days=30)
    job = await submit(client, scheduled_at=at.isoformat())
    stored = await formal.jobs.get(job["id"])
    assert stored is not None
    assert abs(stored.timestamp + stored.options.delay - at.timestamp() * 1000) < 60_000
    past = await submit(client, scheduled_at="2020-01-01T00:00:00Z")
    assert past["state"] == "scheduled"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "type"),
        ({"type": ""}, "type"),
        ({"type": 5}, "type"),
        ({"type": "t", "priority": 5}, "priority"),
        ({"type": "t", "priority": "urgent"}, "priority"),
        ({"type": "t", "delay": "soon"}, "delay"),
        ({"type": "t", "delay": "-5s"}, "delay"),
        ({"type": "t", "delay": "1s", "scheduled_at": "2030-01-01T00:00:00Z"}, "delay"),
        ({"type": "t", "scheduled_at": "tomorrow"}, "scheduled_at"),
        ({"type": "t", "scheduled_at": "2030-01-01T00:00:00"}, "scheduled_at"),
        ({"type": "t", "timeout": "0s"}, "timeout"),
        ({"type": "t", "max_attempts": 0}, "max_attempts"),
        ({"type": "t", "idempotency_key": "x" * 257}, "idempotency_key"),
        ({"type": "t", "tags": {"a": 1}}, "tags"),
        ({"type": "t", "depends_on": ["none"]}, "depends_on"),
        ({"type": "t", "dependency_type": "BEFORE"}, "dependency_type"),
        ({"type": "t", "backoff": {"strategy": "sometimes"}}, "backoff.strategy"),
        ({"type": "t", "queue": "other"}, "queue"),
        ({"type": "t", "prioriti": 1}, "prioriti"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_written(
    formal: Queue, serve: Serve, store: redis.Redis, fields: dict[str, Any], field: str
) -> None:
    answer = await (await serve(formal)).post("/api/v1/jobs", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "validation_error")
    assert field in error["message"]
    assert error["details"]
    assert list(store.scan_iter("bull:emails:*-*")) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff", b"null", b"[" * 20_000])
async def test_a_body_that_is_no_object_is_a_400(formal: Queue, serve: Serve, body: bytes) -> None:
    client = await serve(formal)
    answer = await client.post("/api/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_request", "validation_error")


async def test_a_body_over_the_limit_is_a_413(formal: Queue, serve: Serve) -> None:
    client = await serve(formal, max_body=1000)
    answer = await client.post("/api/v1/jobs", json={"type": "t", "payload": "x" * 2000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_a_payload_over_the_limit_of_a_job_is_a_413(formal: Queue, serve: Serve) -> None:
    client = await serve(formal)
    answer = await client.post("/api/v1/jobs", json={"type": "t", "payload": "x" * (11 * 1024 * 1024)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_a_type_leads_to_its_queue(make_queue: MakeQueue, serve: Serve) -> None:
    emails, video, rest = make_queue("emails"), make_queue("video"), make_queue("default")
    client = await serve(emails, video, rest, types={"welcome": "emails"})
    for job_type, queue in (("welcome", "emails"), ("video", "video"), ("other", "default")):
        assert (await submit(client, job_type))["queue"] == queue
    assert (await submit(client, "welcome", queue="video"))["queue"] == "video"


async def test_an_id_of_the_api_leads_to_its_queue_with_one_read(
    make_queue: MakeQueue, serve: Serve, store: redis.Redis
) -> None:
    queues = [make_queue(f"q{number}") for number in range(20)]
    client = await serve(*queues)
    jobs = [await submit(client, f"q{number}") for number in range(20)]

    def calls() -> int:
        stats = store.info("commandstats")
        return sum(stats.get(name, {"calls": 0})["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval"))

    await client.get(f"/api/v1/jobs/{jobs[0]['id']}")
    before = calls()
    for number, job in enumerate(jobs):
        read = (await client.get(f"/api/v1/jobs/{job['id']}")).json()
        assert (read["id"], read["queue"]) == (job["id"], f"q{number}")
    assert calls() - before <= 20 + 2  # two of 20 queues may share 16 bits


async def test_a_job_that_was_added_elsewhere_is_found(make_queue: MakeQueue, serve: Serve) -> None:
    queues = [make_queue(name) for name in ("a", "b", "c")]
    made = await queues[1].add("welcome", job_id="custom-7")
    client = await serve(*queues)
    for _ in range(2):
        job = (await client.get("/api/v1/jobs/custom-7")).json()
        assert (job["id"], job["queue"]) == (made.id, "b")


@pytest.mark.parametrize(
    "job_id", ["6f1c2f6e-1d2b-4c3a-9f4e-5a6b7c8d9e0f", "wait", "meta", "events", "a:b", "7:logs", "id", "%00"]
)
async def test_an_unknown_id_is_a_404(queue: Queue, serve: Serve, job_id: str) -> None:
    await queue.add("welcome")
    client = await serve(queue)
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/result"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ):
        answer = await client.request(method, f"/api/v1/jobs/{job_id}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), (method, path)
    assert (await client.post(f"/api/v1/jobs/{job_id}/wait", json={"timeout": "1ms"})).status_code == 404


async def test_a_payload_is_shown_only_on_request(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    job = await submit(client, payload={"secret": 1})
    assert "payload" not in job
    assert "payload" not in (await client.get(f"/api/v1/jobs/{job['id']}")).json()
    shown = (await client.get(f"/api/v1/jobs/{job['id']}", params={"payload": "true"})).json()
    assert shown["payload"] == {"secret": 1}


async def test_wait_returns_the_result(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def welcome(to: str) -> dict[str, str]:
        return {"to": to}

    client = await serve(queue)
    async with Worker(queue).running():
        job = await submit(client, payload={"to": "ada"})
        waited = (await client.post(f"/api/v1/jobs/{job['id']}/wait", json={"timeout": "30s"})).json()
    assert (waited["state"], waited["completed"], waited["success"], waited["timed_out"]) == (
        "completed", True, True, False,
    )  # fmt: skip
    result = (await client.get(f"/api/v1/jobs/{job['id']}/result")).json()
    assert result == waited["result"]
    assert json.loads(base64.b64decode(result["output"])) == {"to": "ada"}
    assert result["duration"] >= 0


async def test_wait_works_for_a_job_that_is_removed_on_completion(
    make_queue: MakeQueue, serve: Serve
) -> None:
    queue = make_queue(remove_on_complete=True)

    @queue.job
    async def welcome() -> str:
        return "hello"

    client = await serve(queue)
    async with Worker(queue).running():
        job = await submit(client)
        waited = (await client.get(f"/api/v1/jobs/{job['id']}/wait", params={"timeout": "30s"})).json()
    assert (waited["state"], waited["success"]) == ("completed", True)
    assert json.loads(base64.b64decode(waited["result"]["output"])) == "hello"


async def test_wait_times_out(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    job = await submit(client)
    waited = (await client.get(f"/api/v1/jobs/{job['id']}/wait", params={"timeout": "10ms"})).json()
    assert (waited["state"], waited["completed"], waited["timed_out"]) == ("scheduled", False, True)
    for bad in ("6m", "never"):
        answer = await client.post(f"/api/v1/jobs/{job['id']}/wait", json={"timeout": bad})
        assert answer.status_code == 400
    assert (await client.get(f"/api/v1/jobs/{job['id']}/result")).status_code == 409


async def test_a_permanent_failure_is_failed_and_a_used_up_job_a_dead_letter(
    queue: Queue, serve: Serve
) -> None:
    @queue.job
    async def bad() -> None:
        raise PermanentError("no such user")

    @queue.job
    async def busy() -> None:
        raise TemporaryError("the mail server is busy")

    client = await serve(queue)
    async with Worker(queue).running():
        failed, dead = await submit(client, "bad"), await submit(client, "busy", max_attempts=1)
        for job, state in ((failed, "failed"), (dead, "dead_letter")):
            waited = (await client.post(f"/api/v1/jobs/{job['id']}/wait")).json()
            assert (waited["state"], waited["completed"], waited["success"]) == (state, True, False)
    result = (await client.get(f"/api/v1/jobs/{failed['id']}/result")).json()
    assert (result["success"], result["error_category"], result["output"]) == (False, "permanent", None)
    assert "no such user" in result["error"]
    read = (await client.get(f"/api/v1/jobs/{dead['id']}")).json()
    assert (read["attempt"], read["state"]) == (1, "dead_letter")
    assert "busy" in read["last_error"]


async def test_retry_runs_a_failed_job_again(queue: Queue, serve: Serve) -> None:
    runs: list[int] = []

    @queue.job
    async def once_bad(job: RunningJob) -> str:
        runs.append(job.attempt)
        if len(runs) == 1:
            raise PermanentError("not yet")
        return "fine"

    client = await serve(queue)
    async with Worker(queue).running():
        job = await submit(client, "once_bad")
        await client.post(f"/api/v1/jobs/{job['id']}/wait")
        again = await client.post(f"/api/v1/jobs/{job['id']}/retry", json={"reset_attempts": True})
        assert again.status_code == 200
        waited = (await client.post(f"/api/v1/jobs/{job['id']}/wait")).json()
    assert (waited["state"], len(runs)) == ("completed", 2)
    refused = await client.post(f"/api/v1/jobs/{job['id']}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


async def test_cancel_ends_a_waiting_job_and_refuses_an_ended_one(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    job = await submit(client)
    cancelled = await client.post(
        f"/api/v1/jobs/{job['id']}/cancel", json={"reason": "withdrawn", "force": False}
    )
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert "withdrawn" in cancelled.json()["last_error"]
    assert (await client.post(f"/api/v1/jobs/{job['id']}/cancel")).status_code == 409
    assert (await client.post(f"/api/v1/jobs/{job['id']}/retry")).status_code == 409


async def test_cancel_stops_the_handler_of_a_running_job(queue: Queue, serve: Serve) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @queue.job
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    client = await serve(queue)
    async with Worker(queue).running():
        job = await submit(client, "endless")
        await asyncio.wait_for(started.wait(), 30)
        running = (await client.get(f"/api/v1/jobs/{job['id']}")).json()
        assert (running["state"], running["attempt"]) == ("running", 1)
        assert (await client.delete(f"/api/v1/jobs/{job['id']}")).status_code == 409
        await client.post(f"/api/v1/jobs/{job['id']}/cancel", json={"reason": ""})
        await asyncio.wait_for(stopped.wait(), 30)
        waited = (await client.post(f"/api/v1/jobs/{job['id']}/wait")).json()
    assert waited["state"] == "cancelled"


async def test_delete_removes_a_job(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    job = await submit(client)
    removed = await client.delete(f"/api/v1/jobs/{job['id']}")
    assert (removed.status_code, removed.content) == (204, b"")
    assert await queue.jobs.get(job["id"]) is None


async def test_dependencies_are_evaluated_over_queues(make_queue: MakeQueue, serve: Serve) -> None:
    a, b = make_queue("a"), make_queue("b")
    client = await serve(a, b)
    first = await submit(client, "a")
    second = await submit(client, "b", depends_on=[first["id"]], dependency_type="AFTER")
    assert second["state"] == "pending"
    await client.post(f"/api/v1/jobs/{first['id']}/cancel")
    async with Worker(b).running(), Worker(a).running():
        waited = (await client.post(f"/api/v1/jobs/{second['id']}/wait")).json()
    assert waited["state"] == "cancelled"


async def test_progress_messages_are_shown(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    job = await submit(client)
    await queue.jobs.handle(job["id"]).update_progress({"percent": 40, "message": "page 4 of 10"})
    read = (await client.get(f"/api/v1/jobs/{job['id']}")).json()
    assert (read["progress"], read["progress_message"]) == (40.0, "page 4 of 10")


async def test_backoff_reaches_the_job(queue: Queue, serve: Serve) -> None:
    job = await submit(
        await serve(queue),
        max_attempts=10,
        backoff={"strategy": "linear", "initial_delay": "2s", "max_delay": "1m", "multiplier": 2.0},
    )
    stored = await queue.jobs.get(job["id"])
    assert stored is not None
    backoff = stored.options.backoff
    assert (backoff.type, backoff.delay, backoff.cap) == ("linear", 2000, 60_000)
