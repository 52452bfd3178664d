"""Executors that run jobs: the same ends, events and records as with a worker, and nothing lost by a kill."""

from __future__ import annotations

import asyncio
import base64
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

pytest.importorskip("pyspark")

from oxcart import Queue
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.errors import BrokerUnavailable, ValidationError, WrongState
from oxcart.model.errors import ReplyCode
from oxcart.spark import run_jobs
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.attachment import attach
from oxcart.spark.work.plan import make_plan
from oxcart.spark.work.tally import Tally
from oxcart.sync import Queue as SyncQueue
from oxcart.testing import drain
from tests.servers import ValkeyServer, free_port
from tests.spark.conftest import SECRETS
from tests.spark.work.handlers import killed_once, mixed, slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = SECRETS["OXCART_TEST_RIGHT"]
WAYS = ("complete", "fail", "exhaust", "retry", "snooze", "cancel", "log")
#: Fields whose values are times or names of processes.
VOLATILE = {
    "timestamp",
    "ox:moved",
    "ox:ready",
    "finishedOn",
    "processedOn",
    "pb",
    "stacktrace",
    "worker",
    "attempt",
    "delay",
}


def add_all(queue: SyncQueue) -> None:
    for way in WAYS:
        queue.add("any", {"do": way}, job_id=way, attempts=2, backoff={"type": "fixed", "delay": 50})


def story(store: redis.Redis, queue: str) -> dict[str, Any]:
    """Everything that a queue has recorded of each job, apart from times and processes."""
    jobs: dict[str, Any] = {}
    for way in WAYS:
        fields = cast(dict[str, str], store.hgetall(f"bull:{queue}:{way}"))
        jobs[way] = {name: value for name, value in fields.items() if name not in VOLATILE}
        for stream in ("events", "ox:attempts"):
            entries = cast(list[tuple[str, dict[str, str]]], store.xrange(f"bull:{queue}:{stream}"))
            own = [entry for _, entry in entries if way in (entry.get("jobId"), entry.get("id"))]
            assert own or stream == "ox:attempts"
            jobs[way][stream] = [
                {
                    name: value
                    for name, value in entry.items()
                    if name in ("event", "prev", "failedReason", "returnvalue", "end", "category", "code")
                }
                for entry in own
            ]
    return jobs


def test_jobs_end_as_with_a_worker(spark: SparkSession, url: str, store: redis.Redis) -> None:
    ours, theirs = SyncQueue("ours", url=url), SyncQueue("theirs", url=url)
    for queue in (ours, theirs):
        add_all(queue)
        attach(ServerAddress(url=url), queue.name, "test")
    ours.fallback(mixed)
    drain(ours)
    done = run_jobs(spark, theirs, mixed)
    assert store.xlen("bull:theirs:ox:attempts") == store.xlen("bull:ours:ox:attempts") > len(WAYS)
    assert story(store, "theirs") == story(store, "ours")
    assert (done.completed, done.failed, done.cancelled, done.retried, done.snoozed) == (4, 2, 1, 2, 1)
    assert (done.left, done.refused, done.restarts, done.tasks) == ({}, 0, 0, 1)
    assert [job.id for job in theirs.dead_letters.list()] == ["exhaust"]


def test_a_killed_executors_jobs_come_back(spark: SparkSession, url: str, tmp_path: Path) -> None:
    queue = SyncQueue("q", url=url)
    job = queue.add("any", {"marker": str(tmp_path / "killed")})
    done = run_jobs(spark, queue, killed_once, lock_duration=1, stalled_interval=0.5)
    assert (done.completed, done.restarts, done.left) == (1, 1, {})
    assert job.result(5) == 1  # one stall


def test_a_lease_is_renewed_while_a_task_runs(spark: SparkSession, url: str) -> None:
    queue = SyncQueue("q", url=url)
    job = queue.add("any", {"seconds": 5})
    done = run_jobs(spark, queue, slow, lock_duration=2, stalled_interval=0.3)
    assert (done.completed, done.refused) == (1, 0)
    assert job.result(5) == 1  # started once


def test_a_drain_leaves_delayed_jobs_and_late_retries(spark: SparkSession, url: str) -> None:
    queue = SyncQueue("q", url=url)
    queue.add("any", {"do": "complete"}, delay="1h")
    queue.add("any", {"do": "exhaust"}, attempts=2, backoff={"type": "fixed", "delay": 3_600_000})
    done = run_jobs(spark, queue, mixed)
    assert (done.retried, done.attempts, done.left) == (1, 1, {"delayed": 2})


def test_jobs_that_do_not_end_in_time_are_returned_without_an_attempt(spark: SparkSession, url: str) -> None:
    queue = SyncQueue("q", url=url)
    job = queue.add("any", {"seconds": 60})
    done = run_jobs(spark, queue, slow, drain=False, duration=1, shutdown_timeout=0.1)
    assert (done.returned, done.left) == (1, {"wait": 1})
    assert job.get().attempts_made == 0


