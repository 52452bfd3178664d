"""The fleet of worker processes, on its own."""

from __future__ import annotations

import asyncio

from oxcart.cli.fleet import Fleet
from oxcart.cli.runner import Plan


async def test_a_stop_while_its_processes_start_is_an_orderly_end() -> None:
    """A process that does not yet listen to signals dies of the one it is sent; it held nothing."""
    started: list[int] = []

    def stop(index: int, pid: int) -> None:
        started.append(pid)
        if len(started) == 2:
            fleet.stop()

    fleet = Fleet(Plan(targets=["app:mail"]), 2, started=stop)
    assert await asyncio.wait_for(fleet.run(), 30) == 0
    assert fleet.pids == {}
