"""A reference model of fair groups: whose turn it is, in plain Python, for `test_group_model`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WINDOW, MOST = 20, 150
Order = tuple[int, int, int]


@dataclass
class ModelJob:
    id: str
    group: str
    priority: int
    starts: int = 0
    #: The starts at which its group let it through; None before.
    through: int | None = None
    #: Its order within the group, while its note exists.
    order: Order | None = None
    waits: bool = False


@dataclass
class Rule:
    concurrent: int = 0
    weight: float = 1
    paused: bool = False


@dataclass
class GroupModel:
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    #: Returned jobs with a priority; the next claim puts them back into their groups.
    prioritized: list[ModelJob] = field(default_factory=list)
    active: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    parks: int = 0

    def rule(self, group: str) -> Rule:
        return self.rules.setdefault(group, Rule())

    def enter(self, group: str) -> None:
        if group not in self.turns:
            least = min(self.turns.values(), default=None)
            self.turns[group] = 0 if least is None else least + 1 / self.rule(group).weight

    def noted(self, group: str) -> list[ModelJob]:
        found = [job for job in self.jobs.values() if job.group == group and job.order is not None]
        return sorted(found, key=lambda job: job.order or (0, 0, 0))

    def park(self, job: ModelJob, front: bool) -> None:
        self.parks += 1
        job.waits = True
        if job.order is None:
            job.order = (job.priority, 0, -self.parks) if front else (job.priority, 1, self.parks)
        self.enter(job.group)

    def fill(self, wanted: int) -> None:
        many, entered = min(wanted - len(self.ready), MOST), 0
        while entered < many and self.turns:
            group = min(self.turns, key=lambda name: (self.turns[name], name.encode()))
            rule = self.rule(group)
            held = sum(self.jobs[job].group == group for job in self.places)
            room = 0 if rule.paused else rule.concurrent - held if rule.concurrent else math.inf
            job = None
            if room > 0:
                for job in self.noted(group):
                    job.order = None
                    if job.waits:
                        break
                else:
                    job = None
            if job is None:
                del self.turns[group]
                continue
            self.ready.append(job.id)
            job.through, job.waits = job.starts, False
            if rule.concurrent:
                self.places.add(job.id)
            self.turns[group] += 1 / rule.weight
            entered += 1

    def add(self, *jobs: ModelJob) -> None:
        for job in jobs:
            self.jobs[job.id] = job
            self.park(job, False)
        self.gather()
        self.fill(WINDOW)

    def gather(self) -> None:
        for job in sorted(self.prioritized, key=lambda job: (job.priority, job.id)):
            self.park(job, job.starts > 0)
        self.prioritized.clear()

    def claim(self, count: int) -> list[str]:
        self.gather()
        self.fill(count + WINDOW)
        taken: list[str] = []
        parked: list[ModelJob] = []
        while self.ready and len(taken) < count:
            job = self.jobs[self.ready.pop(0)]
            placed = not self.rule(job.group).concurrent or job.id in self.places
            if job.through == job.starts and placed:
                taken.append(job.id)
            else:
                parked.append(job)
        for job in parked:
            self.park(job, job.starts > 0)
        self.active += taken
        for name in taken:
            self.jobs[name].starts += 1
        if parked:
            self.fill(WINDOW)
        return taken

    def leave(self, name: str, *, returns: bool = False) -> None:
        job = self.jobs[name]
        self.active.remove(name)
        if returns and job.priority:
            self.prioritized.append(job)
        elif returns:
            self.ready.insert(0, name)
        if self.rule(job.group).concurrent and name in self.places:
            self.places.discard(name)
            self.enter(job.group)
            self.fill(WINDOW)

    def set(self, group: str, **settings: float) -> None:
        rule = self.rule(group)
        for name, value in settings.items():
            setattr(rule, name, value)
        self.places = {name for name in self.places if self.jobs[name].group != group}
        if rule.concurrent:
            let = [name for name in self.ready if self.jobs[name].through == self.jobs[name].starts]
            self.places |= {name for name in self.active + let if self.jobs[name].group == group}
        if self.noted(group):
            self.enter(group)
        self.fill(WINDOW)

    def promote(self, name: str) -> None:
        """As a peer does it: the job's note stays."""
        self.jobs[name].waits = False
        self.ready.append(name)

    def remove(self, name: str) -> None:
        """As any client does it: the note stays until it is met."""
        self.jobs[name].waits = False
