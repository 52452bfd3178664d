"""The broker in memory, by a clock that the tests move: delays, leases, lifetimes, keys and retention."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from oxcart import Queue, Retry, RunningJob, Worker, sync
from oxcart.broker.keyring import KeyRing
from oxcart.broker.memory import MemoryBroker, MemoryServer
from oxcart.broker.port import Ask, ClaimedJob, Outage, Outcome, OutcomeKind
from oxcart.model.errors import JobFailed, NotSupported, OxcartError, ValidationError
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention
from oxcart.model.state import State
from tests.signals import eventually

HOUR = 3_600_000


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


class Place:
    """A broker in memory and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock)
        self.broker: MemoryBroker = self.server.open("q")

    async def add(self, data: Any = None, name: str = "n", **options: Any) -> str:
        (added,) = await self.broker.add([self.broker.encode(name, data, JobOptions.build(**options))])
        return added.id

    async def claim(self, count: int = 1, **ask: Any) -> list[ClaimedJob]:
        return (await self.broker.claim(Ask(count, worker="w", **ask))).jobs

    async def end(self, job: ClaimedJob, kind: OutcomeKind = OutcomeKind.COMPLETED, **more: Any) -> None:
        value = b"1" if kind is OutcomeKind.COMPLETED else b""
        outcome = Outcome(kind, job.id, job.token, job.starts, **{"value": value, **more})
        codes, _ = await self.broker.finish([outcome])
        assert codes == [1]

    async def run(self, **options: Any) -> str:
        job_id = await self.add(**options)
        (job,) = await self.claim()
        await self.end(job, retention=options.get("retention"))
        return job_id


@pytest.fixture
def place() -> Place:
    return Place()


async def test_a_delay_passes_when_the_clock_moves(place: Place) -> None:
    job_id = await place.add(delay="1h")
    assert await place.claim() == []
    place.clock.ms += HOUR - 1
    assert await place.claim() == []
    place.clock.ms += 1
    assert [job.id for job in await place.claim()] == [job_id]


async def test_jobs_are_claimed_by_priority_then_in_turn(place: Place) -> None:
    ids = {word: await place.add(priority=p) for word, p in (("c", 9), ("a", 0), ("b", 2), ("d", 9))}
    front = await place.add(lifo=True)
    claimed = [job.id for job in await place.claim(9)]
    assert claimed == [front, ids["a"], ids["b"], ids["c"], ids["d"]]


async def test_a_lease_that_ran_out_costs_the_job_and_then_its_last_stall(place: Place) -> None:
    job_id = await place.add()
    for stalls in (1, 2):
        await place.claim(lock_ms=1000)
        place.clock.ms += 1
        assert (await place.broker.recover(interval_ms=1)).ids == []
        place.clock.ms += 1000
        assert (await place.broker.recover(interval_ms=1)).ids == [job_id]
        (job,) = await place.broker.get([job_id])
        assert job is not None
        assert (job.stalled_count, job.state) == (stalls, State.SCHEDULED)
        assert job.deferred_failure == (None if stalls == 1 else "job stalled more than allowable limit")


async def test_a_check_waits_for_renewals_after_a_silence(place: Place) -> None:
    outage = Outage(silence_ms=1000, grace_ms=5000)
    await place.add()
    (job,) = await place.claim(lock_ms=100)
    first = await place.broker.recover(interval_ms=1, outage=outage)
    assert (first.ids, first.wait_ms) == ([], 5000)
    place.clock.ms += 500
    assert await place.broker.appear(outage)
    place.clock.ms += 4500
    assert not await place.broker.appear(outage)
    assert (await place.broker.recover(interval_ms=1, outage=outage)).ids == []  # the second gap in a row
    place.clock.ms += 5000
    assert (await place.broker.recover(interval_ms=1, outage=outage)).ids == [job.id]


async def test_a_lifetime_ends_waiting_jobs_and_leaves_running_ones_a_grace(place: Place) -> None:
    running = await place.add(lifetime="1h")
    await place.claim(lock_ms=2 * HOUR)
    waiting = await place.add(lifetime="1h")
    await place.broker.promote()
    assert place.broker.next_expiry == place.clock.ms + HOUR
    place.clock.ms += HOUR
    assert await place.broker.expire(grace_ms=100) == 1
    place.clock.ms += 100
    assert await place.broker.expire(grace_ms=100) == 1
    found = await place.broker.get([running, waiting])
    assert [(job.state, job.failed_reason) for job in found if job] == [
        (State.DEAD_LETTER, "the job's lifetime is over")
    ] * 2


