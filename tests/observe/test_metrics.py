"""The metrics of a worker, as a scraper reads them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.partitioned.spread import Spread
from oxcart.broker.port import UNDECODABLE, Outcome, OutcomeKind
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerUnavailable
from oxcart.observe import numbers
from oxcart.observe._tally import Tally
from oxcart.observe.lengths import QueueLengths
from oxcart.observe.metrics import Metrics
from tests.conftest import MakeQueue
from tests.servers import ValkeyServer
from tests.signals import eventually

#: Every name that the specification requires.
NAMES = {
    "bullmq_jobs_processed_total",
    "bullmq_job_duration_seconds",
    "bullmq_queue_length",
    "bullmq_job_wait_seconds",
    "bullmq_retries_total",
    "bullmq_dead_letters_total",
    "bullmq_webhook_deliveries_total",
    "bullmq_oldest_waiting_seconds",
    "bullmq_unroutable_jobs",
    "bullmq_groups_waiting",
    "bullmq_group_jobs_waiting",
    "bullmq_group_largest_jobs_waiting",
    "bullmq_group_oldest_waiting_seconds",
    "bullmq_partition_length",
    "bullmq_clock_skew_seconds",
    "bullmq_stalled_jobs_detected_total",
    "bullmq_quarantined_jobs_total",
    "bullmq_heartbeat_success_total",
    "bullmq_heartbeat_failure_total",
    "bullmq_lock_extend_duration_seconds",
    "bullmq_active_workers",
    "bullmq_redis_reconnect_attempts_total",
    "bullmq_redis_connection_status",
    "bullmq_stalled_checker_skipped_total",
    "bullmq_batch_size",
    "bullmq_script_duration_seconds",
}


class FakeQueue:
    def __init__(self, name: str = "q", counts: dict[str, int] | None = None) -> None:
        self.name = name
        self.lengths = counts
        self.reads = 0

    async def counts(self) -> dict[str, int]:
        self.reads += 1
        if self.lengths is None:
            raise BrokerUnavailable("gone")
        return self.lengths

    async def unroutable(self) -> dict[str, int]:
        return {}


class FakeBroker:
    def __init__(self, queue: str = "q") -> None:
        self.queue = self.base = queue


def running(name: str = "n", queue: str = "q") -> RunningJob:
    claim = BullMQClaim("1", "t", 1, 0, {b"name": name.encode()})
    return RunningJob(FakeBroker(queue), claim, "w", None)  # type: ignore[arg-type]


def _order(label: str) -> tuple[bool, str]:
    return label == "le", label


async def read(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Returns every sample by name and label values, in the order of label names, a bucket's bound last."""
    body, kind = await metrics.scrape()
    assert kind.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, key=_order))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


