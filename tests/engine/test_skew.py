"""A worker logs that its machine's clock is wrong: once, and when that changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from oxcart import Queue, Worker
from oxcart.engine.skew import SkewWatch
from tests.signals import eventually

HOUR = 3600


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock of this process so many seconds ahead."""
    true_ns = time.time_ns

    def shift(seconds: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(seconds * 1e9))

    return shift


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, float]]:
    """The warnings of clocks, each with its field."""
    return [
        (record.getMessage().partition(" that of ")[0], record.skew_seconds)
        for record in caplog.records
        if record.levelno == logging.WARNING and hasattr(record, "skew_seconds")
    ]


async def test_a_skew_is_logged_once_and_when_it_changes(
    queue: Queue, set_clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    broker = queue._core.broker
    watch = SkewWatch(broker)
    await watch.tick()
    assert warnings(caplog) == []
    set_clock(HOUR)
    for _ in range(3):
        await watch.tick()
    ((text, seconds),) = warnings(caplog)
    assert text == "the clock of this machine is 3600.0 s ahead of"
    assert abs(seconds - HOUR) < 1
    set_clock(-20)
    for _ in range(3):
        await watch.tick()
    assert [text for text, _ in warnings(caplog)][1:] == ["the clock of this machine is 20.0 s behind"]
    caplog.set_level(logging.INFO, "oxcart.worker")
    set_clock(0)
    for _ in range(3):
        await watch.tick()
    assert len(warnings(caplog)) == 2
    assert [record.getMessage() for record in caplog.records if "in step" in record.getMessage()] == [
        f"the clock of this machine is in step with that of the server {queue._core.server.name}"
    ]


async def test_a_worker_warns_and_its_heartbeat_shows_the_skew(
    queue: Queue, set_clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    set_clock(-HOUR)
    queue.fallback(lambda: None)
    before = await queue._core.broker.now()
    async with Worker(queue, name="late").running():
        await eventually(lambda: warnings(caplog), "the worker warned")
        await eventually(queue.workers.list, "it is registered")
        (record,) = await queue.workers.list()
    assert warnings(caplog)[0][0] == "the clock of this machine is 3600.0 s behind"
    after = await queue._core.broker.now()
    assert before - 1000 < record.started_at <= record.last_seen < after + 1000, "by the server's clock"
    assert record.skew_ms is not None
    assert abs(record.skew_ms + HOUR * 1000) < 1000
