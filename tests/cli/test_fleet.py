"""The supervisor of worker processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from oxcart.cli.fleet import Fleet
from oxcart.cli.runner import Plan


async def test_a_stop_while_its_processes_start_is_an_orderly_end(tmp_path: Path) -> None:
    """A process that does not handle signals yet dies of the first one; it held no job."""
    started: list[int] = []
    # Python blocks here, however late the stop comes.
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(600)")

    def stop(index: int, pid: int) -> None:
        started.append(pid)
        if len(started) == 2:
            fleet.stop()

    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    fleet = Fleet(Plan(targets=["app:mail"]), 2, environ=environ, started=stop)
    async with asyncio.timeout(60):
        assert await fleet.run() == 0
    assert fleet.pids == {}
