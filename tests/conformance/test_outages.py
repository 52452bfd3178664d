"""After an outage a stalled check waits for renewals, and still recovers jobs of dead workers.

The server is not stopped here: no client calls it for a while, which looks the same to it.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from oxcart.broker.port import Ask, ClaimedJob, Lease, Outage, Outcome, OutcomeKind, ServedBroker
from tests.conformance.conftest import Bench, Venue

RULE = Outage(silence_ms=400, grace_ms=600)
#: Seconds that a wait in this file may take.
LIMIT = 60.0


def lease_of(job: ClaimedJob) -> Lease:
    return Lease(job.id, job.token, job.starts)


async def check(broker: ServedBroker, outage: Outage = RULE) -> list[str]:
    """Runs a check when the guard of the last one is over; sends heartbeats meanwhile."""
    until = time.monotonic() + LIMIT
    while True:
        await broker.appear(outage)
        found = await broker.recover(interval_ms=1, outage=outage)
        if found.ran and not found.wait_ms:
            return found.ids
        assert time.monotonic() < until, "no check"
        await asyncio.sleep(0.02)


async def lost_at_once(bench: Bench, *, lock_ms: int = 100) -> ClaimedJob:
    """Returns a running job that a check has seen and whose lease is about to run out."""
    await bench.add()
    (job,) = (await bench.broker.claim(Ask(1, worker="w1", lock_ms=60_000))).jobs
    assert await check(bench.broker) == []
    assert await bench.broker.renew([lease_of(job)], lock_ms) == []
    await bench.broker.recover(interval_ms=1, outage=RULE)
    return job


async def silence() -> None:
    await asyncio.sleep(2 * RULE.silence_ms / 1000)


async def test_a_worker_that_renews_after_an_outage_keeps_its_job(bench: Bench, venue: Venue) -> None:
    job = await lost_at_once(bench)
    await silence()
    fresh = venue.queue()._core.open_broker()  # a client that saw no outage
    try:
        assert (await fresh.recover(interval_ms=1, outage=RULE)).ids == []
        assert await bench.broker.renew([lease_of(job)], 60_000) == []
        assert await check(fresh) == []
    finally:
        await fresh.close()
    (code,), _ = await bench.broker.finish(
        [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, bench.broker.clock(), b"1")]
    )
    assert code == 1


async def test_job_of_a_dead_worker_is_recovered_after_the_grace(bench: Bench) -> None:
    job = await lost_at_once(bench)
    await silence()
    started = time.monotonic()
    assert (await bench.broker.recover(interval_ms=1, outage=RULE)).ids == []
    assert await check(bench.broker) == [job.id]
    assert time.monotonic() - started >= 0.9 * RULE.grace_ms / 1000


async def test_check_does_not_wait_without_an_outage(bench: Bench) -> None:
    await bench.add()
    (job,) = (await bench.broker.claim(Ask(1, worker="w1", lock_ms=60_000))).jobs
    assert await check(bench.broker, Outage(60_000, 600)) == []
    await bench.broker.renew([lease_of(job)], 100)
    patient = Outage(60_000, 3_600_000)
    taken: list[str] = []
    until = time.monotonic() + LIMIT
    while not taken:
        taken = (await bench.broker.recover(interval_ms=1, outage=patient)).ids
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    assert taken == [job.id]


async def test_workers_that_run_now_and_then_recover_jobs(bench: Bench) -> None:
    """Each of their checks finds no heartbeat."""
    job = await lost_at_once(bench)
    for _ in range(8):
        await silence()
        found = await bench.broker.recover(interval_ms=1, outage=RULE)
        if found.ids:
            assert found.ids == [job.id]
            return
    pytest.fail("the job never came back")


async def test_a_second_outage_takes_no_job_of_a_worker_that_renewed_between(bench: Bench) -> None:
    job = await lost_at_once(bench)
    for _ in range(2):
        await silence()
        assert (await bench.broker.recover(interval_ms=1, outage=RULE)).ids == []
        assert await bench.broker.renew([lease_of(job)], 100) == []
    await bench.broker.renew([lease_of(job)], 60_000)
    assert await check(bench.broker) == []


async def test_a_second_outage_takes_no_job_of_a_worker_that_could_not_renew_between(bench: Bench) -> None:
    job = await lost_at_once(bench)
    await silence()
    assert (await bench.broker.recover(interval_ms=1, outage=RULE)).ids == []
    await asyncio.sleep(RULE.grace_ms / 1000)
    await silence()
    assert (await bench.broker.recover(interval_ms=1, outage=RULE)).ids == []
    assert await bench.broker.renew([lease_of(job)], 60_000) == []
    assert await check(bench.broker) == []


async def test_workers_with_short_leases_wait_for_those_with_long_ones(bench: Bench) -> None:
    """The grace of a long lease is longer than the interval of any check."""
    job = await lost_at_once(bench)
    await silence()
    long, short = Outage(60_000, 3_600_000), Outage(60_000, 600)
    assert (await bench.broker.recover(interval_ms=1, outage=long)).ids == []
    for _ in range(3):
        found = await bench.broker.recover(interval_ms=1, outage=short)
        assert not found.ran, "the guard of the first check was not heeded"
        assert found.wait_ms > 3_000_000
    assert await bench.broker.renew([lease_of(job)], 60_000) == []


async def test_the_shortest_silence_rules(bench: Bench) -> None:
    """An outage for the worker with the shortest lease is an outage for all."""
    patient = Outage(60_000, 600)
    assert await check(bench.broker, patient) == []
    assert await bench.broker.appear(RULE)
    assert await bench.broker.appear(patient)
    await silence()
    assert not await bench.broker.appear(patient)
