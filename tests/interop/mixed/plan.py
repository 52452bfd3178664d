"""The jobs of a mixed fleet and their expected ends, for every producer and worker. No I/O.

The data of a job decides what its handler does (see `tests/node/crew.js`): `steps[n]` is the step of its
(n+1)th start, after `take` ms of work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

QUEUES = ("mixed-a", "mixed-b")
PRODUCERS = ("node5", "node6", "pypi", "oxcart")
#: More attempts than killed workers can use up: with us a stall uses an attempt.
PLENTY = 20
#: How often a schedule fires, in ms.
EVERY = 150
#: One job in so many is a run of a schedule.
SHARE_OF_RUNS = 12
POLICIES = (
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
    "continueParentOnFailure",
    "failParentOnFailure",
)


@dataclass
class Planned:
    """A job and its expected end.

    Attributes:
        options: Options with Node's names.
        runs: How often a handler runs it if no worker is killed meanwhile.
        fate: `completed` or `failed`.
    """

    id: str
    queue: str
    steps: list[str]
    take: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    children: list[Planned] = field(default_factory=list)
    runs: int = 1
    fate: str = "completed"

    @property
    def data(self) -> dict[str, Any]:
        return {"row": self.id, "take": self.take, "steps": self.steps}

    def all(self) -> Iterator[Planned]:
        """Returns the job and its descendants."""
        yield self
        for child in self.children:
            yield from child.all()


@dataclass
class Scheduled:
    """A schedule with a limited number of runs."""

    key: str
    queue: str
    by: str
    limit: int
    repeat: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        return {"row": self.key, "take": 0, "steps": ["ok"]}


@dataclass
class Plan:
    """What each producer adds."""

    trees: dict[str, list[Planned]]
    schedules: list[Scheduled]

    def jobs(self) -> dict[str, Planned]:
        """All jobs but the runs of schedules, by id."""
        return {job.id: job for trees in self.trees.values() for top in trees for job in top.all()}

    @property
    def total(self) -> int:
        return len(self.jobs()) + sum(one.limit for one in self.schedules)


def make_plan(seed: int, count: int) -> Plan:
    """Plans about `jobs` jobs: trees and single jobs of every kind, and two schedules per producer."""
    maker = _Maker(random.Random(seed))
    schedules = maker.schedules(count // SHARE_OF_RUNS)
    left = count - sum(one.limit for one in schedules)
    trees: dict[str, list[Planned]] = {producer: [] for producer in PRODUCERS}
    turn = 0
    while left > 0:
        top = maker.tree() if maker.random.random() < 0.1 else maker.single()
        trees[PRODUCERS[turn % len(PRODUCERS)]].append(top)
        turn += 1
        left -= len(list(top.all()))
    return Plan(trees, schedules)


class _Maker:
    def __init__(self, rand: random.Random) -> None:
        self.random = rand
        self._number = 0

    def schedules(self, runs: int) -> list[Scheduled]:
        made = []
        for by in PRODUCERS:
            for queue in QUEUES:
                limit = max(2, runs // (len(PRODUCERS) * len(QUEUES)))
                made.append(Scheduled(f"every-{by}", queue, by, limit, {"every": EVERY, "limit": limit}))
            made.append(Scheduled(f"cron-{by}", QUEUES[0], by, 3, {"pattern": "*/1 * * * * *", "limit": 3}))
        return made

    def single(self) -> Planned:
        job = self._job("ok")
        rand = self.random
        kind = rand.random()
        if kind < 0.15:  # fails once or twice, then succeeds
            job.steps = ["fail"] * rand.randint(1, 2) + ["ok"]
            job.runs = len(job.steps)
        elif kind < 0.20:  # fails until no attempt is left
            job.steps, job.fate = ["fail"], "failed"
            job.options["attempts"] = job.runs = rand.randint(1, 3)
        elif kind < 0.24:  # fails for good at once
            job.steps, job.fate = ["bad"], "failed"
        if job.runs > 1 and rand.random() < 0.7:  # otherwise it is retried at once
            kinds, delays = ["fixed", "exponential"], [1, 20, 100]
            job.options["backoff"] = {"type": rand.choice(kinds), "delay": rand.choice(delays)}
        place = rand.random()
        if place < 0.15:
            job.options["delay"] = rand.randint(1, 1500)
        if 0.10 < place < 0.35:
            job.options["priority"] = rand.randint(1, 9)
        elif place > 0.95:
            job.options["lifo"] = True
        return job

    def tree(self, depth: int = 0) -> Planned:
        """A parent with one to six children on either queue; one of them may fail, with a policy."""
        rand = self.random
        top = self._job("ok")
        if rand.random() < 0.2:
            top.options["priority"] = rand.randint(1, 9)
        elif rand.random() < 0.1:
            top.options["delay"] = rand.randint(1, 300)
        for _ in range(rand.randint(1, 6)):
            if depth < 2 and rand.random() < 0.12:
                child = self.tree(depth + 1)
                child.options.setdefault("failParentOnFailure", True)
            else:
                child = self.single()
                child.steps, child.runs, child.fate = ["ok"], 1, "completed"
                child.options["attempts"] = PLENTY
            top.children.append(child)
        if depth == 0 and rand.random() < 0.35:
            failing = self._job("bad")
            failing.fate = "failed"
            policy = rand.choice(POLICIES)
            failing.options[policy] = True
            if policy == "failParentOnFailure":
                top.runs, top.fate = 0, "failed"
            if policy == "continueParentOnFailure":
                # It runs at once, and may not complete while another child is under way.
                top.children.clear()
            top.children.append(failing)
        return top

    def _job(self, step: str) -> Planned:
        self._number += 1
        # A few run long enough for their worker to be killed meanwhile.
        take = 150 if self.random.random() < 0.03 else self.random.randrange(4)
        queue = self.random.choice(QUEUES)
        return Planned(f"job-{self._number}", queue, [step], take, {"attempts": PLENTY})
