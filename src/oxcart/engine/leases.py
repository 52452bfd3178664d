"""The worker's side of its leases: tells the renewer what is held, and the handlers what is lost.

The renewer process is started with the worker and started again should it die; it is told everything that
is held then. A claim is told before its handlers run, an end before it is sent, in one write per batch.

A process takes its time to start, on a busy machine longer than a short lease. Until the renewer has renewed
something the worker does so itself, as well as its handlers let it.

May touch: the renewer process, and the server through whoever extends leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import marshal
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from oxcart.broker.port import Lease
from oxcart.engine import renewer
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.leases")

#: Seconds after which ended jobs are told of where no claim takes them along.
REMIND = 0.5
#: How much the pipe to the renewer holds, in bytes: it reads twenty times a second, not with every write.
PIPE = 1 << 20

#: Renews leases of a station; returns the ids that were refused.
Extend = Callable[[int, list[Lease]], Awaitable[list[str]]]


class Leases:
    """What this worker holds, and the process that renews it.

    Args:
        lock_ms: How long a lease lasts.
        every: Seconds between renewals.
        stations: Per queue: url, folder, queue, prefix, protocol.
        lost: Told station and job id of a lease that somebody else has.
        renewed: Told of each renewal: station, leases, seconds.
        failed: Told of each failed renewal: station, leases, error.
        extend: Renews leases of a station from within the worker, and returns the ids of those it cannot;
            None where only the process may.
    """

    def __init__(
        self,
        lock_ms: int,
        every: float,
        stations: list[dict[str, Any]],
        *,
        lost: Callable[[int, str], None],
        renewed: Callable[[int, int, float], None],
        failed: Callable[[int, int, str], None],
        extend: Extend | None = None,
    ) -> None:
        self._lock_ms = lock_ms
        self._every = every
        self._stations = stations
        self._lost = lost
        self._renewed = renewed
        self._failed = failed
        self._extend = extend
        self._held: list[dict[str, RunningJob]] = [{} for _ in stations]
        self._deadlines: dict[RunningJob, float] = {}
        self._dropped: list[list[str]] = [[] for _ in stations]
        self._reminder: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._behind: list[bytes] = []
        self._keeper: asyncio.Task[None] | None = None
        self._deputy: asyncio.Task[None] | None = None
        self._is_renewing = False
        self._bereft = asyncio.Event()  # the renewer has died
        self._closing = False
        self.ready = asyncio.Event()

    def add_station(self, facts: dict[str, Any]) -> int:
        """Makes room for another queue's leases; returns its number.

        Args:
            facts: Of a lane the number of its queue, ``of``, and its name within it, ``lane``.
        """
        self._stations.append(facts)
        self._held.append({})
        self._dropped.append([])
        self._say({"open": len(self._stations) - 1, **facts})
        return len(self._stations) - 1

    def start(self) -> None:
        """Starts the renewer process; does not wait for it, and stands in for it meanwhile."""
        self._keeper = asyncio.create_task(self._keep(), name="oxcart-leases")
        if self._extend is not None:
            self._deputy = asyncio.create_task(self._stand_in(self._extend), name="oxcart-deputy")

    async def close(self) -> None:
        """Ends the renewer process."""
        self._closing = True
        if self._reminder is not None:
            self._reminder.cancel()
        if self._deputy is not None:
            self._deputy.cancel()
            await asyncio.gather(self._deputy, return_exceptions=True)
        self._hang_up()
        process = self._process
        if process is not None:
            try:
                async with asyncio.timeout(2):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._keeper is not None:
            if process is not None:
                # It reads to the end of the process's output, so that nothing of it is left to the loop.
                await asyncio.wait((self._keeper,), timeout=1)
            # Without a process it is about to start one, which ends with it.
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def find_at(self, station: int, url: str) -> None:
        """Tells the renewer that a queue's server is to be found by another URL."""
        facts = self._stations[station]
        if facts["url"] != url:
            self._stations[station] = facts | {"url": url}
            self._say({"open": station, **self._stations[station]})

    @property
    def pid(self) -> int | None:
        """The renewer's process id, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def held(self, station: int) -> dict[str, RunningJob]:
        """The jobs held of a queue, by id."""
        return self._held[station]

    def hold(self, station: int, jobs: list[RunningJob], timeouts: Iterable[float | None]) -> None:
        """Notes claimed jobs, each with the seconds it may run at most (None for no limit)."""
        held = self._held[station]
        now = time.monotonic()  # one clock for all processes of a machine, which nobody sets
        for job, timeout in zip(jobs, timeouts, strict=True):
            held[job.id] = job
            if timeout is not None:
                # Some grace: the worker ends the attempt at its deadline, and then has to say so.
                self._deadlines[job] = now + timeout + 2 * self._every
        self._tell(station, jobs)

    def drop(self, station: int, ids: list[str]) -> None:
        """Forgets jobs whose end is being sent."""
        held = self._held[station]
        for job_id in ids:
            job = held.pop(job_id, None)
            if job is not None:
                self._deadlines.pop(job, None)
        # Told with the next claim: a renewal of what has ended is refused and harms nobody, while every
        # write wakes the renewer.
        self._dropped[station] += ids
        if self._reminder is None:
            self._reminder = asyncio.get_running_loop().call_later(REMIND, self._remind)

    def _remind(self) -> None:
        self._reminder = None
        for station, ids in enumerate(self._dropped):
            if ids:
                self._tell(station, ())

    def _tell(self, station: int, jobs: Iterable[RunningJob]) -> None:
        deadline = self._deadlines.get
        leases = [(job.id, job.token, job.fencing, deadline(job)) for job in jobs]
        dropped, self._dropped[station] = self._dropped[station], []
        self._say({"hold": station, "leases": leases, "drop": dropped})

    def _say(self, message: dict[str, Any]) -> None:
        if self._pipe is None:
            return  # the next renewer is told everything when it starts
        line = renewer.frame(message)
        if self._behind:
            self._behind.append(line)
            return
        try:
            sent = os.write(self._pipe, line)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._hang_up()
            return
        if sent < len(line):
            self._behind.append(line[sent:])
            asyncio.get_running_loop().add_writer(self._pipe, self._catch_up)

    def _catch_up(self) -> None:
        pipe = self._pipe
        if pipe is None:
            return
        try:
            while self._behind:
                line = self._behind[0]
                sent = os.write(pipe, line)
                if sent < len(line):
                    self._behind[0] = line[sent:]
                    return
                self._behind.pop(0)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up()
            return
        asyncio.get_running_loop().remove_writer(pipe)

    def _hang_up(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            if self._behind:
                asyncio.get_running_loop().remove_writer(pipe)
                self._behind.clear()
            os.close(pipe)

    async def _stand_in(self, extend: Extend) -> None:
        """Renews at the renewer's pace while that has not renewed anything yet, and at once when it dies."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._bereft.wait()
            self._bereft.clear()
            if self._is_renewing:
                continue
            # All at once, as the renewer does: a server that is silent must not cost the leases on another.
            await asyncio.gather(*(self._renew_at(number, extend) for number in range(len(self._held))))

    async def _renew_at(self, station: int, extend: Extend) -> None:
        now, held = time.monotonic(), self._held[station]
        jobs = {job.id: job for job in held.values() if now < self._deadlines.get(job, now + 1)}
        if not jobs:
            return
        leases = [Lease(job.id, job.token, job.fencing) for job in jobs.values()]
        try:
            async with asyncio.timeout(self._lock_ms / 3000):
                refused = await extend(station, leases)
        except (BrokerError, OSError) as error:  # to be done at the next turn, by whoever it is then
            log.debug("%d leases could not be extended: %s", len(leases), error)
            return
        for job_id in refused:
            if held.get(job_id) is jobs[job_id]:
                self._lost(station, job_id)

    async def _keep(self) -> None:
        pause = 0.1
        while True:
            started = time.monotonic()
            try:
                await self._run()
            except OSError as error:
                log.error("the renewer process cannot be started: %s", error)
            except Exception:  # whatever it was: without a renewer every lease would run out
                log.exception("the renewer process cannot be understood")
            if self._closing:
                return
            pause = 0.1 if time.monotonic() - started > 30 else min(pause * 2, 5.0)
            log.warning("the renewer process ended; starting another in %.1f s", pause)
            await asyncio.sleep(pause)

    async def _run(self) -> None:
        theirs, ours = os.pipe()
        try:
            os.set_blocking(ours, False)
            _widen(ours)
            process = await asyncio.create_subprocess_exec(
                *renewer.command(),
                *(str(os.getpid()), str(self._lock_ms), str(self._every)),
                str(0.0 if any(self._held) else self._every),
                stdin=theirs,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._process, self._pipe = process, ours
        self._say({"path": [str(place) for place in sys.path]})
        for index, station in enumerate(self._stations):
            self._say({"open": index, **station})
            if self._held[index]:
                self._tell(index, self._held[index].values())
        assert process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                self._hear(marshal.loads(await process.stdout.readexactly(size)))
        except asyncio.IncompleteReadError:
            await process.wait()
        except Exception:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._process = None
            self._is_renewing = False
            self._bereft.set()
            self._hang_up()

    def _hear(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            station = message["refused"]
            for job_id in message["ids"]:
                if job_id in self._held[station]:
                    self._lost(station, job_id)
        elif "renewed" in message:
            self._is_renewing = True
            self._renewed(message["station"], message["renewed"], message["seconds"])
        elif "failed" in message:
            self._failed(message["station"], message["failed"], message["error"])
        elif "ready" in message:
            self.ready.set()


def _widen(pipe: int) -> None:
    """Makes room in a pipe where the system lets us; the usual size does too, with more waiting."""
    resize = getattr(fcntl, "F_SETPIPE_SZ", None)
    if resize is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, resize, PIPE)
