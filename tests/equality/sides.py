"""The two sides of a comparison, and the run of a sequence against both.

Both sides take operations and return outcomes in one form. `Pair` passes every operation to both and reports
what differs after each, in the reply or in the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import redis

from tests.equality.dump import TTL_TOLERANCE_MS, Dump, difference, take_dump
from tests.equality.ops import PREFIX, QUEUES, SERVER_KINDS, Op, Outcome
from tests.equality.sequences import Generator
from tests.nodes import NodeDriver, NodeError

STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")
# Replies that are the rest of an expiry on the server's clock.
_TIMES = frozenset({"limited"})
_TIME_TOLERANCE_MS = TTL_TOLERANCE_MS


class Side(Protocol):
    """One side of the comparison."""

    async def reset(self, metas: bool) -> None:
        """Start again with an empty database, with or without the `meta` that opening a queue writes."""

    async def run(self, op: Op) -> Outcome:
        """Do one operation."""

    async def read(self, now: int) -> dict[str, Any]:
        """Read everything back through the public getters: states, counts, pages, jobs."""

    def dump(self) -> Dump:
        """Read the database as it is."""


class NodeSide:
    """The real BullMQ."""

    def __init__(self, driver: NodeDriver, client: redis.Redis) -> None:
        self._driver = driver
        self._client = client

    async def reset(self, metas: bool) -> None:
        await self._driver.call("reset", queues=list(QUEUES), metas=metas)

    def dump(self) -> Dump:
        return take_dump(self._client)

    async def run(self, op: Op) -> Outcome:
        if op.kind in SERVER_KINDS:
            return expire(self._client, op)
        name, args = _command(op)
        try:
            answer = await self._driver.call(name, now=op.now, queue=op.queue, **args)
        except NodeError as error:
            return Outcome(code=error.code, error=error.message)
        return Outcome(_neutral(op, answer))

    async def read(self, now: int) -> dict[str, Any]:
        ids = {queue: known_ids(self.dump(), queue) for queue in QUEUES}
        commands: list[tuple[str, dict[str, Any]]] = []
        names: list[str] = []
        for queue in QUEUES:
            names.append(f"schedulers {queue}")
            commands.append(("getSchedulers", {"queue": queue}))
            names.append(f"counts {queue}")
            commands.append(("getJobCounts", {"queue": queue, "now": now}))
            for state in STATES:
                for asc in (True, False):
                    names.append(f"page {queue} {state} {asc}")
                    commands.append(
                        ("getJobs", {"queue": queue, "types": [state], "start": 0, "end": 2, "asc": asc})
                    )
            for job_id in [*ids[queue], "missing"]:
                names.append(f"state {queue} {job_id}")
                commands.append(("getState", {"queue": queue, "jobId": job_id}))
                names.append(f"job {queue} {job_id}")
                commands.append(("getJob", {"queue": queue, "jobId": job_id}))
                names.append(f"children {queue} {job_id}")
                commands.append(("getDependencies", {"queue": queue, "jobId": job_id}))
        answers: dict[str, Any] = dict(zip(names, await self._driver.batch(commands), strict=True))
        for name, answer in answers.items():
            if name.startswith("schedulers "):
                answers[name] = [_scheduler(one) for one in answer]
            if name.startswith("job "):
                answers[name] = _described(answer, answers["state " + name.removeprefix("job ")])
        return answers


def known_ids(dump: Dump, queue: str) -> list[str]:
    """Return the ids that are in any list or set of a queue."""
    found: set[str] = set()
    for state in STATES:
        entry = dump.get(f"{PREFIX}:{queue}:{state}")
        if entry is not None:
            found |= {item[0] if entry.kind == "zset" else item for item in entry.value}
    return sorted(found)


def expire(client: redis.Redis, op: Op) -> Outcome:
    """Remove a key, as the server's clock would, or a marker, as a blocking read would."""
    if op.kind == "pop_marker":
        return Outcome(client.zpopmin(f"{PREFIX}:{op.queue}:marker"))
    key = {
        "expire_lock": f"{op.args.get('id')}:lock",
        "expire_limiter": "limiter",
        "expire_stalled_check": "stalled-check",
        "expire_deduplication": f"de:{op.args.get('key')}",
    }[op.kind]
    return Outcome(client.delete(f"{PREFIX}:{op.queue}:{key}"))