class TestWorkerMetrics:
    async def test_every_name_of_the_specification_is_there(self) -> None:
        metrics = Metrics([FakeQueue(counts={"active": 3})])
        metrics.scripted("claim", 0.001)
        body, _ = await metrics.scrape()
        shown = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
        assert shown == NAMES

    @pytest.mark.parametrize(
        ("outcome", "code", "status"),
        [
            (Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 0), 1, "completed"),
            (Outcome(OutcomeKind.FAILED, "1", "t", 1, 0), 1, "failed"),
            (Outcome(OutcomeKind.RETRY, "1", "t", 1, 0), 1, "retried"),
            (Outcome(OutcomeKind.DELAY, "1", "t", 1, 0), 1, "retried"),
            (Outcome(OutcomeKind.DELAY, "1", "t", 1, 0, counts=False), 1, "snoozed"),
            (Outcome(OutcomeKind.GIVE_BACK, "1", "t", 1, 0), 1, "given_back"),
            (Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 0), -6, "refused"),
            (Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 0), "ERR poisoned", "refused"),
        ],
    )
    async def test_an_ended_attempt_has_one_status(
        self, outcome: Outcome, code: int | str, status: str
    ) -> None:
        metrics = Metrics()
        metrics.job_ended(running(), outcome, code, 0.2)
        samples = await read(metrics)
        shown = {key[1:]: value for key, value in samples.items() if key[0] == "bullmq_jobs_processed_total"}
        assert {labels: value for labels, value in shown.items() if value} == {("n", "q", status): 1}

    async def test_heartbeats_are_counted_per_lease(self) -> None:
        metrics = Metrics()
        metrics.renewed("q", 40, 0.004)
        metrics.renewal_failed("q", 2)
        samples = await read(metrics)
        assert samples["bullmq_heartbeat_success_total", "q"] == 40
        assert samples["bullmq_heartbeat_failure_total", "q"] == 2
        assert samples["bullmq_lock_extend_duration_seconds_bucket", "q", "0.005"] == 1
        assert samples["bullmq_lock_extend_duration_seconds_bucket", "q", "0.0025"] == 0

    async def test_stalls_skips_and_reconnects_are_counted(self) -> None:
        metrics = Metrics()
        metrics.stalled("q", ["1", "2", "3"])
        metrics.check_skipped("q")
        metrics.reconnecting()
        metrics.reconnecting()
        metrics.connection(True)
        metrics.workers(1)
        metrics.called("q", 50, 0, 0.01)
        metrics.called("q", 0, 2, 0.01)
        samples = await read(metrics)
        assert samples["bullmq_stalled_jobs_detected_total", "q"] == 3
        assert samples["bullmq_stalled_checker_skipped_total", "q"] == 1
        assert samples[("bullmq_redis_reconnect_attempts_total",)] == 2
        assert samples[("bullmq_redis_connection_status",)] == 1
        assert samples[("bullmq_active_workers",)] == 1
        assert samples["bullmq_batch_size_count", "finished", "q"] == 1
        assert samples["bullmq_batch_size_sum", "claimed", "q"] == 2

    async def test_names_beyond_the_bound_count_as_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(numbers, "MOST_NAMES", 2)
        metrics, outcome = Metrics(), Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 0)
        for name in ("a", "b", "c", "d", "a"):
            metrics.job_ended(running(name), outcome, 1, 0.2)
        samples = await read(metrics)
        shown = {
            key[1]: value for key, value in samples.items() if key[0] == "bullmq_job_duration_seconds_count"
        }
        assert shown == {"a": 2, "b": 1, "other": 2}

    async def test_a_dead_letter_is_told_from_a_permanent_failure(self) -> None:
        metrics = Metrics()
        for category, dead in (
            ("temporary", ""),
            ("timeout", ""),
            ("permanent", ""),
            ("cancelled", ""),
            ("system", UNDECODABLE),
        ):
            ended = Outcome(OutcomeKind.FAILED, "1", "t", 1, 0, category=category, dead=dead)
            metrics.job_ended(running(), ended, 1, 0.2)
        samples = await read(metrics)
        assert samples["bullmq_dead_letters_total", "n", "q"] == 3
        assert samples["bullmq_quarantined_jobs_total", "q"] == 1

    async def test_the_wait_of_a_first_start_is_measured_without_its_delay(self) -> None:
        metrics = Metrics()
        fields = {b"name": b"n", b"timestamp": b"1000", b"opts": b'{"delay":2000}'}
        for starts in (1, 2):  # a second start follows a backoff
            claim = BullMQClaim("1", "t", starts, 7000, fields)
            metrics.job_started(RunningJob(FakeBroker(), claim, "w", None))  # type: ignore[arg-type]
        samples = await read(metrics)
        assert samples["bullmq_job_wait_seconds_count", "n", "q"] == 1
        assert samples["bullmq_job_wait_seconds_sum", "n", "q"] == 4

    async def test_deliveries_of_webhooks_are_counted_for_their_queue(self) -> None:
        metrics = Metrics()
        job = running("deliver", "mail.webhooks")
        for kind in (OutcomeKind.COMPLETED, OutcomeKind.COMPLETED, OutcomeKind.RETRY, OutcomeKind.FAILED):
            metrics.job_ended(job, Outcome(kind, "1", "t", 1, 0), 1, 0.2)
        samples = await read(metrics)
        shown = {
            key[2]: value for key, value in samples.items() if key[0] == "bullmq_webhook_deliveries_total"
        }
        assert shown == {"delivered": 2, "retried": 1, "failed": 1}

    def test_a_job_costs_next_to_nothing(self) -> None:
        """A handful of calls, none of them a lock or a walk over buckets: about 1 µs."""
        metrics, job, outcome = Metrics(), running(), Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 0)
        metrics.job_ended(job, outcome, 1, 0.2)
        called: list[str] = []

        def note(frame: FrameType, event: str, function: Any) -> None:
            if event in ("call", "c_call"):
                called.append(frame.f_code.co_name if event == "call" else function.__name__)

        before = sys.getprofile()
        sys.setprofile(note)
        metrics.job_ended(job, outcome, 1, 0.2)
        sys.setprofile(before)
        reading_the_name = ["name", "name", "get", "decode"]
        assert called[:-1] == ["job_ended", "get", *reading_the_name, "get", "add", "bisect_left"]


