"""Durable steps of workers that are killed between and within them."""

from __future__ import annotations

import signal
from collections import Counter

from oxcart import Queue
from tests.chaos.fleet import Fleet, Store, eventually
from tests.servers import ValkeyServer


async def test_a_lost_worker_repeats_only_the_step_it_was_in(
    server: ValkeyServer, store: Store, fleet: Fleet
) -> None:
    kills = ["behind 1", "behind 2", "within 3"]
    async with Queue("chaos", url=server.url) as queue:
        job = await queue.add("steps", {"kills": kills}, attempts=10)
        await job.signal("go", "early")
        for number in range(len(kills)):
            worker = await fleet.start(max_stalled=10)
            assert await worker.ended() == -signal.SIGKILL
            assert len(fleet.facts("start")) == number + 1
        await fleet.start(max_stalled=10)
        await eventually(lambda: store.lengths() == {"completed": 1}, "the job ended")
        assert await job.result(1) == [1, 4, 9, "early"]
        done = await job.get()
    effects = Counter(line["number"] for line in fleet.facts("effect"))
    assert effects == {1: 1, 2: 1, 3: 2}, "only the step without a record ran twice"
    assert [(step.name, step.start) for step in done.steps] == [
        ("step-1", 1),
        ("step-2", 2),
        ("step-3", 4),
        ("go", 4),
    ]
    assert done.stalled_count == 3
