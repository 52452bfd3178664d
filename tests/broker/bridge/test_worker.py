"""The same Queue, Worker and engine on Bridge's keys, end to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from oxcart import Queue, Retry, Worker
from oxcart.engine.running import RunningJob
from oxcart.model.errors import JobFailed, NotSupported, ValidationError
from oxcart.model.outcome import WaitForChildren
from oxcart.model.target import Abilities
from oxcart.observe.lengths import QueueLengths
from oxcart.observe.metrics import Metrics
from oxcart.sync import Queue as SyncQueue
from tests.conftest import MakeQueue
from tests.signals import eventually


@pytest.fixture
def emails(make_queue: MakeQueue) -> Queue:
    return make_queue("email", protocol="bridge", namespace="bridge")


async def test_a_job_runs_and_its_result_comes_back(emails: Queue, store: redis.Redis) -> None:
    @emails.job
    async def welcome(to: str, name: str) -> dict[str, str]:
        return {"sent": f"{name} <{to}>"}

    async with Worker(emails, concurrency=10).running():
        job = await welcome.enqueue(to="ada@example.com", name="Ada")
        assert await job.result(timeout=20) == {"sent": "Ada <ada@example.com>"}
    assert await job.state() == "completed"
    read = await job.get()
    assert (read.name, read.queue, read.attempt) == ("welcome", "email", 1)
    assert {key.split(":")[0] for key in store.scan_iter()} == {"bridge"}


async def test_many_jobs_each_once(emails: Queue, store: Any) -> None:
    ran: list[str] = []

    async def note(job: RunningJob) -> None:
        ran.append(job.id)

    emails.fallback(note)
    jobs = await emails.add_many([("email", {"n": n}) for n in range(500)])
    async with Worker(emails, concurrency=50).running():
        await eventually(lambda: len(ran) >= 500, "all have run")
        await eventually(lambda: store.get("bridge:metrics:jobs:processed") == "500", "all have ended")
    assert sorted(ran) == sorted(job.id for job in jobs)
    assert await emails.counts() == {
        "waiting": 0,
        "prioritized": 0,
        "active": 0,
        "delayed": 0,
        "waiting-children": 0,
        "completed": 500,
        "failed": 0,
    }
    assert int(store.get("bridge:ratelimit:concurrent:email")) == 0


async def test_retries_and_dead_letters(emails: Queue, store: Any) -> None:
    async def fail(job: RunningJob) -> None:
        raise ConnectionError(f"attempt {job.attempt}")

    emails.fallback(fail)
    job = await emails.add("email", {}, attempts=3, backoff={"type": "fixed", "delay": 5})
    async with Worker(emails).running():
        with pytest.raises(JobFailed, match="attempt 3"):
            await job.result(timeout=20)
    read = await job.get()
    assert (read.attempts_made, len(read.stacktrace)) == (3, 3)
    assert store.lrange("bridge:jobs:deadletter", 0, -1) == [job.id]
    assert [one.id for one in await emails.jobs.list("failed")] == [job.id]


async def test_errors_by_name_are_not_tried_again(emails: Queue) -> None:
    async def fail(job: RunningJob) -> None:
        raise FileNotFoundError("gone")

    emails.fallback(fail)
    job = await emails.add("email", {}, attempts=5, skip_on=["OSError"])
    async with Worker(emails).running():
        with pytest.raises(JobFailed, match="gone"):
            await job.result(timeout=20)
    assert (await job.get()).attempts_made == 1


async def test_handlers_may_retry_and_report(emails: Queue) -> None:
    async def handle(job: RunningJob) -> Any:
        await job.update_progress(job.attempt * 10)
        await job.checkpoint({"row": job.attempt})
        if job.attempt < 3:
            return Retry(after="1ms")
        return [job.checkpointed, job.fencing]

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails).running():
        assert await job.result(timeout=20) == [{"row": 3}, 3]
    assert (await job.get()).progress == 30


async def test_a_handler_that_waits_for_children_fails_with_the_reason(emails: Queue) -> None:
    async def handle(job: RunningJob) -> Any:
        return WaitForChildren()

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails).running():
        with pytest.raises(JobFailed, match="no place for children"):
            await job.result(timeout=20)


async def test_two_types_share_a_worker(make_queue: MakeQueue) -> None:
    queues = [make_queue(name, protocol="bridge") for name in ("email", "video")]
    for queue in queues:
        queue.fallback(lambda job: job.queue)
    async with Worker(*queues).running():
        for queue in queues:
            assert await (await queue.add(queue.name, {})).result(timeout=20) == queue.name


async def test_both_protocols_share_a_worker(make_queue: MakeQueue) -> None:
    queues = [make_queue("email", protocol="bridge"), make_queue("email")]
    for queue in queues:
        queue.fallback(lambda job: job.data)
    async with Worker(*queues).running():
        for queue in queues:
            assert (
                await (await queue.add("email", queue._core.protocol)).result(timeout=20)
                == queue._core.protocol
            )


async def test_shutdown_returns_running_jobs_without_using_an_attempt(emails: Queue, store: Any) -> None:
    begun = asyncio.Event()

    async def handle(job: RunningJob) -> None:
        begun.set()
        await asyncio.sleep(60)

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails, shutdown_timeout=0).running():
        async with asyncio.timeout(20):
            await begun.wait()
    assert await job.state() == "waiting"
    assert json.loads(store.get(f"bridge:jobs:data:{job.id}"))["attempts"] == 0
    assert int(store.get("bridge:ratelimit:concurrent:email")) == 0


@pytest.mark.slow
async def test_leases_are_renewed_while_a_handler_runs(emails: Queue, store: Any) -> None:
    begun, enough = asyncio.Event(), asyncio.Event()

    async def handle(job: RunningJob) -> None:
        begun.set()
        await enough.wait()

    emails.fallback(handle)
    job = await emails.add("email", {})
    async with Worker(emails, lock_duration="4s", name="w1").running():
        async with asyncio.timeout(20):
            await begun.wait()
        low = [10_000]

        def renewed() -> bool:
            left = store.pttl(f"bridge:jobs:lock:{job.id}")
            grew = left > low[0] + 100
            low[0] = min(low[0], left)
            return bool(grew)

        await eventually(renewed, "the lock has more time than before")
        enough.set()
        await job.result(timeout=20)


async def test_a_worker_takes_what_it_can_do_and_can_learn_more(emails: Queue) -> None:
    emails.fallback(lambda job: job.worker_id)
    gpu = await emails.add("email", {}, target={"capabilities": "gpu"})
    plain = await emails.add("email", {})
    worker = Worker(emails, abilities={"region": "eu"})
    async with worker.running():
        await plain.result(timeout=20)
        assert await gpu.state() == "waiting"
        worker.abilities = Abilities(capabilities="gpu")
        await gpu.result(timeout=20)


async def test_sync_queue_adds_to_a_namespace(url: str) -> None:
    def work() -> str:
        queue = SyncQueue("email", url=url, protocol="bridge", namespace="bridge")
        job = queue.add("email", {"to": "ada"})
        found = job.state()
        queue.close()
        return found

    assert await asyncio.get_running_loop().run_in_executor(None, work) == "waiting"


@pytest.mark.parametrize(
    ("asked", "feature"),
    [
        (lambda queue: queue.lanes.counts(), "lanes"),
        (lambda queue: queue.jobs.metrics(), "minute_counts"),
        (lambda queue: queue.flows.get("x"), "flows"),
        (lambda queue: queue.flows.dependents("x"), "graphs"),
        (lambda queue: queue.add("email", {}, after_any=["x"]), "after_any"),
        (lambda queue: queue.deduplication.owner("x"), "deduplication"),
        (lambda queue: queue.schedules.upsert("x", every="1s"), "intervals"),
        (lambda queue: queue.limits.rate(), "queue_limits"),
        (lambda queue: queue.add("email", {}, lifetime="1h"), "lifetime"),
        (lambda queue: queue.jobs.handle("x").logs(), "logs"),
    ],
)
async def test_unsupported_features_are_refused_before_any_write(
    emails: Queue, store: Any, asked: Callable[[Queue], Any], feature: str
) -> None:
    with pytest.raises(NotSupported) as refused:
        await asked(emails)
    assert refused.value.feature == feature
    assert list(store.scan_iter()) == []


async def test_bridge_options_are_refused_on_bullmq(make_queue: MakeQueue, store: Any) -> None:
    queue = make_queue("q")
    for options in (
        {"rate_limit": {"max_concurrent": 1}},
        {"skip_on": ["ValueError"]},
    ):
        with pytest.raises(NotSupported):
            await queue.add("n", {}, **options)
    assert list(store.scan_iter()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "other"},
        {"protocol": "bridge", "prefix": "bull"},
        {"namespace": "bridge"},
        {"protocol": "bridge", "namespace": ""},
    ],
)
def test_a_queue_refuses_contradicting_places(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Queue("email", **options)


def test_a_limiter_of_the_worker_needs_a_protocol_that_has_one(emails: Queue) -> None:
    with pytest.raises(NotSupported, match="limiter"):
        Worker(emails, limiter=(1, "1s"))


async def test_metrics_show_the_documents_list(emails: Queue, store: Any) -> None:
    emails.fallback(lambda job: None)
    lengths = QueueLengths(emails)
    metrics = Metrics([lengths])
    await emails.add("email", {}, delay="1h")
    async with Worker(emails, observer=metrics, name="w1").running():
        await (await emails.add("email", {})).result(timeout=20)
        body, _ = await metrics.scrape()
    await lengths.close()
    text = body.decode()
    for line in (
        'bridge_jobs{namespace="bridge",state="delayed"} 1.0',
        'bridge_jobs{namespace="bridge",state="dead"} 0.0',
        'bridge_workers{alive="yes",namespace="bridge"} 1.0',
        'bridge_concurrent{namespace="bridge",type="email"} 0.0',
        'bridge_jobs_ended_total{how="processed",namespace="bridge"} 1.0',
    ):
        assert line in text, line
    assert 'bullmq_queue_length{queue="email",state="delayed"} 1.0' in text
