"""Durable steps, sleeps and signals on every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oxcart import Queue, SyncRunningJob, TemporaryError, Worker
from oxcart.broker.keyring import KeyRing
from oxcart.broker.memory.broker import MemoryBroker
from oxcart.broker.port import Ask
from oxcart.broker.progress import silent
from oxcart.broker.resealing import reseal
from oxcart.broker.stored import FIELD_SIGNALS
from oxcart.engine.running import RunningJob
from oxcart.engine.steps import LOOK_AGAIN
from oxcart.errors import JobFailed, JobNotFound, LeaseLost, SignalTimeout, StepError, WrongState
from oxcart.handle import JobHandle
from oxcart.model.state import State
from oxcart.model.steps import MOST_SIGNAL_BYTES, MOST_STEPS
from tests.conformance.conftest import Bench, Venue
from tests.signals import eventually

LIMIT = 20
SOON = {"type": "fixed", "delay": 5}
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


class Receipt(msgspec.Struct):
    order: int
    paid: float


async def waits(queue: Queue, job: JobHandle[Any]) -> None:
    """Waits until a job is delayed and no worker runs it."""
    await eventually(lambda: _is_delayed(queue, job), "the job waits")


async def _is_delayed(queue: Queue, job: JobHandle[Any]) -> bool:
    return await queue.jobs.state(job.id) == "delayed"


async def test_a_retry_does_not_repeat_steps(venue: Venue) -> None:
    queue = venue.queue()
    calls: list[str] = []

    async def charge(order: int) -> Receipt:
        calls.append("charge")
        return Receipt(order, 9.5)

    def ship(order: int, *, fast: bool) -> str:
        calls.append("ship")
        if calls.count("ship") == 1:
            raise ConnectionError("the carrier is away")
        return f"parcel {order} {fast}"

    @queue.job(attempts=3, backoff=SOON)
    async def order(job: RunningJob, number: int) -> list[Any]:
        receipt = await job.step("charge", charge, number)
        assert isinstance(receipt, Receipt)
        return [receipt.paid, await job.step("ship", ship, number, fast=True)]

    async with Worker(queue).running():
        job = await order.enqueue(number=7)
        assert await job.result(LIMIT) == [9.5, "parcel 7 True"]
    assert calls == ["charge", "ship", "ship"]
    done = await job.get()
    assert [(step.name, step.kind, step.start, step.value) for step in done.steps] == [
        ("charge", "step", 1, {"order": 7, "paid": 9.5}),
        ("ship", "step", 2, "parcel 7 True"),
    ]
    assert done.attempts_made == 2


async def test_a_sleep_frees_the_worker_and_uses_no_attempt(venue: Venue) -> None:
    queue = venue.queue()
    runs: list[int] = []

    @queue.job(attempts=1)
    async def remind(job: RunningJob) -> int:
        runs.append(job.attempt)
        await job.sleep("300ms")
        await job.sleep(0.001, step="again")
        return job.attempt

    @queue.job
    async def other() -> str:
        return "free"

    async with Worker(queue, concurrency=1).running():
        job = await remind.enqueue()
        await waits(queue, job)
        assert await (await other.enqueue()).result(LIMIT) == "free"
        assert await job.result(LIMIT) == 1
    assert set(runs) == {1}
    done = await job.get()
    assert [(step.name, step.kind) for step in done.steps] == [("sleep-1", "sleep"), ("again", "sleep")]
    assert done.steps[0].until_ms == done.steps[0].at_ms + 300
    assert done.attempts_made == 1


async def test_a_promoted_sleeper_sleeps_on(venue: Venue) -> None:
    queue = venue.queue()
    runs: list[int] = []

    @queue.job
    async def remind(job: RunningJob) -> None:
        runs.append(job.fencing)
        await job.sleep("7300d")  # beyond what the wire can delay

    async with Worker(queue).running():
        job = await remind.enqueue()
        await waits(queue, job)
        until = (await job.get()).steps[0].until_ms
        await job.promote()
        await eventually(lambda: len(runs) == 2, "it ran again")
        await waits(queue, job)
    assert [step.until_ms for step in (await job.get()).steps] == [until]
    assert 0 < (await job.get()).delay <= LOOK_AGAIN


@pytest.mark.parametrize("first", ["signal", "wait"])
async def test_a_signal_arrives_before_or_during_the_wait(venue: Venue, first: str) -> None:
    queue = venue.queue()
    started = asyncio.Event()

    @queue.job(attempts=1)
    async def approve(job: RunningJob) -> Any:
        started.set()
        return await job.wait_signal("approved", timeout="1h")

    job = await approve.enqueue()
    if first == "signal":
        assert await queue.jobs.signal(job.id, "approved", {"by": "Ada"}) is False
        assert (await job.get()).signals == ["approved"]
    async with Worker(queue).running():
        if first == "wait":
            await started.wait()
            await waits(queue, job)
            assert (await job.get()).state is State.DELAYED
            assert await job.signal("approved", {"by": "Ada"}) is True
        assert await job.result(LIMIT) == {"by": "Ada"}
    done = await job.get()
    assert (done.attempts_made, done.signals) == (1, [])
    assert [(step.name, step.kind, step.value) for step in done.steps] == [
        ("approved", "signal", {"by": "Ada"})
    ]


async def test_a_signal_between_look_and_end_wakes_the_job(venue: Venue) -> None:
    queue = venue.queue()
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def late(job: RunningJob, call: Callable[[RunningJob], Any]) -> Any:
        result = await call(job)
        looked.set()
        await go_on.wait()
        return result

    @queue.job
    async def approve(job: RunningJob) -> Any:
        return await job.wait_signal("approved", "1h")

    async with Worker(queue, middleware=[late]).running():
        job = await approve.enqueue()
        await looked.wait()
        assert await job.signal("approved", 1) is False  # it still runs
        go_on.set()
        assert await job.result(LIMIT) == 1


async def test_signals_of_one_name_arrive_in_order(venue: Venue) -> None:
    queue = venue.queue()

    @queue.job
    async def chat(job: RunningJob) -> list[Any]:
        return [await job.wait_signal("said", step=f"said-{i}") for i in range(3)]

    job = await chat.enqueue()
    await job.signal("said", "a")
    await job.signal("other", "x")
    await job.signal("said", "b")
    async with Worker(queue).running():
        await waits(queue, job)
        assert await job.signal("other") is False
        assert await job.signal("said", "c") is True
        assert await job.result(LIMIT) == ["a", "b", "c"]
    assert (await job.get()).signals == ["other", "other"]


async def test_a_wait_times_out_for_good(venue: Venue) -> None:
    queue = venue.queue()

    @queue.job(attempts=3, backoff=SOON)
    async def approve(job: RunningJob) -> str:
        try:
            await job.wait_signal("approved", timeout=0.02)
        except SignalTimeout:
            await job.signal_late()  # type: ignore[attr-defined]
        return "approved"

    @queue.job(attempts=3)
    async def strict(job: RunningJob) -> Any:
        return await job.wait_signal("approved", timeout=0.02)

    async def signal_late(self: RunningJob) -> None:
        if self.attempts_made == 0:
            await queue.jobs.signal(self.id, "approved")  # the run that follows must not see it
            raise ConnectionError("again")

    RunningJob.signal_late = signal_late  # type: ignore[attr-defined]
    try:
        async with Worker(queue).running():
            job = await approve.enqueue()
            assert await job.result(LIMIT) == "approved"
            lost = await strict.enqueue()
            with pytest.raises(JobFailed, match="signal 'approved' did not arrive in time"):
                await lost.result(LIMIT)
    finally:
        del RunningJob.signal_late  # type: ignore[attr-defined]
    assert [step.kind for step in (await job.get()).steps] == ["timeout"]
    assert ((await lost.get()).state, (await lost.get()).attempts_made) == (State.FAILED, 1)


async def test_a_replay_waits_again_and_keeps_results(venue: Venue) -> None:
    queue = venue.queue()
    calls: list[int] = []

    @queue.job(attempts=1)
    async def approve(job: RunningJob) -> Any:
        await job.step("ask", calls.append, 1)
        return await job.wait_signal("approved", timeout=0.02 if job.fencing < 3 else "1h")

    async with Worker(queue).running():
        job = await approve.enqueue()
        with pytest.raises(JobFailed):
            await job.result(LIMIT)
        await job.retry(reset=True)
        await waits(queue, job)
        await job.signal("approved", "late")
        assert await job.result(LIMIT) == "late"
        assert calls == [1]
        await job.retry(reset=True)  # a completed job begins anew
        await eventually(lambda: len(calls) == 2, "the step runs again")


async def test_plain_functions_have_the_same_steps(venue: Venue) -> None:
    queue = venue.queue()
    calls: list[int] = []

    def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    @queue.job(attempts=1)
    def work(job: SyncRunningJob) -> list[Any]:
        first = job.step("double", double, 4)
        job.sleep(0.005)
        return [first, job.wait_signal("go", "1h")]

    async with Worker(queue).running():
        job = await work.enqueue()
        await eventually(lambda: _has(job, "go"), "it waits for the signal")
        await waits(queue, job)
        await job.signal("go", "now")
        assert await job.result(LIMIT) == [8, "now"]
    assert calls == [4]


async def _has(job: JobHandle[Any], name: str) -> bool:
    return any(step.name == name for step in (await job.get()).steps)


async def test_names_are_used_once_and_keep_their_kind(venue: Venue) -> None:
    queue = venue.queue()
    version = 1

    @queue.job(attempts=3)
    async def twice(job: RunningJob) -> None:
        await job.step("same", int)
        await job.step("same", int)

    @queue.job(attempts=3)
    async def changed(job: RunningJob) -> None:
        if version == 1:
            await job.step("wait", int)
            raise TemporaryError("the code changes now", retry_after=0.2)
        await job.sleep(1, step="wait")

    async with Worker(queue).running():
        job = await twice.enqueue()
        with pytest.raises(JobFailed, match="step 'same' is used twice in this run"):
            await job.result(LIMIT)
        other = await changed.enqueue()
        await eventually(lambda: _has(other, "wait"), "the first version ran")
        version = 2
        with pytest.raises(JobFailed, match="recorded as a step and is a sleep now"):
            await other.result(LIMIT)
    assert [(await one.get()).state for one in (job, other)] == [State.FAILED, State.FAILED]


async def test_results_are_bounded_before_they_are_written(venue: Venue) -> None:
    queue = venue.queue()

    @queue.job(attempts=3)
    async def large(job: RunningJob) -> None:
        await job.step("half", str, b"x" * 600_000, "ascii")
        await job.step("more", str, b"x" * 600_000, "ascii")

    @queue.job(attempts=3)
    async def bad(job: RunningJob) -> None:
        await job.step("a\nb", int)

    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="steps must be at most 1048576 bytes"):
            await (job := await large.enqueue()).result(LIMIT)
        with pytest.raises(JobFailed, match="text of 1 to 200 printable characters"):
            await (await bad.enqueue()).result(LIMIT)
    assert [step.name for step in (await job.get()).steps] == ["half"]


async def test_a_job_has_a_bounded_number_of_steps(venue: Venue) -> None:
    queue = venue.queue()
    called: list[int] = []

    @queue.job(attempts=3)
    async def many(job: RunningJob) -> str:
        for number in range(MOST_STEPS):
            await job.step(f"{number}", called.append, number)
        with pytest.raises(StepError, match="steps must be at most 1000 in a job, got 1001"):
            await job.sleep("1h")
        await job.step("one more", called.append, MOST_STEPS)
        return "not reached"

    async with Worker(queue).running():
        with pytest.raises(JobFailed, match="steps must be at most 1000 in a job, got 1001"):
            await (job := await many.enqueue()).result(60)
    assert [step.name for step in (await job.get()).steps] == [str(number) for number in range(MOST_STEPS)]
    assert (len(called), (await job.get()).attempts_made) == (MOST_STEPS, 1)


async def test_a_signal_is_refused_by_its_bounds(venue: Venue) -> None:
    queue = venue.queue()
    queue.fallback(lambda: None)
    with pytest.raises(JobNotFound):
        await queue.jobs.signal("b6d5a3f2-0000-4000-8000-000000000000", "go")
    job = await queue.add("n")
    with pytest.raises(StepError, match="signal must be text of 1 to 200"):
        await job.signal("")
    await job.signal("go", "x" * (MOST_SIGNAL_BYTES - 20))
    with pytest.raises(StepError, match="at most 1048576 bytes of signals"):
        await job.signal("go", "x" * 100)
    async with Worker(queue).running():
        await job.result(LIMIT)
    with pytest.raises(WrongState):
        await job.signal("go")


async def test_a_worker_without_the_lease_records_nothing(bench: Bench) -> None:
    job_id = await bench.add()
    claimed = await bench.broker.claim(Ask(worker="one"))
    steps = bench.broker.steps
    with pytest.raises(LeaseLost):
        await steps.keep(job_id, "another", "s", b"step\t1\t1\t1\t1\t\t\n1")
    await bench.broker.steps.signal(job_id, "go", b"1")
    with pytest.raises(LeaseLost):
        await steps.receive(job_id, "another", "go", "go", wait=b"w", arrived=b"a", late=b"")
    (job,) = await bench.broker.get([job_id])
    assert job is not None
    assert (job.steps, job.signals) == ([], ["go"])
    wait, arrived = b"wait\t1\t1\t0\t1\t\tgo", b"signal\t1\t2\t1\t1\t\tgo"
    for _ in range(2):  # a repeated call receives the same signal
        found = await steps.receive(
            job_id, claimed.jobs[0].token, "go", "go", wait=wait, arrived=arrived, late=b""
        )
        assert found == arrived + b"\n1"


async def waiting_signals(queue: Queue, job_id: str) -> list[bytes]:
    """Returns the data of signals that a job has not received, as it is stored."""
    broker = queue._core.broker
    if isinstance(broker, MemoryBroker):
        return [body for _, body in broker.store.records[job_id].signals]
    found: list[bytes] = []
    for one in [broker] if broker.partitions is None else broker.partitions.brokers():
        assert one.sealed_values is not None
        assert one.sealer is not None
        async for value in one.sealed_values.values(one.sealer, silent):
            found += [value.raw] if value.field == FIELD_SIGNALS else []
    return found


async def test_steps_and_signals_are_sealed(venue: Venue) -> None:
    queue = venue.queue(key_ring=KeyRing({"old": OLD}))

    @queue.job(attempts=1)
    async def approve(job: RunningJob) -> list[Any]:
        first = await job.step("secret", str, "iban")
        return [first, await job.wait_signal("approved"), await job.wait_signal("later")]

    job = await approve.enqueue()
    await job.signal("approved", "pin")
    async with Worker(queue).running():
        await waits(queue, job)
    await job.signal("unused", "code")
    plain = venue.queue()
    stored = await plain._core.broker.get([job.id], lenient=True)
    assert stored[0] is not None
    text = str(stored[0].step_records) + str(await waiting_signals(queue, job.id))
    assert text.count("$sealed") == 3
    assert stored[0].signals == ["unused"]
    assert not any(word in text for word in ("iban", "pin", "code"))
    opened = await job.get()
    assert [step.value for step in opened.steps] == ["iban", "pin", None]
    assert "iban" not in repr(opened), "logs and tracebacks show it"
    if venue.capabilities.can("resealing"):
        both = venue.queue(key_ring=KeyRing({"new": NEW, "old": OLD}, "new"))
        assert (await reseal(both._core.broker)).resealed == 4  # with the payload
        queue = venue.queue(key_ring=KeyRing({"new": NEW}))
        queue.job(attempts=1)(approve.__wrapped__)
        job = queue.jobs.handle(job.id)
    async with Worker(queue).running():
        await job.signal("later", "done")
        assert await job.result(LIMIT) == ["iban", "pin", "done"]
