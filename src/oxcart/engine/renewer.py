"""The process that renews a worker's leases.

A handler in C code can block the interpreter for minutes, and no thread of the worker can renew then. So a
small process renews. It learns of claims and ends over a pipe, its standard input. It renews all leases of a
queue in one call, and reports refusals and counts on its standard output. It stops renewing when its worker
is gone (the pipe ends) or stopped (for example by SIGSTOP), and for a job that is past its deadline. A worker
that cannot continue must lose its leases.

Messages each way are dicts of plain values, marshalled behind their length in four bytes:
in   {"path": the worker's sys.path}, {"open": station, "url", "folder", "queue", "prefix", "protocol"}
     (again if the worker has learnt of more nodes of a cluster),
     {"open": station, "of": station of its queue, "lane"},
     {"hold": station, "leases": [[id, token, starts, deadline]], "drop": [ids that ended before]}
out  {"ready": true}, {"refused": station, "leases": [[id, token, starts]]},
     {"renewed": n, "seconds": s, "station"}, {"failed": [ids], "error": text, "station"}
Deadlines are seconds of the machine's monotonic clock, or null.

It imports almost nothing until there is a lease to renew: most jobs end long before, and a worker that has
just started needs the processor for them. So it starts without ``site`` (see ``command``), uses ``marshal``,
and leaves even ``typing`` out: 14 ms of processor time instead of 60.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

try:
    import _signal as signal  # the core of ``signal``, without its enums
except ImportError:
    import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from oxcart.broker.port import ServedBroker

#: Seconds between checks whether the worker still runs: a fork of it may keep the pipe open.
LOOK = 1.0
#: Seconds in which messages gather before they are read.
GATHER = 0.05
#: Seconds until a failed renewal is repeated: a server that is back must receive it soon.
RETRY = 1.0


def command() -> list[str]:
    """Returns the beginning of the command line that runs this process."""
    if os.path.isfile(__file__):
        # As a module, so that its compiled form is used; without the packages around it.
        start = "import sys; here = sys.path.pop(0); sys.path.insert(0, sys.argv.pop(1)); import renewer; "
        start += "sys.path[0] = here; renewer.main()"
        return [sys.executable, "-S", "-c", start, os.path.dirname(__file__)]
    return [sys.executable, "-m", __name__]


def frame(message: dict[str, Any]) -> bytes:
    """Returns a message as it goes over the pipe."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "big") + body


