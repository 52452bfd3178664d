"""A Bridge namespace on the test's server, with a clock that the test sets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.connection import Server
from oxcart.broker.factory import DEFAULTS
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.target import Abilities


class Clock:
    """The time, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


class Desk:
    """Brokers of one namespace with one clock, and shortcuts for common steps."""

    def __init__(self, url: str, store: redis.Redis) -> None:
        self.url = url
        self.store: Any = store
        self.clock = Clock()
        self._made: dict[tuple[str, str], BridgeBroker] = {}

    def broker(
        self, job_type: str = "email", worker: str = "w1", abilities: Abilities | None = None
    ) -> BridgeBroker:
        """Returns the broker of a type as one worker uses it."""
        key = (job_type, worker)
        if key not in self._made:
            self._made[key] = BridgeBroker(Server(self.url), job_type, clock=self.clock, abilities=abilities)
        return self._made[key]

    async def close(self) -> None:
        for broker in self._made.values():
            await broker.close()

    async def add(self, data: Any = None, *, job_type: str = "email", **options: Any) -> str:
        broker = self.broker(job_type)
        encoded = broker.encode(job_type, data, DEFAULTS["bridge"].replace(**options))
        (added,) = await broker.add([encoded])
        assert added.created
        return added.id

    async def claim(
        self, count: int = 1, *, job_type: str = "email", worker: str = "w1", lock_ms: int = 30_000
    ) -> list[ClaimedJob]:
        """Claims as the engine does, again as long as there may be more."""
        broker = self.broker(job_type, worker)
        jobs: list[ClaimedJob] = []
        while True:
            claimed = await broker.claim(Ask(count - len(jobs), lock_ms, worker))
            jobs += claimed.jobs
            if len(jobs) >= count or not claimed.more:
                return jobs

    async def active(self, **options: Any) -> ClaimedJob:
        job_id = await self.add(**options)
        (job,) = await self.claim()
        assert job.id == job_id
        return job

    def outcome(self, job: ClaimedJob, kind: str = "c", **fields: Any) -> Outcome:
        fields = {"value": b"1" if kind == "c" else b"", **fields}
        kept = {"claim": job, **fields}
        return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, self.clock(), **kept)

    async def end(self, job: ClaimedJob, kind: str = "c", **fields: Any) -> Any:
        broker = self.broker(worker=job.token)
        codes, _ = await broker.finish([self.outcome(job, kind, **fields)])
        return codes[0]

    # -- the steps of another client, with plain commands

    def foreign(self, job_id: str, job_type: str = "email", *, push: str = "rpush", **fields: Any) -> str:
        """Writes a job as another client would, in the form of the document."""
        record = {
            "jobId": job_id,
            "type": job_type,
            "payload": {"n": job_id},
            "schedule": {},
            "retry": {"attempts": 3, "backoff": {"type": "exponential", "delay": 2000}},
            "priority": 5,
            "dependsOn": [],
            "target": {},
            "metadata": {},
            "createdAt": self.clock(),
            "attempts": 0,
            **fields,
        }
        self.store.set(f"bridge:jobs:data:{job_id}", json.dumps(record))
        self.store.set(f"bridge:jobs:status:{job_id}", "waiting")
        if push:
            getattr(self.store, push)("bridge:jobs:waiting", job_id)
        return job_id

    # -- looking

    def record(self, job_id: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.store.get(f"bridge:jobs:data:{job_id}"))
        return read

    def status(self, job_id: str) -> str | None:
        return self.store.get(f"bridge:jobs:status:{job_id}")  # type: ignore[no-any-return]

    def result(self, job_id: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.store.get(f"bridge:jobs:result:{job_id}"))
        return read

    def waiting(self) -> list[str]:
        return self.store.lrange("bridge:jobs:waiting", 0, -1)  # type: ignore[no-any-return]

    def counter(self, job_type: str = "email") -> int:
        return int(self.store.get(f"bridge:ratelimit:concurrent:{job_type}") or 0)


@pytest_asyncio.fixture
async def desk(url: str, store: redis.Redis) -> AsyncIterator[Desk]:
    made = Desk(url, store)
    yield made
    await made.close()


@pytest.fixture
def clock(desk: Desk) -> Clock:
    return desk.clock


class Members:
    """Workers in processes of their own: one each, or a crew."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.all: dict[str, subprocess.Popen[str]] = {}

    def start(
        self,
        name: str,
        able: Any = None,
        concurrency: int = 4,
        lock: str = "1s",
        nap: float = 0.02,
        crew: dict[str, Any] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "tests.broker.bridge.member", self._url]
        self.all[name] = subprocess.Popen(
            [*command, json.dumps(crew or {name: able or {}}), str(concurrency), lock, str(nap)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_ready(self) -> None:
        for member in self.all.values():
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"

    def kill(self, name: str) -> None:
        member = self.all.pop(name)
        member.kill()
        member.wait()

    def close(self) -> None:
        for name in list(self.all):
            self.kill(name)


@pytest.fixture
def members(url: str) -> Iterator[Members]:
    made = Members(url)
    yield made
    made.close()
