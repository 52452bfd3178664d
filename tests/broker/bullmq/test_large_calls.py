"""Calls with more jobs than Lua can unpack: each is split or refused, and no job is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.broker.port import Ask, Outcome, OutcomeKind
from oxcart.model.errors import ScriptError
from oxcart.model.options import JobOptions
from oxcart.model.retention import Retention


@pytest_asyncio.fixture
async def broker(url: str) -> AsyncIterator[BullMQBroker]:
    made = BullMQBroker(Server(url), "q")
    yield made
    await made.close()


async def fill(broker: BullMQBroker, count: int, **options: object) -> list[str]:
    jobs = [broker.encode("n", {}, JobOptions(**options)) for _ in range(count)]  # type: ignore[arg-type]
    return [added.id for added in await broker.add(jobs)]


class TestLargeCalls:
    async def test_a_claim_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 8500)
        claimed = await broker.claim(Ask(count=8500))
        assert claimed.jobs
        assert store.llen("bull:q:active") == len(claimed.jobs)
        assert store.llen("bull:q:active") + store.llen("bull:q:wait") == 8500

    async def test_a_claim_by_priority_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 8500, priority=1)
        claimed = await broker.claim(Ask(count=8500))
        assert store.llen("bull:q:active") == len(claimed.jobs) > 0
        assert store.llen("bull:q:active") + store.zcard("bull:q:prioritized") == 8500

    async def test_a_finish_of_more_than_lua_can_unpack_loses_nothing(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 4500)
        outcomes: list[Outcome] = []
        while len(outcomes) < 4500:
            claimed = await broker.claim(Ask(count=900))
            outcomes += [
                Outcome(OutcomeKind.COMPLETED, job.id, job.token, job.starts, 1, b"1") for job in claimed.jobs
            ]
        with pytest.raises(ScriptError, match="at most 1000"):
            await broker.finish(outcomes)
        assert store.llen("bull:q:active") == 4500
        assert len(store.keys("bull:q:*:lock")) == 4500

    async def test_a_claim_passes_a_bounded_number_of_ids_without_a_job(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        await fill(broker, 1)
        for start in range(0, 20_000, 5000):
            store.rpush("bull:q:wait", *[f"gone-{n}" for n in range(start, start + 5000)])
        store.delete("bull:q:marker")
        claimed = await broker.claim(Ask(count=1))
        assert len(claimed.orphans) <= 2000
        assert store.zscore("bull:q:marker", "0") == 0, "the rest needs another claim"
        for _ in range(30):
            if claimed.jobs:
                return
            claimed = await broker.claim(Ask(count=1))
        pytest.fail("the job behind them was never reached")

    async def test_a_peers_senseless_limit_of_removals_is_no_limit_at_all(
        self, broker: BullMQBroker, store: redis.Redis
    ) -> None:
        store.zadd("bull:q:completed", {f"old-{n}": 1 for n in range(9000)})
        await fill(broker, 1)
        (job,) = (await broker.claim(Ask(count=1))).jobs
        codes, _ = await broker.finish(
            [
                Outcome(
                    OutcomeKind.COMPLETED,
                    job.id,
                    job.token,
                    job.starts,
                    10**12,
                    b"1",
                    retention=Retention(age=1, limit=-1),
                )
            ]
        )
        assert codes == [1]
        assert store.zcard("bull:q:completed") == 8001
