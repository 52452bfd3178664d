"""Whole queues over HTTP: counts, pause, clean, limits, workers, bulk operations, schedules and flows."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import redis

from oxcart import Abilities, Flow, PermanentError, Queue, TemporaryError, Worker
from oxcart.errors import JobFailed
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.signals import eventually


async def dead(queue: Queue, count: int = 3) -> list[str]:
    """Leaves some dead letters in a queue; returns their ids."""

    @queue.job
    async def busy() -> None:
        raise TemporaryError("the mail server is busy")

    jobs = await queue.add_many([("busy", None)] * count, attempts=1)

    async def all_failed() -> bool:
        return (await queue.counts())["failed"] == count

    async with Worker(queue).running():
        await eventually(all_failed, "all are dead letters")
    return [job.id for job in jobs]


async def test_queues_are_listed_with_their_counts(make_queue: MakeQueue, serve: Serve) -> None:
    a, b = make_queue("a"), make_queue("b")
    await a.add("t")
    await b.add("t", delay="1h")
    await b.pause()
    client = await serve(a, b)
    rows = {row["name"]: row for row in (await client.get("/api/v1/queues")).json()["queues"]}
    assert (rows["a"]["counts"]["waiting"], rows["a"]["paused"]) == (1, False)
    assert (rows["b"]["counts"]["delayed"], rows["b"]["paused"], rows["b"]["protocol"]) == (1, True, "bullmq")
    detail = (await client.get("/api/v1/queues/b")).json()
    assert detail["states"]["delayed"] == 1
    assert (await client.get("/api/v1/queues/none")).status_code == 404


async def test_pause_and_resume(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    for verb, paused in (("pause", True), ("pause", True), ("resume", False)):
        assert (await client.post(f"/api/v1/queues/q/{verb}")).json()["paused"] is paused
        assert await queue.is_paused() is paused


async def test_clean_clear_and_obliterate(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("t", None)] * 5)
    await queue.add("t", delay="1h")
    client = await serve(queue)
    cleaned = await client.post("/api/v1/queues/q/clean", json={"state": "waiting", "limit": 2})
    assert cleaned.json() == {"changed": 2}
    assert (await client.post("/api/v1/queues/q/clean", json={"grace": "1h30m"})).json() == {"changed": 0}
    assert (await client.post("/api/v1/queues/q/clear")).json() == {"changed": 3}
    wrong = await client.post("/api/v1/queues/q/obliterate", json={"name": "other"})
    assert (wrong.status_code, wrong.json()["error"]["details"][0]["field"]) == (400, "name")
    assert (await queue.counts())["delayed"] == 1
    assert (await client.post("/api/v1/queues/q/obliterate", json={"name": "q"})).json() == {"changed": 1}


async def test_a_queue_whose_jobs_run_is_not_obliterated(queue: Queue, serve: Serve) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @queue.job
    async def slow() -> None:
        started.set()
        await go_on.wait()

    client = await serve(queue)
    async with Worker(queue).running():
        await queue.add("slow")
        await asyncio.wait_for(started.wait(), 30)
        answer = await client.post("/api/v1/queues/q/obliterate", json={"name": "q"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        go_on.set()


async def test_many_jobs_are_cancelled_after_a_dry_run(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("t", None, {"tags": {"tenant": "acme"}})] * 3 + [("t", None)])
    client = await serve(queue)
    asked: dict[str, Any] = {"tags": {"tenant": "acme"}, "reason": "withdrawn"}
    dry = (await client.post("/api/v1/queues/q/cancel", json={**asked, "dry_run": True})).json()
    assert (dry["matched"], dry["cancelled"], len(dry["ids"]), dry["dry_run"]) == (3, 0, 3, True)
    assert (await queue.counts())["waiting"] == 4
    done = (await client.post("/api/v1/queues/q/cancel", json=asked)).json()
    assert (done["matched"], done["cancelled"]) == (3, 3)
    assert (await queue.counts())["waiting"] == 1


async def test_many_jobs_are_retried_after_a_dry_run(queue: Queue, serve: Serve) -> None:
    await dead(queue)
    client = await serve(queue)
    dry = (await client.post("/api/v1/queues/q/retry", json={"dry_run": True})).json()
    assert dry == {"matched": 3, "exact": True, "retried": 0, "dry_run": True}
    assert (await client.post("/api/v1/queues/q/retry", json={"until": "1h"})).json()["retried"] == 0
    done = (await client.post("/api/v1/queues/q/retry", json={"reset_attempts": True, "limit": 2})).json()
    assert done == {"matched": 2, "exact": False, "retried": 2, "dry_run": False}
    assert (await queue.counts())["waiting"] == 2


async def test_dead_letters_are_listed_replayed_and_purged(queue: Queue, serve: Serve) -> None:
    ids = await dead(queue)
    client = await serve(queue)
    listed = (await client.get("/api/v1/queues/q/dead-letters", params={"type": "busy"})).json()
    assert {job["id"] for job in listed["jobs"]} == set(ids)
    assert {job["state"] for job in listed["jobs"]} == {"dead_letter"}
    path = "/api/v1/queues/q/dead-letters"
    dry = (await client.post(f"{path}/replay", json={"dry_run": True})).json()
    assert (dry["matched"], dry["changed"]) == (3, 0)
    one = (await client.post(f"{path}/replay", json={"limit": 1})).json()
    assert one["changed"] == 1
    assert (await queue.counts())["waiting"] == 1
    assert (await client.post(f"{path}/purge", json={"type": ["other"]})).json()["changed"] == 0
    assert (await client.post(f"{path}/purge", json={})).json()["changed"] == 2
    assert (await queue.counts())["failed"] == 0


async def test_failures_are_grouped_by_cause(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def bad(number: int) -> None:
        raise PermanentError(f"order {number} is unknown")

    async def all_failed() -> bool:
        return (await queue.counts())["failed"] == 3

    await queue.add_many([("bad", {"number": number}) for number in range(3)])
    async with Worker(queue).running():
        await eventually(all_failed, "all failed")
    body = (await (await serve(queue)).get("/api/v1/queues/q/failures")).json()
    (group,) = body["groups"]
    assert (group["count"], group["types"], body["failed"]) == (3, {"bad": 3}, 3)
    assert "order <n> is unknown" in group["reason"]


async def test_limits_are_read_and_changed(queue: Queue, serve: Serve) -> None:
    await queue.limits.set_type_limit("digest", concurrent=2)
    client = await serve(queue)
    path = "/api/v1/queues/q/limits"
    changed = await client.put(path, json={"concurrency": 20, "rate": {"most": 100, "per": "1m"}})
    assert changed.json() == {
        "concurrency": 20,
        "rate": {"most": 100, "per_ms": 60_000},
        "blocked_ms": 0,
        "types": {"digest": {"concurrent": 2, "per_minute": None}},
        "key": None,
    }
    await client.put(path, json={"rate": None})
    read = (await client.get(path)).json()
    assert (read["concurrency"], read["rate"]) == (20, None)
    wrong = await client.put(path, json={"concurrency": 5, "rate": {"most": 0, "per": "1m"}})
    assert wrong.status_code == 400
    assert await queue.limits.concurrency() == 20


async def test_workers_and_jobs_that_none_can_take(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def render() -> None: ...

    client = await serve(queue)
    await queue.add("render", target="all;c=tpu")
    async with Worker(queue, name="web-1", concurrency=7, abilities=Abilities(capabilities="gpu")).running():

        async def registered() -> bool:
            return len(await queue.workers.list()) == 1

        await eventually(registered, "the worker is registered")
        body = (await client.get("/api/v1/queues/q/workers")).json()
    (worker,) = body["workers"]
    assert (worker["name"], worker["concurrency"], worker["capabilities"]) == ("web-1", 7, ["gpu"])
    assert list(body["unroutable"].values()) == [1]


async def test_a_job_with_a_target_is_awaited_in_its_lane(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def render() -> str:
        return "done"

    client = await serve(queue)
    job = (await client.post("/api/v1/jobs", json={"type": "render", "target": "all;c=gpu"})).json()
    assert job["queue"] == "q"
    async with Worker(queue, abilities=Abilities(capabilities="gpu")).running():
        waited = (await client.post(f"/api/v1/jobs/{job['id']}/wait", json={"timeout": "20s"})).json()
    assert waited["state"] == "completed"


async def test_schedules(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    path = "/api/v1/queues/q/schedules"
    made = await client.put(
        f"{path}/digest",
        json={"cron": "0 7 * * *", "tz": "Europe/Berlin", "payload": {"a": 1}, "type": "mail"},
    )
    assert made.status_code == 200
    assert (made.json()["cron"], made.json()["type"], made.json()["payload"]) == (
        "0 7 * * *",
        "mail",
        {"a": 1},
    )
    await client.put(f"{path}/poll", json={"every": "1h30m", "max_attempts": 1})
    listed = (await client.get(path)).json()
    assert (listed["count"], {one["id"] for one in listed["schedules"]}) == (2, {"digest", "poll"})
    assert (await client.get(f"{path}/poll")).json()["every_ms"] == 5_400_000
    paused = (await client.post(f"{path}/poll/pause")).json()
    assert (paused["paused"], paused["next_at"], paused["next_job_id"]) == (True, None, None)
    assert (await client.put(f"{path}/poll", json={"every": "1h30m"})).json()["paused"]
    resumed = (await client.post(f"{path}/poll/resume")).json()
    assert (resumed["paused"], resumed["every_ms"]) == (False, 5_400_000)
    assert resumed["next_at"] is not None
    for verb in ("pause", "resume"):
        assert (await client.post(f"{path}/none/{verb}")).status_code == 404
    assert (await client.delete(f"{path}/poll")).status_code == 204
    assert (await client.delete(f"{path}/poll")).status_code == 404
    for wrong in ({}, {"cron": "often"}, {"every": "1h", "cron": "0 7 * * *"}, {"every": "0s"}):
        answer = await client.put(f"{path}/bad", json=wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation_error"), wrong
    assert (await client.get(path)).json()["count"] == 1


async def test_flows_and_dependents(queue: Queue, serve: Serve) -> None:
    tree = await Flow(queue, "assemble").after(Flow(queue, "render"), Flow(queue, "translate")).add()
    client = await serve(queue)
    body = (await client.get(f"/api/v1/jobs/{tree.id}/flow")).json()
    assert body["job"]["state"] == "pending"
    assert {child["job"]["type"] for child in body["children"]} == {"render", "translate"}
    first = await queue.add("first")
    second = await queue.add("second", after=[first])
    found = (await client.get(f"/api/v1/jobs/{first.id}/dependents")).json()["dependents"]
    assert found == {f"bull:q:{second.id}": "after"}
    assert (await client.get(f"/api/v1/jobs/{tree.id}/flow", params={"depth": 0})).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("clean", {"state": "asleep"}),
        ("clean", {"limit": 0}),
        ("clean", {"grace": "long"}),
        ("cancel", {"state": ["completed"]}),
        ("cancel", {"limit": 10_001}),
        ("cancel", {"tagz": {}}),
        ("retry", {"state": "waiting"}),
        ("retry", {"since": "someday"}),
        ("dead-letters/replay", {"category": ["odd"]}),
        ("dead-letters/purge", {"older_than": "old"}),
    ],
)
async def test_a_wrong_field_of_an_operation_changes_nothing(
    queue: Queue, serve: Serve, path: str, body: dict[str, Any]
) -> None:
    await queue.add("t")
    answer = await (await serve(queue)).post(f"/api/v1/queues/q/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation_error")
    assert (await queue.counts())["waiting"] == 1


async def test_jobs_that_match_are_retried_after_a_dry_run(queue: Queue, serve: Serve) -> None:
    @queue.job(attempts=1)
    async def charge(card: str) -> None:
        raise ConnectionError(f"{card} has no answer")

    jobs = [
        await queue.add("charge", {"card": card}, tags={"tenant": tenant})
        for card, tenant in (("visa", "a"), ("visa", "b"), ("amex", "a"))
    ]
    async with Worker(queue).running():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(30)
    client = await serve(queue)
    body = {"type": ["charge"], "reason": "visa", "tags": {"tenant": "a"}, "dry_run": True}
    answer = (await client.post("/api/v1/queues/q/retry", json=body)).json()
    assert answer == {"matched": 1, "exact": True, "retried": 0, "dry_run": True}
    answer = (await client.post("/api/v1/queues/q/retry", json={**body, "dry_run": False})).json()
    assert answer == {"matched": 1, "exact": True, "retried": 1, "dry_run": False}
    assert [await job.state() for job in jobs] == ["waiting", "failed", "failed"]
    answer = (await client.post("/api/v1/queues/q/retry", json={"correlation_id": "none"})).json()
    assert answer["matched"] == 0


async def test_retry_finds_matches_behind_many_older_failures(
    queue: Queue, serve: Serve, store: redis.Redis
) -> None:
    await queue.add_many([("old", None)] * 10_010)
    newest = await queue.add_many([("new", None)] * 3)
    pipe = store.pipeline(transaction=False)
    for at, job_id in enumerate(cast(list[str], store.lrange("bull:q:wait", 0, -1))[::-1], 1):
        pipe.zadd("bull:q:failed", {job_id: at})
        pipe.hset(f"bull:q:{job_id}", mapping={"finishedOn": at, "failedReason": "no answer"})
    pipe.delete("bull:q:wait")
    pipe.execute()
    client = await serve(queue)
    body = {"type": ["new"], "limit": 2}
    answer = (await client.post("/api/v1/queues/q/retry", json={**body, "dry_run": True})).json()
    assert answer == {"matched": 2, "exact": False, "retried": 0, "dry_run": True}
    answer = (await client.post("/api/v1/queues/q/retry", json=body)).json()
    assert answer == {"matched": 2, "exact": False, "retried": 2, "dry_run": False}
    answer = (await client.post("/api/v1/queues/q/retry", json=body)).json()
    assert answer == {"matched": 1, "exact": True, "retried": 1, "dry_run": False}
    assert [await job.state() for job in newest] == ["waiting"] * 3


@pytest.mark.parametrize(
    "empty",
    [{"type": []}, {"category": []}, {"tags": {}}, {"reason": ""}, {"correlation_id": ""}, {"worker": []}],
)
async def test_an_empty_filter_does_not_choose_all_jobs(
    queue: Queue, serve: Serve, empty: dict[str, Any]
) -> None:
    client = await serve(queue)
    paths = ["retry", *(() if "worker" in empty else ("dead-letters/replay", "dead-letters/purge"))]
    if not empty.keys() & {"worker", "category", "reason"}:  # the reason of a cancellation is no filter
        paths.append("cancel")
    for path in paths:
        answer = await client.post(f"/api/v1/queues/q/{path}", json=empty)
        assert (answer.status_code, answer.json()["error"]["details"][0]["field"]) == (400, *empty), path
