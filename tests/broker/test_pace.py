"""An operation on many jobs keeps to its rate, whatever its steps."""

from __future__ import annotations

import asyncio

import pytest

from oxcart.broker.pace import Pace


@pytest.mark.parametrize(
    ("rate", "step", "most"),
    [(None, 25, 25), (2, 25, 2), (2.9, 25, 2), (0.1, 25, 1), (100, 25, 25), (2, 0, 0), (None, -1, -1)],
)
async def test_a_step_takes_at_most_the_jobs_of_a_second(rate: float | None, step: int, most: int) -> None:
    assert Pace(rate).most(step) == most


async def test_it_waits_until_so_many_jobs_keep_to_the_rate() -> None:
    loop = asyncio.get_running_loop()
    pace, began = Pace(100), loop.time()
    await pace.wait(3)
    assert loop.time() >= began + 0.03


async def test_it_does_not_wait_without_a_rate() -> None:
    waiting = asyncio.ensure_future(Pace(None).wait(10**9))
    await asyncio.sleep(0)
    assert waiting.done()
