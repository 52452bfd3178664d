"""The tables agree with the records that the handlers write themselves, in Node and here.

A mixed fleet works on two queues. Its handlers do what is planned for each start of a job (complete, fail,
ask for another try, snooze, be killed, be stopped until their lease is lost) and write a diary line before
and after. The tables are then compared with the plan and the diary, row by row and column by column.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from oxcart import Queue
from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.attachment import attach
from tests.conftest import MakeQueue
from tests.nodes import NODE_FOLDER, installed, node_driver, node_missing
from tests.signals import eventually

pytest.importorskip("pyspark")

from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(node_missing() is not None, reason=str(node_missing())),
]

ROOT = Path(__file__).parents[2]
#: A short form here, the full size by ``make pipeline-truth``.
JOBS = int(os.environ.get("OXCART_TRUTH_JOBS", "5000"))
#: Jobs whose worker is killed, and jobs whose worker is stopped, among them.
KILLED = STOPPED = max(2, JOBS // 2500)
#: Handlers, workers and the server read the same clock in turn. Apart from rounding the order is certain; the
#: distance depends on the load of the machine.
ROUNDING = 2
TOLERANCE = 3000
#: Ms of a lease, and between stalled checks.
LOCK, CHECK = 8000, 1000

#: Queues: one for workers that run several jobs at once, one for workers that may die with their job.
MANY, SOLO = "many", "solo"
NAMES = ("charge", "mail", "sum")

#: The name of a step in the tables, by side: on Node's wire a snooze looks like a retry.
OUTCOMES = {
    "node": {"ok": "completed", "bad": "failed", "fail": "retried", "snooze": "retried"},
    "oxcart": {"ok": "completed", "bad": "failed", "fail": "retried", "snooze": "snoozed"},
}
#: Category and code by step, which only our records have.
RECORDED = {"bad": ("permanent", "E_ROW"), "fail": ("temporary", "TemporaryError")}
#: Columns of an attempt that may be null, and only where the wire does not have them.
UNTOLD = {"worker", "category", "code", "stack", "reason"}


@dataclass(frozen=True)
class Planned:
    """A job: its queue, the steps of its starts, and its end."""

    number: int
    queue: str
    steps: tuple[str, ...]
    attempts: int
    delay: int
    take: int
    priority: int
    retry_ms: int

    @property
    def job_id(self) -> str:
        return f"job-{self.number}"

    @property
    def name(self) -> str:
        return NAMES[self.number % len(NAMES)]

    @property
    def data(self) -> dict[str, Any]:
        return {"row": self.number, "steps": self.steps, "take": self.take}

    @property
    def state(self) -> str:
        if self.spent:
            return "dead_letter"
        return {"ok": "completed", "bad": "failed"}[self.steps[-1]]

    @property
    def spent(self) -> bool:
        """Whether its last attempt failed and no attempt is left."""
        return self.steps[-1] == "fail"


def planned(number: int) -> Planned:
    rand = random.Random(number)
    queue, attempts = (SOLO if number % 10 == 0 else MANY), 10
    steps = [rand.choice(("fail", "snooze")) for _ in range(rand.choice((0, 0, 0, 1, 2)))]
    steps.append(rand.choice(("ok", "ok", "ok", "bad")))
    if number % 13 == 1:
        steps, attempts = ["fail", "fail"], 2
    place = number // 10
    if queue == SOLO and place < KILLED + STOPPED:
        steps, attempts = ["die" if place % 2 else "freeze", "ok"], 10
    return Planned(
        number,
        queue,
        tuple(steps),
        attempts,
        rand.choice((0, 0, 0, 40, 150)),
        rand.randrange(5),
        rand.choice((0, 0, 0, 3)),
        rand.choice((0, 20)),
    )


@dataclass
class Attempt:
    """A handler's record of one start of a job."""

    step: str
    side: str
    worker: str
    pid: int
    began: float
    ended: float | None = None


