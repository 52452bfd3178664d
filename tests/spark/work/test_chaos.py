"""Driver, executor and worker are killed at random: every job completes once, and every lost start counts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from oxcart.sync import Queue
from tests.servers import wait_until
from tests.spark.conftest import long
from tests.spark.standalone import Standalone
from tests.spark.work.chaos import POLICY

ROOT = Path(__file__).parents[3]
#: Short forms here, the full size by ``make spark-jobs-chaos``.
APPS = int(os.environ.get("OXCART_SPARK_APPS", "1"))
JOBS = int(os.environ.get("OXCART_SPARK_JOBS", "400"))
KILLS = int(os.environ.get("OXCART_SPARK_KILLS", "0"))
LIMIT = 300.0


class Program:
    """One of the programs of ``chaos``; started again whenever it has ended."""

    def __init__(self, kind: str, url: str, **environ: str) -> None:
        self._command = [sys.executable, "-m", "tests.spark.work.chaos", kind]
        self._environ = {**os.environ, "OXCART_URL": url, **environ}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.kill()
        for pid, _ in family(self.process.pid):
            end(pid)


def family(session: int) -> list[tuple[int, int]]:
    """The living processes of a session, each with its parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state != "Z":
                found.append((int(folder.name), int(parent)))
    return found


def is_over(session: int) -> bool:
    return not family(session)


def is_daemon(pid: int) -> bool:
    with suppress(OSError):
        return b"pyspark.daemon" in Path("/proc", str(pid), "cmdline").read_bytes()
    return False


def end(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@pytest.fixture
def program(url: str) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def start(kind: str, **environ: str) -> Program:
        made.append(Program(kind, url, **environ))
        return made[-1]

    yield start
    for one in made:
        one.close()


def check(store: redis.Redis, queue: str, notes: Path, ids: list[str]) -> int:
    """Checks that every job completed once, and used as many attempts as it started; returns all starts."""
    ended = [
        entry["jobId"]
        for _, entry in cast(list[tuple[str, dict[str, str]]], store.xrange(f"bull:{queue}:events"))
        if entry["event"] == "completed"
    ]
    assert sorted(ended) == sorted(ids)
    starts = 0
    for job_id in ids:
        fields = cast(dict[str, str], store.hgetall(f"bull:{queue}:{job_id}"))
        begun = (notes / job_id).read_text().splitlines()
        numbers = [int(line.split()[1]) for line in begun]
        # A start may be lost before its handler notes it; no number occurs twice.
        assert numbers == sorted(set(numbers)), job_id
        assert int(fields["ats"]) == int(fields["atm"]) + int(fields.get("stc", 0)) >= len(numbers), fields
        assert fields["returnvalue"] == str(numbers[-1]) == fields["ats"]
        starts += int(fields["ats"])
    return starts


@pytest.mark.timeout(7200)
def test_applications_survive_kills(
    url: str, store: redis.Redis, tmp_path: Path, program: Callable[..., Program]
) -> None:
    notes, out = tmp_path / "notes", tmp_path / "out"
    notes.mkdir()
    (notes / "processes").touch()
    queue = Queue("apps", url=url, **POLICY)
    given = {"notes": str(notes), "seconds": 1.0}
    ids = [f"a{number}" for number in range(APPS)]
    for job_id in ids:
        queue.add("recorded", {**given, "to": str(out / job_id)}, job_id=job_id)
    worker = program("worker")
    seen = 0

    def process(kind: str) -> int:
        """Waits for a process that has begun since the last kill."""
        nonlocal seen
        found: list[int] = []

        def is_there() -> bool:
            lines = (notes / "processes").read_text().splitlines()[seen:]
            found[:] = [int(line.split()[1]) for line in lines if line.startswith(kind)]
            return bool(found) or store.zcard("bull:apps:completed") == APPS

        wait_until(is_there, f"a new {kind}", LIMIT)
        seen = len((notes / "processes").read_text().splitlines())
        return found[-1] if found else 0

    kinds = ["executor", "driver", "worker"]
    killed = 0
    for kind in kinds if not KILLS else random.choices(kinds, k=KILLS):
        victim = process("executor" if kind == "executor" else "driver")
        if not victim:
            break
        if KILLS:
            time.sleep(random.random() * 2)
        if kind == "worker":
            worker.kill()
            worker.start()
            killed += 1
        else:
            killed += end(victim)
    wait_until(lambda: store.zcard("bull:apps:completed") == APPS, "all applications complete", 20 * LIMIT)
    queue.close()
    worker.process.terminate()
    worker.process.wait(60)
    starts = check(store, "apps", notes, ids)
    assert killed >= (1 if KILLS else len(kinds))
    assert starts <= APPS + killed
    assert sorted(one.name for one in out.iterdir()) == ids  # nothing half-written beside them
    assert all(pq.read_table(out / job_id).num_rows == 10 for job_id in ids)
    drivers = {int(line.split()[1]) for line in (notes / "processes").read_text().splitlines()}
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in drivers), "all processes end")
    assert [family(pid) for pid in drivers if family(pid)] == []


