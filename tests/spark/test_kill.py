"""Exactly once: whatever is killed in the middle, driver, JVM or workers, bronze equals the stream."""

from __future__ import annotations

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

from oxcart.spark.lake import Lake
from tests.servers import wait_until

pytest.importorskip("pyspark")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
#: Events and kills: a short form here, the full size by ``make pipeline-kill``.
EVENTS = int(os.environ.get("OXCART_KILL_EVENTS", "100000"))
KILLS = int(os.environ.get("OXCART_KILLS", "3"))
BATCHES = 12


def fill(store: redis.Redis, count: int) -> None:
    store.hset("bull:q:meta", "opts.maxLenEvents", str(10 * count))
    for start in range(0, count, 10_000):
        pipe = store.pipeline(transaction=False)
        for number in range(start, min(start + 10_000, count)):
            pipe.xadd("bull:q:events", {"event": "waiting", "jobId": str(number)})
        pipe.execute()


def start(lake: Path, url: str) -> subprocess.Popen[bytes]:
    """A driver with a session of its own, so that all its processes can be killed at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", str(lake), url, str(max(2000, EVENTS // BATCHES))],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def versions(lake: Path) -> int:
    try:
        return sum(1 for name in os.listdir(lake / "_versions") if name.endswith(".json"))
    except FileNotFoundError:
        return 0


def members(session: int) -> list[int]:
    """The processes of a session: Spark's Python workers have a process group of their own."""
    told = subprocess.run(["ps", "-eo", "pid=,sid="], capture_output=True, text=True, check=True).stdout
    pairs = (line.split() for line in told.splitlines())
    return [int(pid) for pid, sid in pairs if int(sid) == session]


def kill(process: subprocess.Popen[bytes]) -> None:
    for pid in members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)


@pytest.mark.timeout(1800)
def test_bronze_equals_the_stream_whatever_is_killed(store: redis.Redis, url: str, tmp_path: Path) -> None:
    fill(store, EVENTS)
    lake, rand = tmp_path / "lake", random.Random(7)
    for _ in range(KILLS):
        before = versions(lake)
        process = start(lake, url)
        goal = before + rand.randint(1, 2)
        wait_until(lambda goal=goal: versions(lake) >= goal, f"version {goal}", 300)  # type: ignore[misc]
        time.sleep(rand.random() * 0.5)  # anywhere in a batch: that is the point
        assert process.poll() is None, "it was to be killed in the middle"
        kill(process)
    process = start(lake, url)
    assert process.wait(600) == 0

    made = Lake(lake)
    ids: list[str] = []
    ordinals: list[int] = []
    kinds: set[str] = set()
    for path in made.paths(made.head().of("events")):
        rows = parquet.read_table(path, columns=["kind", "ordinal", "entry_id"], partitioning=None)
        ids += rows["entry_id"].to_pylist()
        ordinals += rows["ordinal"].to_pylist()
        kinds |= set(rows["kind"].to_pylist())
    assert kinds == {"entry"}, "no gap"
    assert sorted(ordinals) == list(range(1, EVENTS + 1)), "each once"
    stream = {entry_id for entry_id, _ in cast(Any, store.xrange("bull:q:events"))}
    assert set(ids) == stream