@dataclass
class Crew:
    """Worker processes of both kinds, each restarted when it has died."""

    folder: Path
    url: str
    node: Path
    processes: list[tuple[subprocess.Popen[bytes], str, str, int]] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)

    def start(self, side: str, queue: str, concurrency: int) -> None:
        actual = {
            "folder": str(self.node),
            "url": self.url,
            "side": side,
            "queues": [queue],
            "name": f"{side}-{queue}",
            "diary": str(self.folder / f"diary-{side}-{queue}"),
            "concurrency": concurrency,
            "lock": LOCK,
            "check": CHECK,
            "stalls": 10,
        }
        program = (
            ["node", str(NODE_FOLDER / "crew.js")] if side == "node" else [sys.executable, "-m", "tests.crew"]
        )
        process = subprocess.Popen(
            [*program, json.dumps(actual)], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.processes.append((process, side, queue, concurrency))

    def look(self, store: redis.Redis) -> None:
        """Replaces dead and stopped workers. A stopped worker continues once its job was recovered."""
        for member in list(self.processes):
            process, side, queue, concurrency = member
            if process.poll() is not None:
                self.processes.remove(member)
                self.start(side, queue, concurrency)
            elif process.pid not in self.frozen and _is_stopped(process.pid):
                self.frozen.add(process.pid)
                self.start(side, queue, concurrency)
        if self.frozen:
            stalled = {
                fields["jobId"]
                for _, fields in cast(Any, store.xrange(f"bull:{SOLO}:events"))
                if fields["event"] == "stalled"
            }
            # A process may be stopped more than once: the job that it started last counts.
            last: dict[int, tuple[float, str]] = {}
            for (job, _), attempt in self.diary(SOLO).items():
                last[attempt.pid] = max(last.get(attempt.pid, (0.0, "")), (attempt.began, job))
            for pid, (_, job) in last.items():
                if job in stalled and pid in self.frozen and _is_stopped(pid):
                    self.frozen.discard(pid)
                    os.kill(pid, signal.SIGCONT)

    def goes_on(self, store: redis.Redis) -> bool:
        self.look(store)
        return not any(_is_stopped(process.pid) for process, *_ in self.processes)

    def diary(self, queue: str = "*") -> dict[tuple[str, int], Attempt]:
        found: dict[tuple[str, int], Attempt] = {}
        for path in self.folder.glob(f"diary-*-{queue}"):
            for text in path.read_text().splitlines(keepends=True):
                if not text.endswith("\n"):
                    continue  # a handler is writing it
                line = json.loads(text)
                key = (line["job"], line["start"])
                if line["what"] == "began":
                    assert key not in found, f"{key} began twice"
                    found[key] = Attempt(line["step"], line["side"], line["worker"], line["pid"], line["at"])
                else:
                    found[key].ended = line["at"]
        return found

    def end(self) -> None:
        for process, *_ in self.processes:
            process.kill()
        for process, *_ in self.processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


@contextlib.asynccontextmanager
async def crew(folder: Path, url: str) -> AsyncIterator[Crew]:
    made = Crew(folder, url, await asyncio.to_thread(installed, "v5"))
    for side in ("node", "oxcart"):
        made.start(side, MANY, 5)
        made.start(side, SOLO, 1)
    try:
        yield made
    finally:
        made.end()


async def produce(jobs: list[Planned], queues: dict[str, Queue], url: str) -> None:
    """Every other job is added by Node."""
    async with node_driver("v5", url) as node:
        for name, queue in queues.items():
            mine = [job for job in jobs if job.queue == name]
            ours, theirs = mine[0::2], mine[1::2]
            await queue.add_many(
                [
                    (
                        job.name,
                        job.data,
                        {
                            "job_id": job.job_id,
                            "attempts": job.attempts,
                            "delay": job.delay / 1000,
                            "priority": job.priority,
                            "backoff": {"type": "fixed", "delay": max(1, job.retry_ms)},
                        },
                    )
                    for job in ours
                ]
            )
            for start in range(0, len(theirs), 500):
                await node.call(
                    "addBulk",
                    queue=name,
                    jobs=[
                        {
                            "name": job.name,
                            "data": job.data,
                            "opts": {
                                "jobId": job.job_id,
                                "attempts": job.attempts,
                                "delay": job.delay,
                                "priority": job.priority,
                                **(
                                    {"backoff": {"type": "fixed", "delay": job.retry_ms}}
                                    if job.retry_ms
                                    else {}
                                ),
                            },
                        }
                        for job in theirs[start : start + 500]
                    ],
                )


def ended(store: redis.Redis) -> int:
    return sum(
        int(store.zcard(f"bull:{queue}:{end}")) for queue in (MANY, SOLO) for end in ("completed", "failed")
    )


@pytest.mark.timeout(7200)
async def test_tables_equal_what_handlers_recorded(
    make_queue: MakeQueue, spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    jobs = [planned(number) for number in range(JOBS)]
    queues = {name: make_queue(name) for name in (MANY, SOLO)}
    for name, queue in queues.items():
        await queue.pause()
        await asyncio.to_thread(attach, ServerAddress(url=url), name, "main", keep=20 * JOBS + 1000)
        await queue.resume()
    async with crew(tmp_path, url) as fleet:
        await produce(jobs, queues, url)

        async def done() -> bool:
            fleet.look(store)
            await asyncio.sleep(0.1)
            return ended(store) == JOBS

        await eventually(done, "all jobs have ended", 120 + JOBS / 50)
        await eventually(lambda: fleet.goes_on(store), "the stopped workers continue", 120)
        diary = fleet.diary()
    plan = Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection((MANY, SOLO)))
    pipeline = Pipeline(spark, plan)
    await asyncio.to_thread(pipeline.once)
    check = Check(pipeline, {job.job_id: job for job in jobs}, diary)
    check.attempts()
    check.jobs()
    check.metrics()
    check.failures()
    assert pipeline.tables.read("transitions").filter("not coalesce(legal, false)").collect() == []
    assert pipeline.tables.read("gaps").collect() == []
    assert pipeline.tables.read("quarantine").collect() == []


class Check:
    """Compares the tables with plan and diary."""

    def __init__(
        self, pipeline: Pipeline, plan: dict[str, Planned], diary: dict[tuple[str, int], Attempt]
    ) -> None:
        self._tables = pipeline.tables
        self._plan = plan
        self._diary = diary
        self._rows = [row.asDict() for row in self._tables.read("attempts").collect()]

    def _outcome(self, job: str, start: int) -> str:
        noted = self._diary[job, start]
        if noted.step in ("die", "freeze"):
            return "stalled"
        if noted.step == "fail" and self._plan[job].spent and start == len(self._plan[job].steps):
            return "failed"
        return OUTCOMES[noted.side][noted.step]

    def attempts(self) -> None:
        assert {one.side for one in self._diary.values()} == {"node", "oxcart"}
        assert {(row["job_id"], row["attempt"]) for row in self._rows} == set(self._diary)
        assert len(self._rows) == len(self._diary)
        for row in self._rows:
            job, noted = self._plan[row["job_id"]], self._diary[row["job_id"], row["attempt"]]
            outcome = self._outcome(row["job_id"], row["attempt"])
            assert (row["queue"], row["name"], row["outcome"]) == (job.queue, job.name, outcome), row
            assert noted.step == job.steps[row["attempt"] - 1]
            self._nulls(row, noted, outcome)
            self._times(row, noted, outcome)

    def _nulls(self, row: dict[str, Any], noted: Attempt, outcome: str) -> None:
        """Columns that the wire lacks are null, and no others."""
        recorded = noted.side == "oxcart" and outcome != "stalled"
        assert row["told_by"] == ("record" if recorded else "events"), row
        # None of these jobs has a target, tags or a limit key, and no program names its version.
        absent = {"lane", "tags", "tenant", "version"}
        expected = set(absent)
        if not recorded:
            expected |= {"worker", "category", "code", "stack"}
            if outcome != "failed":
                expected.add("reason")
        elif noted.step not in RECORDED:
            expected |= {"category", "code", "stack", "reason"}
        assert {name for name, value in row.items() if value is None} == expected, row
        assert expected <= UNTOLD | absent
        if recorded:
            assert row["worker"] == noted.worker
            assert (row["category"], row["code"]) == RECORDED.get(noted.step, (None, None))
        number = row["job_id"].removeprefix("job-")
        words = {"bad": f"row {number} is bad", "fail": f"row {number} not yet"}
        assert row["reason"] in (None, words.get(noted.step)), row

    def _times(self, row: dict[str, Any], noted: Attempt, outcome: str) -> None:
        assert row["queued_ms"] <= row["started_ms"] <= row["ended_ms"], row
        assert row["wait_ms"] == row["started_ms"] - row["queued_ms"], row
        _between(0, noted.began - row["started_ms"], TOLERANCE, row)
        if outcome == "stalled":
            # No worker ended it: it was recovered after its lease.
            _between(0, row["run_ms"], LOCK + 2 * CHECK + TOLERANCE, row)
            return
        assert noted.ended is not None
        _between(0, row["ended_ms"] - noted.ended, TOLERANCE, row)
        _between(-TOLERANCE, row["run_ms"] - (noted.ended - noted.began), TOLERANCE, row)

    def jobs(self) -> None:
        found = {row.job_id: row for row in self._tables.read("jobs").collect()}
        assert set(found) == set(self._plan)
        starts: dict[str, list[dict[str, Any]]] = {}
        for start in sorted(self._rows, key=lambda row: cast(int, row["attempt"])):
            starts.setdefault(start["job_id"], []).append(start)
        for job_id, row in found.items():
            job, mine = self._plan[job_id], starts[job_id]
            outcomes = Counter(self._outcome(job_id, one["attempt"]) for one in mine)
            assert (row.state, row.queue, row.name, row.born) == (job.state, job.queue, job.name, "added")
            assert row.attempts == len(mine) == len(job.steps)
            assert (row.retries, row.stalls) == (outcomes["retried"], outcomes["stalled"])
            assert (row.started_ms, row.ended_ms) == (mine[0]["started_ms"], mine[-1]["ended_ms"])
            assert row.wait_ms == sum(one["wait_ms"] for one in mine)
            assert row.run_ms == sum(one["run_ms"] for one in mine)
            assert row.created_ms <= mine[0]["queued_ms"] - job.delay + ROUNDING + TOLERANCE
            last = self._diary[job_id, len(mine)]
            assert row.worker == (last.worker if last.side == "oxcart" else None)
            actual = RECORDED.get(last.step, (None, None)) if last.side == "oxcart" else (None, None)
            assert (row.category, row.code) == actual
            assert (row.reason is None) == (row.state == "completed")

    def metrics(self) -> None:
        rows = [row.asDict() for row in self._tables.read("queue_metrics").collect()]
        lengths = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self._rows:
            for window, length in lengths.items():
                for name in (row["name"], "*"):
                    start = row["ended_ms"] - row["ended_ms"] % length
                    groups.setdefault((row["queue"], window, start, name), []).append(row)
        found = {(row["queue"], row["window"], row["start_ms"], row["name"]): row for row in rows}
        assert groups.keys() <= found.keys()
        for key, row in found.items():
            mine = groups.get(key, [])
            outcomes = Counter(self._outcome(one["job_id"], one["attempt"]) for one in mine)
            for column, outcome in (
                ("completed", "completed"),
                ("failed", "failed"),
                ("retries", "retried"),
                ("stalls", "stalled"),
            ):
                assert row[column] == outcomes[outcome], (key, column)
            categories = Counter(
                one["category"] or "untold" for one in mine if one["outcome"] in ("failed", "retried")
            )
            for column, value in row.items():
                if column.startswith("failures_"):
                    assert value == categories[column.removeprefix("failures_")], (key, column)
            for kind in ("wait", "run"):
                values = [one[f"{kind}_ms"] for one in mine]
                near = [_rounded(value) for value in values]
                for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
                    assert row[f"{kind}_{name}"] == _percentile(near, share), (key, kind, name)
                assert row[f"{kind}_max"] == max(values, default=None), (key, kind)
        for queue in (MANY, SOLO):
            jobs = [job for job in self._plan.values() if job.queue == queue]
            for window in lengths:
                mine = [row for row in rows if row["queue"] == queue and row["window"] == window]
                arrivals: Counter[str] = Counter()
                for row in mine:
                    arrivals[row["name"]] += row["arrivals"]
                assert arrivals == Counter(job.name for job in jobs) + Counter({"*": len(jobs)})
        self._percentiles_of_the_diary()

    def _percentiles_of_the_diary(self) -> None:
        """The same percentiles, computed only from the handlers' records."""
        for queue in (MANY, SOLO):
            noted = [
                one.ended - one.began
                for (job, _), one in self._diary.items()
                if self._plan[job].queue == queue and one.ended and one.step != "freeze"
            ]
            actual = [
                row["run_ms"] for row in self._rows if row["queue"] == queue and row["outcome"] != "stalled"
            ]
            for share in (0.5, 0.9, 0.99, 1.0):
                assert (
                    abs(cast(float, _percentile(actual, share)) - cast(float, _percentile(noted, share)))
                    < TOLERANCE
                )

    def failures(self) -> None:
        found: Counter[str] = Counter()
        for row in self._tables.read("failures").collect():
            found[row.message] += row["count"]
        actual = [row for row in self._rows if row["outcome"] in ("failed", "retried") and row["reason"]]
        words = {"bad": "row <n> is bad", "fail": "row <n> not yet"}
        assert found == Counter(words[self._diary[row["job_id"], row["attempt"]].step] for row in actual)


def _between(least: float, value: float, most: float, row: object) -> None:
    assert least - ROUNDING <= value <= most + ROUNDING, (value, row)


def _rounded(ms: int) -> int:
    """The first 11 binary digits of a duration, as percentiles count it."""
    step = 1 << max(0, ms.bit_length() - 11)
    near = ms + step // 2
    return near - near % step


def _percentile(values: Sequence[float], share: float) -> float | None:
    """The exact percentile with linear interpolation, as in Spark."""
    if not values:
        return None
    found = sorted(values)
    place = (len(found) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(found) - 1)
    return found[low] + (found[high] - found[low]) * (place - low)
