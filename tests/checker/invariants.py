"""The invariants: pure functions of the plan, of what clients wrote, and of the final state.

Each yields one line per violation. None looks at the running system, so a record can be checked again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.checker.final import TERMINAL, Event, Final
from tests.checker.plan import (
    BRIDGE,
    BRIDGE_LIMIT,
    GROUP_LIMIT,
    GROUPS,
    KEY_LIMIT,
    PARTED,
    RATE_LIMIT,
    RATED,
    SHARED,
    SHARED_PARTITION,
    TYPE_LIMITS,
    WINDOW,
    WIRES,
    Plan,
    Row,
    Rule,
    logical,
)
from tests.checker.record import Line

#: An event after which a job is not active any more.
_LEAVES = frozenset({"completed", "failed", "delayed", "waiting", "waiting-children", "stalled", "cancelled"})
_FAILOVER = ("fault", "failover")


@dataclass(frozen=True)
class Violation:
    """A broken promise."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


@dataclass
class History:
    """What invariants look at.

    Attributes:
        plan: What producers added.
        lines: What clients wrote.
        final: The state at the end.
        is_quiet: Whether all jobs had ended when the final state was read.
    """

    plan: Plan
    lines: list[Line]
    final: Final
    is_quiet: bool = True

    def __post_init__(self) -> None:
        #: How many lines come before the first failover. A failover loses what the replica did not have: of
        #: that, only acknowledged adds are promised.
        failovers = (at for at, line in enumerate(self.lines) if (line.what, line.step) == _FAILOVER)
        self.complete = next(failovers, len(self.lines))
        self.rows = self.plan.rows()
        self.keys = self.final.of_row()


def check(history: History) -> list[Violation]:
    """Returns every violation of every invariant."""
    return [Violation(name, text) for name, one in INVARIANTS.items() for text in one(history)]


def no_acknowledged_job_is_lost(history: History) -> Iterator[str]:
    """Every acknowledged job is terminal or queued; once all is quiet it has reached its fate."""
    acked = [line for line in history.lines if line.what == "acked"]
    for line in acked:
        row = history.rows[line.row]
        keys = history.keys.get(line.row, [])
        if not keys:
            yield f"{line.row} ({row.kind} in {row.queue}) was acknowledged, but is not on the server"
        for key in keys:
            job = history.final.jobs[key]
            if not job.places:
                yield f"{line.row} ({row.kind} in {row.queue}) was acknowledged, but is in no state"
            elif history.is_quiet and row.fate not in job.places:
                yield f"{line.row} ({row.kind}) is {job.places}, should be {row.fate} ({job.reason})"
    if not history.is_quiet:
        left = Counter(
            (key[0], *job.places) for key, job in history.final.jobs.items() if _is_open(job.places)
        )
        yield f"jobs were still open when nothing was broken any more: {dict(left)}"


def _is_open(places: list[str]) -> bool:
    return not TERMINAL.intersection(places)


def adds_are_applied_as_told(history: History) -> Iterator[str]:
    """An add is applied once; a refused one not at all; nothing is on the server that nobody added."""
    told = {line.row: line.what for line in history.lines if line.what in ("acked", "unsure", "refused")}
    for row, keys in history.keys.items():
        if row not in told:
            yield f"{row} is on the server, and no producer added it"
        elif told[row] == "refused":
            yield f"{row} is on the server, though its producer was told that nothing was applied"
        if len(keys) > 1:
            yield f"{row} was added once and is {len(keys)} jobs"


def no_job_is_in_two_states(history: History) -> Iterator[str]:
    """A job has one state, ends once, and has no lease once it has ended."""
    ends: Counter[tuple[str, str]] = Counter()
    for queue, events in history.final.events.items():
        ends.update((queue, one.job) for one in events if one.name in TERMINAL)
    for key, job in history.final.jobs.items():
        if len(job.places) > 1:
            yield f"{key} is in {job.places}"
        if TERMINAL.intersection(job.places):
            if ends[key] != 1 and key[0] not in history.final.trimmed:
                yield f"{key} ended {ends[key]} times"
            if job.is_leased:
                yield f"{key} has ended and has a lease"


