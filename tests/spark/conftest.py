"""One Spark session for all tests of a process."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oxcart.spark.lake.versions import Lake


#: Tests that only `make test-spark` runs; other tests cover parts of them.
long = pytest.mark.skipif(not os.environ.get("OXCART_SPARK_ALL"), reason="make test-spark runs it")

#: Passwords by the variables that hold them. Spark's processes have the environment of their start.
SECRETS = {"OXCART_TEST_RIGHT": "correct-horse-battery", "OXCART_TEST_WRONG": "hunter2-is-wrong"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allows more time, because a JVM is slow on a busy machine."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _quick_commands() -> Iterator[None]:
    """Configures Spark for short queries in programs that tests start."""
    from oxcart.spark.session import QUICK_SETTINGS

    given = {name: value for name, value in QUICK_SETTINGS.items() if not name.startswith("spark.driver")}
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    words += ["--driver-memory", QUICK_SETTINGS["spark.driver.memory"]]
    words += ["--driver-java-options", QUICK_SETTINGS["spark.driver.extraJavaOptions"], "pyspark-shell"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join(words))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session configured for short queries."""
    pytest.importorskip("pyspark")
    from oxcart.spark.session import QUICK_SETTINGS, open_session

    os.environ.update(SECRETS)
    folder = tmp_path_factory.mktemp("spark")
    session = open_session(
        "local[1]", settings={**QUICK_SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def asked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with rows in every table, built once: tests read it and do not change it."""
    from oxcart.spark.build.builder import Builder
    from oxcart.spark.lake.tables import Tables
    from oxcart.spark.lake.versions import Change, Lake
    from tests.spark.story import Story, the_day, the_next_day
    from tests.spark.transforms.test_flows_and_schedules import all_rows, bronze_of

    lane = Story("video@all;c=gpu")
    lane.run("run", ("completed", {"result": "1"}), name="render")
    labels = {"corr": "order-7", "tags": '{"tenant": "acme"}'}
    lane.record(f"{lane.now}-0", "completed", "run", name="render", worker="w1", **labels)
    lake = Lake(tmp_path_factory.mktemp("asked"))
    tables = Tables(spark, lake)
    bronze = [story.bronze(spark) for story in (the_next_day(the_day()), lane)]
    for rows in (*bronze, bronze_of(spark, all_rows())):
        lake.publish(Change("ingest", add=tables.write(rows, "events", True)))
    Builder(spark, lake).refresh()
    return lake


@pytest.fixture
def one_day() -> None:
    """Waits until after midnight if it is near, so that all events of a test are of one day."""
    left = 86_400 - time.time() % 86_400
    if left < 240:
        time.sleep(left + 1)


@pytest.fixture
def emit(store: redis.Redis) -> Callable[..., list[str]]:
    """Writes events as peers do: ``emit("q", {"event": …}, …)``; returns their ids."""

    def write(
        queue: str, *events: dict[str, Any], suffix: str = "events", at: int | None = None
    ) -> list[str]:
        store.hset(f"bull:{queue}:meta", "opts.maxLenEvents", "10000")
        pipe = store.pipeline()
        for number, event in enumerate(events):
            pipe.xadd(
                f"bull:{queue}:{suffix}", cast(Any, event), id="*" if at is None else f"{at + number}-0"
            )
        return [str(entry_id) for entry_id in pipe.execute()]

    return write


class Sunk:
    """A stream's rows in memory, each batch with its number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, batch: Any, number: int) -> None:
        self.batches[number] = [row.asDict() for row in batch.collect()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


@pytest.fixture
def drain(spark: SparkSession, url: str, tmp_path: Path) -> Callable[..., Sunk]:
    """Runs the stream to its current end, with a checkpoint from which a second run continues.

    A stream that could not start on a busy machine is started again, as the pipeline does.
    """

    from oxcart.spark.errors import WorkerLate, unwrapped
    from oxcart.spark.pipeline import MOST_BEGINNINGS

    def run(queues: str = "q", checkpoint: str = "checkpoint", **options: Any) -> Sunk:
        sunk = Sunk()
        reader = spark.readStream.format("oxcart").option("content", "events").option("url", url)
        if queues:
            reader = reader.option("queues", queues)
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(sunk).trigger(availableNow=True)
        for left in reversed(range(MOST_BEGINNINGS)):
            query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).start()
            try:
                assert query.awaitTermination(300), "the stream did not end"
                break
            except Exception as error:
                if not left or not isinstance(unwrapped(error, tmp_path), WorkerLate):
                    raise
        return sunk

    return run
