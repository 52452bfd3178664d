"""Exactly once: after a kill of the driver, the JVM or Python workers, bronze equals the stream.

The Delta table by itself must hold the same rows, each once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from oxcart.spark.lake.versions import Lake
from tests.servers import wait_until

pytest.importorskip("pyspark")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
#: Events and kills: a short form here, the full size by ``make pipeline-kill``.
EVENTS = int(os.environ.get("OXCART_KILL_EVENTS", "100000"))
KILLS = int(os.environ.get("OXCART_KILLS", "3"))
SEED = int(os.environ.get("OXCART_KILL_SEED", "7"))
#: The processes to kill, in turn.
VICTIMS = ("workers", "jvm", "driver", "all")
_PATIENCE = 300


def fill(store: redis.Redis, count: int) -> None:
    store.hset("bull:q:meta", "opts.maxLenEvents", str(10 * count))
    for start in range(0, count, 10_000):
        pipe = store.pipeline(transaction=False)
        for number in range(start, min(start + 10_000, count)):
            pipe.xadd("bull:q:events", {"event": "waiting", "jobId": str(number)})
        pipe.execute()


class Driver:
    """A pipeline with a session of its own, so that all its processes can be found."""

    def __init__(self, lake: Path, url: str, log: Path) -> None:
        actual = {"lake": str(lake), "url": url, "rows": max(2000, EVENTS // (8 * KILLS))}
        with log.open("ab") as message:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(actual)],
                cwd=ROOT,
                start_new_session=True,
                stdout=message,
                stderr=message,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit: float) -> int:
        return self._process.wait(limit)

    def parts(self) -> dict[str, list[int]]:
        """Returns its processes by kind. Spark's Python workers have a process group of their own."""
        actual = subprocess.run(["ps", "-eo", "pid=,sid=,args="], capture_output=True, text=True, check=True)
        found: dict[str, list[int]] = {name: [] for name in VICTIMS}
        for line in actual.stdout.splitlines():
            pid, session, arguments = line.split(None, 2)
            if int(session) != self._process.pid:
                continue
            kind = (
                "driver"
                if int(pid) == self._process.pid
                else "workers"
                if "pyspark.daemon" in arguments
                else "jvm"
                if "java" in arguments
                else "all"
            )
            found[kind].append(int(pid))
            if kind != "all":
                found["all"].append(int(pid))
        return found

    def kill(self, victim: str) -> None:
        for pid in self.parts()[victim]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def clear(self) -> None:
        """Waits until all its processes have ended by themselves after the kill."""
        try:
            self._process.wait(_PATIENCE)
            wait_until(lambda: not self.parts()["all"], "nothing of a killed pipeline is left", _PATIENCE)
        finally:
            self.kill("all")
            self._process.wait(30)


def versions(lake: Path) -> int:
    try:
        return sum(1 for name in os.listdir(lake / "_snapshots") if name.endswith(".json"))
    except FileNotFoundError:
        return 0


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", [0, 1])
def test_bronze_equals_the_stream_after_kills(
    first: int, store: redis.Redis, url: str, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    fill(store, EVENTS)
    lake, log, rand = tmp_path / "lake", tmp_path / "log", random.Random(SEED + first)
    driver: Driver | None = None
    for number in range(KILLS):
        victim = VICTIMS[(number + first) % len(VICTIMS)]
        driver = driver or Driver(lake, url, log)
        goal = versions(lake) + rand.randint(1, 2)
        wait_until(
            lambda goal=goal, one=driver: versions(lake) >= goal or not one.running,  # type: ignore[misc]
            f"version {goal}",
            _PATIENCE,
        )
        time.sleep(rand.random() * 0.5)  # anywhere in a batch, on purpose
        assert driver.running, f"it was to be killed in the middle: {log.read_text()[-2000:]}"
        before = versions(lake)
        driver.kill(victim)
        if victim == "workers":
            # Between two tasks they are simply started again; within one, the query fails.
            wait_until(
                lambda before=before, one=driver: versions(lake) > before + 1 or not one.running,  # type: ignore[misc]
                "the kill is survived or not",
                _PATIENCE,
            )
        if victim != "workers" or not driver.running:
            driver.clear()
            driver = None
    driver = driver or Driver(lake, url, log)
    assert driver.wait(3600) == 0, log.read_text()[-2000:]

    stream = [entry_id for entry_id, _ in cast(Any, store.xrange("bull:q:events"))]
    made = Lake(lake)
    columns = ["kind", "ordinal", "entry_id"]
    paths = made.paths(made.head().of("events"))
    rows = [parquet.read_table(path, columns=columns, partitioning=None) for path in paths]
    actual = {
        "the lake": rows,
        "Delta": [deltalake.DeltaTable(lake / "events").to_pyarrow_table(columns=columns)],
    }
    for name, tables in actual.items():
        ids = [entry_id for table in tables for entry_id in table["entry_id"].to_pylist()]
        ordinals = [ordinal for table in tables for ordinal in table["ordinal"].to_pylist()]
        kinds = {kind for table in tables for kind in table["kind"].to_pylist()}
        assert kinds == {"entry"}, f"{name}: no gap"
        assert sorted(ordinals) == list(range(1, EVENTS + 1)), f"{name}: each once"
        assert [entry_id for _, entry_id in sorted(zip(ordinals, ids, strict=True))] == stream, name