def no_finish_without_its_lease(history: History) -> Iterator[str]:
    """A result is that of the last start; a start runs in one process; only an active job completes."""
    began: dict[tuple[str, str, int], int] = {}
    ended: set[tuple[str, str, Any, Any]] = set()
    for number, line in enumerate(history.lines):
        if line.what == "began":
            once = (line.queue, line.job, line.start)
            if once in began and number < history.complete:  # later, a lost claim is made again
                yield f"start {line.start} of {line.queue}/{line.job} ran in {began[once]} and in {line.pid}"
            began[once] = line.pid
        elif line.what == "ended":
            ended.add((line.queue, line.job, line.start, line.pid))
    for key, job in history.final.jobs.items():
        if job.places != ["completed"]:
            continue
        result = job.result if isinstance(job.result, dict) else {}
        start, pid = result.get("start"), result.get("pid")
        if start != job.starts:
            yield f"{key} has the result of start {start}, but was started {job.starts} times"
        elif (key[0], key[1], start, pid) not in ended:
            yield f"{key} has a result of start {start} in {pid}, which wrote no end"
    for queue, events in history.final.events.items():
        if queue in history.final.trimmed:
            continue
        for one, active in _walk(events):
            if one.name == "completed" and one.job not in active:
                yield f"{queue}/{one.job} completed while it was not active"


def _walk(events: list[Event]) -> Iterator[tuple[Event, set[str]]]:
    """Yields each event with the jobs that are active before it."""
    active: set[str] = set()
    for one in events:
        yield one, active
        if one.name == "active":
            active.add(one.job)
        elif one.name in _LEAVES:
            active.discard(one.job)


def attempts_stay_in_bounds(history: History) -> Iterator[str]:
    """A job runs at most as often as it has attempts; where peers run it, once more per stall."""
    runs: Counter[tuple[str, str]] = Counter()
    for line in history.lines:
        if line.what == "began":
            runs[line.queue, line.job] += 1
    for key, job in history.final.jobs.items():
        row = history.rows.get(job.row)
        if row is None:
            continue
        # Peers do not count a stall as an attempt, our workers do.
        most = row.attempts + (job.stalls if row.queue in (*SHARED, PARTED) else 0)
        if job.ended > row.attempts and row.fate == "failed":
            yield f"{job.row} ended {job.ended} attempts of {row.attempts}"
        if row.kind == "bad" and "completed" in job.places:
            yield f"{job.row} failed for good and completed"
        if history.complete < len(history.lines):
            continue  # a start whose claim was lost is counted anew
        if row.kind == "exhausted" and runs[key] > most:
            yield f"{job.row} ran {runs[key]} times with {row.attempts} attempts and {job.stalls} stalls"
        if runs[key] > job.starts:
            yield f"{job.row} ran {runs[key]} times and was started {job.starts} times"