async def test_an_idempotency_key_counts_for_its_window(place: Place) -> None:
    first = await place.add(idempotency_key="k", idempotency_window="1m")
    assert await place.add(idempotency_key="k") == first
    assert await place.add(name="other", idempotency_key="k") != first
    place.clock.ms += 60_000
    assert await place.add(idempotency_key="k") != first


async def test_retention_keeps_a_number_and_an_age(place: Place) -> None:
    ids = []
    for _ in range(4):
        ids.append(await place.add())
        (job,) = await place.claim()
        await place.end(job, retention=Retention(count=2))
        place.clock.ms += 1000
    assert [job.id for job in await place.broker.page("completed", 0, 9, oldest=True)] == ids[2:]
    place.clock.ms += 60_000
    last = await place.add()
    (job,) = await place.claim()
    await place.end(job, retention=Retention(age=60))
    assert [job.id for job in await place.broker.page("completed", 0, 9)] == [last]


async def test_a_worker_limit_lets_jobs_start_in_its_window(place: Place) -> None:
    for _ in range(3):
        await place.add()
    limit: dict[str, Any] = {"limit_max": 2, "limit_duration": 1000}
    assert len(await place.claim(9, **limit)) == 2
    answer = await place.broker.claim(Ask(9, worker="w", **limit))
    assert (answer.jobs, answer.limited_ms) == ([], 1000)
    place.clock.ms += 1000
    assert len(await place.claim(9, **limit)) == 1


async def test_a_held_queue_hands_out_nothing_for_a_while(place: Place) -> None:
    job_id = await place.add()
    (job,) = await place.claim()
    await place.end(job, OutcomeKind.HOLD_QUEUE, delay_ms=500)
    assert (await place.broker.claim(Ask(1))).limited_ms == 500
    place.clock.ms += 500
    assert [job.id for job in await place.claim()] == [job_id]


async def test_events_are_read_forwards_and_backwards(place: Place) -> None:
    stream = place.broker.open_events()
    assert stream is not None
    start = await stream.last_id()
    await place.run()
    names = [event.name for event in await stream.read(start, 0)]
    assert names == ["added", "waiting", "active", "completed"]
    assert [event.name async for event in stream.backwards()] == names[::-1]
    assert await stream.read(await stream.last_id(), 0) == []


async def test_a_server_is_shared_by_queues_of_equal_prefix_and_name() -> None:
    server = MemoryServer()
    one, same = Queue("q", broker=server), Queue("q", broker=server)
    others = [Queue("q", prefix="p", broker=server), Queue("q", broker=MemoryServer())]
    await one.add("n")
    assert (await same.counts())["waiting"] == 1
    assert [(await other.counts())["waiting"] for other in others] == [0, 0]


async def test_a_worker_renews_leases_in_its_own_process() -> None:
    server = MemoryServer()
    queue = Queue("q", broker=server)
    broker = server.open("q")
    go_on = asyncio.Event()

    async def handle(job: RunningJob) -> int:
        await go_on.wait()
        return job.fencing

    queue.fallback(handle)
    worker = Worker(queue, lock_duration="200ms", renew_every="20ms", stalled_interval="20ms")
    async with worker.running():
        job = await queue.add("n")
        await eventually(lambda: broker.store.records[job.id].starts == 1, "the job runs")
        ends = {broker.store.records[job.id].lease_ms}

        def renewed() -> bool:
            ends.add(broker.store.records[job.id].lease_ms)
            return len(ends) > 3

        await eventually(renewed, "the lease was renewed")
        go_on.set()
        assert await job.result(20) == 1
    assert worker._leases.pid is None, "no renewer process is started for memory"


async def test_a_worker_takes_jobs_of_several_queues_in_memory() -> None:
    server = MemoryServer()
    queues = [Queue(name, broker=server) for name in ("one", "two")]
    for queue in queues:
        queue.fallback(lambda job: job.queue)
    async with Worker(*queues, concurrency=2).running():
        jobs = [await queue.add("n") for queue in queues]
        assert [await job.result(20) for job in jobs] == ["one", "two"]