def read_frames(received: bytes, take: Callable[[dict[str, Any]], None]) -> bytes:
    """Passes each complete message on; returns the rest."""
    at = 0
    while len(received) >= at + 4:
        end = at + 4 + int.from_bytes(received[at : at + 4], "big")
        if end > len(received):
            break
        take(marshal.loads(received[at + 4 : end]))
        at = end
    return received[at:]


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped, for example by SIGSTOP or a debugger; False if it is unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class Renewer:
    """Renews leases.

    Args:
        parent: The worker's process id.
        lock_ms: How long a renewed lease lasts.
        report: Sends a message to the worker.
    """

    def __init__(self, parent: int, lock_ms: int, report: Callable[[dict[str, Any]], None]) -> None:
        self._parent = parent
        self._lock_ms = lock_ms
        self._report = report
        self._facts: dict[int, dict[str, Any]] = {}
        self._held: dict[int, dict[str, tuple[str, int, float | None]]] = {}
        self._brokers: dict[int, ServedBroker] = {}
        self._left: list[ServedBroker] = []  # of stations whose server has another URL now
        self._failed: set[int] = set()  # stations whose last renewal had no reply
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self, message: dict[str, Any]) -> None:
        """Takes a message of the worker."""
        if "hold" in message:
            held = self._held[message["hold"]]
            for job_id in message["drop"]:
                held.pop(job_id, None)
            for job_id, token, starts, deadline in message["leases"]:
                held[job_id] = (token, starts, deadline)
        elif "path" in message:
            sys.path[:] = message["path"]
        elif "open" in message:
            station = message["open"]
            self._facts[station] = message
            self._held.setdefault(station, {})
            if station in self._brokers:
                self._left.append(self._brokers.pop(station))
            for number, facts in self._facts.items():  # its lanes share its connection
                if facts.get("of") == station:
                    self._brokers.pop(number, None)

    def beat(self, *, again: bool = False) -> bool:
        """Renews all leases once, or those that the last renewal failed to renew.

        Args:
            again: Whether this repeats a failed renewal that was reported.

        Returns:
            Whether every server replied, and the worker was not stopped.
        """
        if not any(self._held.values()):
            return True
        if is_stopped(self._parent):
            self._failed = set(self._held)  # due at once when the worker continues
            return False
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        stations = self._failed if again else set(self._held)
        self._failed = self._loop.run_until_complete(self._renew(stations, again))
        return not self._failed

    async def _renew(self, stations: set[int], again: bool) -> set[int]:
        import asyncio

        while self._left:
            await self._left.pop().close()
        # All at once, and not for long: a silent server must not cost the leases on another one.
        renewals = [self._renew_at(station, again) for station in stations]
        answered = await asyncio.gather(*renewals)
        return {station for station, is_well in zip(stations, answered, strict=True) if not is_well}

    async def _renew_at(self, station: int, again: bool) -> bool:
        import asyncio

        from oxcart.broker.port import Lease
        from oxcart.model.errors import BrokerError

        now, held = time.monotonic(), self._held[station]
        leases = [
            Lease(job_id, token, starts)
            for job_id, (token, starts, deadline) in held.items()
            if deadline is None or now < deadline
        ]
        if not leases:
            return True
        broker = self._broker(station)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._lock_ms / 3000):
                refused = await broker.renew(leases, self._lock_ms)
        except (BrokerError, OSError) as error:
            if not again:
                reason = str(error) or "no answer in time"
                self._report({"failed": [lease.id for lease in leases], "error": reason, "station": station})
            return False
        if refused:
            lost = [(job_id, *held.pop(job_id)[:2]) for job_id in refused if job_id in held]
            self._report({"refused": station, "leases": lost})
        spent = time.perf_counter() - started
        self._report({"renewed": len(leases) - len(refused), "seconds": spent, "station": station})
        return True

    def _broker(self, station: int) -> ServedBroker:
        broker = self._brokers.get(station)
        if broker is None:
            from oxcart.broker.connection import Reconnect, Server
            from oxcart.broker.factory import make_broker

            facts = self._facts[station]
            if "lane" in facts:
                of: Any = self._broker(facts["of"])
                lane: ServedBroker = of.open_lane(facts["lane"])
                self._brokers[station] = lane
                return lane
            broker = self._brokers[station] = make_broker(
                facts.get("protocol", "bullmq"),
                Server(facts["url"] or None, folder=facts["folder"] or None),
                facts["queue"],
                prefix=facts["prefix"],
                # A renewal that fails is repeated at the next beat instead of being queued.
                reconnect=Reconnect(attempts=2),
            )
        return broker


def serve(parent: int, lock_ms: int, every: float, first: float) -> None:
    """Reads messages and renews until the worker is gone.

    Args:
        parent: The worker's process id.
        lock_ms: How long a renewed lease lasts.
        every: Seconds between renewals.
        first: When to renew first, by the machine's monotonic clock.
    """
    out = os.dup(1)
    os.dup2(2, 1)  # the output of a library must not come between our messages

    os.set_blocking(out, False)
    behind = bytearray()  # bytes that the pipe could not take yet

    def report(message: dict[str, Any]) -> None:
        # A handler may keep the worker from reading for hours. Then counts are dropped, and refusals wait.
        if not behind or "refused" in message:
            behind.extend(frame(message))
        try:
            del behind[: os.write(out, behind)]
        except BlockingIOError:
            return
        except OSError:
            os._exit(0)  # the worker is gone

    renewer = Renewer(parent, lock_ms, report)
    report({"ready": True})
    rest = b""
    next_beat, retry = first, None
    while os.getppid() == parent:
        wake = next_beat if retry is None else min(retry, next_beat)
        ready, _, _ = select.select([0], [], [], min(LOOK, max(0.0, wake - time.monotonic())))
        if ready:
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
            rest = read_frames(rest + chunk, renewer.take)
            time.sleep(GATHER)  # waking for every message would slow a busy worker down
        if (now := time.monotonic()) >= wake:
            is_well = renewer.beat(again=now < next_beat)
            if now >= next_beat:
                next_beat = max(next_beat + every, time.monotonic())
            retry = None if is_well else time.monotonic() + min(RETRY, every)


def main() -> None:
    """Entry point of the process."""
    sys.argv[0] = "oxcart-renewer"  # the name that an embedded server lists it under
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # The worker handles a signal to the group; this process ends when the worker does.
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))


if __name__ == "__main__":
    main()
