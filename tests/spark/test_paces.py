"""A pipeline that runs beside steady traffic: builds, upkeep and ingest each keep their pace."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from oxcart.spark.options import QueueSelection, ServerAddress
from tests.servers import wait_until

pytest.importorskip("pyspark")

from oxcart.spark.lake import upkeep
from oxcart.spark.lake.versions import LakeConflict
from oxcart.spark.paced import Paced, Stop
from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Producer:
    """Writes the events of jobs all the time, as fast as a worker that runs one after the other.

    Args:
        store: The server.
    """

    def __init__(self, store: redis.Redis) -> None:
        self._store = store
        self._done = threading.Event()
        self.jobs = 0
        store.hset("bull:q:meta", "opts.maxLenEvents", "1000000")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the traffic."""
        self._done.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._done.wait(0.02):
            job = f"job-{self.jobs}"
            pipe = self._store.pipeline()
            for event in (
                {"event": "added", "name": "n"},
                {"event": "waiting"},
                {"event": "active", "prev": "waiting"},
                {"event": "completed", "returnvalue": "1", "prev": "active"},
            ):
                pipe.xadd("bull:q:events", cast(Any, {**event, "jobId": job}))
            pipe.execute()
            self.jobs += 1


@pytest.fixture
def producer(store: redis.Redis) -> Iterator[Producer]:
    made = Producer(store)
    yield made
    made.stop()


class Running:
    """A pipeline in a thread.

    Args:
        pipeline: The pipeline.
        every: Seconds between builds.
    """

    def __init__(self, pipeline: Pipeline, every: float) -> None:
        self.done = threading.Event()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(pipeline, every))
        self._thread.start()

    def _run(self, pipeline: Pipeline, every: float) -> None:
        try:
            pipeline.run(every, until=self.done.is_set)
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        """Asks it to end; it must obey."""
        self.done.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "it does not end"


@pytest.mark.usefixtures("one_day")
def test_builds_and_upkeep_go_on_under_steady_traffic(
    spark: SparkSession, url: str, producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_SMALL", 3)
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("q",)), spool=tmp_path / "spool")
    pipeline = Pipeline(spark, plan)
    running = Running(pipeline, every=0.5)
    try:

        def whys(word: str) -> int:
            return sum(why.startswith(word) for _, _, why in pipeline.lake.history())

        wait_until(lambda: whys("build") >= 4 or running.errors, "it builds", 300)
        wait_until(lambda: whys("compact") >= 1 or running.errors, "small files are joined", 300)
    finally:
        running.stop()
    assert running.errors == []
    jobs = producer.jobs
    producer.stop()
    assert jobs > 0
    pipeline.once()
    (answer,) = pipeline.query("select count(*) as n from jobs where state = 'completed'").collect()
    assert answer.n == producer.jobs, "every job is there once"


@pytest.mark.usefixtures("one_day")
def test_a_build_at_work_is_interrupted_at_the_end(
    spark: SparkSession, url: str, producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("q",)), samples=False)
    pipeline = Pipeline(spark, plan)
    at_work = threading.Event()

    def endless(stop: Stop) -> list[str]:
        at_work.set()
        spark.range(10**6).crossJoin(spark.range(10**6)).groupBy().count().collect()
        spark.range(10**6).crossJoin(spark.range(10**6).filter("id % 2 = 0")).groupBy().count().collect()
        return []

    monkeypatch.setattr(pipeline.builder, "refresh", endless)
    running = Running(pipeline, every=0.5)
    try:
        assert at_work.wait(120)
    finally:
        running.stop()
    assert running.errors == []


def test_an_error_of_a_build_ends_the_pipeline(
    spark: SparkSession, url: str, producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(
        spark, Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("q",)), samples=False)
    )

    def broken(stop: Stop) -> list[str]:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(pipeline.builder, "refresh", broken)
    with pytest.raises(ZeroDivisionError, match="of a test"):
        pipeline.run(60.0)


class TestPaced:
    def test_the_next_run_is_due_by_the_start_of_the_last_one(self, spark: SparkSession) -> None:
        starts: list[float] = []

        def work(stop: Stop) -> None:
            starts.append(time.monotonic())
            time.sleep(0.05)

        paced = Paced(spark, "build", work, every=0.1)
        wait_until(lambda: len(starts) > 3, "it runs again and again")
        assert paced.stop()
        assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(starts))

    def test_a_run_that_is_late_is_followed_at_once_and_logged(
        self, spark: SparkSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        runs: list[int] = []

        def work(stop: Stop) -> None:
            runs.append(1)
            time.sleep(0.02)

        with caplog.at_level(logging.WARNING, "oxcart.spark.pipeline"):
            paced = Paced(spark, "build", work, every=0.001)
            wait_until(lambda: len(runs) > 2, "it runs again and again")
            assert paced.stop()
        assert (
            "the build took 0.0 s, longer than its pace of 0.0 s: the next one begins at once" in caplog.text
        )

    def test_bounded_work_leaves_the_rest_of_the_time_to_others(self, spark: SparkSession) -> None:
        paced = Paced(spark, "upkeep", lambda stop: None, every=0.5, share=0.25)
        try:
            assert paced._rest(0.1) == pytest.approx(0.4)
            assert paced._rest(2.0) == pytest.approx(6.0)
        finally:
            assert paced.stop()

    def test_a_conflict_is_repeated(self, spark: SparkSession) -> None:
        runs: list[int] = []

        def work(stop: Stop) -> None:
            runs.append(1)
            if len(runs) == 1:
                raise LakeConflict("of a test")

        paced = Paced(spark, "build", work, every=0.01)
        wait_until(lambda: len(runs) > 1, "it runs again")
        paced.check()
        assert paced.stop()
