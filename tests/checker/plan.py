"""The workload of a run: rows that producers add, and schedules. A seed gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

#: A BullMQ queue that our workers share with Node's, one of ours alone, and a job type of Bridge.
MIXED, OURS, BRIDGE = "mixed", "ours", "bridged"
QUEUES = (MIXED, OURS, BRIDGE)
NAMESPACE = "checked"

#: Attempts of a job that must complete however often its worker is lost.
PLENTY = 1000
#: Job types with a limit, and how many of their jobs may be active at once.
TYPE_LIMITS = {"limited": 2}
#: How many jobs of one key may be active at once.
KEY_LIMIT = 1
#: Rows per second.
RATE = 10.0


@dataclass
class Row:
    """A job to be added.

    Attributes:
        id: Its id on BullMQ; on Bridge, where ids are random, only its row.
        queue: Its queue.
        by: The producer.
        at: Seconds after the start of the run.
        kind: What the row tests.
        name: The job's name.
        steps: What its starts do; the last step is repeated.
        take: Ms that an attempt takes.
        attempts: Its attempts.
        fate: The state it must reach.
        delay: Ms until it is due.
        priority: Its priority.
        limit_key: Key whose limit applies.
        children: Rows that it waits for.
        is_graph: Whether the dependencies are those of a graph instead of a flow.
    """

    id: str
    queue: str
    by: str
    at: float
    kind: str
    name: str = "job"
    steps: list[str] = field(default_factory=lambda: ["ok"])
    take: int = 0
    attempts: int = PLENTY
    fate: str = "completed"
    delay: int = 0
    priority: int = 0
    limit_key: str | None = None
    children: list[Row] = field(default_factory=list)
    is_graph: bool = False

    @property
    def data(self) -> dict[str, object]:
        return {"row": self.id, "take": self.take, "steps": self.steps}


@dataclass
class Rule:
    """A schedule; its runs fail once each, because a retried run must not make a second next run."""

    key: str
    queue: str
    by: str
    limit: int  # Bridge knows none: its schedule ends after half as many seconds as the run has
    every: int | None = None
    cron: str | None = None

    @property
    def data(self) -> dict[str, object]:
        return {"row": f"run of {self.key}", "take": 0, "steps": ["fail", "ok"]}


@dataclass
class Plan:
    """What a run adds."""

    seed: int
    seconds: float
    peers: tuple[str, ...]
    tops: list[Row]
    rules: list[Rule]

    def rows(self) -> dict[str, Row]:
        """All rows by id."""
        return {row.id: row for top in self.tops for row in (*top.children, top)}


def make_plan(seed: int, seconds: float, peers: tuple[str, ...]) -> Plan:
    """Plans a run of so many seconds; `peers` are "node5" and "node6", or none."""
    maker = _Maker(random.Random(f"plan {seed}"), peers)
    tops = [maker.row(number / RATE) for number in range(int(seconds * RATE))]
    runs = max(3, int(seconds / 2))
    rules = [
        Rule("every", MIXED, "oxcart", runs, every=700),
        Rule("own-every", OURS, "oxcart", runs, every=500),
        Rule("bridge-cron", BRIDGE, "oxcart", runs, cron="* * * * * *"),
    ]
    if peers:
        rules.append(Rule("cron", MIXED, peers[0], runs, cron="* * * * * *"))
    return Plan(seed, seconds, peers, tops, rules)


class _Maker:
    def __init__(self, dice: random.Random, peers: tuple[str, ...]) -> None:
        self._dice = dice
        self._peers = peers
        self._number = 0

    def row(self, at: float) -> Row:
        dice = self._dice
        queue = dice.choice((MIXED, MIXED, OURS, OURS, BRIDGE))
        kinds = ["ok", "ok", "slow", "slow", "again", "exhausted", "bad", "delayed", "ranked", "tree"]
        if queue == MIXED:
            kinds += ["snooze"]
        if queue == OURS:
            kinds += ["limited", "limited", "limited", "keyed", "keyed", "graph"]
        if queue == BRIDGE:
            kinds.remove("tree")
        kind = dice.choice(kinds)
        by = "oxcart"
        if (
            queue == MIXED and kind != "tree" and self._peers
        ):  # one script adds our trees, several calls Node's
            by = dice.choice(("oxcart", *self._peers))
        made = self._job(queue, by, at, kind)
        if kind in ("tree", "graph"):
            made.children = [self._job(queue, by, at, "child") for _ in range(dice.randint(2, 3))]
            made.is_graph = kind == "graph"
        return made

    def _job(self, queue: str, by: str, at: float, kind: str) -> Row:
        self._number += 1
        dice = self._dice
        row = Row(f"row-{self._number}", queue, by, at, kind, take=dice.randrange(20))
        match kind:
            case "slow":
                row.take = dice.randint(300, 5000)
            case "child":
                row.take = dice.randrange(500)
            case "again":
                row.steps = ["fail", "fail", "ok"]
            case "exhausted":
                row.steps, row.attempts, row.fate = ["fail"], dice.randint(1, 3), "failed"
            case "bad":
                row.steps, row.fate = ["bad"], "failed"
            case "snooze":
                row.steps = ["snooze", "ok"]
            case "delayed":
                row.delay = dice.randint(50, 2000)
            case "ranked":
                row.priority = dice.randint(1, 5)
            case "limited":
                row.name, row.take = "limited", dice.randint(300, 1000)
            case "keyed":
                row.limit_key, row.take = f"tenant-{dice.randrange(3)}", dice.randint(20, 200)
        return row
