"""A wake-up that comes while a claim is under way must not be lost to that claim's empty answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Ask, Claimed
from oxcart.engine.claims import Claims
from oxcart.engine.station import Station

LIMIT = 30.0


class SlowBroker:
    """Answers each claim when the test releases it."""

    queue = "q"

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[Claimed]] = asyncio.Queue()

    async def claim(self, ask: Ask) -> Claimed:
        answer: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        return await answer


def claims_on(broker: SlowBroker, starved: asyncio.Event, **more: Any) -> Claims:
    return Claims(
        [Station(0, cast(BullMQBroker, broker))],
        1,
        Ask(),
        load=lambda: 0,
        arrived=lambda station, claimed, began: None,
        leaving=lambda station, ids: None,
        left=lambda station, ids: None,
        ended=lambda station, job, outcome, code: None,
        starved=starved.set,
        clock=lambda: 0,
        broken=lambda error: None,
        **more,
    )


async def test_reply_sent_before_a_wake_does_not_end_claiming() -> None:
    broker, starved = SlowBroker(), asyncio.Event()
    claims = claims_on(broker, starved)
    async with asyncio.timeout(LIMIT):
        claims.wake(None)
        first = await broker.asked.get()
        claims.wake(0)  # a marker: work that came after the first claim was sent
        first.set_result(Claimed([]))
        second = await broker.asked.get()
        assert not starved.is_set()
        second.set_result(Claimed([]))
        await starved.wait()
    await claims.close()


async def test_empty_reply_ends_claiming() -> None:
    broker, starved = SlowBroker(), asyncio.Event()
    claims = claims_on(broker, starved)
    async with asyncio.timeout(LIMIT):
        claims.wake(None)
        (await broker.asked.get()).set_result(Claimed([]))
        await starved.wait()
    assert broker.asked.empty()
    await claims.close()
