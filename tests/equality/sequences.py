"""Random sequences of operations on a few jobs, from a seed.

The generator reads the database before it chooses the next operation, so that most operations find a job.
Every operation is a value with its clock, ids and tokens, so that a sequence can be printed and replayed
without the generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.equality.dump import Dump
from tests.equality.ops import (
    PARENTS,
    PEER_KINDS,
    PREFIX,
    QUEUE,
    QUEUES,
    SERVER_KINDS,
    Claim,
    Op,
    Outcome,
    View,
)

START = 1_700_000_000_000

# Workers differ in name, lock duration, retention and limits. They are few, because each needs connections of
# its own on the Node side. Every expiry is far longer than a sequence.
WORKERS: tuple[dict[str, Any], ...] = (
    {"name": "w1", "lockDuration": 60_000, "stalledInterval": 60_000},
    {"lockDuration": 30_000, "stalledInterval": 90_000, "maxStalledCount": 0},
    {"name": "w3", "lockDuration": 45_000, "maxStalledCount": 2, "removeOnComplete": {"count": 1}},
    {"name": "w4", "limiter": {"max": 2, "duration": 60_000}, "removeOnFail": {"age": 5, "count": 2}},
)


class Generator:
    """Chooses operations, one at a time.

    Args:
        seed: The same seed and the same answers give the same sequence.
        length: How many operations; drawn from the seed if not given.
    """

    def __init__(self, seed: int, length: int | None = None) -> None:
        self._random = random.Random(seed)
        self.length = length or int(self._random.triangular(5, 41, 34))
        self.metas = self._random.random() < 0.8
        self._now = START + self._random.randrange(1_000)
        self._claims: list[Claim] = []
        self._tokens = 0
        self._numbers = 0
        # Each sequence weights its operations differently: otherwise all sequences would be alike.
        self._parents = self._random.random() < 0.3
        self._limits = self._random.random() < 0.25
        self._pauses = self._random.random() < 0.5
        self._priorities = self._random.random() < 0.6
        self._mixed = self._random.random() < 0.25
        self._workers = self._random.sample(WORKERS, self._random.randint(1, 2))
        self._plan: list[Callable[[], Op | None]] = []
        self._view = View({})

    def next(self, dump: Dump) -> Op:
        """Choose the next operation from the current state."""
        self._view = View(dump)
        self._advance()
        while self._plan and self._random.random() < 0.85:
            planned = self._plan.pop(0)()
            if planned is not None:
                return planned
        makers, weights = zip(*self._weighted(), strict=True)
        maker: Callable[[], Op | None]
        while True:
            (maker,) = self._random.choices(makers, weights)
            op = maker()
            if op is not None:
                return op

    def observe(self, op: Op, outcome: Outcome) -> None:
        """Record the effect of an operation: a claimed job, or the end of a claim."""
        token = op.args.get("token")
        # A worker refused for a missing lock gives up; refused for its children, it may try again.
        ended = not outcome.failed or outcome.code in (-1, -2, -3, -6)
        if ended and op.kind in ("complete", "fail", "move_to_delayed", "give_back", "give_back_held"):
            self._claims = [c for c in self._claims if (c.job_id, c.token) != (op.args["id"], token)]
        given = outcome.value if op.kind in ("claim", "complete", "fail") else None
        if isinstance(given, dict) and given.get("job") is not None:
            job = given["job"]
            worker, by, doomed = op.args["worker"], op.args.get("by"), job.get("deferred_failure")
            self._claims.append(Claim(op.queue, job["id"], str(token), worker, by, doomed))

    # ------------------------------------------------------------------------------------- the choice

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        ready = any(self._view.ids(queue, "wait", "prioritized") for queue in QUEUES)
        few = len(self._view.ids(QUEUE, "wait", "paused", "prioritized", "delayed", "active")) < 4
        yield self._add, 14 if few and not self._parents else 5
        yield self._add_bulk, 4 if few else 1
        yield self._claim, 18 if ready else 4
        if self._claims:
            yield self._complete, 20
            yield self._fail, 26
            yield self._move_to_delayed, 3
            yield self._give_back, 4
            yield self._extend, 4
            yield self._extend_many, 3
            yield self._expire_lock, 3
            yield self._lose_worker, 8
        held = any(self._view.ids(queue, "active") for queue in QUEUES)
        yield self._recover, 7 if held else 1
        yield self._progress, 3
        yield self._log, 3
        yield self._clear_logs, 1
        yield self._update_data, 2
        yield self._change_priority, 5 if self._priorities else 1
        delayed = any(self._view.ids(queue, "delayed") for queue in QUEUES)
        yield self._change_delay, 4 if delayed else 0.3
        yield self._promote, 4 if delayed else 0.3
        finished = any(self._view.ids(queue, "failed", "completed") for queue in QUEUES)
        yield self._retry, 8 if finished else 0.3
        yield self._remove, 4
        if self._pauses:
            yield self._pause, 4
            yield self._resume, 4
        yield self._add_peer, 6 if few and not self._parents else 2
        yield self._add_auto, 2
        yield self._add_deduplicated, 2
        yield self._remove_deduplication, 0.5
        yield self._expire_deduplication, 0.5
        if self._parents:
            yield self._add_flow, 9 if few else 3
            yield self._add_child, 6
            yield self._wait_for_children, 2
        if self._limits:
            yield self._set_concurrency, 3
            yield self._remove_concurrency, 1.5
            yield self._set_rate_limit, 3
            yield self._remove_rate_limit, 1.5
            yield self._rate_limit, 1.5
        yield self._expire_limiter, 2
        yield self._pop_marker, 10
        yield self._expire_stalled_check, 5 if self._view.exists(QUEUE, "stalled-check") else 0.2

    def _advance(self) -> None:
        kind = self._random.random()
        if kind < 0.35:
            return
        if kind < 0.7:
            self._now += self._random.randint(1, 50)
        elif kind < 0.85:
            due = [self._view.next_due(queue) for queue in QUEUES]
            times = [one for one in due if one is not None and one >= self._now]
            # Just before, exactly at, and just after the moment a job becomes due.
            self._now = min(times) + self._random.randint(-1, 1) if times else self._now + 1_000
        else:
            self._now += self._random.choice((1_000, 5_000, 60_000))

    def _op(self, kind: str, queue: str = QUEUE, **args: Any) -> Op:
        if self._mixed and "by" not in args and kind not in PEER_KINDS | SERVER_KINDS:
            args["by"] = self._pick("us", "peer")
        if self._is_meant(kind, queue, args):
            args["by"] = "peer"
        return Op(kind, self._now, {"queue": queue, **args})

    def _is_meant(self, kind: str, queue: str, args: dict[str, Any]) -> bool:
        """Whether we differ from 5.62.0 here on purpose, for the reasons in docs/protocol."""
        claims = kind == "claim" or (kind in ("complete", "fail") and args.get("fetch"))
        # A held queue: Node's workers obey only with a limiter, ours always.
        return bool(claims) and self._view.is_held(queue) and "limiter" not in args["worker"]

    # ------------------------------------------------------------------------------------- adding

    def _add(self) -> Op:
        return self._op("add", self._some_queue(), **self._job())

    def _add_bulk(self) -> Op:
        jobs = [self._job() for _ in range(self._random.randint(2, 4))]
        return self._op("add_bulk", self._some_queue(), jobs=jobs)

    def _add_peer(self) -> Op:
        return self._op("add_peer", self._some_queue(), **self._job(peer=True))

    def _add_auto(self) -> Op:
        return self._op("add_auto", name="auto", data=self._data(), opts=self._options(peer=True))

    def _add_child(self) -> Op | None:
        queue, job = self._some_queue(), self._job(peer=True)
        self._policy(job["opts"])
        parent = self._any_id(queue)
        delayed = self._view.ids(queue, "delayed")
        if delayed and self._random.random() < 0.6:
            # This child runs next, and its first failure fails a delayed parent.
            self._numbers += 1
            parent = self._random.choice(delayed)
            job["id"], job["opts"] = f"c{self._numbers}", {"lifo": True, "failParentOnFailure": True}
        job["opts"]["parent"] = {"id": parent, "queue": f"{PREFIX}:{queue}"}
        if not self._plan and self._random.random() < 0.6:
            # Its parent is anywhere: ready, running, delayed, finished.
            self._plan += [self._claim, self._fail]
        return self._op("add_child", **job, by="peer")

    def _add_deduplicated(self) -> Op | None:
        rule: dict[str, Any] = {"id": self._random.choice(("d1", "d2"))}
        if self._random.random() < 0.5:
            rule["ttl"] = self._random.choice((60_000, 600_000))
        if self._random.random() < 0.3:
            rule["extend"] = True
        if self._random.random() < 0.3:
            rule["replace"] = True
        job = self._job(peer=True)
        job["opts"]["deduplication"] = rule
        return self._op("add_deduplicated", **job, by="peer")

    def _add_flow(self) -> Op:
        if not self._plan and self._random.random() < 0.6:
            # Run the jobs: a flow shows its effect only when it runs.
            for _ in range(self._random.randint(2, 5)):
                self._plan += [self._claim, self._pick(self._complete, self._fail, self._fail)]
        return self._op("add_flow", flow=self._node(2 if self._random.random() < 0.25 else 1), by="peer")

    def _node(self, depth: int, child: bool = False) -> dict[str, Any]:
        self._numbers += 1
        opts = self._options(peer=True, delayed=0.3 if depth else 0.1)
        opts["jobId"] = f"f{self._numbers}"
        if child:
            self._policy(opts)
        queue = self._random.choice(QUEUES)
        node: dict[str, Any] = {"name": "flow", "queueName": queue, "data": {"depth": depth}, "opts": opts}
        if depth:
            count = self._random.randint(1, 3)
            node["children"] = [self._node(depth - 1 if i == 0 else 0, child=True) for i in range(count)]
        return node

    def _policy(self, opts: dict[str, Any]) -> None:
        """Draw a policy for a child's failure, or none."""
        policies = ("failParentOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure")
        policy = self._pick(None, *policies, "removeDependencyOnFailure")
        if policy is not None:
            opts[policy] = True

    def _job(self, peer: bool = False) -> dict[str, Any]:
        job_id = f"j{self._random.randint(1, 7)}"
        opts = self._options(peer)
        return {"id": job_id, "name": self._pick("n", "other"), "data": self._data(), "opts": opts}

    def _data(self) -> Any:
        return self._random.choice(
            (
                {},
                {"x": 1},
                {"text": "grüße 🎉 \n\u2028", "list": [1, 2.5, None, [], {}], "deep": {"a": {"b": True}}},
                [],
                None,
                "text",
                12.75,
            )
        )

    def _options(self, peer: bool = False, delayed: float = 0.25) -> dict[str, Any]:
        """Draw options: Oxcart always writes attempts and backoff, a peer need not."""
        chance = self._random.random
        opts: dict[str, Any] = {}
        if not peer or chance() < 0.6:
            opts["attempts"] = self._pick(1, 2, 3)
        if not peer or chance() < 0.5:
            opts["backoff"] = self._pick(
                {"type": "fixed", "delay": 500},
                {"type": "exponential", "delay": 300},
                *((0, 1_000) if peer else ()),
            )
        if chance() < delayed:
            opts["delay"] = self._pick(1, 50, 1_000, 5_000)
        if self._priorities and chance() < 0.4:
            opts["priority"] = self._pick(1, 1, 2, 10, 2_097_152 if peer else 2_097_151)
        if chance() < 0.15:
            opts["lifo"] = True
        # The same option has several forms; Oxcart writes the shortest.
        keep: tuple[Any, ...] = (True, False, 1, 2, {"age": 3}, {"age": 3, "count": 1})
        if peer:
            keep += (0, {"count": 1}, {"count": 0}, {"count": -1, "age": 4})
        if chance() < 0.35:
            opts["removeOnComplete"] = self._random.choice(keep)
        if chance() < 0.35:
            opts["removeOnFail"] = self._random.choice(keep)
        if chance() < 0.15:
            opts["keepLogs"] = self._pick(1, 2)
        if chance() < 0.15:
            opts["stackTraceLimit"] = self._pick(0, 1, 2)
        if chance() < 0.1:
            opts["timestamp"] = self._now - self._random.randint(0, 5_000)
        return opts

    # ------------------------------------------------------------------------------------- running

    def _claim(self) -> Op:
        return self._op(
            "claim", self._some_queue(), token=self._token(), worker=self._random.choice(self._workers)
        )

    def _held(self) -> dict[str, Any] | None:
        if not self._claims:
            return None
        valid = [one for one in self._claims if self._view.lock(one.queue, one.job_id) == one.token]
        claim = self._random.choice(valid if valid and self._random.random() < 0.92 else self._claims)
        token = claim.token
        job_id = claim.job_id
        odd = self._random.random()
        if odd < 0.03:
            token = "stranger"
        elif odd < 0.05:
            job_id = self._any_id(claim.queue)
        return {
            "queue": claim.queue,
            "id": job_id,
            "token": token,
            "worker": claim.worker,
            "doomed": claim.doomed,
        }

    def _complete(self) -> Op | None:
        held = self._held()
        if held is None or (held.pop("doomed") and self._random.random() < 0.4):
            return None
        value = self._pick(None, 1, "done", {"ok": True, "list": []}, [1, {"ü": None}], 0, False, 1.5)
        return self._op("complete", **held, value=value, fetch=self._fetch(held, completes=True))

    def _fail(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        doomed = held.pop("doomed")
        number = self._random.randint(1, 3)
        error: dict[str, Any] = {
            "message": f"boom {number}",
            "stack": f"Error: boom {number}\n    at line {number}",
        }
        if doomed is not None:
            error = {
                "message": doomed,
                "name": "UnrecoverableError",
                "stack": f"UnrecoverableError: {doomed}",
            }
        elif self._random.random() < 0.15:
            error["name"] = "UnrecoverableError"
        elif self._random.random() < 0.1:
            error = {"message": "käse \u2028 🎉", "stack": ""}
        return self._op("fail", **held, **self._knower(held), error=error, fetch=self._fetch(held))

    def _knower(self, held: dict[str, Any]) -> dict[str, str]:
        """Which side must fail a removed job: only its claimer knows whether it would be retried."""
        if self._view.hash(held["queue"], held["id"]):
            return {}
        found = (one.by for one in self._claims if (one.job_id, one.token) == (held["id"], held["token"]))
        by = next(found, None)
        return {} if by is None else {"by": by}

    def _fetch(self, held: dict[str, Any], completes: bool = False) -> bool:
        # A refused finish claims nothing in Node. In a batch the others' slots are filled all the same, so
        # a finish that will be refused is made without a claim.
        return self._finishable(held, completes) and self._random.random() < 0.7

    def _finishable(self, held: dict[str, Any], completes: bool) -> bool:
        queue, job_id = held["queue"], held["id"]
        if self._view.lock(queue, job_id) != held["token"] or not self._view.hash(queue, job_id):
            return False
        pending = ("dependencies", "unsuccessful")
        return not (completes and any(self._view.exists(queue, f"{job_id}:{name}") for name in pending))

    def _move_to_delayed(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        return self._op("move_to_delayed", **held, until=self._now + self._pick(-5, 0, 1, 700, 5_000))

    def _give_back(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        return self._op("give_back", **held)

    def _wait_for_children(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        return self._op("wait_for_children", **held, by="peer")

    def _extend(self) -> Op | None:
        held = self._held()
        if held is None:
            return None
        del held["doomed"]
        return self._op("extend", **held, duration=self._pick(30_000, 120_000))

    def _extend_many(self) -> Op | None:
        held = [one for one in self._claims if one.queue == QUEUE]
        if not held:
            return None
        chosen = self._random.sample(held, self._random.randint(1, len(held)))
        ids = [one.job_id for one in chosen]
        tokens = ["stranger" if self._random.random() < 0.1 else one.token for one in chosen]
        worker = self._random.choice(self._workers)
        return self._op(
            "extend_many", ids=ids, tokens=tokens, worker=worker, duration=self._pick(30_000, 120_000)
        )

    def _recover(self) -> Op:
        queue = self._random.choice((QUEUE, QUEUE, QUEUE, PARENTS)) if self._parents else QUEUE
        return self._op("recover", queue, worker=self._random.choice(self._workers))

    # ------------------------------------------------------------------------------------- the operator

    def _progress(self) -> Op:
        progress = self._pick(0, 50, 100, 33.5, {"step": 1, "of": [2]}, "half", True)
        return self._op("progress", **self._any_job(), progress=progress)

    def _log(self) -> Op:
        # The worker's job.log passes the job's own keepLogs; the queue's call may pass its own.
        job = self._any_job()
        logged = self._view.logged(job["queue"])
        if logged and self._random.random() < 0.7:
            job["id"] = self._random.choice(logged)
        return self._op("log", **job, row=self._pick("one", "two", "drei ü", ""), keep=self._pick(0, 1, 2))

    def _clear_logs(self) -> Op:
        return self._op("clear_logs", **self._any_job(), keep=self._pick(0, 1))

    def _update_data(self) -> Op:
        return self._op("update_data", **self._any_job(), data=self._data())

    def _change_priority(self) -> Op:
        job = self._any_job("wait", "paused", "prioritized")
        return self._op(
            "change_priority", **job, priority=self._pick(0, 0, 1, 2, 10), lifo=self._random.random() < 0.3
        )

    def _change_delay(self) -> Op:
        return self._op("change_delay", **self._any_job("delayed"), delay=self._pick(0, 1, 800, 5_000))

    def _promote(self) -> Op:
        return self._op("promote", **self._any_job("delayed"))

    def _retry(self) -> Op | None:
        state = self._pick("failed", "failed", "completed")
        if not any(self._view.ids(queue, state) for queue in QUEUES) and self._random.random() < 0.8:
            return None
        job = self._any_job(state)
        children = [one for one in self._view.ids(job["queue"], state) if self._parent(job["queue"], one)]
        if children and self._random.random() < 0.6:
            job["id"] = self._random.choice(children)
        # 5.62.0 stops half-way with an error of the server when the parent has recorded ignored failures.
        parent = self._parent(job["queue"], job["id"])
        if parent is not None and self._view.has(f"{parent}:failed"):
            return None
        return self._op("retry", **job, state=state)

    def _parent(self, queue: str, job_id: str) -> str | None:
        return self._view.hash(queue, job_id).get("parentKey")

    def _remove(self) -> Op:
        return self._op("remove", **self._any_job(), children=self._random.random() < 0.7)

    def _pause(self) -> Op | None:
        if "paused" in self._view.meta(QUEUE) and self._random.random() < 0.7:
            return None
        return self._op("pause")

    def _resume(self) -> Op | None:
        if "paused" not in self._view.meta(QUEUE) and self._random.random() < 0.7:
            return None
        return self._op("resume")

    # ------------------------------------------------------------------------------------- the queue's limits

    def _set_concurrency(self) -> Op:
        return self._op("set_concurrency", concurrency=self._pick(1, 2, 3))

    def _remove_concurrency(self) -> Op:
        return self._op("remove_concurrency")

    def _set_rate_limit(self) -> Op:
        return self._op("set_rate_limit", max=self._pick(1, 2, 4), duration=self._pick(60_000, 120_000))

    def _remove_rate_limit(self) -> Op:
        return self._op("remove_rate_limit")

    def _rate_limit(self) -> Op:
        return self._op("rate_limit", duration=self._pick(60_000, 120_000))

    def _remove_deduplication(self) -> Op | None:
        keys = self._view.deduplication(QUEUE)
        return self._op("remove_deduplication", key=self._random.choice(keys), by="peer") if keys else None

    # ------------------------------------------------------------------------------------- the server's clock

    def _expire_lock(self) -> Op | None:
        queue = self._some_queue()
        locked = self._view.locked(queue)
        return self._op("expire_lock", queue, id=self._random.choice(locked)) if locked else None

    def _lose_worker(self) -> Op | None:
        """Let a lock expire and plan two stalled checks: one notes the job, one recovers it."""
        lost = self._expire_lock()
        if lost is None or self._plan:
            return lost
        queue = lost.queue
        worker = self._random.choice(self._workers)
        for _ in range(2):
            self._plan.append(lambda: self._expire_check_of(queue))
            self._plan.append(lambda: self._op("recover", queue, worker=worker))
        if self._random.random() < 0.7:
            self._plan.append(lambda: self._op("claim", queue, token=self._token(), worker=worker))
            self._plan.append(self._fail)
        return lost

    def _expire_check_of(self, queue: str) -> Op | None:
        return self._op("expire_stalled_check", queue) if self._view.exists(queue, "stalled-check") else None

    def _pop_marker(self) -> Op | None:
        queue = self._some_queue()
        return self._op("pop_marker", queue) if self._view.exists(queue, "marker") else None

    def _expire_limiter(self) -> Op | None:
        return self._op("expire_limiter") if self._view.exists(QUEUE, "limiter") else None

    def _expire_stalled_check(self) -> Op | None:
        return self._expire_check_of(self._some_queue())

    def _expire_deduplication(self) -> Op | None:
        keys = self._view.deduplication(QUEUE)
        return self._op("expire_deduplication", key=self._random.choice(keys)) if keys else None

    # ------------------------------------------------------------------------------------- drawing

    def _pick(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    def _some_queue(self) -> str:
        return self._pick(QUEUE, QUEUE, PARENTS) if self._parents else QUEUE

    def _any_job(self, *states: str) -> dict[str, Any]:
        queue = self._some_queue()
        wanted = self._view.ids(queue, *states) if states else []
        if wanted and self._random.random() < 0.85:
            return {"queue": queue, "id": self._random.choice(wanted)}
        return {"queue": queue, "id": self._any_id(queue)}

    def _any_id(self, queue: str) -> str:
        states = (
            "wait",
            "paused",
            "prioritized",
            "delayed",
            "active",
            "completed",
            "failed",
            "waiting-children",
        )
        known = self._view.ids(queue, *states)
        if known and self._random.random() < 0.95:
            return self._random.choice(known)
        return "missing"
