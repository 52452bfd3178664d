"""A fleet of worker processes: started together, restarted when they die, stopped together.

Each process is a session of its own, so that Ctrl-C in the terminal reaches only the fleet, which passes it
on once. Each has one end of a pipe: when the fleet is killed, the processes see the pipe close and stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO

import msgspec

from oxcart.cli import exits
from oxcart.cli.runner import RELOAD, Plan
from oxcart.model.duration import parse_ms

log = logging.getLogger("oxcart.work")

#: Seconds before a dead process is restarted: the first pause and the longest.
PAUSES = (0.5, 30.0)
#: After a process has run this many seconds, the next pause is the first one again.
HEALTHY = 30.0
#: Seconds that a process may need to end beyond its own shutdown timeout.
GRACE = 10.0
#: The signals of the first, the second and any later stop.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


class Fleet:
    """A number of worker processes.

    Args:
        plan: The settings of each of them; process ``i`` serves its metrics on port + ``i``.
        processes: How many.
        environ: Their environment; this process's by default.
        output: Where they write to; this process's outputs by default.
        started: Called with the index and the process id of each start.
    """

    def __init__(
        self,
        plan: Plan,
        processes: int,
        *,
        environ: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        started: Callable[[int, int], None] | None = None,
    ) -> None:
        self._plan = plan
        self._count = processes
        self._environ = environ
        self._output = output
        self._started = started
        self._members: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._code = exits.OK

    @property
    def pids(self) -> dict[int, int]:
        """The ids of the running processes, by index."""
        return {index: member.pid for index, member in self._members.items() if member.returncode is None}

    async def run(self) -> int:
        """Runs the fleet until it is stopped; returns the exit code."""
        keepers = [asyncio.create_task(self._keep(index)) for index in range(self._count)]
        try:
            await asyncio.gather(*keepers)
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._end_all()
        return self._code

    def catch_signals(self) -> None:
        """Makes SIGINT and SIGTERM stop the fleet from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Stops all processes: the second call at once, the third by force.

        A process that does not end some seconds after its shutdown timeout is killed: a handler in C code can
        keep it from noticing any signal.
        """
        self._signals += 1
        self._stopping.set()
        # Each call sends another signal: the kernel merges two equal ones that wait for a busy process.
        self._send_all(STOPS[min(self._signals, len(STOPS)) - 1])
        timeout = (
            0.0 if self._signals > 1 else parse_ms(self._plan.shutdown_timeout, "shutdown_timeout") / 1000
        )
        asyncio.get_running_loop().call_later(timeout + GRACE, self._send_all, signal.SIGKILL)

    def _send_all(self, number: signal.Signals) -> None:
        for member in self._members.values():
            _send(member, number)

    async def _keep(self, index: int) -> None:
        pause, is_first = PAUSES[0], True
        while not self._stopping.is_set():
            born = time.monotonic()
            code = await self._live(index)
            if self._stopping.is_set():
                # A process that our signal killed had not installed its handlers, and had claimed nothing.
                if code and code != -signal.SIGTERM and not self._code:
                    self._code = exits.FAILED
                return
            if code == RELOAD:
                continue
            if code == exits.USAGE or (code == exits.UNREACHABLE and is_first):
                # The process has printed the error; another start would print it again.
                self._code = code
                self.stop()
                return
            is_first = False
            pause = PAUSES[0] if time.monotonic() - born > HEALTHY else pause
            log.warning("worker process %d ended with %s; another in %.1f s", index, _ending(code), pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(pause * 2, PAUSES[1])

    async def _live(self, index: int) -> int:
        """Starts a process and waits for its end."""
        plan = msgspec.structs.replace(
            self._plan,
            supervised=True,
            name=f"{self._plan.name}-{index}" if self._plan.name and self._count > 1 else self._plan.name,
            metrics_port=self._plan.metrics_port and self._plan.metrics_port + index,
        )
        member = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "oxcart.cli.runner", msgspec.json.encode(plan).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=None if self._environ is None else dict(self._environ),
            start_new_session=True,
        )
        self._members[index] = member
        if self._stopping.is_set():  # stopped while it was being started
            _send(member, signal.SIGTERM)
        if self._started is not None:
            self._started(index, member.pid)
        return await member.wait()

    async def _end_all(self) -> None:
        """Kills every process that still runs."""
        living = [member for member in self._members.values() if member.returncode is None]
        for member in living:
            _send(member, signal.SIGTERM)
        for member in living:
            try:
                await asyncio.wait_for(member.wait(), GRACE)
            except TimeoutError:
                _send(member, signal.SIGKILL)
                await member.wait()


def _send(member: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if member.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
