"""What ``oxcart doctor`` looks at, one function per concern, each a list of findings.

May touch: the server; reads only.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oxcart.broker.bullmq.registry import WorkerRecord
    from oxcart.broker.connection import Reconnect, Server

Level = Literal["ok", "note", "warning", "problem"]

#: Our scripts use commands and options that came with this version (LPOS, ZADD LT, SETs' GET).
OLDEST_SERVER = (6, 2)
#: The version whose wire we speak, and the last one it was compared with.
PINNED, COMPARED = (5, 62, 0), (6, 7, 0)
#: Seconds of difference between clocks at which to warn, and at which something is wrong with a machine.
SKEW = (0.5, 5.0)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        level: Whether it is as it should be.
        detail: What was found.
    """

    name: str
    level: Level
    detail: str

    def as_dict(self) -> dict[str, str]:
        """The finding for JSON."""
        return asdict(self)


async def examine(server: Server, prefix: str, reconnect: Reconnect) -> list[Finding]:
    """Looks at the server and its queues.

    Raises:
        BrokerUnavailable: The server cannot be reached.
    """
    from oxcart.broker.discovery import find_queues

    findings, clients = await examine_server(server, reconnect)
    names = await find_queues(server, prefix, reconnect)
    versions: dict[str, str] = {}
    lost: dict[str, dict[str, int]] = {}
    workers: dict[str, WorkerRecord] = {}
    for name in names:
        version, unroutable, living = await _of_queue(server, name, prefix, reconnect)
        workers |= {one.id: one for one in living}
        if version:
            versions[name] = version
        if unroutable:
            lost[name] = unroutable
    clocks = worker_clocks((one.name, one.hostname, one.skew_ms) for one in workers.values())
    return [*findings, *clocks, *peers(names, versions), *routes(lost), *connections(clients, prefix)]


async def examine_server(server: Server, reconnect: Reconnect) -> tuple[list[Finding], list[dict[str, str]]]:
    """Looks at the server itself; returns what was found, and its connections."""
    from oxcart.broker.caller import Caller

    findings = [_ourselves(), _embedded_or_not(server)]
    clients: list[dict[str, str]] = []
    slots = await server.master_slots()
    for slot in slots:
        caller = Caller(server, slot, "doctor", reconnect=reconnect)
        try:
            info = parse_info(await caller.command("INFO"))
            where = f" of node {info.get('tcp_port', '?')}" if len(slots) > 1 else ""
            findings += [
                server_version(info, where),
                role(info, where),
                eviction(info, where),
                persistence(info, where),
                memory(info, where),
                await clock_skew(caller, where),
            ]
            clients += await _clients(caller)
        finally:
            await caller.close()
    return findings, clients


def _ourselves() -> Finding:
    import oxcart

    python = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("oxcart", "ok", f"{oxcart.__version__} on Python {python}")


def _embedded_or_not(server: Server) -> Finding:
    kind = "embedded" if server.location is None else server.location.kind
    return Finding("server", "ok", f"{server.name} ({kind})")


def parse_info(raw: bytes) -> dict[str, str]:
    """The answer to INFO, as names and values."""
    lines = raw.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def server_version(info: dict[str, str], where: str = "") -> Finding:
    """Whether the server knows the commands that our scripts use."""
    spoken = info.get("redis_version", "0")
    shown = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {spoken}"
    if numbers(spoken) < OLDEST_SERVER:
        needed = ".".join(str(number) for number in OLDEST_SERVER)
        return Finding(f"version{where}", "problem", f"{shown}; at least {needed} is needed")
    return Finding(f"version{where}", "ok", shown)


def role(info: dict[str, str], where: str = "") -> Finding:
    """Whether it takes writes."""
    if info.get("role", "master") == "master":
        return Finding(f"role{where}", "ok", "master")
    return Finding(f"role{where}", "problem", f"{info['role']}: it takes no writes; connect to its master")


