"""Sequences of operations on whole queues, and both sides of them.

All plain operations occur too: a job must be added, run and failed before it can be cleaned, drained, retried
or promoted. Only operations with the same meaning on both sides are compared. Where Oxcart differs on
purpose, docs/protocol.md gives the reason, and so does the condition (`Operating`) or the extra step
(`OperatingNode`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import redis

from oxcart.broker.bullmq import bulk
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.model.errors import JobNotFound
from tests.equality.ops import PREFIX, Op, Outcome
from tests.equality.oxcart_side import OxcartSide
from tests.equality.sequences import Generator
from tests.equality.sides import NodeSide
from tests.nodes import NodeDriver, NodeError

CLEANABLE = ("completed", "failed", "wait", "paused", "delayed", "prioritized", "active")


class Operating(Generator):
    """A mix with many jobs, many operator commands, and workers that record metrics."""

    def __init__(self, seed: int, length: int | None = None) -> None:
        super().__init__(seed, length)
        points = self._pick(2, 3, 10)
        self._workers = [{**worker, "metrics": {"maxDataPoints": points}} for worker in self._workers]
        # 5.62.0 lets promoted jobs wait without their priority.
        self._priorities = self._random.random() < 0.4

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        for maker, weight in super()._weighted():
            # A rate limit set by hand binds every worker of ours, and in 5.62.0 only those with a limit.
            if maker.__name__ != "_rate_limit":
                yield maker, weight * (3 if maker.__name__ == "_add_bulk" else 1)
        yield self._clean, 14
        yield self._drain, 4
        yield self._retry_all, 9
        yield self._promote_all, 5
        yield self._obliterate, 2
        yield self._clear_logs_of_one, 3
        yield self._trim_events, 1
        yield self._publish, 2
        yield self._counts_per_priority, 2
        yield self._metrics, 3

    def _clean(self) -> Op | None:
        queue = self._some_queue()
        state = self._pick(*CLEANABLE)
        if not self._view.ids(queue, state) and self._random.random() < 0.9:
            return None
        grace, limit = self._pick(0, 0, 1, 1_000, 5_000, 60_000), self._pick(0, 0, 1, 2)
        if state not in ("completed", "failed") and (grace or state == "active"):
            # With a limit, 5.62.0 checks that many jobs and removes the old ones; we check further jobs.
            limit = 0
        return self._op("clean", queue, state=state, grace=grace, limit=limit)

    def _drain(self) -> Op | None:
        queue = self._some_queue()
        if not self._view.ids(queue, "wait", "paused", "prioritized", "delayed"):
            return None
        return self._op("drain", queue, delayed=self._random.random() < 0.5)

    def _obliterate(self) -> Op | None:
        queue = self._some_queue()
        active = self._view.ids(queue, "active")
        parents = [self._view.hash(queue, one) for one in self._view.ids(queue, "waiting-children")]
        # Parents that 5.62.0 leaves behind are removed by hand, but without the effects on other jobs.
        if any("parentKey" in one or "deid" in one for one in parents):
            return None
        # A refusal leaves the queue paused in Node, and as it was in Oxcart.
        return self._op("obliterate", queue, force=bool(active) or self._random.random() < 0.5)

    def _retry_all(self) -> Op | None:
        queue = self._some_queue()
        state = self._pick("failed", "failed", "completed")
        ids = self._view.ids(queue, state)
        # 5.62.0 leaves the records of parents as they are; we move the child back, as a single retry does.
        if not ids or any(self._is_on_record(queue, one) for one in ids):
            return None
        until = self._now - self._pick(0, 0, 100, 5_000)
        return self._op("retry_all", queue, state=state, until=until)

    def _is_on_record(self, queue: str, job_id: str) -> bool:
        parent = self._parent(queue, job_id)
        records = ("unsuccessful", "failed", "processed")
        return parent is not None and any(self._view.has(f"{parent}:{name}") for name in records)

    def _promote_all(self) -> Op | None:
        queue = self._some_queue()
        ids = self._view.ids(queue, "delayed")
        if not ids or any(self._view.hash(queue, one).get("priority") != "0" for one in ids):
            return None
        return self._op("promote_all", queue)

    def _clear_logs_of_one(self) -> Op | None:
        queue = self._some_queue()
        logged = self._view.logged(queue)
        if not logged:
            return None
        return self._op("clear_logs", queue, id=self._random.choice(logged), keep=self._pick(0, 1))

    def _trim_events(self) -> Op:
        return self._op("trim_events", self._some_queue(), keep=self._pick(0, 10, 1000))

    def _publish(self) -> Op:
        fields = self._pick({}, {"by": "ada"}, {"text": "grüße 🎉", "n": "1"})
        return self._op("publish", self._some_queue(), event=self._pick("own", "deployed"), fields=fields)

    def _counts_per_priority(self) -> Op:
        return self._op("counts_per_priority", self._some_queue(), priorities=[0, 1, 2, 5, 10])

    def _metrics(self) -> Op:
        return self._op("metrics", self._some_queue(), state=self._pick("completed", "failed"))


class OperatingNode(NodeSide):
    """The real BullMQ, with extra steps where it leaves something behind."""

    def __init__(self, driver: NodeDriver, client: redis.Redis) -> None:
        super().__init__(driver, client)
        self._node = driver

    async def run(self, op: Op) -> Outcome:
        does = getattr(self, f"_{op.kind}", None)
        if does is None:
            return await super().run(op)
        try:
            return Outcome(await does(op))
        except NodeError as error:
            return Outcome(code=error.code, error=error.message)

    async def _call(self, name: str, op: Op, **args: Any) -> Any:
        return await self._node.call(name, now=op.now, queue=op.queue, **args)

    async def _clean(self, op: Op) -> int:
        asked = {"state": op.args["state"], "grace": op.args["grace"], "most": op.args["limit"]}
        return len(await self._call("clean", op, **asked))

    async def _drain(self, op: Op) -> None:
        await self._call("drain", op, delayed=op.args["delayed"])

    async def _obliterate(self, op: Op) -> None:
        await self._call("obliterate", op, force=op.args["force"])
        base = f"{PREFIX}:{op.queue}"
        left: Any = self._client.zrange(f"{base}:waiting-children", 0, -1)
        for job in left:
            key = f"{base}:{job.decode()}"
            names = ("", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")
            self._client.delete(*(key + name for name in names))
        self._client.delete(f"{base}:waiting-children", f"{base}:marker", f"{base}:limiter")

    async def _retry_all(self, op: Op) -> None:
        opts = {"state": op.args["state"], "timestamp": op.args["until"]}
        await self._call("retryJobs", op, opts=opts)

    async def _promote_all(self, op: Op) -> None:
        base = f"{PREFIX}:{op.queue}"
        promoted: Any = self._client.zrange(f"{base}:delayed", 0, -1)
        await self._call("promoteJobs", op, opts={})
        for job in promoted:  # as a single promotion does
            self._client.hset(f"{base}:{job.decode()}", "delay", 0)

    async def _trim_events(self, op: Op) -> int:
        return int(await self._call("trimEvents", op, maxLength=op.args["keep"]))

    async def _publish(self, op: Op) -> None:
        event = {"eventName": op.args["event"], **op.args["fields"]}
        await self._call("publishEvent", op, event=event, maxEvents=1000)

    async def _counts_per_priority(self, op: Op) -> dict[int, int]:
        found = await self._call("getCountsPerPriority", op, priorities=op.args["priorities"])
        return {int(priority): count for priority, count in found.items()}

    async def _metrics(self, op: Op) -> dict[str, Any]:
        found: dict[str, Any] = await self._call("getMetrics", op, state=op.args["state"])
        return found


class OperatingOxcart(OxcartSide):
    """Our operations."""

    async def run(self, op: Op) -> Outcome:
        if op.kind == "clear_logs" and op.args.get("by") != "peer":
            with contextlib.suppress(JobNotFound):  # which Node does not report; nothing changes
                await self._brokers[op.queue].logs.clear(op.args["id"], op.args["keep"])
            return Outcome()
        return await super().run(op)

    async def _clean(self, broker: BullMQBroker, op: Op) -> int:
        before = op.now - op.args["grace"]
        return await bulk.clean(broker, op.args["state"], before, limit=op.args["limit"] or None)

    async def _drain(self, broker: BullMQBroker, op: Op) -> None:
        await broker.bulk.clear(delayed=op.args["delayed"])

    async def _obliterate(self, broker: BullMQBroker, op: Op) -> None:
        await broker.bulk.obliterate(force=op.args["force"])

    async def _retry_all(self, broker: BullMQBroker, op: Op) -> None:
        await broker.bulk.retry_all(op.args["state"], until_ms=op.args["until"])

    async def _promote_all(self, broker: BullMQBroker, op: Op) -> None:
        await broker.bulk.promote_all()

    async def _trim_events(self, broker: BullMQBroker, op: Op) -> int:
        return await broker.bulk.trim_events(op.args["keep"])

    async def _publish(self, broker: BullMQBroker, op: Op) -> None:
        await broker.bulk.publish(op.args["event"], op.args["fields"], 1000)

    async def _counts_per_priority(self, broker: BullMQBroker, op: Op) -> dict[int, int]:
        return await broker.bulk.counts_per_priority(op.args["priorities"])

    async def _metrics(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        found = await broker.metrics.series(op.args["state"])
        meta = {"count": found.count, "prevTS": found.previous_at, "prevCount": found.previous_count}
        return {"meta": meta, "data": found.points, "count": found.total}
