"""A batch of N leaves the same state as N single calls.

One side sends every item of a batch in its own call, the other all at once. After every operation the two
databases and the replies must be equal.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from oxcart.broker import port
from oxcart.broker.bullmq import BullMQBroker
from oxcart.broker.port import Ask, Claimed, ClaimedJob, Lease
from oxcart.model.retention import Retention
from tests.equality.ops import Claim, Op, Outcome
from tests.equality.oxcart_side import OxcartSide, _ask, _ended
from tests.equality.sequences import Generator
from tests.equality.sides import DivergenceError, NodeSide, Pair
from tests.nodes import node_driver
from tests.servers import ValkeyServer

pytestmark = pytest.mark.node

FIRST = int(os.environ.get("OXCART_BATCH_SEED", "0"))
COUNT = int(os.environ.get("OXCART_BATCH_COUNT", "150"))
CHUNK = 25


class BatchGenerator(Generator):
    """Sequences with many batches: bulk adds, claims of several, mixed finishes, renewals, log lines."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._mixed = False

    def observe(self, op: Op, outcome: Outcome) -> None:
        if op.kind not in ("claim_many", "finish_many"):
            super().observe(op, outcome)
            return
        if op.kind == "finish_many":
            ended = zip(op.args["items"], outcome.value["codes"], strict=True)
            gone = {(item["id"], item["token"]) for item, code in ended if code == 1}
            self._claims = [one for one in self._claims if (one.job_id, one.token) not in gone]
        for job in outcome.value["jobs"]:
            claim = Claim(op.queue, job["id"], op.args["token"], op.args["worker"])
            self._claims.append(claim)

    def _weighted(self) -> Iterable[tuple[Callable[[], Op | None], float]]:
        for maker, weight in super()._weighted():
            name = maker.__name__
            yield (
                maker,
                0.2 * weight if name in ("_add", "_claim", "_complete", "_fail", "_extend") else weight,
            )
        yield self._add_bulk, 12
        yield self._claim_many, 14
        yield self._log_many, 2
        if self._claims:
            yield self._finish_many, 24

    def _claim_many(self) -> Op:
        worker = self._random.choice(self._workers)
        args = {"token": self._token(), "worker": worker, "count": self._random.randint(1, 8)}
        # Few bytes: the claim stops early, as it does before a reply that would be too large.
        args["bytes"] = self._pick(1 << 20, 1 << 20, 20)
        return self._op("claim_many", self._some_queue(), **args)

    def _finish_many(self) -> Op | None:
        queue = self._some_queue()
        held = [one for one in self._claims if one.queue == queue]
        chosen = self._random.sample(held, self._random.randint(1, min(len(held), 9))) if held else []
        items = [self._item(one.job_id, one.token) for one in chosen]
        if self._random.random() < 0.3:
            # A refused outcome must not affect the others.
            stray = self._item(self._any_id(queue), "stranger")
            items.insert(self._random.randint(0, len(items)), stray)
        if not items:
            return None
        # A finish that finds no more jobs emits `drained`. If the last finish of the batch were refused,
        # single calls would emit it one call earlier.
        valid = [item for item in items if self._will_end(queue, item)]
        if valid:
            items.remove(valid[-1])
            items.append(valid[-1])
        args = {"token": self._token(), "worker": self._random.choice(self._workers), "bytes": 1 << 20}
        return self._op("finish_many", queue, items=items, count=self._pick(0, 1, 2, 4), **args)

    def _will_end(self, queue: str, item: dict[str, Any]) -> bool:
        held = {"queue": queue, "id": item["id"], "token": item["token"]}
        return self._finishable(held, completes=item["kind"] == "c")

    def _item(self, job_id: str, token: str) -> dict[str, Any]:
        item: dict[str, Any] = {
            "id": job_id,
            "token": token,
            "kind": self._pick("c", "c", "f", "f", "r", "d", "w"),
        }
        item["at"] = self._now - self._pick(0, 0, 1, 7)
        item["retention"] = self._pick(
            None, None, True, 1, {"count": 2, "age": 3}, {"age": 3}, {"age": 3, "limit": 1}
        )
        item["delay"] = self._pick(0, 1, 500)
        item["counts"] = self._random.random() < 0.5
        item["attempts"] = self._pick(0, 1, 3)
        return item

    def _log_many(self) -> Op:
        rows = [f"row {i}" for i in range(self._random.randint(2, 4))]
        return self._op("log_many", **self._any_job(), rows=rows, keep=self._pick(0, 1, 3))


