"""The nemesis: a schedule of faults that a seed determines, and their execution."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.proxy import Call, Proxy
from tests.checker.clock import Clock
from tests.checker.crews import LEASE, TAILER, Crews
from tests.checker.disk import Disk
from tests.checker.pair import Pair
from tests.checker.record import Record
from tests.servers import ValkeyServer

#: Every kind of fault, and whether peers survive it. A full server makes a script of BullMQ stop half way,
#: peers judge by clocks of their own what is due, and their adds wait for no replica.
KINDS = {
    "kill": True,
    "stop": True,
    "cut": True,
    "down": True,
    "hold": True,
    "delay": True,
    "drop": True,
    "restart": True,
    "crash": True,
    "freeze": True,
    "flush": True,
    "disk": True,
    "failover": False,
    "fill": False,
    "step": False,
}
#: Seconds by which a step sets the server's clock ahead of the true time, or behind it.
STEP = 20.0
#: Seconds of a run per fault.
PACE = 1.6
_SIDES = ("ours", "theirs")
#: Kinds that harm a worker, connections, or the server.
_OF_WORKERS, _OF_CONNECTIONS = ("kill", "stop"), ("cut", "down", "hold", "delay", "drop")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at: Seconds after the start of the run.
        kind: One of `KINDS`.
        target: The worker, the side whose connections are broken, or the server.
        seconds: How long it lasts; for a step, by how much the server's clock is wrong afterwards.
        count: How many replies are dropped.
    """

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        word = "by" if self.kind == "step" else "for"
        lasting = f" {word} {self.seconds:.2f} s" if self.seconds else ""
        return (
            f"{self.at:6.2f} s  {self.kind} {self.target}{f' {self.count} times' if self.count else lasting}"
        )


def make_faults(
    seed: int,
    seconds: float,
    peers: Sequence[str],
    *,
    has_tailer: bool = False,
    can_step: bool = True,
    has_disk: bool = True,
    has_replica: bool = True,
) -> list[Fault]:
    """Plans the faults of a run.

    Args:
        seed: Determines them.
        seconds: How long the run adds jobs.
        peers: Which of Node's take part.
        has_tailer: Whether the pipeline's tailer takes part.
        can_step: Whether the server's clock can be set.
        has_disk: Whether the server has a disk that can be filled.
        has_replica: Whether the server has a replica.
    """
    dice = random.Random(f"nemesis {seed}")
    kinds = [kind for kind, survived in KINDS.items() if survived or not peers]
    unable = {"step": not can_step, "disk": not has_disk, "failover": not has_replica}
    kinds = [kind for kind in kinds if not unable.get(kind)]
    workers = ["oxcart-1", "oxcart-2", *(f"{peer}-1" for peer in peers), *([TAILER] if has_tailer else [])]
    lease = LEASE / 1000
    made, at, bag = [], 0.5, list[str]()
    while at < seconds:
        if not bag:  # every kind comes before one comes again
            bag = dice.sample(kinds, len(kinds))
            bag += dice.sample(_OF_WORKERS, 2)
        kind = bag.pop()
        target = "server"
        if kind in _OF_WORKERS:
            target = dice.choice(workers)
        elif kind in _OF_CONNECTIONS:
            target = dice.choice(_SIDES if peers else _SIDES[:1])
        count = dice.randint(1, 8) if kind == "drop" else 0
        longest = 2 * lease if kind == "stop" else lease
        lasts = kind not in ("kill", "cut", "drop", "restart", "crash", "flush")
        amount = dice.uniform(0.2, longest) if lasts else 0.0
        if kind == "step":
            amount = dice.uniform(-STEP, STEP)
        made.append(Fault(round(at, 2), kind, target, round(amount, 2), count))
        at += dice.uniform(0.5 * PACE, 1.5 * PACE)
    return made


def dump(faults: Sequence[Fault]) -> str:
    """Returns faults as JSON, for `--faults`."""
    return json.dumps([asdict(one) for one in faults])


def read(text: str) -> list[Fault]:
    """The reverse of `dump`."""
    return [Fault(**one) for one in json.loads(text)]


