"""A partitioned queue behind the API: one queue with the jobs and events of all partitions."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Queue, Worker
from tests.conftest import MakeQueue
from tests.http.conftest import Serve
from tests.http.test_stream import stream

PARTITIONS = 4


@pytest.fixture
def events(make_queue: MakeQueue) -> Queue:
    return make_queue("events", partitions=PARTITIONS)


async def test_jobs_have_the_name_of_the_queue(events: Queue, serve: Serve) -> None:
    client = await serve(events)
    made = [(await client.post("/api/v1/jobs", json={"type": "t"})).json() for _ in range(12)]
    assert len({await _partition_of(events, one["id"]) for one in made}) > 1
    listed = (await client.get("/api/v1/jobs")).json()["jobs"]
    assert {one["id"] for one in listed} == {one["id"] for one in made}
    read = [(await client.get(f"/api/v1/jobs/{one['id']}")).json() for one in made]
    assert {one["queue"] for one in [*made, *listed, *read]} == {"events"}
    assert (await client.get("/api/v1/stats")).json()["queue"]["scheduled"] == 12


async def test_jobs_of_a_partition_key_share_a_partition(events: Queue, serve: Serve) -> None:
    client = await serve(events)
    body = {"type": "t", "partition_key": "tenant-42"}
    made = [(await client.post("/api/v1/jobs", json=body)).json()["id"] for _ in range(8)]
    assert {await _partition_of(events, one) for one in made} == {0}


async def test_an_atomic_batch_goes_to_one_partition(events: Queue, serve: Serve) -> None:
    client = await serve(events)
    jobs: list[dict[str, Any]] = [{"type": "t"}] * 20
    answer = await client.post("/api/v1/jobs/batch", json={"atomic": True, "jobs": jobs})
    assert answer.status_code == 201
    ids = [one["job"]["id"] for one in answer.json()["results"]]
    assert len({await _partition_of(events, one) for one in ids}) == 1
    jobs = [{"type": "t", "partition_key": "tenant-42"}, {"type": "t"}]
    answer = await client.post("/api/v1/jobs/batch", json={"atomic": True, "jobs": jobs})
    ids = [one["job"]["id"] for one in answer.json()["results"]]
    assert {await _partition_of(events, one) for one in ids} == {0}


async def test_an_atomic_batch_over_partitions_is_refused_whole(events: Queue, serve: Serve) -> None:
    client = await serve(events)
    jobs = [{"type": "t", "idempotency_key": f"k{number}"} for number in range(20)]
    answer = await client.post("/api/v1/jobs/batch", json={"atomic": True, "jobs": jobs})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"][0]["field"] == "partition_key"
    assert sum((await events.counts()).values()) == 0
    answer = await client.post("/api/v1/jobs/batch", json={"jobs": jobs})
    assert answer.json()["accepted"] == 20


async def test_the_stream_has_the_events_of_all_partitions_and_resumes(events: Queue, serve: Serve) -> None:
    @events.job
    async def work() -> None:
        pass

    client = await serve(events)
    seen: list[tuple[str, str]] = []
    async with Worker(events).running():
        async with stream(client) as listener:
            first = await events.add_many([("work", None)] * 12)
            for _ in range(20):
                last = await listener.next()
                seen.append((last.event, last.data["id"]))
                assert last.data["queue"] == "events"
        second = await events.add_many([("work", None)] * 12)
        for job in second:
            await job.result(30)
        async with stream(client, since=last.id) as listener:
            while len(seen) < 3 * 24:
                one = await listener.next()
                seen.append((one.event, one.data["id"]))
    assert len(set(seen)) == 3 * 24
    assert {job_id for event, job_id in seen if event == "job.completed"} == {
        job.id for job in [*first, *second]
    }


async def test_a_result_is_awaited_over_the_api(events: Queue, serve: Serve) -> None:
    @events.job
    async def double(number: int) -> int:
        return 2 * number

    client = await serve(events)
    remote = Queue("events", url=str(client.base_url))
    async with remote, Worker(events).running():
        jobs = [await remote.add("double", {"number": n}, partition_key=f"k{n}") for n in range(6)]
        assert [await job.result(30) for job in jobs] == [0, 2, 4, 6, 8, 10]


async def _partition_of(events: Queue, job_id: str) -> int:
    job = await events.jobs.get(job_id)
    assert job is not None
    return int(job.queue.partition("#")[2])