class TestQueueLengths:
    async def test_they_are_read_at_most_once_a_second(self) -> None:
        now = 0.0
        queue = FakeQueue(counts={"waiting": 7})
        metrics = Metrics([queue], clock=lambda: now)
        await metrics.scrape()
        await metrics.scrape()
        assert queue.reads == 1
        now = 1.5
        assert (await read(metrics))["bullmq_queue_length", "q", "waiting"] == 7
        assert queue.reads == 2

    async def test_a_queue_that_cannot_be_read_is_left_out(self) -> None:
        now = 0.0
        lost, fine = FakeQueue("lost", {"waiting": 1}), FakeQueue("fine", {"waiting": 2})
        metrics = Metrics([lost, fine], clock=lambda: now)
        assert (await read(metrics))["bullmq_queue_length", "lost", "waiting"] == 1
        lost.lengths, now = None, 2.0
        samples = await read(metrics)
        assert ("bullmq_queue_length", "lost", "waiting") not in samples
        assert samples["bullmq_queue_length", "fine", "waiting"] == 2


class TestTally:
    def test_a_value_on_a_bound_belongs_to_it(self) -> None:
        tally = Tally((1, 2))
        for value in (0.5, 1, 1.5, 2, 3):
            tally.add(value)
        assert tally.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
        assert tally.count == 5
        assert tally.sum == 8


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
async def queue(server: ValkeyServer) -> AsyncIterator[Queue]:
    async with Queue("measured", url=server.url) as queue:
        yield queue


async def test_a_real_worker_is_seen(queue: Queue) -> None:
    @queue.job(attempts=2, backoff="10ms")
    async def work(how: str, job: RunningJob) -> str:
        if how == "flaky" and job.attempt == 1:
            raise TemporaryError("once")
        if how == "bad":
            raise PermanentError("never")
        return how

    lengths = QueueLengths(queue)
    metrics = Metrics([lengths])
    async with AsyncExitStack() as stack, Worker(queue, concurrency=5, observer=metrics).running():
        stack.push_async_callback(lengths.close)
        fine = [await queue.add("work", {"how": how}) for how in ("fine", "fine", "flaky")]
        bad = await queue.add("work", {"how": "bad"})
        await asyncio.gather(*(job.result(60) for job in fine))
        await asyncio.gather(bad.result(60), return_exceptions=True)

        async def are_counted() -> bool:  # a result may arrive before the worker has its reply
            return (await read(metrics))["bullmq_job_duration_seconds_count", "work", "measured"] == 5

        await eventually(are_counted, "all attempts are counted")
        samples = await read(metrics)
    assert samples["bullmq_jobs_processed_total", "work", "measured", "completed"] == 3
    assert samples["bullmq_jobs_processed_total", "work", "measured", "failed"] == 1
    assert samples["bullmq_jobs_processed_total", "work", "measured", "retried"] == 1
    assert samples["bullmq_job_duration_seconds_count", "work", "measured"] == 5
    assert samples["bullmq_job_wait_seconds_count", "work", "measured"] == 5
    assert samples["bullmq_retries_total", "temporary", "measured"] == 1
    assert samples["bullmq_dead_letters_total", "work", "measured"] == 0
    assert samples["bullmq_queue_length", "measured", "completed"] == 3
    assert samples["bullmq_queue_length", "measured", "failed"] == 1
    assert samples[("bullmq_active_workers",)] == 1
    assert samples[("bullmq_redis_connection_status",)] == 1
    assert samples["bullmq_script_duration_seconds_count", "finish"] >= 1
    assert (await read(metrics))[("bullmq_active_workers",)] == 0


