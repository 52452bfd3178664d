"""A queue with a clock of the test's own, its jobs, and what the server stores of them."""

from __future__ import annotations

from typing import Any

import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.options import JobOptions

#: Ms of an hour.
LATER = 3_600_000


class Clock:
    """The time, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


class Q:
    """A queue with a clock and tokens of the test's own."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self._tokens = 0
        self.broker = BullMQBroker(Server(url), "q", clock=self.clock, new_token=self._token)

    def _token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    async def add(self, job_id: str, data: Any = None, **options: Any) -> str:
        encoded = self.broker.encode("n", data, JobOptions.build(job_id=job_id, **options))
        (added,) = await self.broker.add([encoded])
        assert added.created
        return job_id

    async def claim(self, count: int = 1, **ask: Any) -> list[ClaimedJob]:
        return (await self.broker.claim(Ask(count, **ask))).jobs

    async def active(self, job_id: str = "a", **options: Any) -> ClaimedJob:
        await self.add(job_id, **options)
        (job,) = await self.claim()
        assert job.id == job_id
        return job

    async def state(self, job_id: str = "a") -> str:
        return (await self.broker.states([job_id]))[0]

    async def end(self, job: ClaimedJob, kind: str = "c", **fields: Any) -> Any:
        codes, _ = await self.broker.finish([self.outcome(job, kind, **fields)])
        return codes[0]

    def outcome(self, job: ClaimedJob, kind: str = "c", **fields: Any) -> Outcome:
        fields = {"value": b"1" if kind == "c" else b"", **fields}
        return Outcome(OutcomeKind(kind), job.id, job.token, job.starts, self.clock(), **fields)


def events_of(store: redis.Redis) -> list[str]:
    entries: Any = store.xrange("bull:q:events")
    return [fields["event"] for _, fields in entries]


async def add(q: Q, *ids: str, **options: Any) -> None:
    jobs = [q.broker.encode("n", None, JobOptions.build(job_id=one, **options)) for one in ids]
    await q.broker.add(jobs)


async def finish(q: Q, *ids: str, kind: str = "c") -> None:
    """Adds and finishes jobs, one ms apart."""
    await add(q, *ids)
    for claimed in (await q.broker.claim(Ask(len(ids)))).jobs:
        q.clock.now += 1
        code = await q.end(claimed, kind)
        assert code == 1


def names(count: int, letter: str = "j") -> list[str]:
    return [f"{letter}{number:03}" for number in range(count)]


def lost(store: redis.Redis, queue: str = "q") -> set[str]:
    """Returns the ids of all stored jobs."""
    keys = {str(key).removeprefix(f"bull:{queue}:") for key in store.scan_iter(f"bull:{queue}:[a-z][0-9]*")}
    return {key for key in keys if ":" not in key}


def scheduled(store: redis.Redis, state: str, at: int) -> str:
    """Makes a job the next run of a scheduler, as peers write one."""
    job_id = f"repeat:daily:{at}"
    store.zadd("bull:q:repeat", {"daily": at})
    fields: dict[Any, Any] = {
        "name": "n",
        "data": "{}",
        "opts": "{}",
        "timestamp": 1,
        "rjk": "daily",
        "priority": 0,
    }
    store.hset(f"bull:q:{job_id}", mapping=fields)
    if state == "delayed":
        store.zadd("bull:q:delayed", {job_id: at * 4096})
    else:
        store.lpush(f"bull:q:{state}", job_id)
    return job_id
