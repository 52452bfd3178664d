"""Sealed values on every protocol and kind of server."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart import Target, Worker
from oxcart.broker.keyring import KeyRing, SealError
from oxcart.broker.resealing import reseal
from oxcart.engine.running import RunningJob
from oxcart.model.event import Event
from tests.conformance.conftest import Venue

LIMIT = 20
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


async def test_a_key_is_replaced_while_jobs_wait(venue: Venue) -> None:
    venue.needs("resealing")
    old = venue.queue(key_ring=KeyRing({"old": OLD}))
    other = venue.queue("other", key_ring=KeyRing({"old": OLD}))
    jobs = [await old.add("task", n) for n in range(40)]
    jobs.append(await old.add("task", 40, target=Target(capabilities="gpu")))
    left = await other.add("task", "left")
    both = venue.queue(key_ring=KeyRing({"new": NEW, "old": OLD}, "new"))
    assert (await reseal(both._core.broker)).resealed == 41
    renewed = venue.queue(key_ring=KeyRing({"new": NEW}))

    @renewed.job(name="task")
    async def task(job: RunningJob) -> Any:
        return job.data

    async with Worker(renewed, abilities={"capabilities": "gpu"}).running():
        assert [await renewed.jobs.handle(job.id).result(LIMIT) for job in jobs[:40]] == list(range(40))
    found = await other.jobs.get(left.id)
    assert found is not None
    assert found.data == "left"


async def test_plaintext_is_refused(venue: Venue) -> None:
    job = await venue.queue().add("task", 1)
    with pytest.raises(SealError, match="plaintext"):
        await venue.queue(key_ring=KeyRing({"old": OLD})).jobs.get(job.id)


async def test_events_are_values_of_the_model_and_open_where_wanted(venue: Venue) -> None:
    queue = venue.queue(key_ring=KeyRing({"old": OLD}, results=True, progress=True))

    @queue.fallback
    async def work(job: RunningJob) -> dict[str, int]:
        await job.update_progress({"place": "vault"})
        return {"a": 1}

    job = await queue.add("email")
    async with Worker(queue).running():
        assert await job.result(20) == {"a": 1}
    plain: dict[str, Event] = {}
    opened: dict[str, Event] = {}
    for unseals, found in ((False, plain), (True, opened)):
        stream = queue._core.broker.open_events(unseals=unseals)
        assert stream is not None
        found |= {event.name: event async for event in stream.backwards() if event.job_id == job.id}
        await stream.close()
    assert {event.queue for event in opened.values()} == {"email"}
    assert opened["active"].timestamp > 0
    assert "vault" in str(opened["progress"].data)
    assert opened["completed"].return_value == {"a": 1}
    assert "$sealed" in str(plain["progress"].data)
    assert "$sealed" in str(plain["completed"].return_value)
