"""Recovery: one stalled check at a time, promotions in between, errors that do not end it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.port import Outage, Recovered
from oxcart.engine.looper import Looper
from oxcart.engine.recovery import PROMOTE, Promotion, SignsOfLife, StalledCheck, outage_of
from oxcart.model.errors import BrokerUnavailable, ScriptError
from tests.signals import eventually


class FakeBroker:
    """A broker of one queue whose replies the test sets."""

    queue = "q"
    next_expiry = 0
    gates = None

    def __init__(self) -> None:
        self.checks = 0
        self.ticks = 0
        self.signs = 0
        self.alive = True
        self.moved: list[int] = []
        self.answer: Callable[[], Any] = lambda: Recovered([], True)
        self.recovered: list[str] = []
        self.skipped = 0
        self.hold: asyncio.Event | None = None

    async def appear(self, outage: Outage) -> bool:
        self.signs += 1
        return self.alive

    async def recover(self, *, max_stalled: int, interval_ms: int, outage: Outage | None) -> Recovered:
        self.checks += 1
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answer()
        if isinstance(answer, BaseException):
            raise answer
        return cast(Recovered, answer)

    async def promote(self, most: int = 250) -> tuple[int, int]:
        self.ticks += 1
        return (self.moved.pop(0) if self.moved else 0), 0

    def skip(self) -> None:
        self.skipped += 1


Start = Callable[..., FakeBroker]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    tasks: list[asyncio.Task[None]] = []

    def make(fake: FakeBroker | None = None, *, tick: float = 0.005, **options: Any) -> FakeBroker:
        kept = fake or FakeBroker()
        broker = cast(BullMQBroker, kept)
        options = {"interval": 0.01, "max_stalled": 1, **options}
        check = StalledCheck(broker, recovered=kept.recovered.extend, skipped=kept.skip, **options)
        loops: list[Looper] = [check, Promotion(broker, interval=tick)]
        if (outage := options.get("outage")) is not None:
            loops.append(SignsOfLife(broker, outage, check))
        tasks.extend(asyncio.create_task(one.run()) for one in loops)
        return kept

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_checks_at_once_and_then_every_interval(start: Start) -> None:
    fake = start()
    await eventually(lambda: fake.checks >= 3, "three checks")


async def test_a_long_interval_still_ticks(start: Start) -> None:
    fake = start(interval=60)
    await eventually(lambda: fake.ticks >= 3, "three ticks")
    assert fake.checks == 1


async def test_many_due_jobs_are_promoted_without_waiting_for_the_next_tick(start: Start) -> None:
    fake = FakeBroker()
    fake.moved = [PROMOTE, PROMOTE, 7]
    start(fake, interval=60, tick=60)
    await eventually(lambda: fake.ticks == 3, "all of them")


async def test_a_check_that_is_still_running_makes_the_next_one_be_skipped(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeBroker()
    fake.hold = asyncio.Event()
    start(fake)
    await eventually(lambda: fake.skipped >= 2, "skipped")
    assert fake.checks == 1
    assert "stalled check skipped, the last one is still running" in caplog.text
    fake.hold.set()
    await eventually(lambda: fake.checks >= 2, "goes on")


async def test_recovered_jobs_are_reported(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeBroker()
    fake.answer = lambda: Recovered(["a", "b"], True)
    start(fake)
    await eventually(lambda: fake.recovered[:2] == ["a", "b"], "the recovered jobs are reported")
    assert "recovered 2 stalled jobs" in caplog.text


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), ScriptError("no")])
async def test_an_error_of_the_server_does_not_end_it(start: Start, error: Exception) -> None:
    fake = FakeBroker()
    fake.answer = lambda: error
    start(fake)
    await eventually(lambda: fake.checks >= 3, "still checks")
    assert fake.recovered == []


async def test_another_workers_check_is_waited_for_not_the_whole_interval(start: Start) -> None:
    fake = FakeBroker()
    fake.answer = lambda: Recovered([], False, 10)
    start(fake, interval=60)
    await eventually(lambda: fake.checks >= 2, "asked again when the other's time is up")


async def test_a_guard_at_its_end_is_looked_at_again_at_once_in_every_cycle() -> None:
    """Only a guard that has expired twice in a row is left until the next tick."""
    fake = FakeBroker()
    met = [Recovered([], False, 0), Recovered([], True), Recovered([], False, 0)]
    fake.answer = lambda: met.pop(0)
    check = StalledCheck(
        cast(BullMQBroker, fake), interval=60, max_stalled=1, recovered=fake.recovered.extend
    )
    soon, whole, soon_again = await check.tick(), await check.tick(), await check.tick()
    assert soon is not None
    assert soon < 1
    assert (whole, soon_again) == (None, soon)


async def test_heartbeats_come_several_times_within_the_silence(start: Start) -> None:
    fake = start(interval=60, tick=60, outage=Outage(30, 1000))
    await eventually(lambda: fake.signs >= 3, "three signs")
    assert fake.checks == 1


async def test_an_expired_heartbeat_makes_a_check_due(start: Start) -> None:
    fake = FakeBroker()
    fake.alive = False
    start(fake, interval=60, outage=Outage(30, 1000))
    await eventually(lambda: fake.checks >= 3, "checks before their time")


async def test_after_an_outage_the_next_check_comes_when_the_grace_is_over(start: Start) -> None:
    fake = FakeBroker()
    fake.answer = lambda: Recovered([], True, 10)
    start(fake, interval=60)
    await eventually(lambda: fake.checks >= 3, "checks before the interval is over")


@pytest.mark.parametrize(("lock_ms", "every"), [(30_000, 15.0), (8_000, 4.0), (30_000, 25.0)])
def test_an_outage_is_noticed_before_a_lease_can_run_out_in_it(lock_ms: int, every: float) -> None:
    outage = outage_of(lock_ms, every)
    assert outage.silence_ms < lock_ms - every * 1000
    assert outage.grace_ms > every * 1000


async def test_a_guard_without_an_end_is_not_polled_continuously() -> None:
    class Guarded:
        queue = "q"
        gates = None
        next_expiry = 0
        asked = 0

        async def recover(self, **_: Any) -> Recovered:
            self.asked += 1
            return Recovered([], False, 0)

        async def promote(self, most: int) -> tuple[int, int]:
            return 0, 0

    broker: Any = Guarded()
    check = StalledCheck(broker, interval=30, max_stalled=1, recovered=lambda _: None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await check.run()
    assert broker.asked <= 2
