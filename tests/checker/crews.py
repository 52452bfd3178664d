"""The worker processes of a run, and the ways to harm them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.checker import lake
from tests.checker.plan import SHARED, SHARED_PARTITION, Plan
from tests.nodes import NODE_FOLDER, installed

ROOT = Path(__file__).parents[2]
#: Lease, interval of the stalled check, and how often a job may stall, for all workers.
LEASE, CHECK, STALLS = 2_000, 1_000, 100_000
#: Seconds by which clocks of our workers are wrong.
SKEWS = (0.0, -3600.0, 3600.0, 40.0)
#: The name of the process that follows the streams for the pipeline.
TAILER = "tailer-1"


class Crews:
    """Starts the workers of a plan, and ends them with the run.

    Args:
        plan: Whose peers work too.
        folder: Where logs are.
        diary: The file for their records.
        ours: The server's address for our workers.
        theirs: The same for Node's.
        has_tailer: Whether the pipeline's tailer follows the streams meanwhile.
    """

    def __init__(
        self, plan: Plan, folder: Path, diary: Path, ours: str, theirs: str, *, has_tailer: bool = False
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._diary = diary
        self._urls = {"oxcart": ours, "tailer": ours, "node5": theirs, "node6": theirs}
        self._dice = random.Random(f"crews {plan.seed}")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        tailers = (TAILER,) if has_tailer else ()
        self.names = ("oxcart-1", "oxcart-2", *(f"{peer}-1" for peer in plan.peers), *tailers)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Starts all workers, waits until they are ready, and ends them after the block."""
        try:
            waits = [self.start(name) for name in self.names]
            for wait in waits:  # in a thread: they connect through proxies of this event loop
                await asyncio.to_thread(wait)
            yield
        finally:
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # also a stopped one
            for process in self._running.values():
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def start(self, name: str) -> Callable[[], None]:
        """Starts a worker. Returns a function that waits until it is ready."""
        side = name.partition("-")[0]
        settings: dict[str, Any] = {
            "url": self._urls[side],
            "side": side,
            "name": name,
            "diary": str(self._diary),
            "lock": LEASE,
            "check": CHECK,
            "stalls": STALLS,
        }
        if side == "oxcart":
            settings["skew"] = self._dice.choice(SKEWS)
            command = [sys.executable, "-m", "tests.checker.program", json.dumps(settings)]
        elif side == "tailer":
            # The server's address is in a variable of the environment, as users pass it.
            command = lake.command(self._folder, "tail", *lake.chosen())
        else:
            more = {"queues": [*SHARED, SHARED_PARTITION], "concurrency": 4, "fenced": True}
            settings |= {**more, "folder": str(installed(f"v{side.removeprefix('node')}"))}
            command = ["node", str(NODE_FOLDER / "crew.js"), json.dumps(settings)]
        self._started += 1
        path = self._folder / f"{name}.{self._started}.log"
        with path.open("wb") as log:
            environ = {**os.environ, "OXCART_URL": self._urls[side], "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._running[name] = process

        def ready(limit: float = 120.0) -> None:
            end = time.monotonic() + limit
            sign = "following into" if side == "tailer" else "ready"
            while sign not in path.read_text(errors="replace"):
                gone = process.poll() is not None
                assert not gone, f"{name} ended by itself:\n{path.read_text()[-3000:]}"
                assert time.monotonic() < end, f"{name} is not ready within {limit:g} s"
                time.sleep(0.02)

        return ready

    def kill(self, name: str) -> Callable[[], None]:
        """Kills a worker and starts another in its place."""
        process = self._running[name]
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return self.start(name)

    def stop(self, name: str) -> None:
        """Stops a worker as it is: its connections stay open, and it does nothing."""
        os.kill(self._running[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Continues a stopped worker."""
        os.kill(self._running[name].pid, signal.SIGCONT)

    def died(self) -> list[str]:
        """The workers that ended by themselves."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )
