"""Jobs of a Bridge namespace that are in no list come back."""

from __future__ import annotations

import json
import logging

import pytest
import redis

from oxcart.broker.bridge.rescue import Rescuer, rescue
from tests.broker.bridge.conftest import Desk
from tests.broker.bridge.typescript import TypeScriptClient


@pytest.fixture
def client(store: redis.Redis) -> TypeScriptClient:
    return TypeScriptClient(store)


def rescuer(desk: Desk, grace_ms: int = 0) -> Rescuer:
    return Rescuer(desk.broker(), grace_ms=grace_ms, rest_ms=0)


async def test_a_job_that_a_dead_worker_took_out_of_the_list_comes_back(
    desk: Desk, client: TypeScriptClient, caplog: pytest.LogCaptureFixture
) -> None:
    """That client keeps a running job in no list: when the client dies, the job is in none."""
    job_id = await desk.add()
    assert client.take() is not None
    assert await rescuer(desk).step() == [], "its lock is there"
    desk.store.delete(f"bridge:jobs:lock:{job_id}")
    with caplog.at_level(logging.WARNING):
        assert await rescuer(desk).step() == [job_id]
    assert f"brought back 1 lost jobs: {job_id}" in caplog.text
    assert desk.waiting() == [job_id]
    assert desk.status(job_id) == "waiting"
    assert desk.counter() == 0
    assert [job.id for job in await desk.claim()] == [job_id]


async def test_maintenance_waits_before_it_brings_a_job_back(desk: Desk, client: TypeScriptClient) -> None:
    """A client that runs a job for longer than its lock has the duration of two locks."""
    job_id = await desk.add()
    assert client.take() is not None
    desk.store.delete(f"bridge:jobs:lock:{job_id}")
    patient = rescuer(desk, grace_ms=60_000)
    assert await patient.step() == []
    assert desk.store.zrange("bridge:ox:missing", 0, -1) == [job_id]
    desk.store.zincrby("bridge:ox:missing", -61_000, job_id)
    assert await patient.step() == [job_id]
    assert desk.store.zcard("bridge:ox:missing") == 0


async def test_the_check_of_a_worker_brings_lost_jobs_back(
    desk: Desk, client: TypeScriptClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.broker(), "_rescuer", rescuer(desk))
    job_id = await desk.add()
    assert client.take() is not None
    desk.store.delete(f"bridge:jobs:lock:{job_id}")
    assert (await desk.broker().recover()).ids == [job_id]


async def test_a_job_of_ours_that_lost_its_lock_and_its_place_comes_back(desk: Desk) -> None:
    job = await desk.active()
    desk.store.srem("bridge:jobs:active", job.id)
    desk.store.delete(f"bridge:jobs:lock:{job.id}")
    assert (await desk.broker().recover()).ids == []
    assert desk.store.zrange("bridge:ox:missing", 0, -1) == [job.id], "known without a search"
    assert await rescuer(desk).step() == [job.id]
    (again,) = await desk.claim(worker="w2")
    assert again.id == job.id
    assert await desk.end(job) == -6, "the first worker has lost its lease"
    assert await desk.end(again) == 1


async def test_a_job_that_was_popped_and_never_locked_comes_back(desk: Desk) -> None:
    job_id = await desk.add()
    desk.store.lpop("bridge:jobs:waiting")
    assert await rescuer(desk).step() == [], "the index still has it"
    await desk.broker().recover()  # which sweeps the index
    assert await rescuer(desk).step() == [job_id]
    assert [job.id for job in await desk.claim()] == [job_id]


async def test_a_delayed_job_keeps_its_time(desk: Desk) -> None:
    desk.clock.now = int(desk.store.time()[0]) * 1000
    job_id = await desk.add(delay="1h")
    due = desk.store.zscore("bridge:jobs:delayed", job_id)
    desk.store.zrem("bridge:jobs:delayed", job_id)
    assert await rescuer(desk).step() == [job_id]
    assert desk.store.zscore("bridge:jobs:delayed", job_id) == due
    assert desk.status(job_id) == "delayed"


async def test_a_job_that_loses_its_workers_too_often_is_a_dead_letter(
    desk: Desk, client: TypeScriptClient
) -> None:
    """The other client counts only failures, so a job that kills its worker would run without end."""
    job_id = await desk.add(attempts=2)
    for _ in range(2):
        assert client.take() is not None
        desk.store.delete(f"bridge:jobs:lock:{job_id}")
        assert await rescuer(desk).step() == [job_id]
    assert desk.status(job_id) == "dead"
    assert desk.store.lrange("bridge:jobs:deadletter", 0, -1) == [job_id]
    assert desk.result(job_id)["error"]["name"] == "WorkerLost"


