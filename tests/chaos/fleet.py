"""The worker processes of a test, their records, and the state of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.chaos.lengths import LEASE, LIMIT, RENEW


async def eventually(condition: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    """Waits until the condition holds. Raises an AssertionError naming it after `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit:g} s: {what}"
        await asyncio.sleep(0.01)


class WorkerProcess:
    """One worker in a separate process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, limit: float = LIMIT) -> int:
        """Waits for its end; returns the exit code."""
        await eventually(lambda: self.process.poll() is not None, "the worker's end", limit)
        return int(self.process.returncode)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Fleet:
    """Starts worker processes on one queue, and ends them with the test."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self.url = url
        self.queue = queue
        self._folder = folder
        self._journal = folder / "journal"
        self._lines: list[dict[str, Any]] = []  # read up to this byte
        self._read_to = 0
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.signal(signal.SIGCONT)
            worker.kill()
            if kind is not None:
                print(f"--- worker {worker.pid}\n{worker.log[-6000:]}")
        if kind is not None:
            print("--- journal", *self.lines(), sep="\n")

    async def start(self, *, url: str | None = None, **settings: Any) -> WorkerProcess:
        """Starts a worker and waits until it takes jobs."""
        worker = self.launch(url=url, **settings)
        await eventually(
            lambda: worker.process.poll() is not None or self.of(worker, "ready"), "the worker is ready"
        )
        assert worker.process.poll() is None, worker.log
        return worker

    def launch(self, *, url: str | None = None, **settings: Any) -> WorkerProcess:
        """Starts a worker without waiting for it."""
        settings = {
            "url": url or self.url,
            "queue": self.queue,
            "journal": str(self._journal),
            "lease": LEASE,
            "renew": RENEW,
            **settings,
        }
        path = self._folder / f"worker-{len(self._workers)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.program", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        worker = WorkerProcess(process, path)
        self._workers.append(worker)
        return worker

    # -- the journal

    def lines(self) -> list[dict[str, Any]]:
        if self._journal.exists():
            with self._journal.open("rb") as journal:
                journal.seek(self._read_to)
                whole, end, _ = journal.read().rpartition(b"\n")
            self._read_to += len(whole) + len(end)
            self._lines += [json.loads(line) for line in whole.splitlines()]
        return list(self._lines)

    def facts(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["what"] == what]

    def of(self, worker: WorkerProcess, what: str) -> list[dict[str, Any]]:
        return [line for line in self.facts(what) if line["pid"] == worker.pid]

    def renewer_of(self, worker: WorkerProcess) -> int:
        """The process that renewed for a worker when it last started a job."""
        pid: int = self.of(worker, "start")[-1]["renewer"]
        return pid

    def starts(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(line["id"] for line in self.facts("start"))


class Store:
    """The stored state of a queue, read by a plain client."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self.client: Any = client
        self.prefix = f"bull:{queue}:"

    def events(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(self.prefix + "events")]

    def count_events(self, name: str) -> Counter[str]:
        """How often each job had an event of this name."""
        return Counter(event["jobId"] for event in self.events() if event["event"] == name)

    def keep_events(self) -> None:
        """Keeps every event, so that none is missing when they are counted."""
        self.client.hset(self.prefix + "meta", "opts.maxLenEvents", 10_000_000)

    def job(self, job_id: str) -> dict[str, str]:
        found: dict[str, str] = self.client.hgetall(self.prefix + job_id)
        return found

    def lengths(self) -> dict[str, int]:
        """How many jobs are in each state; states without jobs are left out."""
        pipe = self.client.pipeline()
        lists, sets = ("wait", "paused", "active"), ("prioritized", "delayed", "completed", "failed")
        for name in lists:
            pipe.llen(self.prefix + name)
        for name in sets:
            pipe.zcard(self.prefix + name)
        counts = dict(zip((*lists, *sets), pipe.execute(), strict=True))
        return {name: count for name, count in counts.items() if count}

    def lengths_of(self, state: str) -> int:
        """How many jobs are in one of the lists ``wait``, ``paused`` and ``active``."""
        length: int = self.client.llen(self.prefix + state)
        return length

    def lock_ms(self, job_id: str) -> int:
        """Returns the rest of a job's lease in ms, below zero without a lease."""
        left: int = self.client.pttl(f"{self.prefix}{job_id}:lock")
        return left

    def holder(self, job_id: str) -> str | None:
        token: str | None = self.client.get(f"{self.prefix}{job_id}:lock")
        return token