async def test_the_skew_of_the_machine_is_shown(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    true_ns, lengths = time.time_ns, QueueLengths(queue)
    metrics = Metrics([lengths])
    assert abs((await read(metrics))["bullmq_clock_skew_seconds", queue.name]) < 1
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 3600 * 10**9)
    metrics._read_at = float("-inf")
    assert abs((await read(metrics))["bullmq_clock_skew_seconds", queue.name] - 3600) < 1
    await lengths.close()


async def test_unroutable_jobs_are_counted(queue: Queue) -> None:
    name, lengths = queue.name, QueueLengths(queue)
    metrics = Metrics([lengths])
    assert (await read(metrics))["bullmq_unroutable_jobs", name] == 0
    await queue.add_many([("n", None)] * 3, target="c=gpu")
    metrics._read_at = float("-inf")
    samples = await read(metrics)
    assert samples["bullmq_unroutable_jobs", name] == 3
    assert samples["bullmq_queue_length", name, "waiting"] == 3
    assert not [name for name in samples if "lane" in name]
    await lengths.close()


async def test_the_age_of_the_oldest_ready_job_is_shown(queue: Queue) -> None:
    name, lengths = queue.name, QueueLengths(queue)
    metrics = Metrics([lengths])
    await queue.jobs.obliterate(force=True)
    assert (await read(metrics))["bullmq_oldest_waiting_seconds", name] == 0
    first = await queue.add("n")
    await queue.add("n", priority=3)
    broker = queue._core.broker
    an_hour_ago = await broker.now() - 3_600_000
    await broker.caller.command("HSET", f"bull:{name}:{first.id}", "timestamp", an_hour_ago)
    metrics._read_at = float("-inf")
    assert 3600 <= (await read(metrics))["bullmq_oldest_waiting_seconds", name] < 3700
    await lengths.close()


async def test_a_job_with_a_target_is_the_oldest_ready_job(queue: Queue) -> None:
    name, lengths = queue.name, QueueLengths(queue)
    metrics = Metrics([lengths])
    await queue.jobs.obliterate(force=True)
    job = await queue.add("n", target="c=gpu")
    broker = queue._core.broker
    assert broker.lanes is not None
    (lane,) = await broker.lanes.names()
    an_hour_ago = await broker.now() - 3_600_000
    key = broker.lanes.open(lane).keys.job(job.id)
    assert await broker.caller.command("EXISTS", key)
    await broker.caller.command("HSET", key, "timestamp", an_hour_ago)
    assert 3600 <= (await read(metrics))["bullmq_oldest_waiting_seconds", name] < 3700
    await lengths.close()


async def test_groups_have_four_series_however_many_they_are(queue: Queue) -> None:
    name, lengths = queue.name, QueueLengths(queue)
    metrics = Metrics([lengths])
    assert (await read(metrics))["bullmq_groups_waiting", name] == 0
    await queue.groups.pause("hog")
    await queue.add_many([("n", None)] * 30, group="hog")
    await queue.groups.pause("other")
    await queue.add("n", group="other")
    metrics._read_at = float("-inf")
    samples = {key: value for key, value in (await read(metrics)).items() if "_group" in key[0]}
    assert 0 <= samples.pop(("bullmq_group_oldest_waiting_seconds", name)) < 60
    assert samples == {
        ("bullmq_groups_waiting", name): 2,
        ("bullmq_group_jobs_waiting", name): 31,
        ("bullmq_group_largest_jobs_waiting", name): 30,
    }
    await lengths.close()


