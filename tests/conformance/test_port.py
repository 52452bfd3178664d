"""The verbs of the port on every broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oxcart import Flow
from oxcart.broker.port import Ask, ClaimedJob, Lease, Outcome, OutcomeKind
from oxcart.model.errors import JobNotFound, LeaseLost, WrongState
from tests.conformance.conftest import Bench, Venue


def outcome(bench: Bench, job: ClaimedJob, kind: str = "c", **fields: Any) -> Outcome:
    fields = {"value": b"1" if kind == "c" else b"", **fields}
    return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, **fields)


async def claimed(bench: Bench, count: int = 1, worker: str = "w1", **ask: Any) -> list[ClaimedJob]:
    return (await bench.broker.claim(Ask(count, worker=worker, **ask))).jobs


async def test_no_job_is_claimed_twice(bench: Bench) -> None:
    ids = [await bench.add({"n": n}) for n in range(30)]
    taken = await asyncio.gather(*(claimed(bench, 10, f"w{n}") for n in range(4)))
    seen = [job.id for jobs in taken for job in jobs]
    assert sorted(seen) == sorted(ids)
    assert await claimed(bench) == []


async def test_attempt_is_finished_once_and_under_its_lease(bench: Bench) -> None:
    await bench.add()
    (job,) = await claimed(bench)
    stranger = outcome(bench, job)
    stranger.token = "stranger"
    stranger.starts = 99
    (code,), _ = await bench.broker.finish([stranger], Ask(0))
    assert isinstance(code, int)
    assert code < 0
    (code,), _ = await bench.broker.finish([outcome(bench, job)], Ask(0))
    assert code == 1
    (code,), _ = await bench.broker.finish([outcome(bench, job)], Ask(0))
    assert isinstance(code, int)
    assert code < 0


async def test_the_id_in_the_key_of_a_parent_is_found_by_its_queue_alone(venue: Venue) -> None:
    venue.needs("flows")
    queue, other = venue.queue(), venue.queue("emails")
    tree = await Flow(queue, "p", partition_key="a", children=[Flow(queue, "c", job_id="child")]).add()
    child = await queue.jobs.get("child")
    assert child is not None
    assert child.parent_key is not None
    assert queue._core.broker.job_id_of(child.parent_key) == tree.id
    assert other._core.broker.job_id_of(child.parent_key) is None


async def test_one_bad_outcome_does_not_touch_its_neighbours(bench: Bench) -> None:
    for _ in range(3):
        await bench.add()
    jobs = await claimed(bench, 3)
    outcomes = [outcome(bench, job) for job in jobs]
    outcomes[1].id = "6f2c7a52-7d2a-4c5e-8f7b-0a5f4a8d9c11"
    codes, _ = await bench.broker.finish(outcomes, Ask(0))
    assert codes == [1, -1, 1]


async def test_an_end_claims_into_the_freed_slot(bench: Bench) -> None:
    await bench.add(partition_key="one")
    second = await bench.add(partition_key="one")
    (job,) = await claimed(bench)
    _, more = await bench.broker.finish([outcome(bench, job)], Ask(1, worker="w1"))
    assert [one.id for one in more.jobs] == [second]


async def test_leases(bench: Bench) -> None:
    await bench.add()
    (job,) = await claimed(bench, lock_ms=5000)
    assert await bench.broker.renew([Lease(job.id, job.token, job.starts)], 5000) == []
    assert await bench.broker.renew([Lease(job.id, "stranger", job.starts + 1)], 5000) == [job.id]


async def test_returned_job_is_first_again_with_a_higher_fencing_number(bench: Bench) -> None:
    first = await bench.add(partition_key="one")
    await bench.add(partition_key="one")
    (job,) = await claimed(bench)
    await bench.broker.finish([outcome(bench, job, "w")], Ask(0))
    (again,) = await claimed(bench)
    assert (again.id, again.starts) == (first, job.starts + 1)


async def test_a_later_start_knows_since_when_the_job_was_ready(bench: Bench) -> None:
    await bench.add()
    (job,) = await claimed(bench)
    await bench.broker.finish([outcome(bench, job, "w")], Ask(0))
    (again,) = await claimed(bench)
    assert again.starts == job.starts + 1
    assert again.ready_ms is not None
    assert job.started_ms <= again.ready_ms <= again.started_ms
    await bench.broker.finish([outcome(bench, again, "d", delay_ms=3_600_000, counts=False)], Ask(0))
    await bench.broker.promote_job(job.id)
    (third,) = await claimed(bench)
    assert third.ready_ms is not None
    assert again.ready_ms <= third.ready_ms <= third.started_ms


async def test_delays_and_when_the_next_is_due(bench: Bench) -> None:
    await bench.add(delay="1h")
    answer = await bench.broker.claim(Ask(1, worker="w1"))
    assert answer.jobs == []
    assert answer.due_ms > bench.broker.clock() + 3_000_000
    moved, due = await bench.broker.promote()
    assert moved == 0
    assert due == answer.due_ms


async def test_a_job_without_a_handler_says_why_it_was_put_off(bench: Bench) -> None:
    job_id = await bench.add()
    (job,) = await claimed(bench, worker="w1")
    put_off = outcome(bench, job, "d", delay_ms=3_600_000, counts=False, unhandled=True)
    assert (await bench.broker.finish([put_off], Ask(0)))[0] == [1]
    (found,) = await bench.broker.get([job_id])
    assert found is not None
    assert found.put_off == f"no handler for {found.name} in worker w1"
    await bench.broker.promote_job(job_id)
    (job,) = await claimed(bench, worker="w2")
    (found,) = await bench.broker.get([job_id])
    assert found is not None
    assert found.put_off is None
    later = outcome(bench, job, "d", delay_ms=3_600_000, counts=False)
    await bench.broker.finish([later], Ask(0))
    (found,) = await bench.broker.get([job_id])
    assert found is not None
    assert found.put_off is None


async def test_states_counts_and_pages_agree(bench: Bench) -> None:
    held_id = await bench.add(partition_key="one")
    waiting = [await bench.add(partition_key="one") for _ in range(3)]
    delayed = await bench.add(delay="1h")
    (held,) = await claimed(bench)
    assert held.id == held_id
    states = await bench.broker.states([held_id, *waiting, delayed, "6f2c7a52-7d2a-4c5e-8f7b-0a5f4a8d9c11"])
    assert states == ["active", "waiting", "waiting", "waiting", "delayed", "unknown"]
    counts = await bench.broker.counts()
    assert {state: many for state, many in counts.items() if many} == {"wait": 3, "active": 1, "delayed": 1}
    assert [job.id for job in await bench.broker.page("wait", 0, 9, oldest=True)] == waiting
    assert [job.id for job in await bench.broker.page("wait", 0, 0)] == waiting[-1:]
    assert [job.id for job in await bench.broker.page("active", 0, 9)] == [held_id]
    assert [job.id for job in await bench.broker.page("delayed", 0, 9)] == [delayed]


async def test_verbs_refuse_unknown_jobs(bench: Bench) -> None:
    none = "6f2c7a52-7d2a-4c5e-8f7b-0a5f4a8d9c11"
    broker = bench.broker
    calls: list[Any] = [
        broker.set_progress(none, 1),
        broker.update_data(none, {}),
        broker.change_delay(none, 1),
        broker.retry_job(none, "failed"),
        broker.remove_job(none),
        broker.set_checkpoint(none, "t", b"1"),
    ]
    for call in calls:
        with pytest.raises(JobNotFound):
            await call
    with pytest.raises((JobNotFound, WrongState)):
        await broker.promote_job(none)  # BullMQ raises the latter
    assert await broker.look([none]) == [None]
    assert not (await broker.ended(none)).known


async def test_verbs_refuse_jobs_in_the_wrong_state(bench: Bench) -> None:
    waits = await bench.add()
    with pytest.raises(WrongState):
        await bench.broker.promote_job(waits)
    with pytest.raises(WrongState):
        await bench.broker.retry_job(waits, "failed")
    (job,) = await claimed(bench)
    with pytest.raises(LeaseLost):
        await bench.broker.set_checkpoint(job.id, "stranger", b"1")


async def test_long_lists_go_in_parts(bench: Bench) -> None:
    plain = bench.queue._core.read_options({})
    jobs = [bench.broker.encode("email", {"n": n, "pad": "x" * 3000}, plain) for n in range(600)]
    added = await bench.broker.add(jobs)
    assert [one.id for one in added] == [job[0] for job in jobs]
    assert (await bench.broker.counts())["wait"] == 600


async def test_payloads_arrive_unchanged(bench: Bench) -> None:
    data: Any = {
        "empty": [],
        "none": None,
        "nested": {"a": [{}, []]},
        "text": "ü€😀\u0000",
        "f": 1.5,
        "i": 2**53 + 1,
    }
    job_id = await bench.add(data)
    (job,) = await claimed(bench)
    assert job.id == job_id
    (read,) = await bench.broker.look([job_id])
    assert read is not None
    assert read.data == data
