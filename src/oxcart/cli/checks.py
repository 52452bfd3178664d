"""The checks of ``oxcart doctor``: one function per concern, each returns its findings. They only read."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.probe import ServerProbe
    from oxcart.broker.workers import WorkerRecord
    from oxcart.queue import Queue

Level = Literal["ok", "note", "warning", "problem"]

#: The first version with the commands and options that our scripts use (LPOS, ZADD LT, the GET of SET).
OLDEST_SERVER = (6, 2)
#: The version of the wire format, and the newest version that it was compared with.
PINNED, COMPARED = (5, 62, 0), (6, 7, 0)
#: Fixes of findings that several checks make.
APPEND_ONLY = "CONFIG SET appendonly yes, and CONFIG REWRITE"
STEP_CLOCK = "run a time service (chrony, systemd-timesyncd) on that machine"
#: Seconds of difference between clocks at which to warn, and at which to report a problem.
SKEW = (0.5, 5.0)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: The subject of the check.
        level: Whether it is in order.
        detail: The observation.
        fix: The command or setting that changes it; every finding that is not in order has one.
    """

    name: str
    level: Level
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding for JSON."""
        return asdict(self)


async def examine(
    server: Server, prefix: str, reconnect: Reconnect, open_queue: Callable[[str], Queue]
) -> list[Finding]:
    """Checks the server and its queues.

    Raises:
        BrokerUnavailable: The server cannot be reached.
    """
    from oxcart.broker.discovery import find_queues
    from oxcart.broker.factory import count_queues
    from oxcart.cli.queue_checks import judge, read_facts

    findings, clients = await examine_server(server, reconnect)
    names = await find_queues(server, prefix, reconnect)
    rows = await count_queues(server, prefix, names, reconnect)
    versions = {row.queue: row.version for row in rows if row.version}
    lost: dict[str, Mapping[str, int]] = {}
    workers: dict[str, WorkerRecord] = {}
    judged: list[Finding] = []
    connected = worker_connections(clients, prefix)
    for name in names:
        async with open_queue(name) as queue:
            facts = await read_facts(queue)
        workers |= {one.id: one for one in facts.workers}
        if facts.unroutable:
            lost[name] = facts.unroutable
        judged += judge(facts, connected[name])
    clocks = worker_clocks((one.name, one.hostname, one.skew_ms) for one in workers.values())
    of_queues = [*judged, *routes(lost)]
    return [*findings, *clocks, *peers(names, versions), *of_queues, *connections(clients, prefix)]


async def examine_server(server: Server, reconnect: Reconnect) -> tuple[list[Finding], list[dict[str, str]]]:
    """Checks the server itself; returns the findings and its connections."""
    from oxcart.broker.probe import ServerProbe

    findings = [_ourselves(), _embedded_or_not(server)]
    clients: list[dict[str, str]] = []
    slots = await server.master_slots()
    for slot in slots:
        async with ServerProbe(server, slot, reconnect) as probe:
            info = await probe.info()
            where = f" of node {info.get('tcp_port', '?')}" if len(slots) > 1 else ""
            findings += [
                server_version(info, where),
                role(info, where),
                eviction(info, where),
                persistence(info, where),
                memory(info, where),
                judge_skew(*await probe.skew(), where),
            ]
            clients += await _clients(probe)
    return findings, clients


def _ourselves() -> Finding:
    import oxcart

    python = ".".join(str(part) for part in sys.version_info[:3])
    wire = ".".join(str(part) for part in PINNED)
    return Finding("oxcart", "ok", f"{oxcart.__version__} on Python {python}, wire format of BullMQ {wire}")


def _embedded_or_not(server: Server) -> Finding:
    kind = "embedded" if server.location is None else server.location.kind
    return Finding("server", "ok", f"{server.name} ({kind})")


def server_version(info: dict[str, str], where: str = "") -> Finding:
    """Checks that the server has the commands that our scripts use."""
    unwrapped = info.get("redis_version", "0")
    shown = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {unwrapped}"
    if numbers(unwrapped) < OLDEST_SERVER:
        needed = ".".join(str(number) for number in OLDEST_SERVER)
        return Finding(
            f"version{where}", "problem", f"{shown}; at least {needed} is needed", "upgrade the server"
        )
    return Finding(f"version{where}", "ok", shown)


def role(info: dict[str, str], where: str = "") -> Finding:
    """Checks that the server accepts writes."""
    if info.get("role", "master") == "master":
        return Finding(f"role{where}", "ok", "master")
    refused = f"{info['role']}: it refuses writes"
    return Finding(f"role{where}", "problem", refused, "set OXCART_URL to the address of its master")


def eviction(info: dict[str, str], where: str = "") -> Finding:
    """Checks that the server never evicts keys: a queue must not lose any."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        return Finding(
            f"maxmemory-policy{where}",
            "warning",
            "the server does not show it; it must be noeviction",
            "look it up in the settings of your provider",
        )
    if policy == "noeviction":
        return Finding(f"maxmemory-policy{where}", "ok", policy)
    return Finding(
        f"maxmemory-policy{where}",
        "problem",
        f"{policy}: the server may evict jobs",
        "CONFIG SET maxmemory-policy noeviction",
    )