class BatchSide(OxcartSide):
    """Runs each operation in as few calls as the broker can, with the facts from the claims."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._claims: dict[tuple[str, str, str], ClaimedJob] = {}

    def _claimed(self, op: Op, claimed: Claimed) -> dict[str, Any]:
        for job in claimed.jobs:
            self._claims[op.queue, job.id, job.token] = job
        return super()._claimed(op, claimed)

    async def _claim_many(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        claimed = await broker.claim(_asked(op, op.args["count"]))
        return self._several(op, [], [claimed])

    async def _finish_many(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        outcomes = [_outcome(op, item) for item in op.args["items"]]
        for outcome in outcomes:
            outcome.claim = self._claims.get((op.queue, outcome.id, outcome.token))
        codes, claimed = await broker.finish(outcomes, _asked(op, op.args["count"]))
        return self._several(op, codes, [claimed])

    async def reset(self, metas: bool) -> None:
        self._claims.clear()
        await super().reset(metas)

    async def _log_many(self, broker: BullMQBroker, op: Op) -> int:
        return await broker.logs.append(op.args["id"], op.args["rows"], op.args["keep"] or None)

    def _several(self, op: Op, codes: list[port.Code], claims: list[Claimed]) -> dict[str, Any]:
        jobs = []
        for claimed in claims:
            for job in claimed.jobs:
                one = Claimed([job])
                jobs.append(self._claimed(op, one)["job"])
        # If this claim returned jobs, the next claim reports why there are no more.
        last = Claimed([]) if jobs else claims[-1]
        return {
            "codes": codes,
            "jobs": jobs,
            "limited": last.limited_ms,
            "due": last.due_ms,
            "closed": last.closed,
        }


class SingleSide(BatchSide):
    """Sends every item in a call of its own."""

    async def _add_bulk(self, broker: BullMQBroker, op: Op) -> list[str]:
        return [(await self._add_jobs(broker, [job]))[0] for job in op.args["jobs"]]

    async def _claim_many(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        return self._several(op, [], await self._claim_singly(broker, op))

    async def _finish_many(self, broker: BullMQBroker, op: Op) -> dict[str, Any]:
        # A batch finishes all its attempts before it claims, so the last finish claims.
        codes: list[port.Code] = []
        for item in op.args["items"][:-1]:
            codes += (await broker.finish([_outcome(op, item)]))[0]
        last = _outcome(op, op.args["items"][-1])
        ended, claimed = await broker.finish([last], _asked(op, min(1, op.args["count"])))
        claims = [claimed]
        if claimed.jobs and op.args["count"] > 1:
            claims += await self._claim_singly(broker, op, 1)
        return self._several(op, codes + ended, claims)

    async def _claim_singly(self, broker: BullMQBroker, op: Op, done: int = 0) -> list[Claimed]:
        claims: list[Claimed] = []
        size = 0
        for _ in range(op.args["count"] - done):
            claims.append(await broker.claim(_asked(op, 1)))
            size += sum(len(job.payload) for job in claims[-1].jobs)
            if not claims[-1].jobs or size >= op.args["bytes"]:
                break
        return claims

    async def _extend_many(self, broker: BullMQBroker, op: Op) -> list[str]:
        refused: list[str] = []
        for pair in zip(op.args["ids"], op.args["tokens"], strict=True):
            refused += await broker.renew([Lease(*pair)], op.args["duration"])
        return refused

    async def _log_many(self, broker: BullMQBroker, op: Op) -> int:
        length = 0
        for row in op.args["rows"]:
            length = await broker.logs.append(op.args["id"], [row], op.args["keep"] or None)
        return length


def _asked(op: Op, count: int) -> Ask:
    ask = _ask(op, count)
    return Ask(count, ask.lock_ms, ask.worker, ask.limit_max, ask.limit_duration, op.args["bytes"])


def _outcome(op: Op, item: dict[str, Any]) -> port.Outcome:
    outcome = _ended(item["kind"], Op("end", item["at"], {"id": item["id"], "token": item["token"]}))
    if item["kind"] in "frd":
        outcome.value, outcome.stack = b"boom", b'["trace"]'
    elif item["kind"] == "c":
        outcome.value = b'{"ok":true}'
    outcome.retention = Retention.from_wire(item["retention"])
    outcome.delay_ms = item["delay"]
    outcome.counts = item["counts"]
    outcome.attempts = item["attempts"]
    return outcome


@pytest.fixture
async def pair(servers: tuple[ValkeyServer, ValkeyServer]) -> AsyncIterator[Pair]:
    one, other = (server.client(decode_responses=False) for server in servers)
    async with node_driver("v5", servers[0].url) as first, node_driver("v5", servers[1].url) as second:
        single = SingleSide(servers[0].url, one, NodeSide(first, one))
        batch = BatchSide(servers[1].url, other, NodeSide(second, other))
        try:
            yield Pair(single, batch, ("single", "batch"))
        finally:
            await single.close()
            await batch.close()


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
async def test_a_batch_leaves_what_single_calls_leave(pair: Pair, first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + COUNT)):
        try:
            await pair.generate(seed, BatchGenerator)
        except DivergenceError as found:
            small = await pair.shrink(found.ops, BatchGenerator(seed).metas)
            small.seed = seed
            raise small from None