def fails_over(seed: int) -> bool:
    """Whether a round may fail over: every second one, because attempts are judged in the others alone."""
    return seed % 2 == 0


class Nemesis:
    """Causes faults and repairs them.

    Args:
        pair: The server, and its replica.
        proxies: The proxies of both sides.
        crews: The workers.
        record: Faults are written to it.
        clock: The clock of the servers.
        disks: The disks of servers that have one of their own, by folder.
    """

    def __init__(
        self,
        pair: Pair,
        proxies: dict[str, Proxy],
        crews: Crews,
        record: Record,
        clock: Clock,
        disks: Mapping[Path, Disk] | None = None,
    ) -> None:
        self._pair = pair
        self._clock = clock
        self._disks = disks or {}
        self._proxies = proxies
        self._crews = crews
        self._record = record

    @property
    def _server(self) -> ValkeyServer:
        return self._pair.master

    async def run(self, faults: Sequence[Fault]) -> None:
        """Causes each fault at its time, or when the one before is repaired. Afterwards all is repaired."""
        began = time.monotonic()
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            self._record.write("fault", step=fault.kind, row=fault.target)
            await getattr(self, f"_{fault.kind}")(fault)
            self._record.write("repaired", step=fault.kind, row=fault.target)
        for proxy in self._proxies.values():
            proxy.cut_if(None)

    async def _kill(self, fault: Fault) -> None:
        ready = await asyncio.to_thread(self._crews.kill, fault.target)
        await asyncio.to_thread(ready)

    async def _stop(self, fault: Fault) -> None:
        self._crews.stop(fault.target)
        await asyncio.sleep(fault.seconds)
        self._crews.go_on(fault.target)

    async def _cut(self, fault: Fault) -> None:
        self._proxies[fault.target].cut_all()

    async def _down(self, fault: Fault) -> None:
        proxy = self._proxies[fault.target]
        await proxy.down()
        await asyncio.sleep(fault.seconds)
        await proxy.up()

    async def _hold(self, fault: Fault) -> None:
        proxy = self._proxies[fault.target]
        proxy.hold()
        await asyncio.sleep(fault.seconds)
        proxy.release()

    async def _delay(self, fault: Fault) -> None:
        proxy = self._proxies[fault.target]
        proxy.delay = 0.05
        await asyncio.sleep(fault.seconds)
        proxy.delay = 0.0

    async def _drop(self, fault: Fault) -> None:
        left = fault.count

        def is_due(call: Call) -> bool:
            nonlocal left
            if left == 0 or bytes(call.args[0]).upper() not in (b"EVALSHA", b"EVAL"):
                return False
            left -= 1
            return True

        self._proxies[fault.target].cut_if(is_due)

    async def _restart(self, fault: Fault) -> None:
        await asyncio.to_thread(self._server.restart)

    async def _crash(self, fault: Fault) -> None:
        await asyncio.to_thread(self._server.restart, kill=True)

    async def _freeze(self, fault: Fault) -> None:
        self._server.freeze()
        await asyncio.sleep(fault.seconds)
        self._server.thaw()

    async def _flush(self, fault: Fault) -> None:
        with self._server.client() as client:
            client.script_flush()

    async def _fill(self, fault: Fault) -> None:
        with self._server.client() as client:
            client.config_set("maxmemory", 1)
            await asyncio.sleep(fault.seconds)
            client.config_set("maxmemory", 0)

    async def _disk(self, fault: Fault) -> None:
        disk = self._disks[self._server.folder]  # that of the present master
        try:
            await asyncio.to_thread(disk.fill)
            # The server ends at the first write that it cannot sync.
            await asyncio.sleep(fault.seconds)
        finally:
            disk.free()
        await asyncio.to_thread(self._pair.start)

    async def _failover(self, fault: Fault) -> None:
        await asyncio.to_thread(self._pair.fail_over)
        for proxy in self._proxies.values():
            proxy.lead_to(self._pair.master.port)
        await asyncio.sleep(fault.seconds)  # without a replica, no add is confirmed
        await asyncio.to_thread(self._pair.rejoin)

    async def _step(self, fault: Fault) -> None:
        self._clock.set(fault.seconds)
