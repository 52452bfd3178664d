"""What must be true after the run of a mixed fleet; each violation is one line."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import redis

from tests.interop import wire
from tests.interop.mixed.crews import CONCURRENCY, Crews
from tests.interop.mixed.plan import QUEUES, Plan, Planned, Scheduled

Key = tuple[str, str]


class Store:
    """The final state of the server."""

    def __init__(self, client: redis.Redis, plan: Plan) -> None:
        self._client: Any = client
        self.plan = plan
        self.jobs: dict[Key, Planned] = {(job.queue, job.id): job for job in plan.jobs().values()}
        self.states: dict[Key, str] = {}
        self.ends: Counter[Key] = Counter()
        self.released: Counter[Key] = Counter()
        self.stalled: Counter[Key] = Counter()
        self.trimmed = False
        for queue in QUEUES:
            self._read(queue)
        self.hashes = self._hashes([*self.jobs, *(key for key in self.states if key not in self.jobs)])

    def _read(self, queue: str) -> None:
        base = f"bull:{queue}"
        for state in ("completed", "failed", "delayed", "prioritized", "waiting-children"):
            for job in self._client.zrange(f"{base}:{state}", 0, -1):
                self.states[queue, job] = state
        for state in ("wait", "paused", "active"):
            for job in self._client.lrange(f"{base}:{state}", 0, -1):
                self.states[queue, job] = state
        stream = self._client.xinfo_stream(f"{base}:events")
        self.trimmed |= stream["entries-added"] != stream["length"]
        for event in wire.entries(self._client, base):
            key = (queue, event.get("jobId", ""))
            if event["event"] in ("completed", "failed"):
                self.ends[key] += 1
            elif event["event"] == "stalled":
                self.stalled[key] += 1
            elif event.get("prev") == "waiting-children" or self._is_released_late(key, event):
                self.released[key] += 1

    def _is_released_late(self, key: Key, event: dict[str, str]) -> bool:
        """The delay of a parent begins when its children have ended."""
        job = self.jobs.get(key)
        return job is not None and bool(job.children) and event["event"] == "delayed"

    def _hashes(self, keys: list[Key]) -> dict[Key, dict[str, str]]:
        pipe = self._client.pipeline(transaction=False)
        for queue, job in keys:
            pipe.hgetall(f"bull:{queue}:{job}")
        return dict(zip(keys, pipe.execute(), strict=True))

    def runs(self, one: Scheduled) -> list[Key]:
        """The runs of a schedule, in their order."""
        start = f"repeat:{one.key}:"
        found = [key for key in self.states if key[0] == one.queue and key[1].startswith(start)]
        return sorted(found, key=lambda key: int(key[1].rpartition(":")[2]))


def faults(store: Store, crews: Crews) -> list[str]:
    """Yields every violation."""
    found = [*_ends(store), *_parents(store, crews), *_schedules(store), *_runs(store, crews)]
    if store.trimmed:
        found.append("events were trimmed, so that not all could be looked at")
    return found


def _ends(store: Store) -> Iterator[str]:
    for key, job in store.jobs.items():
        state = store.states.get(key, "in no list")
        if state != job.fate:
            yield f"{key}: is {state}, should be {job.fate} ({store.hashes[key].get('failedReason')})"
        elif store.ends[key] != 1:
            yield f"{key}: ended {store.ends[key]} times"


def _parents(store: Store, crews: Crews) -> Iterator[str]:
    first: dict[Key, int] = {}
    last: dict[Key, int] = {}
    for number, line in enumerate(crews.lines()):
        if line.what == "began":
            first.setdefault(line.job, number)
        else:
            last[line.job] = number
    for key, job in store.jobs.items():
        if not job.children:
            continue
        if store.released[key] != 1:
            yield f"{key}: a parent that was released {store.released[key]} times"
        if job.runs:
            late = [one.id for one in job.children if last.get((one.queue, one.id), 0) > first.get(key, 0)]
            if late:
                yield f"{key}: a parent that ran before its children {late}"


def _schedules(store: Store) -> Iterator[str]:
    for one in store.plan.schedules:
        keys = store.runs(one)
        numbers = [
            json.loads(store.hashes[key].get("opts", "{}")).get("repeat", {}).get("count") for key in keys
        ]
        if len(numbers) < one.limit:
            yield f"{one.queue}/{one.key}: stopped after {len(numbers)} of {one.limit} runs"
        elif numbers != list(range(1, one.limit + 1)):
            yield f"{one.queue}/{one.key}: fired {numbers}, should be 1 to {one.limit}"
        for key in keys:
            if store.states[key] != "completed" or store.ends[key] != 1:
                yield f"{key}: is {store.states[key]}, ended {store.ends[key]} times"


def _runs(store: Store, crews: Crews) -> Iterator[str]:
    """Each job ran as often as planned and never twice at once, unless its worker was killed."""
    begun: defaultdict[Key, list[int]] = defaultdict(list)
    under_way: dict[Key, int] = {}
    for line in crews.lines():
        if line.what == "ended":
            if under_way.pop(line.job, None) != line.pid:
                yield f"{line.job}: ended by {line.side}, which no longer ran it"
            continue
        if line.start in begun[line.job]:
            yield f"{line.job}: start {line.start} ran twice"
        begun[line.job].append(line.start)
        holder = under_way.get(line.job)
        if holder is not None and holder not in crews.killed:
            yield f"{line.job}: begun by {line.side} while another ran it"
        under_way[line.job] = line.pid
    for key in {*store.jobs, *store.states}:
        wanted = store.jobs[key].runs if key in store.jobs else 1
        ran, stalls = len(begun[key]), store.stalled[key]
        if not stalls and ran != wanted:
            yield f"{key}: ran {ran} times, should be {wanted}, and no worker was lost"
        elif ran > wanted + stalls:
            yield f"{key}: ran {ran} times, should be {wanted}, with {stalls} workers lost"
    # A worker holds no more jobs than it has slots.
    most = len(crews.killed) * max(CONCURRENCY.values()) * len(QUEUES)
    stalled = store.stalled.total()
    if stalled > most:
        yield f"{stalled} jobs stalled, but {len(crews.killed)} killed workers held {most} at most"
