"""What operators do over HTTP: many jobs in the background, flows, schedules, limits, search, history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from oxcart import Queue, Worker
from tests.conftest import MakeQueue
from tests.http.conftest import Serve


async def ended(client: httpx.AsyncClient, operation: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get(f"/api/v1/operations/{operation['id']}")).json()
            if found["state"] != "running":
                return found
            await asyncio.sleep(0.02)


async def test_many_jobs_are_cancelled_in_the_background_with_progress(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("welcome", None)] * 700)
    await queue.add_many([("other", None)] * 3)
    client = await serve(queue)
    answer = await client.post("/api/v1/queues/q/cancel?background=true", json={"type": ["welcome"]})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/operations/{answer.json()['id']}"
    found = await ended(client, answer.json())
    assert (found["state"], found["action"], found["queue"], found["caller"]) == (
        "done", "cancel", "q", "local",
    )  # fmt: skip
    assert found["done"] >= 700
    assert (found["result"]["matched"], found["result"]["cancelled"]) == (700, 700)
    assert (await queue.counts())["waiting"] == 3
    listed = (await client.get("/api/v1/operations")).json()["operations"]
    assert [one["id"] for one in listed] == [found["id"]]
    (entry,) = (await client.get("/api/v1/audit")).json()["entries"]
    assert entry["facts"] == {"operation": found["id"]}


async def test_retry_and_replay_run_in_the_background(queue: Queue, serve: Serve) -> None:
    @queue.job(attempts=1)
    async def fails() -> None:
        raise RuntimeError("no")

    jobs = await queue.add_many([("fails", {})] * 20)
    async with Worker(queue, concurrency=10).running():
        await asyncio.gather(*(job.result(30) for job in jobs), return_exceptions=True)
    client = await serve(queue)
    dry = await client.post("/api/v1/queues/q/dead-letters/replay", json={"dry_run": True})
    assert (dry.status_code, dry.json()["matched"], dry.json()["changed"]) == (200, 20, 0)
    answer = await client.post("/api/v1/queues/q/dead-letters/replay?background=true", json={"limit": 5})
    assert (await ended(client, answer.json()))["result"]["changed"] == 5
    answer = await client.post("/api/v1/queues/q/retry?background=true", json={})
    assert (await ended(client, answer.json()))["result"]["retried"] == 15
    assert (await queue.counts())["waiting"] == 20


async def test_a_wrong_operation_fails_with_its_message(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    answer = await client.post("/api/v1/queues/q/cancel?background=true", json={"state": ["nowhere"]})
    found = await ended(client, answer.json())
    assert (found["state"], "nowhere" in found["error"]) == ("failed", True)
    assert (await client.get("/api/v1/operations/none")).status_code == 404


async def test_a_flow_is_added_in_one_step_and_runs_in_order(make_queue: MakeQueue, serve: Serve) -> None:
    fetch, render = make_queue("fetch"), make_queue("render")
    seen: list[str] = []
    for queue in (fetch, render):

        @queue.fallback
        async def run(job: Any) -> None:
            seen.append(job.data)

    client = await serve(fetch, render)
    body = {
        "jobs": [
            {"ref": "last", "type": "render", "payload": "last", "after": ["a", "b"]},
            {"ref": "a", "type": "fetch", "payload": "a"},
            {"ref": "b", "type": "fetch", "payload": "b", "after": ["a"]},
        ]
    }
    answer = await client.post("/api/v1/flows", json=body)
    assert answer.status_code == 201
    jobs = answer.json()["jobs"]
    assert {ref: job["state"] for ref, job in jobs.items()} == {
        "last": "pending", "a": "scheduled", "b": "pending",
    }  # fmt: skip
    async with Worker(fetch, render).running():
        waited = await client.get(f"/api/v1/jobs/{jobs['last']['id']}/wait?timeout=60s")
    assert waited.json()["success"]
    assert seen == ["a", "b", "last"]


@pytest.mark.parametrize(
    ("jobs", "field"),
    [
        ([], "jobs"),
        ([{"ref": "a", "type": "t", "after": ["b"]}], "after"),
        ([{"ref": "a", "type": "t"}, {"ref": "a", "type": "t"}], "ref"),
        ([{"ref": "a", "type": "t", "after": ["a"]}], "graph"),
        ([{"ref": "a", "type": "t", "target": "all;c=gpu"}], "target"),
        ([{"ref": "a", "type": "t", "max_attempts": 0}], "max_attempts"),
    ],
)
async def test_a_wrong_flow_writes_nothing(
    queue: Queue, serve: Serve, store: redis.Redis, jobs: list[dict[str, Any]], field: str
) -> None:
    answer = await (await serve(queue)).post("/api/v1/flows", json={"jobs": jobs})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation_error")
    assert field in answer.text
    assert sum((await queue.counts()).values()) == 0


async def test_a_schedule_runs_now_beside_its_own_runs(queue: Queue, serve: Serve) -> None:
    await queue.schedules.upsert(
        "nightly",
        cron="0 3 * * *",
        start=1_700_000_000_000,
        name="report",
        data={"of": "sales"},
        attempts=7,
        priority=3,
        timeout="90s",
        tags={"tenant": "acme"},
        backoff={"type": "linear", "delay": 250},
    )
    before = await queue.schedules.get("nightly")
    client = await serve(queue)
    answer = await client.post("/api/v1/queues/q/schedules/nightly/run")
    assert answer.status_code == 201
    job = answer.json()
    assert (job["type"], job["state"], job["max_attempts"], job["priority"]) == ("report", "scheduled", 7, 3)
    assert (await client.get(f"/api/v1/jobs/{job['id']}?payload=true")).json()["payload"] == {"of": "sales"}
    assert await queue.schedules.get("nightly") == before
    stored = await queue.jobs.get(job["id"])
    assert stored is not None
    assert (stored.options.timeout, stored.tags, stored.options.backoff.type) == (
        90_000, {"tenant": "acme"}, "linear",
    )  # fmt: skip
    shown = (await client.get("/api/v1/queues/q/schedules/nightly")).json()
    assert (shown["start"], shown["end"], shown["offset_ms"]) == ("2023-11-14T22:13:20.000Z", None, None)
    assert (shown["max_attempts"], shown["priority"], shown["timeout_ms"], shown["tags"]) == (
        7, 3, 90_000, {"tenant": "acme"},
    )  # fmt: skip
    assert (await client.post("/api/v1/queues/q/schedules/none/run")).status_code == 404


@pytest.mark.parametrize(
    ("priorities", "given", "shown"), [(None, 3, 3), ("formal", "critical", 0), ("formal", "bulk", 4)]
)
async def test_a_schedule_of_bridge_runs_now_with_its_attempts_and_priority(
    make_queue: MakeQueue, serve: Serve, priorities: Any, given: Any, shown: int
) -> None:
    queue = make_queue("q", protocol="bridge", namespace="media", priorities=priorities)
    await queue.schedules.upsert("nightly", cron="0 3 * * *", name="q", attempts=7, priority=given)
    found = await queue.schedules.get("nightly")
    assert found is not None
    assert (found.job_options.attempts, found.job_options.priority) == (7, shown)
    job_id = (await (await serve(queue)).post("/api/v1/queues/q/schedules/nightly/run")).json()["id"]
    run = await queue.jobs.get(job_id)
    usual = await queue.jobs.get((await queue.add("q", attempts=7, priority=given)).id)
    assert run is not None
    assert usual is not None
    assert (run.options.attempts, run.priority) == (7, usual.priority)


async def test_limits_of_types_and_keys_are_set_and_removed(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    body: dict[str, Any] = {"types": {"report": {"concurrent": 2}}, "key": {"per_minute": 60}}
    limits = (await client.put("/api/v1/queues/q/limits", json=body)).json()
    assert limits["types"]["report"]["concurrent"] == 2
    assert limits["key"]["per_minute"] == 60
    wrongs: list[dict[str, Any]] = [{"types": {"report": {}}}, {"key": {"concurrent": 0}}]
    for wrong in wrongs:
        assert (await client.put("/api/v1/queues/q/limits", json=wrong)).status_code == 400
    limits = (
        await client.put("/api/v1/queues/q/limits", json={"types": {"report": None}, "key": None})
    ).json()
    assert (limits.get("types", {}), limits.get("key")) == ({}, None)


async def test_jobs_are_found_by_priority(formal: Queue, serve: Serve) -> None:
    client = await serve(formal)
    for priority in (0, 2, 4):
        await client.post("/api/v1/jobs", json={"type": "welcome", "priority": priority})
    for query, count in (("priority=4", 1), ("priority=0&priority=2", 2), ("priority=9", 0)):
        assert (await client.get(f"/api/v1/jobs?{query}")).json()["count"] == count
    assert (await client.get("/api/v1/jobs?priority=-1")).status_code == 400


@pytest.mark.parametrize("extra", [{"idempotency_key": "k{}"}, {"target": "all;c=gpu"}, {}])
async def test_an_atomic_batch_of_one_queue_is_one_script(
    queue: Queue, serve: Serve, store: redis.Redis, extra: dict[str, str]
) -> None:
    client = await serve(queue)
    jobs = [
        {"type": "welcome", **{name: text.format(number) for name, text in extra.items()}}
        for number in range(1000)
    ]
    await client.post("/api/v1/jobs/batch", json={"jobs": jobs[:1], "atomic": True})  # loads the scripts
    store.config_resetstat()
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
    assert (answer.status_code, answer.json()["accepted"]) == (201, 1000)
    calls = store.info("commandstats")
    # One call adds; the others read what was added, to answer with it.
    xadds = calls["cmdstat_xadd"]["calls"]
    assert xadds >= 999
    again = await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
    if "idempotency_key" in extra:
        first = [row["job"]["id"] for row in answer.json()["results"]]
        assert [row["job"]["id"] for row in again.json()["results"]] == first


async def test_history_needs_a_lake(queue: Queue, serve: Serve, tmp_path: Path) -> None:
    for lake, words in ((None, "without a lake"), (tmp_path / "none", "no tables")):
        client = await serve(queue, lake=lake)
        for path in ("jobs/x", "queues/q/failures", "queues/q/slowest"):
            answer = await client.get(f"/api/v1/history/{path}")
            assert (answer.status_code, words in answer.text) == (404, True), answer.text
    assert (await client.get("/api/v1/history/queues/q/failures?since=soon")).status_code == 400


async def test_history_comes_from_the_lake(make_queue: MakeQueue, serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from tests.history.lakes import MIDNIGHT, make_lake

    attempt = {"job_id": "1", "first_id": "1-0", "attempt": 1, "name": "charge", "run_ms": 100}
    make_lake(
        tmp_path / "lake",
        attempts=[{**attempt, "outcome": "failed", "reason": "card refused", "ended_ms": MIDNIGHT + 1000}],
        jobs=[{"job_id": "1", "first_id": "1-0", "state": "dead_letter", "created_ms": MIDNIGHT}],
        transitions=[{"job_id": "1", "first_id": "1-0", "life": 1, "ordinal": 1, "to_state": "running"}],
    )
    client = await serve(make_queue("mail"), make_queue("other"), lake=tmp_path / "lake")
    (found,) = (await client.get("/api/v1/history/jobs/1")).json()["generations"]
    assert found["job"]["state"] == "dead_letter"
    assert [row["reason"] for row in found["attempts"]] == ["card refused"]
    assert [row["to_state"] for row in found["transitions"]] == ["running"]
    since = "?since=2026-11-01T00:00Z"
    (cause,) = (await client.get(f"/api/v1/history/queues/mail/failures{since}")).json()["causes"]
    assert (cause["reason"], cause["count"]) == ("card refused", 1)
    slow = (await client.get(f"/api/v1/history/queues/mail/slowest{since}")).json()
    assert (slow["names"][0]["p50"], slow["runs"][0]["job_id"]) == (100, "1")
    assert (await client.get(f"/api/v1/history/queues/other/failures{since}")).json() == {"causes": []}
    narrow = await serve(make_queue("other"), lake=tmp_path / "lake")
    assert (await narrow.get("/api/v1/history/jobs/1")).status_code == 404  # of a queue that is not served