@pytest.mark.timeout(7200)
def test_jobs_of_executors_survive_kills(
    url: str, store: redis.Redis, tmp_path: Path, program: Callable[..., Program]
) -> None:
    queue = Queue("plain", url=url, **POLICY)
    ids = [f"p{number}" for number in range(JOBS)]
    rows: list[Any] = [("any", {"notes": str(tmp_path)}, {"job_id": job_id}) for job_id in ids]
    queue.add_many(rows)
    driver = program("driver")
    done = 0

    def ended() -> int:
        return store.zcard("bull:plain:completed")

    def executors() -> list[int]:
        found = [(pid, parent) for pid, parent in family(driver.process.pid) if is_daemon(pid)]
        parents = {pid for pid, _ in found}
        return [pid for pid, parent in found if parent in parents]

    def moved(since: int) -> bool:
        return ended() > since or ended() == JOBS

    kinds = ["executor", "driver"]
    killed = 0
    for kind in kinds if not KILLS else random.choices(kinds, k=KILLS):
        wait_until(partial(moved, done), "jobs end", LIMIT)
        if ended() == JOBS:
            break
        if kind == "driver":
            old = driver.process.pid
            driver.kill()
            wait_until(partial(is_over, old), "the session of a killed driver ends", LIMIT)
            driver.start()
            killed += 1
        else:
            victims = executors()
            killed += end(random.choice(victims)) if victims else 0
        done = ended()
    while ended() < JOBS:
        with suppress(subprocess.TimeoutExpired):
            driver.process.wait(1)
            if ended() < JOBS:
                driver.start()  # Spark had given up
    driver.process.wait(LIMIT)
    queue.close()
    assert driver.process.returncode == 0
    starts = check(store, "plain", tmp_path, ids)
    assert killed == len(kinds) or KILLS
    assert JOBS < starts <= JOBS + killed * 8  # two tasks of four jobs each


@long
@pytest.mark.timeout(7200)
def test_jobs_of_a_clusters_killed_executor_come_back(
    url: str, store: redis.Redis, tmp_path: Path, program: Callable[..., Program]
) -> None:
    queue = Queue("plain", url=url, **POLICY)
    ids = [f"p{number}" for number in range(JOBS)]
    notes = tmp_path / "notes"
    notes.mkdir()
    rows: list[Any] = [("any", {"notes": str(notes)}, {"job_id": job_id}) for job_id in ids]
    queue.add_many(rows)
    queue.close()
    with Standalone(tmp_path, workers=2) as cluster:
        driver = program("driver", OXCART_CHAOS_MASTER=cluster.url)
        wait_until(lambda: store.zcard("bull:plain:completed") > 0, "executors run jobs", LIMIT)
        cluster.kill_executor()
        driver.process.wait(2 * LIMIT)
    assert driver.process.returncode == 0
    starts = check(store, "plain", notes, ids)
    assert JOBS <= starts <= JOBS + 4  # one executor had one task of four jobs
