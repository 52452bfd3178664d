"""Searches and groups of failures, on every broker."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.broker.memory import MemoryServer
from oxcart.engine.running import RunningJob
from oxcart.model.errors import AmbiguousId, JobFailed, JobNotFound, ValidationError
from oxcart.model.state import State
from tests.conformance.conftest import Venue
from tests.signals import eventually

LIMIT = 20


async def run_all(queue: Queue, names: list[str], **options: Any) -> list[str]:
    """Runs jobs one after the other; returns their ids. The name of a job decides how it ends."""
    ids: list[str] = []

    async def handle(job: RunningJob) -> str:
        if job.name == "broken":
            raise PermanentError(f"order {len(ids)} of user-{job.id} is unknown")
        if job.name == "busy":
            raise TemporaryError(f"10.0.0.{len(ids)}:25 is busy")
        return "fine"

    queue.fallback(handle)
    async with Worker(queue, concurrency=1, name="first").running():
        for name in names:
            job = await queue.add(name, attempts=1, **options)
            ids.append(job.id)
            with contextlib.suppress(JobFailed):
                await job.result(LIMIT)
            ended = await _now(queue)
            # Jobs that end in the same ms have no order.
            await eventually(lambda ended=ended: _is_past(queue, ended), "the next ms")  # type: ignore[misc]
    return ids


async def _now(queue: Queue) -> int:
    return await queue._core.broker.now()


async def _is_past(queue: Queue, ms: int) -> bool:
    return await _now(queue) > ms


async def test_search_finds_jobs_by_state_name_reason_and_worker(venue: Venue) -> None:
    queue = venue.queue()
    good, broken, busy, other = await run_all(queue, ["good", "broken", "busy", "good"])
    waiting = (await queue.add("good")).id

    async def ids(**which: Any) -> list[str]:
        return [job.id for job in (await queue.jobs.search(**which)).jobs]

    assert set(await ids()) == {good, broken, busy, other, waiting}
    assert await ids(state="completed") == [other, good]
    assert await ids(state="completed", oldest=True) == [good, other]
    assert await ids(state="scheduled") == [waiting]
    assert await ids(state="waiting") == [waiting]
    assert await ids(state=["failed", "dead_letter"]) == [busy, broken]
    assert await ids(state="failed", wire=True) == [busy, broken]
    assert await ids(reason="UNKNOWN") == [broken]
    assert await ids(name="good", state="completed", limit=1, first=1) == [good]
    assert set(await ids(name=["broken", "busy"])) == {broken, busy}
    assert await ids(worker="nobody-*") == []
    assert set(await ids(worker="f*rst", name="good")) == {good, other}


async def test_search_counts_what_it_does_not_return(venue: Venue) -> None:
    queue = venue.queue()
    await queue.add_many([("good", None)] * 7)
    found = await queue.jobs.search(limit=2)
    assert (len(found.jobs), found.matched, found.exact, found.total) == (2, 7, True, 7)
    assert found.looked_at <= 2
    found = await queue.jobs.search(name="good", limit=2)
    assert (len(found.jobs), found.matched, found.exact, found.looked_at) == (2, 7, True, 7)
    found = await queue.jobs.search(name="good", limit=2, scan=3)
    assert (len(found.jobs), found.matched, found.exact, found.looked_at) == (2, 3, False, 3)


async def test_search_by_time_reads_only_the_span(venue: Venue) -> None:
    queue = venue.queue()
    ids = await run_all(queue, ["good"] * 9, partition_key="one")
    jobs = [await queue.jobs.get(one) for one in ids]
    ends = [job.finished_on for job in jobs if job is not None and job.finished_on is not None]
    assert ends == sorted(ends)
    assert len(ends) == 9
    for oldest in (False, True):
        found = await queue.jobs.search(
            state="completed", since=ends[3], until=ends[5], limit=2, oldest=oldest
        )
        span = [one for one, end in zip(ids, ends, strict=True) if ends[3] <= end <= ends[5]]
        assert [job.id for job in found.jobs] == (span if oldest else span[::-1])[:2]
        assert (found.matched, found.exact, found.total) == (len(span), True, 9)
        assert found.looked_at == 2
        later = await queue.jobs.search(since=ends[6], name="good", oldest=oldest)
        assert {job.id for job in later.jobs} == {
            one for one, end in zip(ids, ends, strict=True) if end >= ends[6]
        }


async def test_search_finds_jobs_by_tag_and_correlation_id(venue: Venue) -> None:
    queue = venue.queue()
    await queue.add("a", tags={"tenant": "acme", "tier": "1"}, correlation_id="order-7")
    await queue.add("a", tags={"tenant": "other"})
    found = await queue.jobs.search(tags={"tenant": "acme"})
    assert [job.correlation_id for job in found.jobs] == ["order-7"]
    assert (await queue.jobs.search(correlation_id="order-7")).matched == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"state": "lost"}, "state"),
        ({"since": "soon"}, "since"),
        ({"until": -1}, "until"),
        ({"category": "odd"}, "category"),
        ({"limit": 0}, "limit"),
        ({"first": -1}, "first"),
        ({"scan": 0}, "scan"),
        ({"reason": 7}, "reason"),
        ({"worker": [7]}, "worker"),
    ],
)
async def test_search_refuses_bad_input(arguments: dict[str, Any], field: str) -> None:
    queue = Queue("email", broker=MemoryServer())
    with pytest.raises(ValidationError, match=f"^{field} must be"):
        await queue.jobs.search(**arguments)
    await queue.close()


async def test_failures_that_differ_in_particulars_are_one_group(venue: Venue) -> None:
    queue = venue.queue()
    ids = await run_all(queue, ["broken", "busy", "good", "broken", "broken"], partition_key="one")
    found = await queue.jobs.failures()
    first, second = found.groups
    assert (found.failed, found.exact) == (4, True)
    assert (first.reason, first.count, first.names) == ("order <n> of user-<id> is unknown", 3, {"broken": 3})
    assert (second.reason, second.count) == ("<address> is busy", 1)
    assert first.ids == [ids[4], ids[3], ids[0]]
    assert first.frame is not None
    assert first.frame.startswith("test_search.py:")
    assert first.frame.endswith(" in handle")
    assert first.frame != second.frame
    ends = [job.finished_on for job in await queue.jobs.get_many([ids[0], ids[4]]) if job is not None]
    assert [first.first_ms, first.last_ms] == ends
    assert "user-" in first.example
    assert sum(first.states.values()) == 3
    assert [group.count for group in (await queue.jobs.failures(name="busy")).groups] == [1]
    assert (await queue.jobs.failures(since=(ends[1] or 0) + 60_000)).groups == []


async def test_failures_read_no_more_jobs_than_allowed(venue: Venue) -> None:
    queue = venue.queue()
    await run_all(queue, ["broken"] * 4)
    found = await queue.jobs.failures(scan=3)
    assert (found.failed, found.exact, found.looked_at, found.total) == (3, False, 3, 4)


async def test_dead_letters_with_permanent_failures_and_times(venue: Venue) -> None:
    queue = venue.queue()
    broken, busy, _ = await run_all(queue, ["broken", "busy", "good"])
    dead = queue.dead_letters
    assert {job.id for job in await dead.list(permanent=True)} == {broken, busy}
    (busy_job,) = [job for job in await dead.list() if job.id == busy]
    assert busy_job.finished_on is not None
    assert [job.id for job in await dead.list(permanent=True, since=busy_job.finished_on)] == [busy]
    before = busy_job.finished_on - 1
    assert [job.id for job in await dead.list(permanent=True, until=before)] == [broken]
    assert (await dead.get(broken, permanent=True)).id == broken
    await dead.purge(broken, permanent=True)
    assert await queue.jobs.get(broken) is None
    assert (await dead.replay_all(permanent=True)).ids == [busy]


async def test_failures_show_jobs_that_will_be_retried(venue: Venue) -> None:
    queue = venue.queue()

    async def handle(job: RunningJob) -> None:
        raise TemporaryError("the line is busy")

    queue.fallback(handle)
    async with Worker(queue).running():
        job = await queue.add("call", attempts=3, backoff="1h")
        await eventually(lambda: _is_retrying(queue, job.id), "the job waits for its next attempt")
    assert (await queue.jobs.failures()).groups == []
    (group,) = (await queue.jobs.failures(state="retrying")).groups
    assert (group.reason, group.states) == ("the line is busy", {"retrying": 1})


async def _is_retrying(queue: Queue, job_id: str) -> bool:
    job = await queue.jobs.get(job_id)
    return job is not None and job.state is State.RETRYING


async def test_a_unique_beginning_of_an_id_is_resolved(venue: Venue) -> None:
    queue = venue.queue()
    ids = [(await queue.add("a")).id for _ in range(2)]
    for one in ids:
        assert await queue.jobs.resolve(one) == one
        assert await queue.jobs.resolve(one[:20]) == one
    with pytest.raises(JobNotFound, match="zzzz"):
        await queue.jobs.resolve("zzzz")
    with pytest.raises(JobNotFound):
        await queue.jobs.resolve(ids[0][:3])
    with pytest.raises(JobNotFound):
        await venue.queue("other").jobs.resolve(ids[0][:20])


async def test_an_ambiguous_beginning_lists_candidates(venue: Venue) -> None:
    venue.needs("custom_ids")
    queue = venue.queue()
    for number in range(12):
        await queue.add("a", job_id=f"order-{number:02}")
    with pytest.raises(
        AmbiguousId, match=r"id order- is ambiguous: it may be order-\d\d, .*, …; write"
    ) as caught:
        await queue.jobs.resolve("order-")
    # The search ends when it has found enough, and a server returns its keys in any order.
    found = caught.value.candidates
    assert len(set(found)) == 10
    assert list(found) == sorted(found)
    assert set(found) < {f"order-{number:02}" for number in range(12)}
    assert await queue.jobs.resolve("order-11") == "order-11"