async def test_rescue_leaves_listed_and_ended_jobs_alone(desk: Desk, client: TypeScriptClient) -> None:
    await desk.active()
    await desk.add(delay="1h")
    await desk.add(after=[await desk.add(job_type="video")])
    desk.store.rpush("bridge:jobs:waiting", desk.foreign("f1", "video", push=""))
    await desk.claim()  # so that it is known
    done = await desk.add(job_type="done")
    (job,) = await desk.claim(job_type="done")
    assert job.id == done
    await desk.broker("done").finish([desk.outcome(job)])
    dead = await desk.add(job_type="dead", attempts=1)
    (job,) = await desk.claim(job_type="dead")
    await desk.broker("dead").finish([desk.outcome(job, "f", value=b"no")])
    await desk.broker().schedules.upsert(*await a_schedule(desk))
    before = {key: desk.store.dump(key) for key in desk.store.scan_iter("bridge:jobs:*")}
    for _ in range(2):
        assert await rescuer(desk).step() == []
    after = {key: desk.store.dump(key) for key in desk.store.scan_iter("bridge:jobs:*")}
    assert after == before, dead


async def a_schedule(desk: Desk) -> tuple:  # type: ignore[type-arg]
    from oxcart.broker.factory import DEFAULTS
    from oxcart.model.schedule import Schedule

    return "digest", Schedule(cron="0 7 * * *", tz="UTC"), "email", b"{}", DEFAULTS["bridge"]


async def test_a_search_goes_on_where_another_worker_stopped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxcart.broker.bridge.rescue.STEP", 10)
    monkeypatch.setattr("oxcart.broker.bridge.rescue.STEPS", 1)
    ids = {desk.foreign(f"f{n}", push="") for n in range(300)}
    found: set[str] = set()
    steps = 0
    while found != ids:
        found.update(await rescuer(desk).step())
        steps += 1
        assert steps < 500
    assert steps > 5, "each step is bounded"
    assert set(desk.waiting()) == ids


@pytest.mark.slow
async def test_an_operator_brings_back_all_lost_jobs(desk: Desk, client: TypeScriptClient) -> None:
    lost = [desk.foreign(f"f{n}", push="") for n in range(3)]
    video = desk.foreign("v", "video", push="")
    runs = await desk.add()
    assert client.take() is not None
    desk.store.rpush("bridge:jobs:waiting", "no-record")
    found = await rescue(desk.broker(), dry_run=True)
    assert {name: set(one.rescued) for name, one in found.items()} == {"email": set(lost), "video": {video}}
    assert desk.waiting() == ["no-record"], "a dry run changes nothing"
    found = await rescue(desk.broker(), ["email"])
    assert set(found["email"].rescued) == set(lost)
    assert found["email"].leased == [runs]
    assert found["email"].looked_at == 4
    assert set(desk.waiting()) == set(lost), "only jobs of the type, and no entry without a record"


async def test_a_worker_takes_entries_without_a_record_out_of_the_list(desk: Desk) -> None:
    desk.store.rpush("bridge:jobs:waiting", "gone-1", "gone-2")
    kept = await desk.add()
    assert [job.id for job in await desk.claim()] == [kept]
    assert await desk.claim() == []
    assert desk.waiting() == []


async def test_ends_of_other_clients_are_noted(desk: Desk, client: TypeScriptClient) -> None:
    desk.foreign("f1")
    desk.foreign("f2", retry={"attempts": 0})
    for _ in range(2):
        job = client.take()
        assert job is not None
        if job["jobId"] == "f1":
            client.complete(job, {"n": 1})
        else:
            client.fail(job)
    await rescuer(desk).step()
    counted = await desk.broker().counts()
    assert (counted["completed"], counted["failed"]) == (1, 1)
    assert [job.id for job in await desk.broker().page("completed", 0, 9)] == ["f1"]
    ended = json.loads(desk.store.get("bridge:jobs:result:f1"))["completedAt"]
    assert desk.store.zscore("bridge:ox:ended:completed:email", "f1") == ended
    assert 0 < desk.store.ttl("bridge:jobs:data:f1") <= desk.store.ttl("bridge:jobs:result:f1")
    assert desk.store.ttl("bridge:jobs:data:f2") == -1, "a dead letter stays"
