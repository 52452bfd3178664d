"""Clients whose clocks are wrong: the server's clock decides what is due, expired or scheduled."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from oxcart import Worker
from oxcart.broker.port import Ask, Outcome, OutcomeKind, ServedBroker
from oxcart.model.state import State
from tests.conformance.conftest import Bench, Venue
from tests.signals import eventually

HOUR_MS = 3_600_000
#: Ms that one step of a test may take on a busy machine.
ROOM_MS = 60_000


@pytest_asyncio.fixture(params=[HOUR_MS, -HOUR_MS], ids=["ahead", "behind"])
async def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Sets the wall clock of this process off by an hour; the server's stays right."""
    true_ns, skew_ms = time.time_ns, int(request.param)
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + skew_ms * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: (true_ns() + skew_ms * 1_000_000) / 1e9)
    yield skew_ms


async def test_a_delay_counts_from_the_servers_time(skew: int, bench: Bench) -> None:
    before = await bench.server_ms()
    await bench.add(delay="10m")
    after = await bench.server_ms()
    claimed = await bench.broker.claim(Ask(1, worker="w1"))
    assert claimed.jobs == []
    assert before + 600_000 <= claimed.due_ms <= after + 600_000
    assert await bench.broker.promote() == (0, claimed.due_ms)
    assert abs(bench.broker.clock() - await bench.server_ms()) < ROOM_MS


async def test_a_changed_delay_counts_from_the_servers_time(skew: int, bench: Bench) -> None:
    job_id = await bench.add(delay="10m")
    before = await bench.server_ms()
    await bench.broker.change_delay(job_id, 1_200_000)
    after = await bench.server_ms()
    _, due = await bench.broker.promote()
    assert before + 1_200_000 <= due <= after + 1_200_000


async def test_a_retry_waits_for_its_backoff_by_the_servers_time(skew: int, bench: Bench) -> None:
    await bench.add()
    (job,) = (await bench.broker.claim(Ask(1, worker="w1"))).jobs
    before = await bench.server_ms()
    outcome = Outcome(
        OutcomeKind.DELAY, job.id, job.token, job.starts, value=b"no", stack=b"[]", delay_ms=600_000
    )
    codes, _ = await bench.broker.finish([outcome], Ask(0, worker="w1"))
    after = await bench.server_ms()
    assert codes == [1]
    _, due = await bench.broker.promote()
    assert before + 600_000 <= due <= after + 600_000
    assert before <= outcome.at_ms <= after


async def test_a_job_records_the_servers_times(skew: int, bench: Bench) -> None:
    before = await bench.server_ms()
    job_id = await bench.add()
    (job,) = (await bench.broker.claim(Ask(1, worker="w1"))).jobs
    await bench.broker.finish(
        [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, value=b"1")], Ask(0, worker="w1")
    )
    after = await bench.server_ms()
    (found,) = await bench.broker.look([job_id])
    assert found is not None
    assert found.processed_on is not None
    assert found.finished_on is not None
    assert before <= found.timestamp <= found.processed_on <= found.finished_on <= after
    assert job.started_ms == found.processed_on


async def test_a_worker_runs_delayed_jobs_on_time(skew: int, venue: Venue) -> None:
    queue = venue.queue()
    ran: list[str] = []

    @queue.job(name="note")
    async def note(word: str) -> None:
        ran.append(word)

    async with Worker(queue, concurrency=2).running():
        await queue.add("note", {"word": "later"}, delay="10m")
        started = time.monotonic()
        await queue.add("note", {"word": "soon"}, delay="2s")
        await eventually(lambda: ran, "the job that is due ran")
        assert time.monotonic() - started >= 2 - 0.01
        await (await queue.add("note", {"word": "now"})).result(30)
    assert ran == ["soon", "now"]


async def test_lifetime_counts_by_the_servers_time(skew: int, venue: Venue) -> None:
    venue.needs("lifetime")
    queue = venue.queue()
    queue.fallback(lambda: None)
    held = await queue.add("n", lifetime="10m", delay="5m")
    handle = await queue.add("n", lifetime="10m")
    async with Worker(queue).running():
        await handle.result(30)
        assert await queue._core.broker.expire() == 0
    assert [(await one.get()).state for one in (handle, held)] == [State.COMPLETED, State.DELAYED]


async def test_a_schedule_fires_at_its_times(skew: int, venue: Venue, bench: Bench) -> None:
    venue.needs("schedules")
    queue = venue.queue()
    ran: list[int] = []

    @queue.job(name="beat")
    async def beat() -> None:
        ran.append(await bench.server_ms())

    now = datetime.fromtimestamp(await bench.server_ms() / 1000, UTC)
    at = now + timedelta(seconds=5)
    cron = f"{at.second} {at.minute} {at.hour} * * *"
    await queue.schedules.upsert("daily", name="beat", cron=cron, tz="UTC")
    info = await queue.schedules.get("daily")
    assert info is not None
    due = int(at.replace(microsecond=0).timestamp() * 1000)
    assert info.next_ms == due
    async with Worker(queue).running():
        await eventually(lambda: ran, "the schedule fired")

        async def moved_on() -> bool:
            known = await queue.schedules.get("daily")
            return known is not None and known.next_ms != due

        await eventually(moved_on, "the schedule has a next time")
    assert due <= ran[0] <= due + ROOM_MS
    known = await queue.schedules.get("daily")
    assert known is not None
    assert known.next_ms == due + 24 * HOUR_MS


async def test_times_of_a_job_never_decrease_though_every_clock_differs(
    venue: Venue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer an hour ahead, a worker an hour behind, an operator in between."""
    true_ns, ours = time.time_ns, venue.capabilities.can("history")

    async def client(hours: float) -> ServedBroker:
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(hours * HOUR_MS) * 1_000_000)
        return venue.queue()._core.broker

    producer = await client(1)
    queue = venue.queue()
    options = queue._core.read_options({"history": True} if ours else {})
    (added,) = await producer.add([producer.encode("email", None, options)])
    worker = await client(-1)
    (job,) = (await worker.claim(Ask(1, worker="w1"))).jobs
    outcome = Outcome(
        OutcomeKind.DELAY, job.id, job.token, job.starts, value=b"no", stack=b"[]", delay_ms=HOUR_MS
    )
    await worker.finish([outcome], Ask(0, worker="w1"))
    operator = await client(0.5)
    await operator.promote_job(added.id)
    other = await client(-0.5)
    (job,) = (await other.claim(Ask(1, worker="w2"))).jobs
    await other.finish(
        [Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, value=b"1")], Ask(0, worker="w2")
    )
    (found,) = await operator.look([added.id])
    assert found is not None
    assert found.completed_at is not None
    shown = [found.created_at, found.scheduled_at, found.started_at, found.completed_at, found.updated_at]
    assert shown == sorted(filter(None, shown))
    assert found.completed_at - found.created_at < timedelta(minutes=1)
    if ours:
        written = [int(line.split("\t")[0]) for line in found.transition_records.splitlines()]
        assert [found.timestamp, *written] == sorted([found.timestamp, *written])
