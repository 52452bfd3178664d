"""A killed worker's handler processes end with it, because their jobs will run elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.signals import eventually

WORKER = """
import asyncio, sys
from oxcart.engine.processes import HandlerProcesses
from tests.engine import process_handlers as handlers
from tests.engine.making import make_handler, make_job

async def main():
    handler = make_handler(handlers.hang, run="process")
    await HandlerProcesses().run(make_job(handler=handler), handler, {"file": sys.argv[1]})

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_killed_worker_leaves_no_handler_behind(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(file)])
    try:
        await eventually(file.exists, "the handler runs")
        pids = [int(pid) for pid in file.read_text().split()]
        os.kill(worker.pid, signal.SIGKILL)
        await eventually(lambda: not any(map(alive, pids)), "the handler and what it started are gone")
    finally:
        worker.kill()
        worker.wait()
