"""Accounts for every key on the server: what it belongs to, and whether that still exists.

A key is a stray if no rule names it, if its job is gone, or if it should expire and does not. When all jobs
are removed, an index with entries is left over as well.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.mix import MAIN, NAMESPACE, PARTS
from oxcart.broker.bridge.workers import FORGOTTEN

#: What a key belongs to. Those of a queue stay with it, short ones expire, an index is empty without jobs.
QUEUE, INDEX, SHORT, JOB, SCHEDULE, WORKER = "queue", "index", "short-lived", "job", "schedule", "worker"

_BULLMQ = (
    (QUEUE, r"meta|id|pc|marker|events|completed|failed|metrics:.*|stalled-check|limiter|stalled"),
    (QUEUE, r"ox:(alive|away|groups|partitions|workers|listeners|crowded|lanes:version)"),
    (INDEX, r"wait|paused|active|prioritized|delayed|waiting-children|repeat"),
    (INDEX, r"ox:(held|parked|opening|turns|expiring|callbacks|gates|lanes|lanes:ready|lanes:busy|ids)"),
    (SHORT, r"ox:(call|worker|rate|cancel|idem|wake|watcher):.*|ox:(swept|watcher|lanes:tended)|d[en]:.*"),
    (SCHEDULE, r"repeat:(?P<owner>[^:]+)"),
    (JOB, r"(?P<owner>repeat:[^:]+:\d+|[^:]+)(:(lock|logs|dependencies|processed|failed|unsuccessful))?"),
)
_BRIDGE = (
    (QUEUE, r"metrics:.*|workers:active|ratelimit:.*|scheduler:.*|queues:paused|ox:(front|reading:.*)"),
    (QUEUE, r"ox:(alive|away|term|turns|back|types|survey|scan|checking|settling|events:.*)"),
    (
        INDEX,
        r"jobs:(waiting|active|delayed|dead|deadletter|cron)|ox:(held|pending|missing|listed|facts|active:.*)",
    ),
    (INDEX, r"ox:(lane|lanes|marker):.*"),
    (SHORT, r"workers:heartbeat:.*|ox:(call|worker|cancel|next|rescued|hold|watcher):.*|jobs:lock:.*"),
    (QUEUE, r"ox:ended:.*"),
    (WORKER, r"workers:(?P<owner>.+)"),
    (JOB, r"jobs:(data|status|result|progress):(?P<owner>[^:]+)|ox:job:(?P<also>[^:]+)"),
)
_QUEUES = "|".join(re.escape(f"bull:{name}") for name in (MAIN, PARTS))
_PLACES = (
    (re.compile(rf"(?P<base>({_QUEUES})(#\d+)?(@[^:]*)?(~gates)?):(?P<end>.*)", re.DOTALL), _BULLMQ),
    (re.compile(rf"(?P<base>{re.escape(NAMESPACE)}):(?P<end>.*)", re.DOTALL), _BRIDGE),
)
_RULES = {id(rules): [(what, re.compile(text)) for what, text in rules] for rules in (_BULLMQ, _BRIDGE)}


@dataclass
class Account:
    """The keys of a server.

    Attributes:
        kinds: How many keys belong to what.
        strays: Keys that nothing accounts for, with the reasons.
        fullest: The longest of the indexes, by name, with their lengths.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    strays: dict[str, str] = field(default_factory=dict)
    fullest: dict[str, int] = field(default_factory=dict)

    def jobs(self) -> int:
        return self.kinds[JOB]


def classify(key: str) -> tuple[str, str]:
    """Returns what a key belongs to, and the key of its owner, "" for none."""
    for place, rules in _PLACES:
        if found := place.fullmatch(key):
            base, end = found["base"], found["end"]
            for what, text in _RULES[id(rules)]:
                if owner := text.fullmatch(end):
                    names = owner.groupdict()
                    if what == SCHEDULE:
                        return what, f"{base}:repeat:{names['owner']}"
                    if what == WORKER:
                        return what, f"{base}:workers:heartbeat:{names['owner']}"
                    if what == JOB and rules is _BULLMQ:
                        return what, f"{base}:{names['owner']}"
                    if what == JOB:
                        return what, f"{base}:jobs:data:{names['owner'] or names['also']}"
                    return what, ""
    return "", ""


def account(client: Any) -> Account:
    """Reads all keys of a server at a quiet moment."""
    found = Account()
    keys = {str(key) for key in client.scan_iter("*", count=2000)}
    for key in sorted(keys):
        what, owner = classify(key)
        found.kinds[what or "unknown"] += 1
        if not what:
            found.strays[key] = "no rule names it"
        elif what == WORKER:
            if not owner_lives(client, key, owner):
                found.strays[key] = f"its worker has been gone for over {FORGOTTEN / 1000:g} s"
        elif owner and owner not in keys and client.exists(key):
            found.strays[key] = f"its {what} {owner} is gone"
        elif what == SHORT and client.ttl(key) == -1:
            found.strays[key] = "it does not expire"
        elif what == INDEX:
            found.fullest[key] = length(client, key)
    return found


def owner_lives(client: Any, key: str, heartbeat: str) -> bool:
    """Returns whether a Bridge worker's record is of a living worker, or of one that is not gone for long."""
    record = client.get(key)
    if record is None or client.exists(heartbeat):
        return True
    seconds, _ = client.time()
    return bool(json.loads(record)["lastSeen"] > seconds * 1000 - FORGOTTEN)


def leftovers(client: Any) -> dict[str, str]:
    """Returns what is wrong on a server from which all jobs were removed while its queues exist."""
    found = account(client)
    wrong = dict(found.strays)
    for key in map(str, client.scan_iter("*", count=2000)):
        what, _ = classify(key)
        if what in (JOB, SCHEDULE):
            wrong[key] = f"a {what} is left"
    wrong |= {key: f"it has {many} entries" for key, many in found.fullest.items() if many}
    return wrong


def length(client: Any, key: str) -> int:
    """Returns how many entries a key has."""
    kind = client.type(key)
    counts = {"zset": client.zcard, "set": client.scard, "list": client.llen, "hash": client.hlen}
    return int(counts[kind](key)) if kind in counts else int(kind != "none")
