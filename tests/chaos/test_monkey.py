"""Everything at once: workers killed, stopped and disconnected, servers killed and filled, at random.

`OXCART_MONKEY=seed` repeats a run as far as the machine's own timing allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from oxcart import Queue
from oxcart.model.errors import BrokerError
from tests.chaos.fleet import Fleet, Store, WorkerProcess, eventually
from tests.chaos.lengths import FULL
from tests.chaos.proxy import Proxy
from tests.servers import ValkeyServer

SEEDS = [int(os.environ["OXCART_MONKEY"])] if "OXCART_MONKEY" in os.environ else range(10) if FULL else [1]
SECONDS = 60.0 if FULL else 6.0
#: Short also at full length, to have many faults in little time.
LEASE = 1.5


class Monkey:
    """Causes faults and repairs them."""

    def __init__(self, seed: int, server: ValkeyServer, proxy: Proxy, fleet: Fleet) -> None:
        self.dice = random.Random(seed)
        self.done: list[str] = []
        self._server = server
        self._proxy = proxy
        self._fleet = fleet
        self._workers: list[WorkerProcess] = []

    async def hire(self, count: int) -> None:
        for _ in range(count):
            self._workers.append(self._fleet.launch(concurrency=5, lease=LEASE, max_stalled=1000))
        await eventually(lambda: len(self._fleet.facts("ready")) >= count, "the workers are ready")

    async def act(self) -> None:
        """Causes one fault of random length."""
        faults: list[Callable[[], Awaitable[None]]] = [
            self.cut, self.cut, self.cut, self.go_down, self.fall_silent, self.kill_worker, self.stop_worker,
            self.kill_renewer, self.restart_server, self.fill_memory, self.forget_scripts,
        ]  # fmt: skip
        fault = self.dice.choice(faults)
        self.done.append(fault.__name__)
        await fault()

    async def cut(self) -> None:
        self._proxy.cut_all()

    async def go_down(self) -> None:
        await self._proxy.down()
        await asyncio.sleep(self.dice.uniform(0.1, 2 * LEASE))
        await self._proxy.up()

    async def fall_silent(self) -> None:
        self._proxy.hold()
        await asyncio.sleep(self.dice.uniform(0.1, 2 * LEASE))
        self._proxy.release()

    async def kill_worker(self) -> None:
        victim = self._workers.pop(self.dice.randrange(len(self._workers)))
        victim.kill()
        self._workers.append(self._fleet.launch(concurrency=5, lease=LEASE, max_stalled=1000))

    async def stop_worker(self) -> None:
        victim = self.dice.choice(self._workers)
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(self.dice.uniform(0.2, 3 * LEASE))
        victim.signal(signal.SIGCONT)

    async def kill_renewer(self) -> None:
        known = {line["pid"]: line["renewer"] for line in self._fleet.facts("start")}
        renewer = known.get(self.dice.choice(self._workers).pid)
        if renewer is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have died before
                os.kill(renewer, signal.SIGKILL)

    async def restart_server(self) -> None:
        await asyncio.to_thread(self._server.restart, kill=self.dice.random() < 0.5)

    async def fill_memory(self) -> None:
        with self._server.client() as client:
            client.config_set("maxmemory", 1)
            await asyncio.sleep(self.dice.uniform(0.2, LEASE))
            client.config_set("maxmemory", 0)

    async def forget_scripts(self) -> None:
        with self._server.client() as client:
            client.script_flush()


async def _produce(queue: Queue, acknowledged: list[str], unsure: list[str], stop: asyncio.Event) -> None:
    dice = random.Random(7)
    number = 0
    while not stop.is_set():
        number += 1
        delay = dice.choice([0.0, 0.0, 0.0, 0.3])
        name = f"job-{number}"
        data = {"seconds": dice.choice([0.0, 0.0, 0.01, 0.1, 1.0])}
        try:
            await queue.add(
                "nap", data, job_id=name, delay=delay, priority=dice.choice([0, 0, 5]), attempts=1000
            )
        except BrokerError:
            unsure.append(name)
        else:
            acknowledged.append(name)
        await asyncio.sleep(0.02)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_acknowledged_job_is_lost_under_random_faults(seed: int, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    unsure: list[str] = []
    stop = asyncio.Event()
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        async with Proxy(server.port) as proxy:
            with Fleet(proxy.url, "chaos", tmp_path) as fleet:
                with server.client() as client:
                    Store(client, "chaos").keep_events()
                queue = Queue("chaos", url=proxy.url, add_timeout=3)
                monkey = Monkey(seed, server, proxy, fleet)
                await monkey.hire(3)
                producer = asyncio.create_task(_produce(queue, acknowledged, unsure, stop))
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    await monkey.act()
                    await asyncio.sleep(monkey.dice.uniform(0.1, 0.8))
                stop.set()
                await producer
                print(f"seed {seed}: {len(acknowledged)} jobs, {len(unsure)} unsure,", *monkey.done)
                with server.client() as client:
                    store = Store(client, "chaos")
                    await eventually(lambda: set(store.lengths()) <= {"completed"}, "all jobs end", 60)
                    _check(store, fleet, acknowledged, unsure)
                await queue.close()


def _check(store: Store, fleet: Fleet, acknowledged: list[str], unsure: list[str]) -> None:
    completed = set(store.client.zrange(store.prefix + "completed", 0, -1))
    assert set(acknowledged) <= completed, f"lost: {sorted(set(acknowledged) - completed)[:10]}"
    assert completed <= {*acknowledged, *unsure}
    assert set(store.count_events("completed").values()) == {1}, "no job completed twice"
    started = {(line["id"], line["fencing"]) for line in fleet.facts("start")}
    assert len(started) == len(fleet.facts("start")), "no fencing number was given out twice"
    for job_id in completed:
        job = store.job(job_id)
        result = json.loads(job["returnvalue"])
        assert int(job["ats"]) == result["fencing"], f"{job_id}: the result of the last start counts"
    left = list(store.client.scan_iter(store.prefix + "*:lock"))
    assert not left, "no lease is left behind"
