"""Sequences of flows and deduplication: trees, children of running jobs, windows of every kind.

All plain operations occur too: an added job must be run, failed, retried and removed to show its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.equality.ops import PREFIX, QUEUE, Op
from tests.equality.sequences import Generator

POLICIES = (
    None,
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


class Families(Generator):
    """A mix with parents, mostly flows or mostly windows, made by us or by a peer."""

    def __init__(self, seed: int, length: int | None = None) -> None:
        super().__init__(seed, length)
        self._parents = True
        self._windows = self._random.random() < 0.5
        self._peers = self._random.random() < 0.3

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        mine = {"_add_flow", "_add_child", "_wait_for_children", "_add_deduplicated", "_remove_deduplication"}
        for maker, weight in super()._weighted():
            if maker.__name__ not in mine:
                yield maker, weight
        few = len(self._view.ids(QUEUE, "wait", "paused", "prioritized", "delayed", "active")) < 6
        flows, windows = (5, 16) if self._windows else (16, 3)
        yield self._add_flow, flows if few else 3
        yield self._add_child, 6
        yield self._remove_unprocessed, 2
        yield self._leave_parent, 2
        yield self._add_deduplicated, windows
        yield self._add_deduplicated_many, windows / 4
        if self._view.deduplication(QUEUE):
            yield self._remove_deduplication, 2
        if self._claims:
            yield self._add_children, 16
            yield self._wait_for_children, 8

    def _who(self) -> str:
        return self._pick("us", "us", "peer") if self._peers else "us"

    # ------------------------------------------------------------------------------------- flows

    def _add_flow(self) -> Op:
        who = self._who()
        self._plan_work(4)
        flow = self._tree(self._pick(1, 1, 1, 2, 3), who)
        if self._random.random() < 0.15:
            flow["opts"]["deduplication"] = self._rule(replace=False)
        return self._op("add_flow", flow=flow, by=who)

    def _remove_unprocessed(self) -> Op | None:
        job = self._any_job("waiting-children")
        return self._op("remove_unprocessed", **job) if self._view.hash(job["queue"], job["id"]) else None

    def _leave_parent(self) -> Op | None:
        job = self._any_job()
        parent = self._parent(job["queue"], job["id"])
        return self._op("leave_parent", **job) if parent and self._view.has(parent) else None

    def _plan_work(self, most: int) -> None:
        if not self._plan and self._random.random() < 0.6:
            for _ in range(self._random.randint(2, most)):
                self._plan += [self._claim, self._pick(self._complete, self._complete, self._fail)]

    def _tree(self, depth: int, who: str, child: bool = False) -> dict[str, Any]:
        self._numbers += 1
        queue = self._some_queue()
        opts = self._options(peer=who == "peer", delayed=0.3 if depth else 0.1)
        opts["jobId"] = f"f{self._numbers}"
        if child:
            self._policy(opts)
            known = self._adoptable(queue)
            if known and not depth and self._random.random() < 0.2:
                opts["jobId"] = self._random.choice(known)
        node: dict[str, Any] = {"name": "flow", "queueName": queue, "data": {"depth": depth}, "opts": opts}
        if depth:
            count = self._random.randint(1, 3)
            first = self._random.randint(0, count - 1)
            node["children"] = [
                self._tree(depth - 1 if i == first else 0, who, child=True) for i in range(count)
            ]
            _without_twins(node)
        return node

    def _adoptable(self, queue: str) -> list[str]:
        # With 5.62.0 a completed job would release the parent before all children are added, and a job with
        # a parent is refused without an error.
        states = ("wait", "paused", "prioritized", "delayed", "active", "failed")
        ids = (one for one in self._view.ids(queue, *states) if not one.isdecimal())
        return [one for one in ids if self._parent(queue, one) is None]

    def _is_above(self, key: str, below: str) -> bool:
        """Whether a job is another's ancestor or the same job: 5.62.0 cannot remove its own ancestor."""
        at: str | None = below
        seen: set[str] = set()
        while at is not None and at not in seen:
            if at == key:
                return True
            seen.add(at)
            _, queue, job_id = at.split(":", 2)
            at = self._parent(queue, job_id)
        return False

    def _add_children(self) -> Op | None:
        held = self._held()
        if held is None or not self._view.hash(held["queue"], held["id"]):
            return None
        who = self._who()
        nodes = [
            self._tree(self._pick(0, 0, 0, 1), who, child=True) for _ in range(self._random.randint(1, 3))
        ]
        keys = {f"{PREFIX}:{node['queueName']}:{node['opts']['jobId']}" for node in _all(nodes)}
        above = f"{PREFIX}:{held['queue']}:{held['id']}"
        if len(keys) < len(list(_all(nodes))) or any(self._is_above(key, above) for key in keys):
            return None
        if not self._plan and self._random.random() < 0.7:
            self._plan += [self._wait_for_children]
            self._plan_more()
        return self._op("add_children", held["queue"], id=held["id"], flows=nodes, by=who)

    def _plan_more(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._plan += [self._claim, self._pick(self._complete, self._fail)]

    def _add_child(self) -> Op | None:
        op = super()._add_child()
        assert op is not None
        who = self._who()
        args = {name: value for name, value in op.args.items() if name != "by"}
        if who == "us":
            policy = next((one for one in POLICIES if one and args["opts"].get(one)), None)
            parent = args["opts"]["parent"]
            if not (self._random.random() < 0.9 or args["opts"].get("lifo")):
                return None
            args["opts"] = {**self._options(), "parent": parent}
            if policy:
                args["opts"][policy] = True
        # 5.62.0 leaves a job with the parent that is gone; we give it to the new one.
        old, above = self._parent(op.queue, str(args["id"])), args["opts"]["parent"]
        if old is not None and not self._view.has(old):
            return None
        if self._is_above(f"{PREFIX}:{op.queue}:{args['id']}", f"{above['queue']}:{above['id']}"):
            return None
        return Op(op.kind, op.now, {**args, "by": who})

    def _wait_for_children(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        return self._op("wait_for_children", **held, by=self._who())

    # ------------------------------------------------------------------------------------- windows

    def _rule(self, replace: bool = True) -> dict[str, Any]:
        rule: dict[str, Any] = {"id": self._pick("d1", "d2")}
        if self._random.random() < 0.5:
            rule["ttl"] = self._pick(60_000, 600_000)
            if self._random.random() < 0.4:
                rule["extend"] = True
        if replace and self._random.random() < 0.4:
            rule["replace"] = True
        return rule

    def _deduplicated(self, who: str) -> dict[str, Any] | None:
        rule = self._rule()
        if rule.get("replace"):
            owner = self._view.owner(QUEUE, rule["id"])
            # 5.62.0 replaces a child and leaves its parent waiting for it.
            if owner is not None and self._parent(QUEUE, owner) is not None:
                return None
        opts = self._options(peer=who == "peer", delayed=0.6 if rule.get("replace") else 0.25)
        if self._random.random() < 0.5:
            self._numbers += 1
            job_id = f"d{self._numbers}"
        else:
            job_id = f"j{self._random.randint(1, 7)}"
        return {"id": job_id, "name": "n", "data": self._data(), "opts": {**opts, "deduplication": rule}}

    def _add_deduplicated(self) -> Op | None:
        who = self._who()
        job = self._deduplicated(who)
        if job is None:
            return None
        if not self._plan and self._random.random() < 0.3:
            self._plan += [self._claim, self._add_deduplicated, self._pick(self._complete, self._fail)]
        return self._op("add_deduplicated", **job, by=who)

    def _add_deduplicated_many(self) -> Op | None:
        jobs: list[dict[str, Any]] = []
        for _ in range(self._random.randint(2, 4)):
            job = self._deduplicated("us") if self._random.random() < 0.6 else self._job()
            if job is not None:
                jobs.append(job)
        return self._op("add_bulk", jobs=jobs, by="us") if jobs else None

    def _remove_deduplication(self) -> Op | None:
        keys = self._view.deduplication(QUEUE)
        return self._op("remove_deduplication", key=self._pick(*keys), by=self._who()) if keys else None


def _all(nodes: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for node in nodes:
        yield node
        yield from _all(node.get("children", []))


def _without_twins(node: dict[str, Any]) -> None:
    """Drops children with an earlier id: a tree of ours has each id once."""
    seen: set[tuple[str, str]] = set()

    def keep(one: dict[str, Any]) -> None:
        kept = []
        for child in one.get("children", []):
            named = (child["queueName"], child["opts"]["jobId"])
            if named not in seen:
                seen.add(named)
                kept.append(child)
                keep(child)
        if "children" in one:
            one["children"] = kept

    keep(node)