class TestPartitions:
    async def test_lengths_are_summed_and_shown_by_partition(self, make_queue: MakeQueue) -> None:
        queue = make_queue("events", partitions=3)
        lengths = QueueLengths(queue)
        metrics = Metrics([lengths])
        for key in range(20):
            await queue.add("n", partition_key=f"k{key}")
        samples = await read(metrics)
        assert samples["bullmq_queue_length", "events", "waiting"] == 20
        parts = [samples["bullmq_partition_length", str(n), "events", "waiting"] for n in range(3)]
        assert sum(parts) == 20
        assert min(parts) > 0
        await lengths.close()

    async def test_attempts_of_partitions_are_counted_for_their_queue(self, make_queue: MakeQueue) -> None:
        queue = make_queue("events", partitions=3)
        lengths = QueueLengths(queue)
        metrics = Metrics([lengths])

        async def work() -> None: ...

        queue.fallback(work)
        for key in range(12):
            await queue.add("work", partition_key=f"k{key}")
        async with Worker(queue, observer=metrics).running() as worker:
            await eventually(lambda: worker.processed == 12, "all have run")
        samples = await read(metrics)
        ended = {key: n for key, n in samples.items() if key[0] == "bullmq_jobs_processed_total" and n}
        assert ended == {("bullmq_jobs_processed_total", "work", "events", "completed"): 12}
        assert not [key for key in samples if any("#" in part for part in key)]
        await lengths.close()

    async def test_a_lost_server_hides_the_sum_and_not_the_other_partitions(
        self,
    ) -> None:
        with ValkeyServer() as one, ValkeyServer() as other:
            queue = Queue("events", url=[one.url, other.url], partitions=4)
            for key in range(20):
                await queue.add("n", partition_key=f"k{key}")
            lengths = QueueLengths(queue)
            metrics = Metrics([lengths])
            assert (await read(metrics))["bullmq_queue_length", "events", "waiting"] == 20
            other.stop()
            metrics._read_at = float("-inf")
            samples = await read(metrics)
            assert not [key for key in samples if key[0] == "bullmq_queue_length"]
            shown = {key[1] for key in samples if key[0] == "bullmq_partition_length"}
            assert shown == {"0", "2"}
            await lengths.close()
            await queue.close()

    async def test_a_server_that_hangs_hides_no_partitions_of_others_while_the_layout_is_old(self) -> None:
        with ValkeyServer() as one, ValkeyServer() as other:
            queue = Queue("events", url=[one.url, other.url], partitions=4)
            await queue.add("n")
            lengths = QueueLengths(queue)
            metrics = Metrics([lengths])
            await read(metrics)
            spread = lengths._broker and lengths._broker.partitions
            assert isinstance(spread, Spread)
            spread._read_at = spread._known_at = time.monotonic() - 3600
            metrics._read_at = float("-inf")
            one.freeze()
            try:
                samples = await read(metrics)
            finally:
                one.thaw()
            shown = {key[1] for key in samples if key[0] == "bullmq_partition_length"}
            assert shown == {"1", "3"}
            await metrics.close()
            await lengths.close()
            await queue.close()

    async def test_many_partitions_have_only_their_sum(self, make_queue: MakeQueue) -> None:
        queue = make_queue("events", partitions=65)
        lengths = QueueLengths(queue)
        samples = await read(Metrics([lengths]))
        assert samples["bullmq_queue_length", "events", "waiting"] == 0
        assert not [key for key in samples if key[0] == "bullmq_partition_length"]
        await lengths.close()