async def test_a_completed_job_that_is_retried_gives_its_new_result() -> None:
    queue = Queue("q", broker=MemoryServer())
    queue.fallback(lambda job: job.fencing if job.fencing != 1 else Retry(after="1ms"))
    async with Worker(queue).running():
        job = await queue.add("n")
        assert await job.result(20) == 2


def test_a_synchronous_queue_shares_jobs_with_a_worker_of_another_loop() -> None:
    server = MemoryServer()
    queue = Queue("q", broker=server)
    queue.fallback(lambda job: job.data + 1)
    stop, started = asyncio.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with Worker(queue).running():
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        assert started.wait(20)
        with sync.Queue("q", broker=server) as other:
            assert [other.add("n", number).result(20) for number in range(3)] == [1, 2, 3]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


async def test_values_are_sealed_in_memory_as_well() -> None:
    server = MemoryServer()
    queue = Queue("q", broker=server, key_ring=KeyRing({"k": bytes(range(32))}))
    job = await queue.add("n", {"secret": "word"})
    assert b"word" not in server.open("q").store.records[job.id].body
    assert (await job.get()).data == {"secret": "word"}


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"deduplication": "d"}, "deduplication"),
        ({"history": True}, "history"),
        ({"limit_key": "k"}, "limit_keys"),
        ({"target": {"capabilities": "gpu"}}, "target"),
    ],
)
async def test_options_without_effect_are_refused(options: dict[str, Any], feature: str) -> None:
    server = MemoryServer()
    queue = Queue("q", broker=server)
    with pytest.raises(NotSupported) as refused:
        await queue.add("n", **options)
    assert refused.value.feature == feature
    assert server.keys() == []


async def test_a_failure_keeps_its_category_and_stack() -> None:
    queue = Queue("q", broker=MemoryServer())

    @queue.job(attempts=1)
    async def broken() -> None:
        raise KeyError("x")

    async with Worker(queue).running():
        job = await broken.enqueue()
        with pytest.raises(JobFailed) as failed:
            await job.result(20)
    assert failed.value.category == "temporary"
    assert "KeyError" in failed.value.stacktrace[0]


async def test_memory_broker_refuses_server_commands() -> None:
    queue = Queue("q", broker=MemoryServer())
    with pytest.raises(OxcartError, match="no server"):
        await queue._core.broker.caller.command("PING")


@pytest.mark.parametrize("where", [{"url": "redis://127.0.0.1:1"}, {"folder": "x"}, {"protocol": "bridge"}])
def test_a_queue_has_one_place(where: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="left out with broker="):
        Queue("q", broker=MemoryServer(), **where)


async def test_a_worker_is_registered_while_it_runs() -> None:
    server = MemoryServer()
    queue = Queue("q", broker=server)
    async with Worker(queue, name="w1", concurrency=3).running():
        await eventually(lambda: server.open("q").store.workers, "the worker is registered")
        (worker,) = await queue.workers.list()
        assert (worker.name, worker.concurrency, worker.queues) == ("w1", 3, ("q",))
    assert await queue.workers.list() == []


async def test_a_list_shows_values_that_do_not_open() -> None:
    server = MemoryServer()
    sealed = Queue("q", broker=server, key_ring=KeyRing({"k": bytes(range(32))}))
    other = Queue("q", broker=server, key_ring=KeyRing({"o": bytes(range(1, 33))}))
    job = await sealed.add("n", "word")
    (shown,) = await other.jobs.list("waiting")
    assert (shown.id, "word" in str(shown.data)) == (job.id, False)
    with pytest.raises(OxcartError):
        await other.jobs.get(job.id)


async def test_a_wait_that_ends_in_vain_leaves_nothing_behind(place: Place) -> None:
    stream = place.broker.open_events()
    assert stream is not None
    for _ in range(3):
        assert await stream.read("0", 0.001) == []
        assert await place.broker.open_wait([place.broker], "w").wait([0], [], 0.001) is None
    assert place.broker.store.changed._waiting == []


async def test_durability_is_refused_whatever_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXCART_URL", "redis://127.0.0.1:1")
    with pytest.raises(ValidationError, match="which has no replica"):
        Queue("q", broker=MemoryServer(), durability="replicated")
    queue = Queue("q", broker=MemoryServer())
    with pytest.raises(ValidationError, match="which has no replica"):
        await queue.add("n", durability="replicated")
    assert (await queue.counts())["waiting"] == 0
