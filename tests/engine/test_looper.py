"""The skeleton of maintenance loops: its pace, its errors, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from oxcart.engine.looper import Looper
from oxcart.model.errors import BrokerUnavailable
from tests.signals import eventually


class Concern(Looper):
    """A loop whose ticks the test decides on."""

    name = "a concern"

    def __init__(self, answer: Callable[[int], float | None], interval: float = 60.0) -> None:
        super().__init__("q")
        self.interval = interval
        self.answer = answer
        self.ticks = 0
        self.closed = False

    async def tick(self) -> float | None:
        self.ticks += 1
        return self.answer(self.ticks)

    async def close(self) -> None:
        self.closed = True


def away(_: int) -> float | None:
    raise BrokerUnavailable("gone")


Start = Callable[[Concern], Concern]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    tasks: list[asyncio.Task[None]] = []

    def begin(concern: Concern) -> Concern:
        tasks.append(asyncio.create_task(concern.run()))
        return concern

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_ticks_at_once_and_then_every_interval(start: Start) -> None:
    concern = start(Concern(lambda _: None, interval=0.005))
    await eventually(lambda: concern.ticks >= 3, "three ticks")


async def test_waits_for_its_delay_first(start: Start) -> None:
    concern = Concern(lambda _: None)
    concern.delay = 60.0
    start(concern)
    await asyncio.sleep(0)
    assert not concern.begun.is_set()
    concern.soon()
    await concern.begun.wait()


async def test_a_tick_may_ask_for_an_earlier_next_one(start: Start) -> None:
    concern = start(Concern(lambda tick: 0.001 if tick < 3 else None))
    await eventually(lambda: concern.ticks == 3, "three ticks")


async def test_soon_makes_the_next_tick_due(start: Start) -> None:
    concern = start(Concern(lambda _: None))
    await concern.begun.wait()
    concern.soon()
    await eventually(lambda: concern.ticks == 2, "the second tick")


async def test_soon_during_a_tick_is_not_lost(start: Start) -> None:
    concern = Concern(lambda tick: concern.soon() if tick == 1 else None)
    start(concern)
    await eventually(lambda: concern.ticks == 2, "the second tick")


async def test_the_first_of_several_errors_is_logged_with_the_time_of_the_next_attempt(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    concern = start(Concern(away, interval=0.005))
    await eventually(lambda: concern.ticks >= 3, "still ticks")
    assert caplog.messages == ["queue q: a concern failed, retrying in 0.005 s: gone"]


async def test_an_unexpected_error_is_logged_with_its_traceback_and_does_not_end_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: int) -> float | None:
        raise ZeroDivisionError("no number")

    concern = start(Concern(broken, interval=0.005))
    await eventually(lambda: concern.ticks >= 3, "still ticks")
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.getMessage() == "queue q: a concern failed, retrying in 0.005 s: no number"


async def test_it_closes_what_it_holds_when_it_is_cancelled() -> None:
    concern = Concern(lambda _: None)
    task = asyncio.create_task(concern.run())
    await concern.begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert concern.closed