def _command(op: Op) -> tuple[str, dict[str, Any]]:
    """Return the driver's name for an operation and its arguments but the queue."""
    args = {name: value for name, value in op.args.items() if name not in ("queue", "id", "fetch", "by")}
    if "id" in op.args:
        args["jobId"] = op.args["id"]
    if "fetch" in op.args:
        args["fetchNext"] = op.args["fetch"]
    match op.kind:
        case "add" | "add_peer" | "add_child" | "add_deduplicated":
            args["opts"] = {**args["opts"], "jobId": args.pop("jobId")}
            return "add", args
        case "add_bulk":
            jobs = [
                {"name": job["name"], "data": job["data"], "opts": {**job["opts"], "jobId": job["id"]}}
                for job in op.args["jobs"]
            ]
            return "addBulk", {"jobs": jobs}
        case "extend_many":
            args["jobIds"] = args.pop("ids")
            return "extendLocks", args
        case "remove":
            args["removeChildren"] = args.pop("children")
            return "remove", args
        case _:
            return _NAMES.get(op.kind, op.kind), args


_NAMES = {
    "add_auto": "add",
    "add_flow": "addFlow",
    "add_children": "addChildren",
    "move_to_delayed": "moveToDelayed",
    "give_back": "giveBack",
    "give_back_held": "giveBackHeld",
    "upsert_scheduler": "upsertScheduler",
    "remove_scheduler": "removeScheduler",
    "wait_for_children": "moveToWaitingChildren",
    "extend": "extendLock",
    "progress": "updateProgress",
    "clear_logs": "clearLogs",
    "update_data": "updateData",
    "change_priority": "changePriority",
    "change_delay": "changeDelay",
    "set_concurrency": "setGlobalConcurrency",
    "remove_concurrency": "removeGlobalConcurrency",
    "set_rate_limit": "setGlobalRateLimit",
    "remove_rate_limit": "removeGlobalRateLimit",
    "rate_limit": "rateLimit",
    "remove_deduplication": "removeDeduplicationKey",
    "remove_unprocessed": "removeUnprocessedChildren",
    "leave_parent": "removeChildDependency",
}


def _scheduler(one: dict[str, Any]) -> dict[str, Any]:
    """A schedule as Node reads it, without its template's options, which differ in form."""
    described = {name: value for name, value in one.items() if name not in ("template", "offset")}
    return described | {"data": one.get("template", {}).get("data", {})}


def _described(job: Any, state: str) -> Any:
    if job is None:
        return None
    job = {name: value for name, value in job.items() if name not in ("id", "opts")}
    for name in ("failedReason", "deferredFailure", "processedOn", "finishedOn", "processedBy", "parentKey"):
        job.setdefault(name, None)
    # A job that completed after failures has no failure for us; Node goes on showing the last one.
    if state == "completed":
        job["failedReason"] = None
    return job


def _neutral(op: Op, answer: Any) -> Any:
    """Bring an answer of Node into the form that both sides use."""
    if op.kind in ("claim", "complete", "fail") and isinstance(answer, dict):
        job = answer["job"]
        if job is not None:
            job = {
                "id": job["id"],
                "name": job["name"],
                "data": job["data"],
                "attempts_made": job["attemptsMade"],
                "attempts_started": job["attemptsStarted"],
                "deferred_failure": job.get("deferredFailure"),
            }
        return {"job": job, "limited": answer["limited"], "delay_until": answer["delayUntil"]}
    if op.kind in ("give_back", "give_back_held"):
        # The rest of the rate limit, which our engine learns with its next claim.
        return None
    return answer


# ----------------------------------------------------------------------------------------- both together


@dataclass
class DivergenceError(AssertionError):
    """The two sides differ after an operation."""

    ops: list[Op]
    lines: list[str]
    seed: int | None = None
    dumps: tuple[Dump, Dump] | None = field(default=None, repr=False)

    @property
    def things(self) -> set[str]:
        """The differences: the reply, keys and fields. Fewer operations may show others."""
        return {line.split(" ")[0] for line in self.lines if not line.startswith(" ")}

    def __str__(self) -> str:
        title = f"after {len(self.ops)} operations" + (
            f" of seed {self.seed}" if self.seed is not None else ""
        )
        steps = "\n".join(f"  {op.to_json()}" for op in self.ops)
        return f"the sides differ {title}:\n{steps}\n" + "\n".join(self.lines)


