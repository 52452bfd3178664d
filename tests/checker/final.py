"""The state of the server at the end of a run, with the events of every queue in their order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from tests.checker.plan import BRIDGE, NAMESPACE, WIRES

LISTS = ("wait", "paused", "active")
SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
TERMINAL = frozenset({"completed", "failed"})
#: How Bridge names its terminal states.
_BRIDGE_ENDS = {"completed": "completed", "failed": "failed", "dead": "failed"}


@dataclass
class Job:
    """A stored job.

    Attributes:
        places: Every state that has it, once per occurrence.
        row: The row that its payload names.
        starts: How often it was started.
        ended: How many attempts have ended.
        stalls: How often it was recovered.
        result: Its result.
        reason: Why it failed.
        is_leased: Whether it has a lease.
        count: For a run of a schedule, its number.
        due: For a run of a schedule, its due time in ms.
        schedule: For a run of a schedule, the schedule's key.
    """

    places: list[str] = field(default_factory=list)
    row: str = ""
    starts: int = 0
    ended: int = 0
    stalls: int = 0
    result: Any = None
    reason: str = ""
    is_leased: bool = False
    count: int = 0
    due: int = 0
    schedule: str = ""


@dataclass(frozen=True)
class Event:
    """An event of a queue's stream."""

    name: str
    job: str
    prev: str = ""
    id: str = ""


@dataclass(frozen=True)
class Lake:
    """The tables of a run.

    Attributes:
        entries: Every entry of bronze: its queue, its id, its event and its job.
        gaps: The queues of which bronze has a gap, once per gap.
        states: The state of every job, by queue and id.
    """

    entries: list[tuple[str, str, str | None, str | None]]
    gaps: list[str]
    states: dict[tuple[str, str], str]


@dataclass
class Final:
    """All jobs by queue and id, all events by queue, queues whose stream lost events, and the tables."""

    jobs: dict[tuple[str, str], Job] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    trimmed: list[str] = field(default_factory=list)
    lake: Lake | None = None

    def of_row(self) -> dict[str, list[tuple[str, str]]]:
        """The keys of jobs by their rows; runs of schedules are left out."""
        found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for key, job in self.jobs.items():
            if job.row and not job.schedule:
                found[job.row].append(key)
        return found


def read_final(client: redis.Redis) -> Final:
    """Reads everything."""
    final = Final()
    for queue in WIRES:
        _read_bullmq(client, queue, final)
    _read_bridge(client, final)
    return final


def unended(client: Any) -> int:
    """Returns how many jobs are in a state that is not terminal."""
    pipe = client.pipeline(transaction=False)
    for queue in WIRES:
        for name in LISTS:
            pipe.llen(f"bull:{queue}:{name}")
        for name in SETS[:3]:
            pipe.zcard(f"bull:{queue}:{name}")
    pipe.llen(f"{NAMESPACE}:jobs:waiting")
    pipe.scard(f"{NAMESPACE}:jobs:active")
    for name in ("delayed", "cron"):
        pipe.zcard(f"{NAMESPACE}:jobs:{name}")
    return sum(pipe.execute())


def _read_bullmq(client: Any, queue: str, final: Final) -> None:
    base = f"bull:{queue}"
    places: defaultdict[str, list[str]] = defaultdict(list)
    for state in LISTS:
        for job in client.lrange(f"{base}:{state}", 0, -1):
            places[job].append(state)
    for state in SETS:
        for job in client.zrange(f"{base}:{state}", 0, -1):
            places[job].append(state)
    for key in client.scan_iter(f"{base}:*", count=1000, _type="hash"):
        name = key.removeprefix(f"{base}:")
        if name.startswith(("row-", "repeat:")) and name.count(":") in (0, 2):
            places.setdefault(name, [])
    for job_id, found in places.items():
        fields = client.hgetall(f"{base}:{job_id}")
        job = Job(
            places=found,
            row=_json(fields.get("data"), {}).get("row", ""),
            starts=int(fields.get("ats", 0)),
            ended=int(fields.get("atm", 0)),
            stalls=int(fields.get("stc", 0)),
            result=_json(fields.get("returnvalue"), None),
            reason=fields.get("failedReason", ""),
            is_leased=bool(client.exists(f"{base}:{job_id}:lock")),
        )
        if job_id.startswith("repeat:"):
            _, job.schedule, due = job_id.split(":")
            job.due = int(due)
            job.count = int(_json(fields.get("opts"), {}).get("repeat", {}).get("count", 0))
        final.jobs[queue, job_id] = job
    _read_events(client, queue, f"{base}:events", final)


def _read_bridge(client: Any, final: Final) -> None:
    base = NAMESPACE
    places: defaultdict[str, list[str]] = defaultdict(list)
    for key in client.scan_iter(f"{base}:jobs:data:*", count=1000):
        places.setdefault(key.removeprefix(f"{base}:jobs:data:"), [])
    _note(places, "wait", client.lrange(f"{base}:jobs:waiting", 0, -1))
    _note(places, "active", client.smembers(f"{base}:jobs:active"))
    _note(places, "delayed", client.zrange(f"{base}:jobs:delayed", 0, -1))
    dead = client.lrange(f"{base}:jobs:deadletter", 0, -1)
    for job_id, found in places.items():
        record = _json(client.get(f"{base}:jobs:data:{job_id}"), {})
        status = client.get(f"{base}:jobs:status:{job_id}") or ""
        if status == "cron":
            continue
        ends = [_BRIDGE_ENDS[status]] if status in _BRIDGE_ENDS else []
        # A dead letter is in its list, once; an entry without that status is a second state.
        entries = dead.count(job_id)
        ends += ["failed"] * (entries - 1 if status == "dead" and entries else entries)
        run = client.hgetall(f"{base}:ox:job:{job_id}")
        ox = record.get("ox", {})
        final.jobs[BRIDGE, job_id] = Job(
            places=[*found, *ends],
            row=(record.get("payload") or {}).get("row", ""),
            starts=int(run.get("ats", 0)),
            ended=int(record.get("attempts", 0) or 0),
            result=_json(client.get(f"{base}:jobs:result:{job_id}"), {}).get("data"),
            reason=run.get("failedReason", ""),
            is_leased=bool(client.exists(f"{base}:jobs:lock:{job_id}")),
            schedule=ox.get("schedule", ""),
            due=int(ox.get("due", 0)),
        )
    _read_events(client, BRIDGE, f"{base}:ox:events:{BRIDGE}", final)


def _note(places: defaultdict[str, list[str]], state: str, jobs: Iterable[str]) -> None:
    for job in jobs:
        places[job].append(state)


def _read_events(client: Any, queue: str, key: str, final: Final) -> None:
    found = client.xrange(key) if client.exists(key) else []
    final.events[queue] = [
        Event(one.get("event", ""), one.get("jobId", ""), one.get("prev", ""), entry) for entry, one in found
    ]
    if found and client.xinfo_stream(key)["entries-added"] != len(found):
        final.trimmed.append(queue)


def _json(text: str | None, default: Any) -> Any:
    try:
        return default if text is None else json.loads(text)
    except ValueError:
        return default
