"""Runs the programs of a small installation side by side, and ends them together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oxcart.cli import output
from oxcart.cli.exits import FAILED, OK

#: Restarts of one program within a minute; with the next one everything ends.
RESTARTS = 5
MINUTE = 60.0
#: Seconds before a program that ended is started again.
PAUSE = 1.0
#: Seconds that a program may take to end before it is killed.
PATIENCE = 45.0


@dataclass
class Program:
    """One program of the installation.

    Attributes:
        name: Its name, which precedes its lines.
        arguments: Its command line after ``oxcart``.
        last: Whether it ends after the others: workers finish what the others still see.
    """

    name: str
    arguments: Sequence[str]
    last: bool = False
    process: asyncio.subprocess.Process | None = None
    restarts: list[float] = field(default_factory=list)


class Installation:
    """Programs that run until a signal ends them.

    Args:
        programs: The programs.
        environ: Their environment.
    """

    def __init__(self, programs: Sequence[Program], environ: Mapping[str, str]) -> None:
        self._programs = programs
        self._environ = dict(environ)
        self._ending = asyncio.Event()
        self._signals = 0
        self._code = OK

    def catch_signals(self) -> None:
        """Lets SIGINT and SIGTERM end everything; a second one ends it at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)

    def _end(self) -> None:
        self._signals += 1
        if self._signals == 1:
            output.text("ending: the API first, then the workers; once more ends them at once")
            self._ending.set()
        else:
            for one in self._programs:
                _signal(one, signal.SIGTERM)

    async def run(self) -> int:
        """Runs the programs until a signal, or until one cannot be kept running; returns the exit code."""
        keepers = [asyncio.create_task(self._keep(one)) for one in self._programs]
        await self._ending.wait()
        for last in (False, True):
            part = [one for one in self._programs if one.last is last]
            for one in part:
                _signal(one, signal.SIGTERM)
            await asyncio.gather(*(self._ended(one) for one in part))
        await asyncio.gather(*keepers)
        output.text("everything has ended")
        return self._code

    async def _keep(self, one: Program) -> None:
        """Starts a program, and starts it again if it ends by itself."""
        while not self._ending.is_set():
            one.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "oxcart.cli",
                *one.arguments,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=1 << 20,
                # Ctrl-C of a terminal reaches only this process, which ends the programs in their order.
                start_new_session=True,
            )
            output.text(f"{one.name}: started, process {process.pid}")
            await self._show(one, process)
            code = await process.wait()
            if self._ending.is_set():
                return
            output.error(f"{one.name} {_words(code)}")
            now = time.monotonic()
            one.restarts = [at for at in one.restarts if now - at < MINUTE] + [now]
            if len(one.restarts) > RESTARTS:
                output.error(f"{one.name} ended {len(one.restarts)} times within a minute; ending everything")
                self._code = FAILED
                self._ending.set()
                return
            output.error(f"{one.name} is started again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await self._ending.wait()

    async def _show(self, one: Program, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the limit
                continue
            if not line:
                return
            output.text(f"{one.name} | {line.decode('utf-8', 'replace').rstrip()}")

    async def _ended(self, one: Program) -> None:
        if one.process is None:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await one.process.wait()
        except TimeoutError:
            output.error(f"{one.name} has not ended within {PATIENCE:.0f} s and is killed")
            _signal(one, signal.SIGKILL)
            await one.process.wait()


def _signal(one: Program, number: signal.Signals) -> None:
    if one.process is not None and one.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(number)


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
