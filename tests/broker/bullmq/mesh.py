"""A queue with lanes, for the tests of lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Claimed, ClaimedJob, Outcome, OutcomeKind
from oxcart.model.options import JobOptions
from tests.broker.bullmq.making import Q

GPU, EU, BIG = "all;c=gpu", "all;r=eu", "all;c=big"


class Mesh(Q):
    """A queue and its lanes."""

    async def put(self, lane: str, *ids: str, **options: Any) -> list[bool]:
        broker = self.at(lane)
        jobs = [broker.encode("n", None, JobOptions.build(job_id=job_id, **options)) for job_id in ids]
        return [added.created for added in await broker.add(jobs)]

    def at(self, lane: str) -> BullMQBroker:
        return self.broker if lane == "base" else self.broker.lanes.open(lane)

    async def choose(self, count: int, *lanes: str, own: str = "base", **ask: Any) -> Claimed:
        return await self.at(own).claim(Ask(count, lanes=lanes, **ask))

    async def finish(self, lane: str, jobs: list[ClaimedJob], count: int = 0, *lanes: str) -> Claimed:
        outcomes = [
            Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, self.clock(), b"1") for job in jobs
        ]
        codes, claimed = await self.at(lane).finish(outcomes, Ask(count, lanes=lanes))
        assert codes == [1] * len(jobs)
        return claimed


def server_ms(store: redis.Redis) -> int:
    seconds, micros = store.time()
    return int(seconds) * 1000 + int(micros) // 1000


def age_lanes(store: redis.Redis) -> None:
    """Ages all lanes and ends the guard of the last tick."""
    old = server_ms(store) - 100_000
    for place, lane in enumerate(store.zrange("bull:q:ox:lanes", 0, -1)):
        store.zadd("bull:q:ox:lanes", {str(lane): old + place})
    store.delete("bull:q:ox:lanes:tended")


def ids(claimed: Claimed) -> list[str]:
    return [job.id for job in claimed.jobs]


@pytest_asyncio.fixture
async def q(url: str) -> AsyncIterator[Mesh]:
    made = Mesh(url)
    yield made
    await made.broker.close()
