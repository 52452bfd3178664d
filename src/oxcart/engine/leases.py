"""The leases of a worker, and the process that renews them.

The worker spawns the renewer process with its first claim, before a handler of that claim runs. The claim is
in the pipe by then, so a handler that blocks the event loop at once cannot keep the process from renewing. A
worker without jobs has no such process. A renewer that dies is replaced and receives all leases.

On a busy machine a process can take longer to start than a short lease lasts. Until the renewer has renewed
a lease, the worker renews itself, as far as its handlers let the event loop run. It also renews the leases of
a queue whose server the renewer does not reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from oxcart.broker.port import Lease
from oxcart.engine import renewer
from oxcart.engine.running import RunningJob
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.leases")

#: Seconds after which the renewer learns of ended jobs if no claim carries them.
REMIND = 0.5
#: Seconds before a renewer that died is replaced: the first time, and at most.
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
#: Seconds after which a renewer counts as started.
LONG_LIFE = 30.0
#: Jobs that a log line names at most.
NAMED = 10
#: Bytes that the pipe to the renewer can buffer: it reads twenty times a second, not with every write.
PIPE = 1 << 20

#: Seconds after which the worker repeats a renewal of its own that failed.
RETRY = renewer.RETRY

#: Renews leases of a station; returns the ids that were refused.
Renew = Callable[[int, list[Lease]], Awaitable[list[str]]]


class Leases:
    """The leases of a worker, and the process that renews them.

    Args:
        lock_ms: How long a lease lasts.
        every: Seconds between renewals.
        stations: Per queue: url, folder, queue, prefix, protocol; empty if only this process can renew its
            leases.
        lost: Receives the station and the job id of a lease that the server refused to renew.
        renewed: Receives the station, the number of leases and the seconds of each renewal.
        failed: Called after a failed renewal with the station, the ids of its jobs and the error.
        renew: Renews leases of a station from within the worker, and returns the ids that were refused;
            None if only the process may renew.
    """

    def __init__(
        self,
        lock_ms: int,
        every: float,
        stations: list[dict[str, Any]],
        *,
        lost: Callable[[int, str], None],
        renewed: Callable[[int, int, float], None],
        failed: Callable[[int, list[str], str], None],
        renew: Renew | None = None,
    ) -> None:
        self._lock_ms = lock_ms
        self._every = every
        self._stations = stations
        self._lost = lost
        self._renewed = renewed
        self._failed = failed
        self._renew = renew
        self._held: list[dict[str, RunningJob]] = [{} for _ in stations]
        self._deadlines: dict[RunningJob, float] = {}
        self._dropped: list[list[str]] = [[] for _ in stations]
        self._reminder: asyncio.TimerHandle | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._behind: list[bytes] = []
        self._heard = b""  # the beginning of an incomplete message
        self._spawned_at = 0.0
        self._pause = FIRST_PAUSE
        self._respawn: asyncio.TimerHandle | None = None
        self._deputy: asyncio.Task[None] | None = None
        self._is_renewing = False
        self._failing: set[int] = set()  # stations whose last renewal failed
        self._bereft = asyncio.Event()  # the renewer has died, or does not reach a server
        self._is_open = False
        self.ready = asyncio.Event()

    def add_station(self, facts: dict[str, Any]) -> int:
        """Makes room for another queue's leases; returns its number.

        Args:
            facts: For a lane, the number of its queue (``of``) and its name within it (``lane``).
        """
        self._stations.append(facts)
        self._held.append({})
        self._dropped.append([])
        self._say({"open": len(self._stations) - 1, **facts})
        return len(self._stations) - 1

    def start(self) -> None:
        """Lets ``hold`` spawn the renewer process; spawns it now if there are leases already."""
        self._is_open = True
        if self._renew is not None:
            self._deputy = asyncio.create_task(self._stand_in(self._renew), name="oxcart-deputy")
        if self._holds_remote:
            self._spawn()

    async def close(self) -> None:
        """Ends the renewer process."""
        self._is_open = False
        for timer in (self._reminder, self._respawn):
            if timer is not None:
                timer.cancel()
        if self._deputy is not None:
            self._deputy.cancel()
            await asyncio.gather(self._deputy, return_exceptions=True)
        process = self._process
        if process is not None:
            self._release(process)
            # It has nothing to clean up, and may still be starting.
            process.kill()
            await asyncio.to_thread(process.wait)

    def find_at(self, station: int, url: str) -> None:
        """Sends the renewer another URL of a queue's server."""
        facts = self._stations[station]
        if facts["url"] != url:
            self._stations[station] = facts = facts | {"url": url}
            self._say({"open": station, **facts})

    @property
    def pid(self) -> int | None:
        """The renewer's process id, while it runs."""
        return None if self._process is None else self._process.pid

    def held(self, station: int) -> dict[str, RunningJob]:
        """Returns the jobs of a queue with a lease, by id."""
        return self._held[station]

    def hold(self, station: int, jobs: list[RunningJob], timeouts: Iterable[float | None]) -> None:
        """Keeps the leases of claimed jobs, each with the seconds it may run at most (None for no limit)."""
        held = self._held[station]
        now = time.monotonic()  # the same clock in all processes of a machine
        for job, timeout in zip(jobs, timeouts, strict=True):
            held[job.id] = job
            if timeout is not None:
                # Some grace: the worker ends the attempt at its deadline and then commits it.
                self._deadlines[job] = now + timeout + 2 * self._every
        if not self._stations[station]:
            return
        if self._pipe is None and jobs and self._is_open and self._respawn is None:
            self._spawn()
        else:
            self._send_held(station, jobs)

    def let_go(self, station: int, ids: list[str]) -> None:
        """Forgets jobs whose outcome is being sent; the renewer continues until ``drop``."""
        held = self._held[station]
        for job_id in ids:
            job = held.pop(job_id, None)
            if job is not None:
                self._deadlines.pop(job, None)

    def drop(self, station: int, ids: list[str]) -> None:
        """Lets the renewer forget jobs whose outcome is committed, unless they were claimed again since."""
        if not self._stations[station]:
            return
        held = self._held[station]
        # Sent with the next claim: the server refuses to renew an ended job, while every write wakes the
        # renewer.
        self._dropped[station] += [job_id for job_id in ids if job_id not in held]
        if self._reminder is None:
            self._reminder = asyncio.get_running_loop().call_later(REMIND, self._remind)

    def _remind(self) -> None:
        self._reminder = None
        for station, ids in enumerate(self._dropped):
            if ids:
                self._send_held(station, ())

    def _send_held(self, station: int, jobs: Iterable[RunningJob]) -> None:
        deadline = self._deadlines.get
        leases = [(job.id, job.token, job.fencing, deadline(job)) for job in jobs]
        dropped, self._dropped[station] = self._dropped[station], []
        self._say({"hold": station, "leases": leases, "drop": dropped})

    def _say(self, message: dict[str, Any]) -> None:
        if self._pipe is None:
            return  # the next renewer receives everything when it is spawned
        line = renewer.frame(message)
        if self._behind:
            self._behind.append(line)
            return
        try:
            sent = os.write(self._pipe, line)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has died, which the end of its output will show
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
            self._behind.clear()  # it has died, which the end of its output will show
        asyncio.get_running_loop().remove_writer(pipe)

    async def _stand_in(self, renew: Renew) -> None:
        """Renews at the renewer's pace what it does not renew yet, and at once when it dies or fails."""
        wait = self._every
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._bereft.wait()
            self._bereft.clear()
            wait = self._every
            stations = set(range(len(self._held)))
            if self._is_renewing:
                stations = {one for one in stations if one in self._failing or not self._stations[one]}
            # All at once, as the renewer does: a silent server must not cost the leases on another one.
            renewals = [self._renew_at(number, renew) for number in stations]
            if not all(await asyncio.gather(*renewals)):
                wait = min(RETRY, self._every)

    async def _renew_at(self, station: int, renew: Renew) -> bool:
        now, held = time.monotonic(), self._held[station]
        jobs = {job.id: job for job in held.values() if now < self._deadlines.get(job, now + 1)}
        if not jobs:
            return True
        leases = [Lease(job.id, job.token, job.fencing) for job in jobs.values()]
        try:
            async with asyncio.timeout(self._lock_ms / 3000):
                refused = await renew(station, leases)
        except (BrokerError, OSError) as error:
            log.debug("could not renew %d leases: %s", len(leases), error)
            return False
        for job_id in refused:
            if held.get(job_id) is jobs[job_id]:
                self._lost(station, job_id)
        return True

    # -- the process

    def _spawn(self) -> None:
        """Starts the renewer process and writes all leases into its pipe, without waiting for either."""
        now = time.monotonic()
        # The leases of a renewer that died may be about to expire; those of a first claim are new.
        first = now if self._spawned_at else now + self._every
        self._spawned_at = now
        theirs, ours = os.pipe()
        try:
            os.set_blocking(ours, False)
            _widen(ours)
            process = subprocess.Popen(
                [
                    *renewer.command(),
                    *(str(os.getpid()), str(self._lock_ms), str(self._every), str(first)),
                ],
                stdin=theirs,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours)
            log.error("could not start the renewer process: %s", error)
            self._spawn_later()
            return
        finally:
            os.close(theirs)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(process.stdout.fileno(), self._read, process)
        self._process, self._pipe, self._heard = process, ours, b""
        self._say({"path": [str(place) for place in sys.path]})
        for index, station in enumerate(self._stations):
            if not station:
                continue
            self._say({"open": index, **station})
            if self._held[index]:
                self._send_held(index, self._held[index].values())

    def _spawn_later(self) -> None:
        lived = time.monotonic() - self._spawned_at
        self._pause = FIRST_PAUSE if lived > LONG_LIFE else min(self._pause * 2, LAST_PAUSE)
        log.warning("the renewer process ended; starting another in %.1f s", self._pause)
        self._respawn = asyncio.get_running_loop().call_later(self._pause, self._spawn_again)

    def _spawn_again(self) -> None:
        self._respawn = None
        if self._holds_remote:
            self._spawn()

    @property
    def _holds_remote(self) -> bool:
        """Returns whether there are jobs whose leases the renewer process can renew."""
        return any(held and facts for held, facts in zip(self._held, self._stations, strict=True))

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            chunk = os.read(process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        try:
            self._heard = renewer.read_frames(self._heard + chunk, self._hear)
        except Exception:  # without a renewer every lease would expire
            log.exception("could not read the reports of the renewer process")
            chunk = b""
        if not chunk:
            process.kill()
            process.wait()
            self._release(process)
            self._is_renewing = False
            self._failing.clear()
            self._bereft.set()
            if self._is_open:
                self._spawn_later()

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        """Closes the pipes to and from a process."""
        loop = asyncio.get_running_loop()
        assert process.stdout is not None
        loop.remove_reader(process.stdout.fileno())
        process.stdout.close()
        assert self._pipe is not None
        if self._behind:
            loop.remove_writer(self._pipe)
            self._behind.clear()
        os.close(self._pipe)
        self._process = self._pipe = None

    def _hear(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            station = message["refused"]
            for job_id, token, starts in message["leases"]:
                job = self._held[station].get(job_id)
                if job is not None and (job.token, job.fencing) == (token, starts):  # not claimed again since
                    self._lost(station, job_id)
        elif "renewed" in message:
            self._is_renewing = True
            self._failing.discard(message["station"])
            self._renewed(message["station"], message["renewed"], message["seconds"])
        elif "failed" in message:
            self._failing.add(message["station"])
            self._bereft.set()
            self._failed(message["station"], message["failed"], message["error"])
        elif "ready" in message:
            self.ready.set()


def log_failed_renewal(held: Mapping[str, RunningJob], ids: list[str], error: str) -> None:
    """Logs the jobs whose leases could not be renewed, except jobs that have ended since."""
    jobs = [job for job_id in ids if (job := held.get(job_id)) is not None]
    if not jobs:
        return
    named = ", ".join(f"{job.id} (attempt {job.attempt})" for job in jobs[:NAMED])
    if len(jobs) > NAMED:
        named += f" and {len(jobs) - NAMED} more"
    fields = jobs[0].log_fields()
    if len(jobs) > 1:
        fields = {"queue": jobs[0].queue, "worker_id": jobs[0].worker_id}
    log.error(
        "queue %s: could not renew the %s %s: %s",
        jobs[0].queue,
        "lease of job" if len(jobs) == 1 else "leases of jobs",
        named,
        error,
        extra={**fields, "job_ids": [job.id for job in jobs[:100]]},
    )


def _widen(pipe: int) -> None:
    """Enlarges the buffer of a pipe if the system allows it; the usual size works too, with more waiting."""
    resize = getattr(fcntl, "F_SETPIPE_SZ", None)
    if resize is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, resize, PIPE)
