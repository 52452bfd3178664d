"""Partitions over the masters of a cluster: random operations against a model, and a killed master."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from oxcart import Queue, Worker
from oxcart.broker.port import Ask, ClaimedJob, Outcome, OutcomeKind
from oxcart.engine.duty import Duty
from oxcart.engine.recovery import Promotion
from oxcart.model.errors import PartitionNotEmpty, Unacknowledged
from oxcart.model.partitions import partition_of
from tests.cluster.conftest import Masters
from tests.servers import ValkeyCluster, ValkeyServer
from tests.signals import eventually

#: Seconds within which work must resume, on a machine that may pause.
LIMIT = 90.0
#: No schedule fires meanwhile.
FAR = datetime(2100, 1, 1, tzinfo=UTC)
#: The wire states that a model knows, and their names among the counts.
STATES = ("waiting", "active", "delayed", "completed", "failed")


class Model:
    """What a queue should hold: states of jobs, the order of each key, limit, schedules and pause."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.paused = False
        #: The ready jobs of each key and layout that were never retried, as they were added.
        self.lines: dict[tuple[str, int], list[str]] = {}
        self.limit: int | None = None
        self.schedules: set[str] = set()

    def starts(self, job_id: str) -> None:
        """Checks that a claimed job is the next of its key."""
        assert self.states[job_id] == "waiting"
        self.states[job_id] = "active"
        for line in self.lines.values():
            if job_id in line:
                assert line[0] == job_id, "jobs of a key start in the order of their adds"
        self.drop(job_id)

    def drop(self, job_id: str) -> None:
        """Forgets the place of a job among those of its key."""
        for line in self.lines.values():
            if job_id in line:
                line.remove(job_id)

    def having(self, *states: str) -> list[str]:
        return [job_id for job_id, state in self.states.items() if state in states]

    def counts(self) -> dict[str, int]:
        found = Counter(self.states.values())
        found["delayed"] += len(self.schedules)
        return {state: found[state] for state in STATES}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_operations_equal_a_model(masters: Masters, seed: int) -> None:
    dice, model = random.Random(seed), Model()
    queue = Queue("events", url=masters.url, partitions=8)
    broker = queue._core.open_broker()
    spread = broker.partitions
    assert spread is not None
    claimed: dict[str, tuple[Any, ClaimedJob]] = {}
    numbers = iter(range(10_000))

    async def add() -> None:
        options: dict[str, Any] = dice.choice(
            [{}, {"partition_key": f"k{dice.randrange(20)}"}, {"job_id": f"own-{next(numbers)}"}]
        )
        if dice.random() < 0.3:
            options["delay"] = "1h"
        handle = await queue.add("n", {"n": next(numbers)}, **options)
        assert handle.created
        model.states[handle.id] = "delayed" if "delay" in options else "waiting"
        if "partition_key" in options and "delay" not in options:
            line = options["partition_key"], (await spread.refresh()).version
            model.lines.setdefault(line, []).append(handle.id)

    async def add_again() -> None:
        own = [job_id for job_id in model.states if job_id.startswith("own-")]
        if own:
            assert not (await queue.add("n", job_id=dice.choice(own))).created

    async def claim() -> None:
        """As a worker: from the partitions themselves, in a turn of their own."""
        await spread.refresh()
        parts = list(spread.brokers())
        most, running = dice.randint(1, 5), len(claimed)
        found = 0
        for part in dice.sample(parts, len(parts)):
            reply = await part.claim(Ask(most - found, worker="w"))
            found += len(reply.jobs)
            for job in reply.jobs:
                model.starts(job.id)
                claimed[job.id] = part, job
            if found == most:
                break
        assert not (model.paused and found)
        if not model.paused and model.limit is None and (model.having("waiting") or found):
            assert found, "jobs wait, and none was claimed"
        assert model.limit is None or len(claimed) <= max(model.limit, running)

    async def finish() -> None:
        for job_id in dice.sample(sorted(claimed), min(len(claimed), 3)):
            part, job = claimed.pop(job_id)
            kind = dice.choice(["c", "f"])
            outcome = Outcome(
                OutcomeKind(kind), job_id, job.token, job.starts, value=b"1" if kind == "c" else b"broken"
            )
            assert (await part.finish([outcome], Ask(0)))[0] == [1]
            model.states[job_id] = "completed" if kind == "c" else "failed"

    async def lose() -> None:
        """A worker is lost with a job: its partition takes it back."""
        if not claimed:
            return
        job_id = dice.choice(sorted(claimed))
        part, _ = claimed.pop(job_id)
        await part.caller.command("DEL", part.keys.key(f"{job_id}:lock"))
        await part.caller.command("SADD", part.keys.key("stalled"), job_id)
        await part.caller.command("DEL", part.keys.key("stalled-check"))
        assert job_id in (await part.recover(max_stalled=1000, interval_ms=1)).ids
        model.states[job_id] = "waiting"

    async def resize() -> None:
        size = dice.choice([4, 8, 16])
        assert (await queue.partitions.resize(size)).size == size
        await limit_is_kept()

    async def retire() -> None:
        """Refused while partitions without new jobs have any; then all jobs end, and they are given up."""
        layout = await queue.partitions.layout()
        if dice.random() < 0.5:
            with contextlib.suppress(PartitionNotEmpty):
                layout = await queue.partitions.retire()
                assert layout.served == layout.size
            return
        while claimed:
            await finish()
        for job_id in list(model.states):
            await queue.jobs.remove(job_id)
            del model.states[job_id]
            model.drop(job_id)
        assert (await queue.partitions.retire()).served == layout.size
        await limit_is_kept()

    async def limit() -> None:
        model.limit = None if model.limit is not None else dice.randint(16, 20)
        if model.limit is None:
            await queue.limits.remove_concurrency()
        else:
            await queue.limits.set_concurrency(model.limit)
        await limit_is_kept()

    async def limit_is_kept() -> None:
        assert await queue.limits.concurrency() == model.limit
        await spread.refresh()
        parts: Any = spread.brokers()
        bounds = [await one.limits.concurrency() for one in parts]
        assert (model.limit is None) == (bounds == [None] * len(bounds))
        assert model.limit is None or sum(bounds) <= model.limit

    async def schedule() -> None:
        name = f"s{dice.randrange(8)}"
        if name in model.schedules and dice.random() < 0.5:
            await queue.schedules.remove(name)
            model.schedules.discard(name)
        else:
            await queue.schedules.upsert(name, every="1h", start=FAR)
            model.schedules.add(name)
        assert {one.id for one in await queue.schedules.list()} == model.schedules

    async def pause() -> None:
        await (queue.resume() if model.paused else queue.pause())
        model.paused = not model.paused
        assert await queue.is_paused() == model.paused

    async def remove() -> None:
        for job_id in dice.sample(model.having("waiting", "delayed", "completed"), 1):
            await queue.jobs.remove(job_id)
            del model.states[job_id]
            model.drop(job_id)

    async def retry() -> None:
        for job_id in dice.sample(model.having("failed"), 1):
            await queue.jobs.retry(job_id)
            model.states[job_id] = "waiting"

    async def promote() -> None:
        for job_id in dice.sample(model.having("delayed"), 1):
            await queue.jobs.handle(job_id).promote()
            model.states[job_id] = "waiting"

    async def retry_all() -> None:
        failed = model.having("failed")
        assert await queue.jobs.retry_all() == len(failed)
        model.states |= dict.fromkeys(failed, "waiting")

    async def clean() -> None:
        done = model.having("completed")
        assert await queue.jobs.clean("completed") == len(done)
        for job_id in done:
            del model.states[job_id]

    async def cancel() -> None:
        for job_id in dice.sample(model.having("waiting", "delayed"), 1):
            await queue.jobs.cancel(job_id)
            model.states[job_id] = "failed"
            model.drop(job_id)

    often = [add, add, add, add, claim, claim, finish, finish, add_again]
    seldom = [pause, remove, retry, promote, retry_all, clean, cancel, lose, lose, limit, schedule]
    seldom += [resize, resize, retire, retire]
    needs = {
        remove: ("waiting", "delayed", "completed"),
        retry: ("failed",),
        promote: ("delayed",),
        cancel: ("waiting", "delayed"),
    }
    for step in range(240):
        work = dice.choice(often if dice.random() < 0.7 else seldom)
        if work in needs and not model.having(*needs[work]):
            continue
        await work()
        if step % 5 == 0:
            counts = await queue.counts()
            assert {state: counts[state] for state in STATES} == model.counts()
    for state in STATES:
        listed = [job.id for job in await queue.jobs.list(state, limit=1000)]
        listed = [one for one in listed if not one.startswith("repeat:")]
        assert sorted(listed) == sorted(model.having(state))
        assert await queue.jobs.list(state, first=2, limit=3) == (await queue.jobs.list(state))[2:5]
    known = list(model.states)
    found = await queue.jobs.get_many([*known, "none"])
    assert [job and job.id for job in found] == [*known, None]
    assert len({masters.owner(one.slot).port for one in broker.partitions.brokers()}) == 3  # type: ignore
    await broker.close()
    await queue.close()


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    # Long, so that living partitions have to go on for some time before the failover.
    with ValkeyCluster(replicas=1, node_timeout=10_000) as cluster:
        yield cluster