def eviction(info: dict[str, str], where: str = "") -> Finding:
    """Whether the server may throw keys away; a queue must never lose one."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        return Finding(
            f"maxmemory-policy{where}", "warning", "the server does not tell; it must be noeviction"
        )
    if policy == "noeviction":
        return Finding(f"maxmemory-policy{where}", "ok", policy)
    return Finding(
        f"maxmemory-policy{where}",
        "problem",
        f"{policy}: the server may throw jobs away; CONFIG SET maxmemory-policy noeviction",
    )


def persistence(info: dict[str, str], where: str = "") -> Finding:
    """What a crash of the server costs."""
    name = f"persistence{where}"
    for field in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(field, "ok") != "ok":
            return Finding(name, "problem", f"{field} is {info[field]}: the disk may be full")
    if info.get("aof_enabled") == "1":
        return Finding(name, "ok", "append-only file")
    saved = int(info.get("rdb_last_save_time", "0")), int(info.get("rdb_changes_since_last_save", "0"))
    if info.get("rdb_saves", "0") != "0":
        ago = max(0.0, time.time() - saved[0])
        return Finding(
            name,
            "warning",
            f"snapshots only, {saved[1]:,} changes since the last {ago:.0f} s ago; a crash loses them",
        )
    return Finding(name, "warning", "none seen: a crash or restart of the server loses all jobs")


def memory(info: dict[str, str], where: str = "") -> Finding:
    """How much room is left."""
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if not most:
        return Finding(f"memory{where}", "ok", f"{used / 2**20:,.1f} MiB used, no limit set")
    share = used / most
    shown = f"{used / 2**20:,.1f} of {most / 2**20:,.1f} MiB used ({share:.0%})"
    return Finding(f"memory{where}", "problem" if share > 0.95 else "warning" if share > 0.8 else "ok", shown)


async def clock_skew(caller: Any, where: str = "") -> Finding:
    """How far our clock is from the server's; the shortest of some round trips tells it best."""
    best: tuple[float, float] | None = None
    for _ in range(5):
        before = time.time()
        seconds, micros = await caller.command("TIME")
        after = time.time()
        skew = (before + after) / 2 - (int(seconds) + int(micros) / 1e6)
        if best is None or after - before < best[0]:
            best = (after - before, skew)
    assert best is not None
    return judge_skew(best[1], best[0], where)


def judge_skew(skew: float, round_trip: float, where: str = "") -> Finding:
    """What a difference of clocks means; half a round trip of it may be the way."""
    sure = max(0.0, abs(skew) - round_trip / 2)
    side = "ahead of" if skew > 0 else "behind"
    shown = f"ours is {abs(skew) * 1000:.1f} ms {side} the server's (round trip {round_trip * 1000:.1f} ms)"
    level: Level = "problem" if sure > SKEW[1] else "warning" if sure > SKEW[0] else "ok"
    if level != "ok":
        shown += "; our jobs follow the server's, those of peers and the ages shown here do not"
    return Finding(f"clock{where}", level, shown)


def worker_clocks(workers: Iterable[tuple[str, str, int | None]]) -> list[Finding]:
    """How far the clocks of living workers are from the server's, as their heartbeats show it.

    Args:
        workers: Name, host, and ms that the clock is ahead; None where nothing is known.
    """
    known = sorted((name, host, skew_ms) for name, host, skew_ms in workers if skew_ms is not None)
    found = []
    for name, host, skew_ms in known:
        finding = judge_skew(skew_ms / 1000, 0.0)
        if finding.level != "ok":
            side = "ahead of" if skew_ms > 0 else "behind"
            shown = f"that of {host} is {abs(skew_ms) / 1000:,.1f} s {side} the server's"
            found.append(Finding(f"clock of worker {name}", finding.level, shown))
    if known and not found:
        found.append(Finding("clocks of workers", "ok", f"{len(known)} in step with the server's"))
    return found


async def _clients(caller: Any) -> list[dict[str, str]]:
    from oxcart.model.errors import AccessDenied, ScriptError

    try:
        raw = await caller.command("CLIENT", "LIST")
    except (ScriptError, AccessDenied):  # hosted servers may forbid it
        return []
    return [
        dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
        for line in raw.decode("utf-8", "replace").splitlines()
    ]


