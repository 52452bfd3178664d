"""Runs the week: writes its streams, kills the pipeline, resets retention, and measures."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from benchmarks.processes import processes

from oxcart.broker.export import EVENTS
from oxcart.spark.lake.versions import Lake
from tests.servers import wait_until
from tests.spark.group import Group
from tests.spark.standalone import Standalone
from tests.spark.week.driver import NOW
from tests.spark.week.traffic import DAY_MS, ENTRIES_A_JOB, Traffic, key, prepare, write

#: Files of a table and day at most: fewer than 16 for each of the sizes from 1 KiB to 32 MiB, which triple
#: (`oxcart.spark.lake.upkeep`), and as many that the next build replaces.
MOST_FILES = 15 * 10 + 32
#: The share of steps at the begin and end whose costs are compared; nothing is killed in the first of them.
_CALM = 0.15
#: The share of steps after which nothing is killed: memory is compared within the last process.
_LAST_KILL = 0.5
#: The parts of that process' life whose memory is compared.
_YOUNG, _OLD = (0.25, 0.5), (0.75, 1.0)
#: Builds of a process that may be long: code is compiled, and entries of the time without it are read.
_FIRST_BUILDS = 2
_PATIENCE = 900.0
#: Builds of a pipeline before it is killed.
_BUILDS = 2
_MOST_RESTARTS = 20
_TICKS = 100.0


@dataclass(frozen=True)
class Size:
    """How large a week is, and how it is read.

    Attributes:
        queues: How many queues.
        entries: Entries of their streams, together.
        days: How many days a week has.
        steps: Into how many steps the week is divided; each is written at once.
        seconds: Seconds from step to step at least.
        kills: How often the pipeline is killed.
        resets: How often a Node constructor resets the retention of all queues.
        trims: Queues whose unread entries are trimmed during each kill of the driver.
        every: Seconds between builds.
        keep: Events that an attached queue keeps.
        node_keeps: Events that a Node constructor makes a queue keep.
        executors: Executors of a standalone cluster; 0 for Spark on this machine alone.
        quick: Whether Spark has the settings of tests.
    """

    queues: int = 100
    entries: int = 10_000_000
    days: int = 7
    steps: int = 7 * 24
    seconds: float = 21.0
    kills: int = 8
    resets: int = 40
    trims: int = 2
    every: float = 30.0
    keep: int = 20_000
    node_keeps: int = 10_000
    executors: int = 2
    quick: bool = False

    @property
    def jobs(self) -> int:
        """Jobs of a queue."""
        return max(1, round(self.entries / ENTRIES_A_JOB / self.queues))


@dataclass
class Seen:
    """What was measured after a step, and which process was at work."""

    entries: int
    cpu_s: float
    memory_mb: float
    files: int
    pid: int = 0


@dataclass
class Week:
    """A week and the pipeline that reads it.

    Args:
        size: How large it is.
        url: The server.
        folder: An empty folder.
        seed: Decides what is killed and when.
    """

    size: Size
    url: str
    folder: Path
    seed: int = 7
    seen: list[Seen] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    most_files: int = 0

    def __post_init__(self) -> None:
        self.begin = (int(time.time()) // 86_400 - self.size.days) * DAY_MS
        self.lake, self.exported = Lake(self.folder / "lake"), self.folder / "exported"
        self._store: Any = redis.Redis.from_url(self.url, decode_responses=True)
        self._random = random.Random(self.seed)
        self._log, self.journaled, self._stop = (self.folder / name for name in ("log", "journal", "stop"))
        self._traffic = [
            Traffic(queue, self.size.jobs, self.size.days, self.begin) for queue in range(self.size.queues)
        ]
        self._written = self._restarts = 0
        self._cluster: Standalone | None = None
        self._driver: Group | None = None

    def run(self) -> None:
        """Writes the week and returns when the pipeline has read and built all of it."""
        if not self.size.executors:
            self._run()
            return
        with Standalone(self.folder, self.size.executors) as self._cluster:
            self._run()

    def _run(self) -> None:
        self.prepare()
        self._start()
        first = key(self.size.queues - 1, "meta")
        try:
            wait_until(lambda: self._store.hexists(first, "ox:keep"), "the queues are attached", _PATIENCE)
            calm = int(self.size.steps * _CALM)
            kills = spread(self.size.kills, calm, int(self.size.steps * _LAST_KILL))
            resets = spread(self.size.resets, calm, self.size.steps - calm)
            for step in range(self.size.steps):
                began = time.monotonic()
                if step in resets:
                    self.reset()
                if step in kills:
                    self._wait_for_builds()
                    self._kill(step)
                else:
                    self.write(step)
                self._wait_for(self._written // (step + 1))
                self._look()
                time.sleep(max(0.0, self.size.seconds - (time.monotonic() - began)))
            self._stop.touch()
            assert self._driver is not None
            while self._driver.wait(3600):
                self._start_again()
            self._look()
        finally:
            if self._driver is not None:
                self._driver.kill("all")
                self._driver.wait(60)

    # -- what happens

    def prepare(self) -> None:
        """Makes the queues."""
        for queue in range(self.size.queues):
            prepare(self._store, queue, self.size.node_keeps)
        self._store.set(NOW, self.begin)

    def write(self, step: int) -> None:
        """Writes the entries of a step."""
        end = self.begin + (step + 1) * self.size.days * DAY_MS // self.size.steps
        self._store.set(NOW, end - 1)  # a server's entries are not later than its clock
        for traffic in self._traffic:
            self._written += write(self._store, traffic, end)

    def reset(self) -> None:
        """As the constructor of Node's ``Queue`` does."""
        for queue in range(self.size.queues):
            self._store.hset(key(queue, "meta"), "opts.maxLenEvents", str(self.size.node_keeps))

    def _kill(self, step: int) -> None:
        """Kills parts of the pipeline while a step is written; unread entries of some queues are trimmed."""
        assert self._driver is not None
        parts = ["all", "jvm", "driver", "workers"]
        if self._cluster is not None:
            parts = ["all", "executor", "driver", "executor", "jvm"]
        victim = parts[len(self.killed) % len(parts)]
        self.killed.append(victim)
        if victim == "executor":
            assert self._cluster is not None
            self._cluster.kill_executor()
        else:
            self._driver.kill(victim)
        if victim in ("executor", "workers"):
            self.write(step)  # the query ends or goes on
            return
        self._driver.clear()
        self._driver = None
        self.write(step)
        self.trim()
        self._start()

    def trim(self) -> None:
        """Trims all events of some queues."""
        for queue in self._random.sample(range(self.size.queues), self.size.trims):
            self._store.xtrim(key(queue, EVENTS), maxlen=0, approximate=False)

    def _start(self) -> None:
        given = {
            "lake": str(self.lake.root),
            "url": self.url,
            "stop": str(self._stop),
            "exported": str(self.exported),
            "journal": str(self.journaled),
            "every": self.size.every,
            "keep": self.size.keep,
            "quick": self.size.quick,
            "master": "local[1]" if self.size.quick else "local[2]",
        }
        if self._cluster is not None:
            given["master"] = self._cluster.url
            given["settings"] = {"spark.executor.memory": "600m", "spark.cores.max": "2"}
        self._driver = Group([sys.executable, "-m", "tests.spark.week.driver", json.dumps(given)], self._log)

    def _start_again(self) -> None:
        """Restarts a pipeline that a killed part or a busy machine has ended, as a service manager does."""
        assert self._driver is not None
        self._driver.clear()
        self._restarts += 1
        assert self._restarts <= _MOST_RESTARTS, f"the pipeline ended: {self._log.read_text()[-3000:]}"
        self._start()

    def _wait_for(self, most: int) -> None:
        """Waits until at most so many entries are unread; a pipeline that has ended is started again."""

        def read() -> bool:
            assert self._driver is not None
            if not self._driver.running:
                self._start_again()
            return self._written - self._read() <= most

        wait_until(read, f"at most {most} entries are unread", _PATIENCE)

    def _wait_for_builds(self) -> None:
        """Waits until the running pipeline has built twice, so that a kill meets one that works."""
        begun = time.time()

        def built() -> bool:
            assert self._driver is not None
            if not self._driver.running:
                self._start_again()
            mine = [one for one in self.journal() if one["pid"] == self._driver.pid]
            # A later build without new rows has nothing left to do.
            return len([one for one in mine if one["new"] or one["began"] > begun]) >= _BUILDS

        wait_until(built, f"{_BUILDS} builds of this pipeline", _PATIENCE)

    def _read(self) -> int:
        marks = self.lake.head().marks.get("ingest:main", {})
        return sum(at.get("n", 0) for at in marks.values())

    # -- what is measured

    def _look(self) -> None:
        head = self.lake.head()
        files: dict[tuple[str, str], int] = {}
        for file in head.files.values():
            files[file.table, file.day] = files.get((file.table, file.day), 0) + 1
        self.most_files = max(self.most_files, *files.values(), 0)
        cpu, memory = _spent()
        pid = self._driver.pid if self._driver is not None else 0
        self.seen.append(Seen(self._written, cpu, memory, len(head.files), pid))

    def journal(self) -> list[dict[str, Any]]:
        """The builds."""
        lines = self.journaled.read_text().splitlines() if self.journaled.exists() else []
        return [json.loads(line) for line in lines]

    def figures(self) -> dict[str, float]:
        """Returns what the builds and steps cost, at first and at last."""
        calm = max(2, int(self.size.steps * _CALM))
        first, last = self.seen[calm // 2 : calm], self.seen[-calm:]
        found = {
            "builds": float(len(self.journal())),
            "kills": float(len(self.killed)),
            "files_per_table_and_day": float(self.most_files),
            "files": float(self.seen[-1].files),
            "files_at_most": float(max(one.files for one in self.seen)),
        }
        files = self.lake.head().files.values()
        bronze = sum(file.size for file in files if file.table == "events")
        found["bytes_per_entry_of_bronze"] = bronze / self._written
        found["bytes_per_entry"] = sum(file.size for file in files) / self._written
        for name, seen in (("first", first), ("last", last[:-1])):
            entries = seen[-1].entries - seen[0].entries
            if entries > 0 and len(seen) > 1:
                found[f"cpu_s_per_1000_{name}"] = 1000 * (seen[-1].cpu_s - seen[0].cpu_s) / entries
        return found | memory_by_age(self.seen[:-1]) | dict(self._builds())

    def _builds(self) -> Iterator[tuple[str, float]]:
        journal = self.journal()
        builds = [one for one in journal if one["new"]]
        share = max(2, int(len(builds) * _CALM))
        for name, some in (("first", builds[1 : share + 1]), ("last", builds[-share:])):
            new = sum(one["new"] for one in some)
            if new:
                yield f"rows_read_per_new_{name}", sum(one["rows"] for one in some) / new
                yield f"files_per_build_{name}", statistics.mean(one["files"] for one in some)
                yield f"seconds_per_build_{name}", statistics.median(one["seconds"] for one in some)
        yield from pace(journal, self.size.every).items()


def spread(count: int, first: int, end: int) -> set[int]:
    """Returns so many steps from ``first`` and before ``end``, evenly."""
    return {first + (end - first) * (2 * at + 1) // (2 * count) for at in range(count)}


def memory_by_age(seen: Sequence[Seen]) -> dict[str, float]:
    """Returns the memory of the last process in the second and the last quarter of its life.

    Processes of different ages cannot be compared: a JVM grows until its heap is full.
    """
    mine = [one.memory_mb for one in seen if one.pid == seen[-1].pid]
    found = {"steps_of_last_process": float(len(mine))}
    for name, (begin, end) in (("young", _YOUNG), ("old", _OLD)):
        if some := mine[int(begin * len(mine)) : int(end * len(mine))]:
            found[f"memory_{name}_mb"] = statistics.median(some)
    return found


def pace(journal: Sequence[Mapping[str, Any]], every: float) -> dict[str, float]:
    """Returns how builds with new rows kept their pace, without the first ones of each process.

    ``long_builds`` is the share of builds that took longer than ``every``. ``latest_start_s`` is how long a
    build waited for something else than the build before it.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    for one in journal:
        found.setdefault(one["pid"], []).append(one)
    # A build without new rows takes no time: it would hide the others.
    working = [[one["seconds"] for one in builds if one["new"]] for builds in found.values()]
    warm = [seconds for builds in working for seconds in builds[_FIRST_BUILDS:]]
    late = [
        after["began"] - before["began"] - max(every, before["seconds"])
        for builds in found.values()
        for before, after in itertools.pairwise(builds)
    ]
    figures = {"latest_start_s": max(late, default=0.0), "warm_builds": float(len(warm))}
    if warm:
        figures["long_builds"] = sum(seconds > every for seconds in warm) / len(warm)
        figures["slowest_build_s"] = max(warm)
    return figures


def _spent() -> tuple[float, float]:
    """CPU seconds and memory of the pipeline: what this process started, without the server."""
    cpu = memory = 0.0
    for kind, process in processes():
        if kind in ("server", "driver"):
            continue
        try:
            fields = (process / "stat").read_text().rpartition(") ")[2].split()
            memory += int((process / "statm").read_text().split()[1]) * 4096 / 1e6
        except OSError:
            continue
        cpu += sum(map(int, fields[11:15])) / _TICKS
    return cpu, memory
