"""Batches over HTTP: each job judged by itself, or all of them or none."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from oxcart import Abilities, Queue, Worker
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.servers import ValkeyServer

GOOD: dict[str, Any] = {"type": "welcome", "payload": {"to": "ada"}}
BAD: dict[str, Any] = {"type": "welcome", "max_attempts": 0}


async def test_each_job_is_judged_by_itself(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": [GOOD, BAD, 5, GOOD], "atomic": False})
    body = answer.json()
    assert (answer.status_code, body["total"], body["accepted"], body["rejected"]) == (201, 4, 2, 2)
    assert [one["success"] for one in body["results"]] == [True, False, False, True]
    assert [one["index"] for one in body["results"]] == [0, 1, 2, 3]
    assert "max_attempts" in body["results"][1]["error"]
    assert body["results"][0]["job"]["state"] == "scheduled"
    assert (await queue.counts())["waiting"] == 2


async def test_all_rejected_is_still_a_201(queue: Queue, serve: Serve) -> None:
    answer = await (await serve(queue)).post("/api/v1/jobs/batch", json={"jobs": [BAD, {}]})
    assert (answer.status_code, answer.json()["accepted"]) == (201, 0)


@pytest.mark.parametrize(
    "jobs", [[], [GOOD] * 1001, [GOOD, BAD], [GOOD, {"type": "t", "depends_on": ["none"]}]]
)
async def test_an_atomic_batch_with_a_fault_writes_nothing(
    queue: Queue, serve: Serve, store: redis.Redis, jobs: list[dict[str, Any]]
) -> None:
    answer = await (await serve(queue)).post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation_error")
    assert list(store.scan_iter("bull:q:*-*-*")) == []
    assert sum((await queue.counts()).values()) == 0


async def test_an_atomic_batch_over_queues_is_one_script(
    make_queue: MakeQueue, serve: Serve, store: redis.Redis
) -> None:
    queues = [make_queue(name) for name in ("a", "b", "c")]
    client = await serve(*queues)
    jobs = [{"type": name, "payload": number} for number in range(300) for name in ("a", "b", "c")]
    await client.post("/api/v1/jobs/batch", json={"jobs": jobs[:3], "atomic": True})  # loads the scripts
    store.config_resetstat()
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
    body = answer.json()
    assert (answer.status_code, body["accepted"], body["rejected"]) == (201, 900, 0)
    assert [one["job"]["queue"] for one in body["results"][:3]] == ["a", "b", "c"]
    for queue in queues:
        assert (await queue.counts())["waiting"] == 301
    # One script adds all of them; the others only read them back, a hundred at a time.
    stats = store.info("commandstats")
    calls = sum(stats[name]["calls"] for name in stats if name.startswith("cmdstat_eval"))
    assert calls <= 3 * 3 + 1


async def test_an_atomic_batch_that_the_server_refuses_leaves_nothing(
    make_queue: MakeQueue, serve: Serve, store: redis.Redis
) -> None:
    a, b = make_queue("a"), make_queue("b")
    client = await serve(a, b)
    store.set("bull:b:wait", "no list")  # the script reads every list before it writes
    jobs = [{"type": "a"}, {"type": "b"}]
    refused = await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert (await a.counts())["waiting"] == 0
    store.delete("bull:b:wait")
    assert (await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})).status_code == 201


def mixed(number: int) -> list[dict[str, Any]]:
    """Jobs with keys and targets over two queues, of which no single add can write all."""
    return [
        {"type": "a", "idempotency_key": f"k{number}"},
        {"type": "b", "idempotency_key": f"k{number}"},
        {"type": "a", "target": "all;c=gpu"},
        {"type": "b", "target": "all;c=gpu;r=us-east", "id": f"mine-{number}"},
        {"type": "a", "target": "all;c=gpu", "idempotency_key": f"t{number}"},
        {"type": "b", "delay": "1h", "target": "all;c=gpu"},
    ]


async def test_an_atomic_batch_with_keys_and_targets_over_queues_is_one_script(
    make_queue: MakeQueue, serve: Serve, store: redis.Redis
) -> None:
    a, b = make_queue("a"), make_queue("b")
    client = await serve(a, b)
    store.set("bull:b@all;c=gpu;r=us-east:prioritized", "no set")  # the last place that the script checks
    refused = await client.post("/api/v1/jobs/batch", json={"jobs": mixed(1), "atomic": True})
    assert refused.status_code == 503
    assert [sum((await queue.counts()).values()) for queue in (a, b)] == [0, 0]
    assert not list(store.scan_iter("bull:*ox:idem*"))
    assert not list(store.scan_iter("bull:*ox:lanes*"))
    store.delete("bull:b@all;c=gpu;r=us-east:prioritized")
    first = (await client.post("/api/v1/jobs/batch", json={"jobs": mixed(1), "atomic": True})).json()
    assert first["accepted"] == 6
    assert [sum((await queue.counts()).values()) for queue in (a, b)] == [3, 3]
    again = (await client.post("/api/v1/jobs/batch", json={"jobs": mixed(1), "atomic": True})).json()
    ids = [[one["job"]["id"] for one in done["results"]] for done in (first, again)]
    for place in (0, 1, 3, 4):  # those with a key, and the one with an id of its own
        assert ids[0][place] == ids[1][place]
    assert [sum((await queue.counts()).values()) for queue in (a, b)] == [4, 4]
    elsewhere = [{"type": "b", "id": "mine-1"}, {"type": "a", "idempotency_key": "other"}]
    await client.post("/api/v1/jobs/batch", json={"jobs": elsewhere, "atomic": True})
    assert [sum((await queue.counts()).values()) for queue in (a, b)] == [5, 4]  # the id exists in a lane


async def test_an_atomic_batch_over_types_of_bridge_is_one_script(
    make_queue: MakeQueue, serve: Serve, store: redis.Redis
) -> None:
    queues = [make_queue(name, protocol="bridge", namespace="media") for name in ("resize", "encode")]
    client = await serve(*queues)
    jobs: list[dict[str, Any]] = [
        {"type": name, "payload": number} for number in range(200) for name in ("resize", "encode")
    ]
    jobs[3]["target"] = "all;c=gpu"
    await client.post("/api/v1/jobs/batch", json={"jobs": jobs[:2], "atomic": True})  # loads the scripts
    store.config_resetstat()
    body = (await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})).json()
    assert (body["accepted"], body["rejected"]) == (400, 0)
    assert [one["job"]["queue"] for one in body["results"][:2]] == ["resize", "encode"]
    assert [(await queue.counts())["waiting"] for queue in queues] == [201, 201]
    stats = store.info("commandstats")
    assert sum(stats[name]["calls"] for name in stats if name.startswith("cmdstat_eval")) == 1
    broken = [*jobs[:5], {"type": "encode", "max_attempts": 0}]
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": broken, "atomic": True})
    assert answer.status_code == 400
    assert [(await queue.counts())["waiting"] for queue in queues] == [201, 201]


async def test_jobs_of_an_atomic_batch_with_targets_run_where_they_can(
    make_queue: MakeQueue, serve: Serve
) -> None:
    a, b = make_queue("a"), make_queue("b")

    @a.job(name="a")
    async def on_a() -> str:
        return "a"

    @b.job(name="b")
    async def on_b() -> str:
        return "b"

    client = await serve(a, b)
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": mixed(1)[:5], "atomic": True})
    able = Abilities(capabilities=["gpu"], region="us-east")
    async with Worker(a, b, abilities=able).running():
        for one in answer.json()["results"]:
            waited = (await client.post(f"/api/v1/jobs/{one['job']['id']}/wait")).json()
            assert waited["state"] == "completed", one


async def test_jobs_of_an_atomic_batch_run(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def welcome(to: str) -> str:
        return to

    client = await serve(queue)
    first = (await client.post("/api/v1/jobs", json=GOOD)).json()
    jobs = [{**GOOD, "delay": "10ms"}, {**GOOD, "priority": 3}, {**GOOD, "depends_on": [first["id"]]}]
    answer = (await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})).json()
    async with Worker(queue).running():
        for one in answer["results"]:
            waited = (await client.post(f"/api/v1/jobs/{one['job']['id']}/wait")).json()
            assert waited["state"] == "completed"


async def test_a_repeated_batch_with_keys_adds_nothing_twice(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    jobs = [{**GOOD, "idempotency_key": f"k{number}"} for number in range(10)]
    first = (await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})).json()
    again = (await client.post("/api/v1/jobs/batch", json={"jobs": jobs, "atomic": True})).json()
    assert [one["job"]["id"] for one in first["results"]] == [one["job"]["id"] for one in again["results"]]
    assert (await queue.counts())["waiting"] == 10


async def test_a_store_that_is_away_is_a_503(make_queue: MakeQueue, serve: Serve) -> None:
    with ValkeyServer() as server:
        queue = Queue("q", url=server.url, add_timeout=0.5)
        client = await serve(queue)
        assert (await client.get("/ready")).status_code == 200
        server.stop()
        answer = await client.post("/api/v1/jobs", json=GOOD)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert (await client.get("/health")).status_code == 200
        await queue.close()