class Pair:
    """Two sides that run the same operations."""

    def __init__(self, left: Side, right: Side, names: tuple[str, str] = ("node", "oxcart")) -> None:
        self._left = left
        self._right = right
        self._names = names

    async def compare(self, seeds: Iterable[int], make: Callable[[int], Generator] = Generator) -> None:
        """Run the sequences of some seeds.

        Raises:
            DivergenceError: The sides differ; it holds as few operations as still show it.
        """
        for seed in seeds:
            try:
                await self.generate(seed, make)
            except DivergenceError as found:
                small = await self.shrink(found.ops, make(seed).metas)
                small.seed = seed
                small.lines += ["before operations were dropped:", *found.lines]
                raise small from None

    async def generate(
        self,
        seed: int,
        make: Callable[[int], Generator] = Generator,
        seen: Callable[[Op, Outcome], None] | None = None,
    ) -> list[Op]:
        """Run the sequence of a seed, comparing after every operation, and return it.

        Raises:
            DivergenceError: The sides differ; it holds the operations so far.
        """
        generator = make(seed)
        await self._reset(generator.metas)
        ops: list[Op] = []
        dump = self._left.dump()
        for _ in range(generator.length):
            op = generator.next(dump)
            ops.append(op)
            outcome, dump = await self._step(op, ops, seed)
            generator.observe(op, outcome)
            if seen is not None:
                seen(op, outcome)
        await self._read(ops, seed)
        return ops

    async def play(self, ops: Sequence[Op], metas: bool = True) -> None:
        """Run given operations, comparing after every one."""
        await self._reset(metas)
        done: list[Op] = []
        for op in ops:
            done.append(op)
            await self._step(op, done, None)
        await self._read(done, None)

    async def shrink(self, ops: Sequence[Op], metas: bool = True) -> DivergenceError:
        """Drop operations as long as the sides still differ in the same things, and return what is left."""
        best = await self._divergence(ops, metas)
        assert best is not None, "the operations do not make the sides differ when they are played again"
        things = best.things
        size = max(1, len(best.ops) // 2)
        while True:
            start = 0
            while start < len(best.ops):
                fewer = best.ops[:start] + best.ops[start + size :]
                found = await self._divergence(fewer, metas) if fewer else None
                if found is not None and found.things == things and len(found.ops) < len(best.ops):
                    best = found
                else:
                    start += size
            if size == 1:
                return best
            size = max(1, size // 2)

    async def _divergence(self, ops: Sequence[Op], metas: bool) -> DivergenceError | None:
        try:
            await self.play(ops, metas)
        except DivergenceError as found:
            return found
        return None

    async def _reset(self, metas: bool) -> None:
        await asyncio.gather(self._left.reset(metas), self._right.reset(metas))

    async def _step(self, op: Op, ops: list[Op], seed: int | None) -> tuple[Outcome, Dump]:
        one, other = await asyncio.gather(self._left.run(op), self._right.run(op))
        lines = _outcome_difference(one, other, self._names)
        left, right = self._left.dump(), self._right.dump()
        lines += difference(left, right, self._names)
        if lines:
            raise DivergenceError(list(ops), lines, seed, (left, right))
        return one, left

    async def _read(self, ops: list[Op], seed: int | None) -> None:
        now = ops[-1].now
        one, other = await asyncio.gather(self._left.read(now), self._right.read(now))
        lines = [
            f"{name}: {self._names[0]} {one.get(name)!r}, {self._names[1]} {other.get(name)!r}"
            for name in sorted(one.keys() | other.keys())
            if one.get(name) != other.get(name)
        ]
        if lines:
            raise DivergenceError(list(ops), lines, seed, (self._left.dump(), self._right.dump()))


def _outcome_difference(one: Outcome, other: Outcome, names: tuple[str, str]) -> list[str]:
    if one.failed or other.failed:
        # Errors are compared by their code; each side has its own texts.
        same = one.failed and other.failed and one.code == other.code
    else:
        same = _same(one.value, other.value)
    if same:
        return []
    return [f"answer: {names[0]} {_show(one)}, {names[1]} {_show(other)}"]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            abs(one[name] - other[name]) <= _TIME_TOLERANCE_MS
            if name in _TIMES
            else _same(one[name], other[name])
            for name in one
        )
    return bool(one == other)


def _show(outcome: Outcome) -> str:
    return f"error {outcome.code} ({outcome.error})" if outcome.failed else repr(outcome.value)
