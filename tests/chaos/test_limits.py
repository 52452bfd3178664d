"""Limits per type and key while workers are killed: never a lease too many, and a right count.

`make limits-chaos` does it at full length: 10 000 keys and 20 000 jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest

from oxcart import Queue
from tests.chaos.fleet import Fleet, Store, eventually
from tests.chaos.lengths import LEASE, LIMIT
from tests.servers import ValkeyServer

JOBS = int(os.environ.get("OXCART_LIMIT_JOBS", "600"))
KEYS = int(os.environ.get("OXCART_LIMIT_KEYS", "40"))
WORKERS = 4
ROUNDS = max(2, JOBS // 300)

#: Counts live leases by type and by key in one atomic script.
LOOK = """
local prefix, found = KEYS[1], {}
for _, id in ipairs(redis.call('LRANGE', prefix .. 'active', 0, -1)) do
  if redis.call('EXISTS', prefix .. id .. ':lock') == 1 then
    local job = redis.call('HMGET', prefix .. id, 'name', 'ox:limit', 'ox:group')
    found['t:' .. job[1]] = (found['t:' .. job[1]] or 0) + 1
    if job[3] then found['g:' .. job[3]] = (found['g:' .. job[3]] or 0) + 1 end
    if job[2] then found['k:' .. job[2]] = (found['k:' .. job[2]] or 0) + 1 end
  end
end
return cjson.encode(found)
"""


class Watch:
    """Counts live leases continuously in a thread and keeps the maximum of each kind."""

    def __init__(self, server: ValkeyServer, prefix: str) -> None:
        self._client: Any = server.client()
        self._prefix = prefix
        self._stop = threading.Event()
        self.most: Counter[str] = Counter()
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> dict[str, int]:
        found = json.loads(self._client.eval(LOOK, 1, self._prefix))
        return found if isinstance(found, dict) else {}

    def _run(self) -> None:
        while not self._stop.is_set():
            for bucket, count in self.look().items():
                self.most[bucket] = max(self.most[bucket], count)
            self.looks += 1
            time.sleep(0.003)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._client.close()


def _held(store: Store) -> Counter[str]:
    """Returns the jobs that hold places, as the queue counts them."""
    return Counter(
        member.partition("\n")[0] for member in store.client.zrange(store.prefix + "ox:held", 0, -1)
    )


@pytest.mark.timeout(180 + JOBS / 20)
async def test_limits_hold_while_workers_are_killed(server: ValkeyServer, fleet: Fleet, store: Store) -> None:
    rand = random.Random(6)
    async with Queue("chaos", url=server.url) as queue:
        await queue.limits.set_type_limit("nap", concurrent=7)
        await queue.limits.set_key_limit(concurrent=2)
        watch = Watch(server, store.prefix)
        crew = [await fleet.start(concurrency=10, max_stalled=1000) for _ in range(WORKERS)]
        rows: list[Any] = []
        for n in range(JOBS):
            name = "nap" if n % 3 else "thread"
            options = {"limit_key": f"tenant-{rand.randrange(KEYS)}", "priority": n % 3, "attempts": 1000}
            rows.append((name, {"seconds": rand.uniform(0.001, 0.02)}, options))
        await queue.add_many(rows)
        try:
            for number in range(ROUNDS):
                done = JOBS * number // ROUNDS
                while store.client.zcard(store.prefix + "completed") < done:
                    await asyncio.sleep(0.02)
                for worker in crew[::2]:  # half of them
                    worker.signal(signal.SIGKILL)
                crew[::2] = [await fleet.start(concurrency=10, max_stalled=1000) for _ in crew[::2]]
            counts: dict[str, int] = {}
            end = time.monotonic() + LIMIT + 20 * LEASE + JOBS / 50
            while counts != {"completed": JOBS} and time.monotonic() < end:
                await asyncio.sleep(0.1)
                counts = {state: count for state, count in (await queue.counts()).items() if count}
            assert counts == {"completed": JOBS}
        finally:
            watch.stop()
        assert watch.looks > 100
        assert watch.most["t:nap"] <= 7
        over = {bucket: most for bucket, most in watch.most.items() if bucket[0] == "k" and most > 2}
        assert not over
        assert watch.most["t:nap"] >= 6, "the limit was reached"
        assert _held(store) == {}
        assert not store.client.exists(store.prefix + "ox:parked", store.prefix + "ox:opening")


@pytest.mark.timeout(240)
async def test_limits_of_groups_hold_while_workers_are_killed(
    server: ValkeyServer, fleet: Fleet, store: Store
) -> None:
    """Half of the workers die twice; groups never run too many jobs, and every job runs in the end."""
    jobs, groups = 240, 12
    async with Queue("chaos", url=server.url) as queue:
        await queue.groups.set_all(concurrent=2)
        watch = Watch(server, store.prefix)
        crew = [await fleet.start(concurrency=10, max_stalled=1000) for _ in range(2)]
        rows: list[Any] = [
            ("nap", {"seconds": 0.02}, {"group": f"tenant-{n % groups}", "attempts": 1000})
            for n in range(jobs)
        ]
        await queue.add_many(rows)
        try:
            for number in (1, 2):
                while store.client.zcard(store.prefix + "completed") < jobs * number // 4:
                    await asyncio.sleep(0.02)
                crew[0].signal(signal.SIGKILL)
                crew[0] = await fleet.start(concurrency=10, max_stalled=1000)
            await eventually(
                lambda: store.client.zcard(store.prefix + "completed") == jobs, "all jobs ran", 120
            )
        finally:
            watch.stop()
        assert watch.looks > 10
        assert {bucket: most for bucket, most in watch.most.items() if bucket[0] == "g" and most > 2} == {}
        assert watch.most["g:tenant-0"] >= 1
        assert _held(store) == {}
        assert not store.client.exists(store.prefix + "ox:parked")


async def test_the_count_is_right_after_half_the_workers_were_killed(
    server: ValkeyServer, fleet: Fleet, store: Store
) -> None:
    async with Queue("chaos", url=server.url) as queue:
        await queue.limits.set_type_limit("nap", concurrent=8)
        # More slots than the limit needs: a run that lost its lease on a busy machine still fills a slot.
        crew = [await fleet.start(concurrency=20, max_stalled=1000) for _ in range(4)]
        watch = Watch(server, store.prefix)
        try:
            await queue.add_many([("nap", {"seconds": 600}) for _ in range(30)])
            await eventually(lambda: len(fleet.starts()) == 8, "the limit is reached")
            dead = crew[::2]
            for worker in dead:
                worker.signal(signal.SIGKILL)
                await worker.ended()
            lost = {line["id"] for worker in dead for line in fleet.of(worker, "start")}
            living = [worker for worker in crew if worker not in dead]
            await eventually(
                lambda: lost <= {line["id"] for worker in living for line in fleet.of(worker, "start")},
                "other workers have recovered the jobs of the dead ones",
                LIMIT + 4 * LEASE,
            )
            await eventually(lambda: watch.look() == {"t:nap": 8}, "all places are taken again")
            assert _held(store) == {"t:nap": 8}
            assert (await queue.limits.type_usage("nap")).held_back == 22
        finally:
            watch.stop()
        assert watch.most["t:nap"] <= 8