def serves(node: ValkeyServer, slot: int) -> int:
    """Returns the port of the master that serves a slot, as a node knows it."""
    with node.client() as client:
        for first, last, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(master[1])
    raise AssertionError(f"no node serves slot {slot}")


@pytest.mark.slow
async def test_idle_partitions_are_maintained_by_one_worker(masters: Masters) -> None:
    """Each is in a slot of its own: without an election every worker ran the loops of each."""
    queue = Queue("events", url=masters.url, partitions=8)
    queue.fallback(lambda: None)

    def promoting() -> int:
        return sum(task.get_name() == f"oxcart-{Promotion.name}" for task in asyncio.all_tasks())

    def electing() -> int:
        return sum(task.get_name() == f"oxcart-{Duty.name}" for task in asyncio.all_tasks())

    async with Worker(queue).running() as one, Worker(queue).running():
        assert (promoting(), electing()) == (0, 2)
        later = await queue.add("n", delay="8s", partition_key="k3")
        await eventually(lambda: promoting() == 1, "one worker maintains the partition with a job", LIMIT)
        one.stop()
        await later.result(LIMIT)
    await queue.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_master_killed_under_load_stops_only_its_partitions(cluster: ValkeyCluster) -> None:
    queue = Queue("events", url=cluster.url, partitions=8, add_timeout=10)
    masters = Masters(cluster)
    ran: Counter[int] = Counter()
    acknowledged: set[int] = set()

    async def note(n: int) -> None:
        ran[n] += 1

    queue.job(name="note")(note)
    dead = cluster.nodes[0]
    spread = queue._core.broker.partitions
    assert spread is not None
    living = [at for at in range(8) if masters.owner(spread.broker(at).slot or 0) is not dead]
    assert 0 < len(living) < 8
    is_killed, stop = asyncio.Event(), asyncio.Event()
    meanwhile: list[int] = []

    async def produce(first: int) -> None:
        n = first
        while not stop.is_set():
            # The heir of the dead master has no replica of its own.
            durability: Any = "acknowledged" if is_killed.is_set() else "replicated"
            row: dict[str, Any] = {"job_id": f"job-{n}", "partition_key": f"k{n}"}
            try:
                await queue.add("note", {"n": n}, durability=durability, **row)
                acknowledged.add(n)
                if is_killed.is_set():
                    meanwhile.append(n)
            except Unacknowledged:
                pass
            n += 1

    lost = next(one.slot or 0 for at, one in enumerate(spread.brokers()) if at not in living)
    other = next(node for node in cluster.nodes if node is not dead)
    keys = {at: next(f"k{n}" for n in range(1000) if partition_of(f"k{n}", 8) == at) for at in living}

    async with Worker(queue, concurrency=10, lock_duration="5s", stalled_interval="1s").running():
        load = [asyncio.create_task(produce(first)) for first in range(0, 800_000, 100_000)]
        await eventually(lambda: len(ran) > 100, "load", LIMIT)
        await asyncio.to_thread(dead.kill)
        is_killed.set()
        since = range(900_000, 900_000 + 10 * len(living))
        for n in since:
            await queue.add("note", {"n": n}, partition_key=keys[living[n % len(living)]])
        await eventually(lambda: ran.keys() >= set(since), "jobs of living partitions run", LIMIT)
        assert serves(other, lost) == dead.port, "they went on before the failover"
        await eventually(lambda: len(meanwhile) > 50, "adds go on", LIMIT)
        await eventually(lambda: ran.keys() & set(meanwhile), "jobs go on", LIMIT)
        stop.set()
        await asyncio.gather(*load)
        await eventually(lambda: acknowledged <= ran.keys(), "no acknowledged job is lost", LIMIT)
        handle = await queue.add("note", {"n": -1})
        await handle.result(LIMIT)
    await queue.close()