async def _of_queue(
    server: Server, name: str, prefix: str, reconnect: Reconnect
) -> tuple[str | None, dict[str, int], list[WorkerRecord]]:
    """The version that a peer left in a queue, the queue's unroutable jobs, and its living workers."""
    from oxcart.broker.bullmq.broker import BullMQBroker

    broker = BullMQBroker(server, name, prefix=prefix, reconnect=reconnect)
    try:
        version = await broker.caller.command("HGET", broker.keys.meta(), "version")
        unroutable, workers = await broker.unroutable(), await broker.workers()
    finally:
        await broker.close()
    return version.decode("utf-8", "replace") if version else None, unroutable, workers


def routes(lost: Mapping[str, Mapping[str, int]]) -> list[Finding]:
    """Jobs that wait for workers that are not there, by queue and target."""
    return [
        Finding(
            f"unroutable in {name}",
            "warning",
            f"{count:,} jobs ask for {target}, and no registered or connected worker fits",
        )
        for name, targets in sorted(lost.items())
        for target, count in sorted(targets.items())
    ]


def peers(names: list[str], versions: dict[str, str]) -> list[Finding]:
    """The versions that peers left in the queues."""
    findings = [Finding("queues", "ok", ", ".join(names) if names else "none yet")]
    by_version: dict[str, list[str]] = {}
    for name, version in versions.items():
        by_version.setdefault(version, []).append(name)
    for version, queues in sorted(by_version.items()):
        findings.append(_peer(version, ", ".join(sorted(queues))))
    return findings


def _peer(version: str, queues: str) -> Finding:
    library, _, text = version.rpartition(":")
    number = numbers(text)
    name = f"peer {version}"
    if library not in ("bullmq", "oxcart"):
        return Finding(name, "note", f"{queues}: a library we do not know")
    if library == "oxcart" or number[:2] == PINNED[:2]:
        return Finding(name, "ok", queues)
    if number < PINNED:
        return Finding(name, "warning", f"{queues}: older than 5.62.0, whose wire we speak")
    if number >= (6,):
        beyond = " and newer than what we were compared with" if number > COMPARED else ""
        return Finding(
            name,
            "note",
            f"{queues}: pauses in its own way{beyond}; beside peers of version 5 a resume of theirs can lose "
            "waiting jobs, which --rescue brings back",
        )
    return Finding(name, "ok", queues)


def connections(clients: list[dict[str, str]], prefix: str) -> list[Finding]:
    """Who is connected, by the names that workers and listeners give themselves."""
    workers: Counter[str] = Counter()
    listeners: Counter[str] = Counter()
    libraries: Counter[str] = Counter()
    for client in clients:
        queue, kind = client_queue(client.get("name", ""), prefix)
        if queue and kind == "worker":
            workers[queue] += 1
        elif queue and kind == "events":
            listeners[queue] += 1
        if library := client.get("lib-name"):
            libraries[f"{library} {client.get('lib-ver', '')}".strip()] += 1
    findings = [
        Finding(what, "ok", ", ".join(f"{count} on {queue}" for queue, count in sorted(counted.items())))
        for what, counted in (("workers", workers), ("event listeners", listeners))
        if counted
    ]
    if libraries:
        shown = ", ".join(f"{count} × {library}" for library, count in sorted(libraries.items()))
        findings.append(Finding("client libraries", "ok", shown))
    return findings


def client_queue(name: str, prefix: str) -> tuple[str, str]:
    """The queue a connection names, and what it is for; empty where it names none."""
    import base64
    import binascii

    if not name.startswith(prefix + ":"):
        return "", ""
    encoded, _, rest = name[len(prefix) + 1 :].partition(":")
    try:
        queue = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        queue = encoded  # the official Python client does not encode it
    kind = "events" if rest == "qe" else "worker" if not rest or rest.startswith("w:") else "other"
    return queue, kind


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0])[:3])