def test_only_jobs_of_the_given_name_run(spark: SparkSession, url: str) -> None:
    queue = SyncQueue("q", url=url)
    queue.add("mine", {"do": "complete"})
    queue.add("other", {"do": "complete"})
    done = run_jobs(spark, queue, mixed, name="mine", partitions=2)
    assert (done.completed, done.snoozed, done.left, done.tasks) == (1, 1, {"delayed": 1}, 2)


class TestSecrets:
    def test_a_password_comes_from_the_executors_environment(
        self, spark: SparkSession, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with ValkeyServer(requirepass=SECRET) as server:
            queue = SyncQueue("q", url=f"redis://:{SECRET}@127.0.0.1:{server.port}/0")
            queue.add("any", {"do": "complete"})
            done = run_jobs(spark, queue, mixed, password_env="OXCART_TEST_RIGHT")
            assert done.completed == 1
        assert SECRET not in "".join(capfd.readouterr())

    def test_no_plan_holds_a_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"redis://:{SECRET}@127.0.0.1:1/0"
        queue = Queue("q", url=url)
        absent = ("name", "batch", "schema", "duration", "url_env", "password_env", "keys_env")
        given: dict[str, Any] = dict.fromkeys(absent) | {"within": 1, "concurrency": 1, "linger": 1}
        given |= {"drain": True, "worker": {}}
        with pytest.raises(ValidationError, match="url_env"):
            make_plan(queue, mixed, **given)
        monkeypatch.setenv("OXCART_URL", url)
        plans = [
            make_plan(queue, mixed, **given),
            make_plan(queue, mixed, **{**given, "password_env": "OXCART_TEST_RIGHT"}),
            make_plan("q", mixed, **given),
        ]
        assert not any(SECRET.encode() in pickle.dumps(plan) for plan in plans)
        assert not any(SECRET in repr(plan) for plan in plans)

    def test_a_sealed_queue_needs_the_name_of_its_keys(
        self, spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from oxcart.encryption import KeyRing

        monkeypatch.setenv("OXCART_TEST_KEYS", "k1:" + base64.b64encode(bytes(32)).decode())
        ring = KeyRing.from_env("OXCART_TEST_KEYS")
        with pytest.raises(ValidationError, match="keys_env"):
            run_jobs(spark, Queue("q", url=url, key_ring=ring), mixed)


class TestRefused:
    def test_a_paused_queue(self, spark: SparkSession, url: str) -> None:
        queue = SyncQueue("q", url=url)
        queue.pause()
        with pytest.raises(WrongState, match="paused"):
            run_jobs(spark, queue, mixed)

    def test_a_server_that_is_not_there(self, spark: SparkSession) -> None:
        with pytest.raises(BrokerUnavailable):
            run_jobs(spark, Queue("q", url=f"redis://127.0.0.1:{free_port()}/0"), mixed)

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"drain": False}, "duration"),
            ({"batch": 1}, "batch"),
            ({"schema": "a int"}, "schema"),
            ({"batch": 5, "schema": "a strange"}, "schema"),
            ({"batch": 5, "schema": "ox_delay int"}, "schema"),
            ({"partitions": 0}, "partitions"),
            ({"concurrency": 0}, "concurrency"),
            ({"observer": None}, "observer"),
        ],
    )
    def test_a_wrong_argument(self, spark: SparkSession, url: str, given: dict[str, Any], field: str) -> None:
        with pytest.raises(ValidationError) as raised:
            run_jobs(spark, Queue("q", url=url), mixed, **given)
        assert raised.value.field == field


def test_jobs_of_a_bridge_namespace_run(spark: SparkSession, url: str) -> None:
    queue = SyncQueue("q", url=url, protocol="bridge", attempts=2, backoff={"type": "fixed", "delay": 50})
    good, bad = (queue.add("any", {"do": way}) for way in ("complete", "exhaust"))
    done = run_jobs(spark, queue, mixed)
    assert (done.completed, done.retried, done.failed, done.left) == (1, 1, 1, {})
    assert good.result(10) == {"attempt": 1}
    assert [job.id for job in queue.dead_letters.list()] == [bad.id]


def test_a_job_that_never_started_is_not_counted_as_running() -> None:
    """The run of a schedule may be delayed right after its claim; a drain must end all the same."""
    tally, job = Tally(60), cast(Any, SimpleJob())
    tally.job_ended(job, Outcome(OutcomeKind.DELAY, "a", "t", 1, 0, delay_ms=5), ReplyCode.DONE, 0.0)
    assert (tally.running, tally.counts["snoozed"], tally.retries) == (0, 1, {})
    tally.job_started(job)
    assert tally.running == 1


class SimpleJob:
    id = "a"


def test_it_runs_within_an_event_loop(spark: SparkSession, url: str) -> None:
    """As in a notebook, whose cells run in an event loop."""

    async def cell() -> int:
        queue = Queue("q", url=url)
        await queue.add("any", {"do": "complete"})
        done = run_jobs(spark, queue, mixed)
        await queue.close()
        return done.completed

    assert asyncio.run(cell()) == 1
