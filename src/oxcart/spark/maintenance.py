"""Maintenance of a lake as ordinary jobs: compact, expire, rebuild and report, on any queue.

    oxcart work oxcart.spark.maintenance:queue
    oxcart add maintenance compact '{"lake": "/data/lake"}'

or, beside handlers of your own, ``register(my_queue)``. Every job runs the command of its name in a process
of its own, because a worker must not open a Spark session. A job that is cancelled or times out ends that
process with its JVM. The server is the worker's own, by ``OXCART_URL``; no job carries a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from oxcart.model.failure import PermanentError, TemporaryError
from oxcart.queue import Queue

#: The exit code of a malformed command: no retry helps.
_USAGE = 2


async def compact(lake: str) -> str:
    """Joins small files into large ones."""
    return await _command("compact", lake)


async def expire(
    lake: str,
    older_than: str = "1d",
    retain: str | list[str] | None = None,
    max_bytes: str | None = None,
) -> str:
    """Drops old days, if ``retain`` or ``max_bytes`` is given, and deletes files that the tables do not name.

    Args:
        lake: The lake's folder.
        older_than: Files that went later stay.
        retain: How long tables keep a day: ``90d`` for all, ``events=30d`` for one, or a list of these.
        max_bytes: The most that all files may have, for example ``50GB``.
    """
    ages = [retain] if isinstance(retain, str) else retain or []
    return await _command("expire", lake, *ages, older_than=older_than, max_bytes=max_bytes)


async def rebuild(lake: str, first: str, last: str | None = None, master: str | None = None) -> str:
    """Rebuilds silver and gold of some days; days are written ``YYYY-MM-DD``."""
    return await _command("rebuild", lake, **{"from": first}, to=last or first, master=master)


async def report(
    lake: str,
    html: str,
    day: str | None = None,
    first: str | None = None,
    last: str | None = None,
    master: str | None = None,
) -> str:
    """Writes the report of a day, or of several: from ``first`` to ``last``."""
    days = {"day": day, "from": first, "to": last}
    return await _command("report", lake, html=html, master=master, **days)


def register(queue: Queue) -> Queue:
    """Registers the four handlers with a queue; returns it."""
    for handler in (compact, expire, rebuild, report):
        queue.job(timeout="6h", attempts=3)(handler)
    return queue


async def _command(verb: str, lake: str, *ages: str, **options: str | None) -> str:
    """Runs ``oxcart pipeline …``; returns its output."""
    words = [verb, f"--lake={lake}", *(f"--retain={age}" for age in ages)]
    words += (f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "oxcart.cli", "pipeline", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        return out.decode(errors="replace").strip()
    lines = err.decode(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("oxcart: ") if lines else f"exit code {process.returncode}"
    raise (PermanentError if process.returncode == _USAGE else TemporaryError)(reason)


#: A queue for maintenance alone.
queue = register(Queue("maintenance"))
