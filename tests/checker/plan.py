"""The workload of a run: rows that producers add, and schedules. A seed gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

#: A BullMQ queue that our workers share with Node's, one of ours alone, a job type of Bridge, a queue whose
#: groups take turns (shared with Node as well), a partitioned one, and one of ours with a rate limit.
MIXED, OURS, BRIDGE, GROUPED, PARTED, RATED = "mixed", "ours", "bridged", "grouped", "parted", "rated"
QUEUES = (MIXED, OURS, BRIDGE, GROUPED, PARTED, RATED)
NAMESPACE = "checked"
PARTITIONS = 3
#: The queues on the wire that speak BullMQ's protocol: a partition is a queue.
WIRES = (MIXED, OURS, GROUPED, RATED, *(f"{PARTED}#{number}" for number in range(PARTITIONS)))
#: Queues that Node's workers consume too.
SHARED = (MIXED, GROUPED)
#: The partition that they consume.
SHARED_PARTITION = f"{PARTED}#0"

#: Attempts of a job that must complete however often its worker is lost.
PLENTY = 1000
#: Job types with a limit, and how many of their jobs may be active at once.
TYPE_LIMITS = {"limited": 2}
#: How many jobs of one key, and of one group, may be active at once.
KEY_LIMIT, GROUP_LIMIT = 1, 2
GROUPS = ("red", "green", "blue")
#: How many jobs of the type may be active when a limited job of Bridge starts, itself included.
BRIDGE_LIMIT = 3
#: How many jobs of `RATED` may start in a window of so many ms.
RATE_LIMIT, WINDOW = 3, 1_000
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
        limit_key: Key whose limit applies; of a partitioned queue also the key of the partition.
        group: The group whose turns it takes.
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
    group: str | None = None
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


def logical(queue: str) -> str:
    """Returns the queue that a partition belongs to, and any other queue as it is."""
    return queue.partition("#")[0]


def make_plan(seed: int, seconds: float, peers: tuple[str, ...], only: str = "") -> Plan:
    """Plans a run.

    Args:
        seed: Determines it.
        seconds: How long it adds jobs.
        peers: "node5" and "node6", or none.
        only: The only queue and kind of jobs, as ``ours/slow``; all by default.
    """
    maker = _Maker(random.Random(f"plan {seed}"), peers, only)
    tops = [maker.row(number / RATE) for number in range(int(seconds * RATE))]
    runs = max(3, int(seconds / 2))
    rules = [
        Rule("every", MIXED, "oxcart", runs, every=700),
        Rule("own-every", OURS, "oxcart", runs, every=500),
        Rule("bridge-cron", BRIDGE, "oxcart", runs, cron="* * * * * *"),
        Rule("parted-every", PARTED, "oxcart", runs, every=900),
    ]
    if peers:
        rules.append(Rule("cron", MIXED, peers[0], runs, cron="* * * * * *"))
    return Plan(seed, seconds, peers, tops, rules)


class _Maker:
    def __init__(self, dice: random.Random, peers: tuple[str, ...], only: str) -> None:
        self._dice = dice
        self._queue, _, self._kind = only.partition("/")
        self._peers = peers
        self._number = 0

    def row(self, at: float) -> Row:
        dice = self._dice
        queue = self._queue or dice.choice((MIXED, MIXED, OURS, OURS, BRIDGE, GROUPED, PARTED, RATED))
        kinds = ["ok", "ok", "slow", "slow", "again", "exhausted", "bad", "delayed", "ranked", "tree"]
        if queue == MIXED:
            kinds += ["snooze"]
        if queue == OURS:
            kinds += ["limited", "limited", "limited", "keyed", "keyed", "graph"]
        if queue == BRIDGE:
            kinds += ["limited", "limited", "limited"]
        if queue == RATED:
            kinds = ["ok", "ok", "again"]
        if queue == PARTED:
            kinds += ["keyed", "keyed", "graph"]
        if queue == GROUPED:
            kinds += ["grouped"] * 12
        if queue in (BRIDGE, GROUPED):
            kinds.remove("tree")
        kind = self._kind or dice.choice(kinds)
        by = "oxcart"
        # One script adds our trees, several calls Node's; groups are ours.
        if queue in SHARED and kind not in ("tree", "grouped") and self._peers:
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
                row.take = dice.randint(300, 1000)
                if queue != BRIDGE:  # its type is the queue
                    row.name = "limited"
            case "keyed":
                row.limit_key, row.take = f"tenant-{dice.randrange(3)}", dice.randint(20, 200)
            case "grouped":
                row.group, row.take = dice.choice(GROUPS), dice.randint(20, 400)
                row.steps = dice.choice((["ok"], ["ok"], ["fail", "ok"]))
        return row