def persistence(info: dict[str, str], where: str = "") -> Finding:
    """Checks what a crash of the server would lose."""
    name = f"persistence{where}"
    for field in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(field, "ok") != "ok":
            return Finding(
                name, "problem", f"{field} is {info[field]}", "free space on the server's disk, see its log"
            )
    if info.get("aof_enabled") == "1":
        return Finding(name, "ok", "append-only file")
    saved = int(info.get("rdb_last_save_time", "0")), int(info.get("rdb_changes_since_last_save", "0"))
    if info.get("rdb_saves", "0") != "0":
        ago = max(0.0, time.time() - saved[0])
        return Finding(
            name,
            "warning",
            f"snapshots only, {saved[1]:,} changes since the last {ago:.0f} s ago; a crash loses them",
            APPEND_ONLY,
        )
    lost = "none seen: a crash or restart of the server loses all jobs"
    return Finding(name, "warning", lost, APPEND_ONLY)


def memory(info: dict[str, str], where: str = "") -> Finding:
    """Checks how much memory is free."""
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if not most:
        return Finding(f"memory{where}", "ok", f"{used / 2**20:,.1f} MiB used, no limit set")
    share = used / most
    shown = f"{used / 2**20:,.1f} of {most / 2**20:,.1f} MiB used ({share:.0%})"
    if share <= 0.8:
        return Finding(f"memory{where}", "ok", shown)
    level: Level = "problem" if share > 0.95 else "warning"
    fix = "oxcart clean QUEUE --state completed --grace 1d, or CONFIG SET maxmemory"
    return Finding(f"memory{where}", level, shown, fix)


def judge_skew(skew: float, round_trip: float, where: str = "") -> Finding:
    """Rates a difference of clocks; up to half a round trip of it may be the network."""
    sure = max(0.0, abs(skew) - round_trip / 2)
    side = "ahead of" if skew > 0 else "behind"
    shown = f"ours is {abs(skew) * 1000:.1f} ms {side} the server's (round trip {round_trip * 1000:.1f} ms)"
    level: Level = "problem" if sure > SKEW[1] else "warning" if sure > SKEW[0] else "ok"
    if level == "ok":
        return Finding(f"clock{where}", level, shown)
    shown += "; our jobs follow the server's, those of peers and the ages shown here do not"
    return Finding(f"clock{where}", level, shown, STEP_CLOCK)


def worker_clocks(workers: Iterable[tuple[str, str, int | None]]) -> list[Finding]:
    """Rates how far the clocks of live workers are from the server's, by their heartbeats.

    Args:
        workers: Name, host, and ms that the clock is ahead; None if that is unknown.
    """
    known = sorted((name, host, skew_ms) for name, host, skew_ms in workers if skew_ms is not None)
    found = []
    for name, host, skew_ms in known:
        finding = judge_skew(skew_ms / 1000, 0.0)
        if finding.level != "ok":
            side = "ahead of" if skew_ms > 0 else "behind"
            shown = f"that of {host} is {abs(skew_ms) / 1000:,.1f} s {side} the server's"
            found.append(Finding(f"clock of worker {name}", finding.level, shown, STEP_CLOCK))
    if known and not found:
        found.append(Finding("clocks of workers", "ok", f"{len(known)} in step with the server's"))
    return found


async def _clients(probe: ServerProbe) -> list[dict[str, str]]:
    from oxcart.model.errors import AccessDenied, ScriptError

    try:
        return await probe.clients()
    except (ScriptError, AccessDenied):  # hosted servers may forbid it
        return []


def routes(lost: Mapping[str, Mapping[str, int]]) -> list[Finding]:
    """Lists jobs whose targets no worker matches, by queue and target."""
    return [
        Finding(
            f"unroutable in {name}",
            "warning",
            f"{count:,} jobs ask for {target}, and no registered or connected worker fits",
            f"oxcart jobs {name} --unroutable; oxcart work … --capability, --region, --stack",
        )
        for name, targets in sorted(lost.items())
        for target, count in sorted(targets.items())
    ]


def peers(names: list[str], versions: dict[str, str]) -> list[Finding]:
    """Rates the versions that peers stored in the queues."""
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
        return Finding(name, "note", f"{queues}: an unknown library", "see mixed fleets in docs/protocol.md")
    if library == "oxcart" or number[:2] == PINNED[:2]:
        return Finding(name, "ok", queues)
    if number < PINNED:
        older = f"{queues}: older than 5.62.0, whose wire format Oxcart uses"
        return Finding(name, "warning", older, "npm install bullmq@5.62.0")
    if number >= (6,):
        beyond = " and newer than the versions that Oxcart was compared with" if number > COMPARED else ""
        return Finding(
            name,
            "note",
            f"{queues}: pauses in its own way{beyond}; beside peers of version 5 a resume of theirs can lose "
            "waiting jobs",
            "oxcart doctor --rescue returns such jobs",
        )
    return Finding(name, "ok", queues)


def worker_connections(clients: list[dict[str, str]], prefix: str) -> Counter[str]:
    """Counts the connections that name themselves workers, by queue."""
    named = (client_queue(client.get("name", ""), prefix) for client in clients)
    return Counter(queue for queue, kind in named if queue and kind == "worker")


def connections(clients: list[dict[str, str]], prefix: str) -> list[Finding]:
    """Lists connections by the names that workers and listeners set."""
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
    """Returns the queue that a connection names and its purpose; empty without a name."""
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
    """Returns the numbers of a version, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0])[:3])