def dependents_are_released_once(history: History) -> Iterator[str]:
    """A job that waits for others is released once, and begins after all of them have ended."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, line in enumerate(history.lines):
        if line.what == "began":
            first.setdefault(line.row, number)
        elif line.what == "ended" and line.step == "ok":
            last.setdefault(line.row, number)
    released: Counter[tuple[str, str]] = Counter()
    for queue, events in history.final.events.items():
        released.update((queue, one.job) for one in events if one.prev == "waiting-children")
    for row in history.rows.values():
        if not row.children:
            continue
        for key in history.keys.get(row.id, []):
            if history.is_quiet and released[key] != 1 and key[0] not in history.final.trimmed:
                yield f"{row.id} ({row.kind}) was released {released[key]} times"
        if row.id in first:
            early = [one.id for one in row.children if last.get(one.id, len(history.lines)) > first[row.id]]
            if early:
                yield f"{row.id} ({row.kind}) began before {early} had ended"


def schedules_fire_once_per_due_time(history: History) -> Iterator[str]:
    """Each due time has one run, and each run ends once."""
    for rule in history.plan.rules:
        runs = [
            (key, job)
            for key, job in history.final.jobs.items()
            if logical(key[0]) == rule.queue and _is_of(job.schedule, rule)
        ]
        dues = Counter(job.due for _, job in runs)
        for due, count in dues.items():
            if count > 1:
                yield f"{rule.key} fired {count} times for {due}"
        if rule.every:
            slots = Counter(due // rule.every for due in dues)
            yield from (
                f"{rule.key} fired {count} times in slot {at}" for at, count in slots.items() if count > 1
            )
        if rule.queue != BRIDGE:
            numbers = sorted(job.count for _, job in runs)
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"{rule.key} numbered its runs {numbers}"
        if history.is_quiet and (len(runs) != rule.limit if rule.queue != BRIDGE else not runs):
            yield f"{rule.key} made {len(runs)} runs, should be {rule.limit}"
        for key, job in runs:
            if history.is_quiet and job.places != ["completed"]:
                yield f"{key}, a run of {rule.key}, is {job.places} ({job.reason})"


def _is_of(schedule: str, rule: Rule) -> bool:
    # Bridge derives the id of a schedule from its name; the plan has one there.
    return bool(schedule) and (schedule == rule.key or rule.queue == BRIDGE)


def limits_are_never_exceeded(history: History) -> Iterator[str]:
    """Never are more jobs of a type, a key or a group active at once, or begun in a window, than allowed."""
    yield from _limits_of_bullmq(history)
    if BRIDGE not in history.final.trimmed:
        yield from _limits_of_bridge(history)
    if RATED not in history.final.trimmed:
        yield from _rates(history)


def _limits_of_bridge(history: History) -> Iterator[str]:
    # Jobs without a limit count, and are not held back.
    for one, active in _walk(history.final.events.get(BRIDGE, [])):
        job = history.final.jobs.get((BRIDGE, one.job))
        row = history.rows.get(job.row) if job else None
        if one.name == "active" and row and row.kind == "limited":
            others = len(active - {one.job})
            if others >= BRIDGE_LIMIT:
                yield f"{row.id} began beside {others} jobs of its type, with a limit of {BRIDGE_LIMIT}"


def _rates(history: History) -> Iterator[str]:
    if any((line.what, line.step) == ("fault", "step") for line in history.lines):
        return  # where the clock jumps, ids of events do not tell when a window ended
    begin, starts = 0, 0
    for one in history.final.events.get(RATED, []):
        if one.name != "active":
            continue
        at = int(one.id.partition("-")[0])
        if not starts or at >= begin + WINDOW:
            begin, starts = at, 0
        starts += 1
        if starts == RATE_LIMIT + 1:
            yield f"over {RATE_LIMIT} jobs of {RATED} began within {WINDOW} ms, the last at {at}"


def _limits_of_bullmq(history: History) -> Iterator[str]:
    for queue in WIRES:
        if queue in history.final.trimmed or (queue == SHARED_PARTITION and history.plan.peers):
            continue  # peers obey no limit per key
        worst: defaultdict[str, int] = defaultdict(int)
        for _, active in _walk([*history.final.events.get(queue, []), Event("end", "")]):
            rows = [history.rows[job] for job in active if job in history.rows]
            for bucket, count in Counter(name for row in rows for name in _buckets(row)).items():
                worst[bucket] = max(worst[bucket], count)
        for bucket, count in worst.items():
            most = GROUP_LIMIT if bucket in GROUPS else TYPE_LIMITS.get(bucket, KEY_LIMIT)
            if count > most:
                yield f"{count} jobs of {bucket!r} in {queue} were active at once, with a limit of {most}"


def _buckets(row: Row) -> list[str]:
    named = row.name if row.name in TYPE_LIMITS else None
    return [name for name in (named, row.limit_key, row.group) if name]


def the_lake_equals_the_streams(history: History) -> Iterator[str]:
    """Bronze has each entry of each stream once, and no gap; the tables have the states of the server."""
    lake, final = history.final.lake, history.final
    if lake is None:
        return
    has = Counter(lake.entries)
    streams = {queue: events for queue, events in final.events.items() if queue in WIRES}
    for queue, events in streams.items():
        due = {(queue, one.id, one.name or None, one.job or None) for one in events}
        if lacking := [entry for entry in due if not has[entry]]:
            yield f"{len(lacking)} entries of {queue} are not in bronze: {sorted(lacking, key=str)[:3]}"
        if other := [entry for entry in has if entry[0] == queue and entry not in due]:
            yield f"bronze has {len(other)} entries that {queue} has not: {sorted(other, key=str)[:3]}"
    if doubled := [entry for entry, count in has.items() if count > 1]:
        yield f"bronze has {len(doubled)} entries more than once: {doubled[:3]}"
    if lake.gaps:
        yield f"bronze has gaps in {lake.gaps}, and nothing was trimmed"
    for key, job in final.jobs.items():
        if key[0] in streams and TERMINAL.intersection(job.places):
            state = lake.states.get(key)
            if (state == "completed") != (job.places == ["completed"]) or state not in _ENDS:
                yield f"{key} is {state} in the tables and {job.places} on the server"


#: The formal states of jobs that have ended.
_ENDS = frozenset({"completed", "failed", "dead_letter", "cancelled"})


def nothing_was_trimmed(history: History) -> Iterator[str]:
    """Every event is there, so that all could be looked at."""
    yield from (f"events of {queue} were trimmed" for queue in history.final.trimmed)


#: All invariants by the name that reports use.
INVARIANTS: dict[str, Callable[[History], Iterator[str]]] = {
    "acknowledged": no_acknowledged_job_is_lost,
    "added as told": adds_are_applied_as_told,
    "one state": no_job_is_in_two_states,
    "lease": no_finish_without_its_lease,
    "attempts": attempts_stay_in_bounds,
    "released once": dependents_are_released_once,
    "schedules": schedules_fire_once_per_due_time,
    "limits": limits_are_never_exceeded,
    "lake": the_lake_equals_the_streams,
    "whole record": nothing_was_trimmed,
}
