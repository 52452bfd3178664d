"""The producers: each adds its rows at their times, and writes what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from oxcart import Flow, Graph, Queue
from oxcart.model.errors import BrokerError, BrokerTimeout
from tests.checker.plan import (
    BRIDGE,
    BRIDGE_LIMIT,
    GROUP_LIMIT,
    GROUPED,
    KEY_LIMIT,
    NAMESPACE,
    OURS,
    PARTED,
    PARTITIONS,
    PLENTY,
    QUEUES,
    RATE_LIMIT,
    RATED,
    TYPE_LIMITS,
    WINDOW,
    Plan,
    Row,
    Rule,
)
from tests.checker.record import Record
from tests.nodes import NodeDriver, NodeError, node_driver

#: Seconds after which a producer gives up an add, not knowing whether it was applied.
ADD_LIMIT = 5.0
#: Short: Node may promote a job of a group that our workers retry, and start it although the group is full
#: (docs/groups.md). `tests/interop/test_groups.py` tries a long one, which Node's own retries obey.
BACKOFF = {"type": "fixed", "delay": 20}


class Producers:
    """All producers of a plan.

    Args:
        plan: What they add.
        record: Where they write what they were told.
        ours: The server's address for our clients.
        theirs: The same for Node's.
        is_replicated: Whether an add counts as acknowledged only once a replica has it.
    """

    def __init__(
        self, plan: Plan, record: Record, ours: str, theirs: str, *, is_replicated: bool = False
    ) -> None:
        self._more: dict[str, Any] = {"durability": "replicated"} if is_replicated else {}
        self._plan = plan
        self._record = record
        self._ours = ours
        self._theirs = theirs
        self._queues: dict[str, Queue] = {}
        self._drivers: dict[str, NodeDriver] = {}

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """Connects all producers, sets limits and schedules, and closes them after the block."""
        async with contextlib.AsyncExitStack() as stack:
            for name in QUEUES:
                queue = open_queue(name, self._ours, add_timeout=ADD_LIMIT, **self._more)
                self._queues[name] = await stack.enter_async_context(queue)
            for peer in self._plan.peers:
                driver = node_driver(f"v{peer.removeprefix('node')}", self._theirs)
                self._drivers[peer] = await stack.enter_async_context(driver)
            for name, most in TYPE_LIMITS.items():
                await self._queues[OURS].limits.set_type_limit(name, concurrent=most)
            for name in (OURS, PARTED):
                await self._queues[name].limits.set_key_limit(concurrent=KEY_LIMIT)
            await self._queues[GROUPED].groups.set_all(concurrent=GROUP_LIMIT)
            await self._queues[RATED].limits.set_rate(RATE_LIMIT, per=f"{WINDOW}ms")
            for rule in self._plan.rules:
                await self._schedule(rule)
            yield

    async def produce(self) -> None:
        """Adds every row at its time. A producer that waits for the server falls behind, and catches up."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for by in ("oxcart", *self._plan.peers):
                rows = [row for row in self._plan.tops if row.by == by]
                group.create_task(self._produce(rows, began))

    async def _produce(self, rows: list[Row], began: float) -> None:
        for row in rows:
            await asyncio.sleep(max(0.0, began + row.at - time.monotonic()))
            family = [*row.children, row]
            for one in family:
                self._record.write("asked", queue=one.queue, row=one.id, side=one.by)
            try:
                ids = await self._add(row)
            except BrokerTimeout:
                what, ids = "refused", [""] * len(family)
            except (BrokerError, NodeError, TimeoutError):
                what, ids = "unsure", [""] * len(family)
            else:
                what = "acked"
            for one, job in zip(family, ids, strict=True):
                self._record.write(what, queue=one.queue, job=job, row=one.id, side=one.by)

    async def _add(self, row: Row) -> list[str]:
        """Adds a row and its children; returns the ids in the order of `family`."""
        if row.by != "oxcart":
            options = {
                "jobId": row.id,
                "attempts": row.attempts,
                "delay": row.delay,
                "priority": row.priority,
            }
            given = {name: value for name, value in options.items() if value}
            job: dict[str, Any] = {"name": row.name, "data": row.data, "opts": {**given, "backoff": BACKOFF}}
            return [str(await self._drivers[row.by].call("add", queue=row.queue, limit=30.0, **job))]
        queue = self._queues[row.queue]
        if not row.children:
            return [(await queue.add(row.name, row.data, **_options(row))).id]
        if row.is_graph:
            graph = Graph(queue)
            first = [graph.job(one.name, one.data, **_options(one)) for one in row.children]
            graph.job(row.name, row.data, after=first, **_options(row))
            return [handle.id for handle in await graph.add()]
        children = [Flow(queue, one.name, one.data, **_options(one)) for one in row.children]
        await Flow(queue, row.name, row.data, children=children, **_options(row)).add()
        return [one.id for one in (*row.children, row)]

    async def _schedule(self, rule: Rule) -> None:
        if rule.by == "oxcart":
            if rule.queue == BRIDGE:
                end = datetime.now(UTC) + timedelta(seconds=self._plan.seconds / 2)
                bounds: dict[str, Any] = {"end": end, "missed": "all"}
            else:
                bounds = {"limit": rule.limit, "remove_on_complete": False}
            every = None if rule.every is None else f"{rule.every}ms"
            await self._queues[rule.queue].schedules.upsert(
                rule.key,
                every=every,
                cron=rule.cron,
                data=rule.data,
                attempts=PLENTY,
                backoff=BACKOFF,
                **bounds,
            )
            return
        repeat = {"pattern": rule.cron} if rule.cron else {"every": rule.every}
        template = {"name": rule.key, "data": rule.data, "opts": {"attempts": PLENTY, "backoff": BACKOFF}}
        await self._drivers[rule.by].call(
            "upsertScheduler", queue=rule.queue, key=rule.key, repeat={**repeat, "limit": rule.limit},
            template=template,
        )  # fmt: skip


def open_queue(name: str, url: str, **options: Any) -> Queue:
    """Opens a queue of the plan."""
    if name == BRIDGE:
        options |= {"protocol": "bridge", "namespace": NAMESPACE}
    elif name == PARTED:
        options["partitions"] = PARTITIONS
    return Queue(name, url=url, **options)


def _options(row: Row) -> dict[str, Any]:
    options: dict[str, Any] = {"attempts": row.attempts, "backoff": BACKOFF, "priority": row.priority}
    if row.queue != BRIDGE:
        options["job_id"] = row.id
    else:
        del options["priority"]
        if row.kind == "limited":
            options["rate_limit"] = {"max_concurrent": BRIDGE_LIMIT}
    if row.delay:
        options["delay"] = f"{row.delay}ms"
    if row.limit_key:
        options["limit_key"] = row.limit_key
        if row.queue == PARTED:
            options["partition_key"] = row.limit_key
    if row.group:
        options["group"] = row.group
    return options
