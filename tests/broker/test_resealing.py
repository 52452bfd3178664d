"""Replacing a key: stored values are sealed again while workers and producers use them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, Target, Worker
from oxcart.broker.factory import ProtocolName
from oxcart.broker.keyring import DecryptionError, KeyRing
from oxcart.broker.resealing import PLAINTEXT, reseal
from oxcart.model.errors import JobFailed, OxcartError
from tests.broker.test_sealing import version_1
from tests.conftest import MakeQueue

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SECRET = "the secret of the payload"
PROTOCOLS: tuple[ProtocolName, ...] = ("bullmq", "bridge")


def old_ring(**options: Any) -> KeyRing:
    return KeyRing({"old": OLD}, **options)


def both_rings(**options: Any) -> KeyRing:
    return KeyRing({"new": NEW, "old": OLD}, "new", **options)


def new_ring(**options: Any) -> KeyRing:
    return KeyRing({"new": NEW}, **options)


def sealed_with(store: redis.Redis, key_id: str) -> int:
    """Counts the values outside of event streams that are sealed with a key."""
    found = 0
    mark = f'"key":"{key_id}"'
    for key in map(str, store.scan_iter("*")):
        if ":ox:call:" in key or ":ox:facts" in key:  # packed, and none of them sealed
            continue
        kind = str(store.type(key))
        if kind == "hash":
            found += sum(str(value).count(mark) for value in store.hgetall(key).values())
        elif kind == "string":
            found += str(store.get(key)).count(mark)
    return found


@pytest.fixture(params=PROTOCOLS)
def make(request: pytest.FixtureRequest, make_queue: MakeQueue) -> Callable[..., Queue]:
    return lambda ring, name="q": make_queue(name, protocol=request.param, key_ring=ring)


async def fill(queue: Queue) -> dict[str, str]:
    """Adds jobs in every state with every kind of sealed value. Returns them by kind."""

    @queue.job(name="task", attempts=1)
    async def task(job: RunningJob) -> Any:
        if job.data == "fails":
            await job.checkpoint({"at": SECRET})
            raise ValueError("as asked")
        await job.update_progress({"note": SECRET})
        return {"x": SECRET}

    ids = {}
    async with Worker(queue).running():
        for name, data in (("completed", SECRET), ("failed", "fails")):
            job = await queue.add("task", data, attempts=1)
            ids[name] = job.id
            try:
                await job.result(20)
            except JobFailed:
                assert name == "failed"
    ids["waiting"] = (await queue.add("task", SECRET)).id
    ids["delayed"] = (await queue.add("task", SECRET, delay="1h")).id
    ids["routed"] = (await queue.add("task", SECRET, target=Target(capabilities=["gpu"]))).id
    await queue.schedules.upsert("yearly", cron="0 0 1 1 *", data={"x": SECRET})
    return ids


class TestRotation:
    async def test_every_stored_value_opens_with_the_new_key_alone(
        self, make: Callable[..., Queue], store: redis.Redis
    ) -> None:
        ids = await fill(make(old_ring(results=True, progress=True)))
        foreign = await make(old_ring(), "q2").add("task", SECRET)
        count = sealed_with(store, "old") - 1
        both = make(both_rings())
        planned = await reseal(both._core.broker, dry_run=True)
        assert (planned.resealed, sealed_with(store, "old")) == (count, count + 1)
        done = await reseal(both._core.broker)
        assert (done.resealed, done.current, done.changed, done.unopened) == (count, 0, 0, {})
        assert sealed_with(store, "old") == 1  # that of the other queue
        assert (await make(old_ring(), "q2").jobs.get(foreign.id)) is not None

        queue = make(new_ring(results=True, progress=True))
        jobs = dict(zip(ids, await queue.jobs.get_many(list(ids.values())), strict=True))
        assert {name: job and job.data for name, job in jobs.items()} == {
            name: "fails" if name == "failed" else SECRET for name in ids
        }
        completed = jobs["completed"]
        assert completed is not None
        assert (completed.return_value, completed.progress) == ({"x": SECRET}, {"note": SECRET})
        schedule = await queue.schedules.get("yearly")
        assert schedule is not None
        assert schedule.data == {"x": SECRET}
        again = await reseal(make(both_rings())._core.broker)
        assert (again.resealed, again.current) == (0, count)

    async def test_jobs_run_after_it_with_the_new_key_alone(self, make: Callable[..., Queue]) -> None:
        ids = await fill(make(old_ring()))
        await reseal(make(both_rings())._core.broker)
        queue = make(new_ring())

        @queue.job(name="task")
        async def task(job: RunningJob) -> Any:
            return [job.data, job.checkpointed]

        await queue.jobs.retry(ids["failed"], reset=True)
        async with Worker(queue).running():
            assert await queue.jobs.handle(ids["waiting"]).result(20) == [SECRET, None]
            assert await queue.jobs.handle(ids["failed"]).result(20) == ["fails", {"at": SECRET}]

    async def test_a_value_that_changes_meanwhile_is_left_alone(
        self, make: Callable[..., Queue], store: redis.Redis
    ) -> None:
        job = await make(old_ring()).add("task", "before")
        changed = False

        def nonce(size: int) -> bytes:
            """Replaces the payload between the read and the write."""
            nonlocal changed
            if not changed:
                changed = True
                self.replace(make, store, job.id)
            return os.urandom(size)

        ring = KeyRing({"new": NEW, "old": OLD}, "new", nonce=nonce)
        done = await reseal(make(ring)._core.broker)
        assert (done.resealed, done.changed) == (0, 1)
        found = await make(both_rings()).jobs.get(job.id)
        assert found is not None
        assert found.data == "after"
        assert (await reseal(make(both_rings())._core.broker)).resealed == 1

    def replace(self, make: Callable[..., Queue], store: redis.Redis, job_id: str) -> None:
        queue = make(old_ring())
        sealer = queue._core.sealer
        assert sealer is not None
        raw = sealer.seal("payload", job_id, b'"after"')
        if queue._core.protocol == "bullmq":
            store.hset(f"bull:q:{job_id}", "data", raw)
            return
        key = f"bridge:jobs:data:{job_id}"
        record = json.loads(str(store.get(key))) | {"payload": json.loads(raw)}
        store.set(key, json.dumps(record, separators=(",", ":")))

    async def test_workers_and_producers_go_on_beside_it(self, make: Callable[..., Queue]) -> None:
        old, both = make(old_ring()), make(both_rings())
        seen: list[Any] = []

        @both.job(name="task", attempts=2, backoff="1ms")
        async def task(job: RunningJob) -> Any:
            if job.checkpointed is None:
                await job.checkpoint(job.data)
                await job.update_data({"again": job.data})
                raise RuntimeError("again")
            seen.append((job.data["again"], job.checkpointed))
            return job.data["again"]

        jobs = [await old.add("task", n, attempts=2, backoff="1ms") for n in range(120)]
        async with Worker(both, concurrency=5).running():
            walks = asyncio.create_task(self.walk(make))
            jobs += [await old.add("task", n, attempts=2, backoff="1ms") for n in range(120, 160)]
            assert [await both.jobs.handle(job.id).result(60) for job in jobs] == list(range(160))
            walks.cancel()
            await asyncio.gather(walks, return_exceptions=True)
        assert sorted(seen) == [(n, n) for n in range(160)]

    async def walk(self, make: Callable[..., Queue]) -> None:
        broker = make(both_rings())._core.broker
        while True:
            assert (await reseal(broker)).unopened == {}

    async def test_unopenable_values_stay_and_are_counted(
        self, make: Callable[..., Queue], store: redis.Redis
    ) -> None:
        plain, lost = make(None), make(KeyRing({"lost": b"l" * 32}))
        jobs = [await plain.add("task", SECRET), await lost.add("task", SECRET)]
        await make(old_ring()).add("task", SECRET)
        done = await reseal(make(both_rings())._core.broker)
        assert done.resealed == 1
        assert done.unopened[PLAINTEXT] == 1
        assert sum(done.unopened.values()) == 2
        assert any("'lost'" in reason for reason in done.unopened)
        assert await plain.jobs.get(jobs[0].id) is not None

    async def test_migrating_seals_plaintext_and_version_1(
        self, make: Callable[..., Queue], store: redis.Redis
    ) -> None:
        plain = make(None)
        await plain.schedules.upsert("yearly", cron="0 0 1 1 *", data={"x": SECRET})
        ids = [(await plain.add("task", SECRET)).id, (await plain.add("task", 1)).id]
        self.replace_raw(plain, store, ids[1], version_1(SECRET, "q", OLD, "old"))
        done = await reseal(make(both_rings(migrating=True))._core.broker)
        assert done.unopened == {}
        queue = make(new_ring())
        assert [job and job.data for job in await queue.jobs.get_many(ids)] == [SECRET, SECRET]
        schedule = await queue.schedules.get("yearly")
        assert schedule is not None
        assert schedule.data == {"x": SECRET}

    def replace_raw(self, queue: Queue, store: redis.Redis, job_id: str, raw: str) -> None:
        if queue._core.protocol == "bullmq":
            store.hset(f"bull:q:{job_id}", "data", raw)
            return
        key = f"bridge:jobs:data:{job_id}"
        record = json.loads(str(store.get(key))) | {"payload": json.loads(raw)}
        store.set(key, json.dumps(record, separators=(",", ":")))

    async def test_a_queue_without_keys_has_none_to_change(self, make: Callable[..., Queue]) -> None:
        with pytest.raises(OxcartError, match="given no keys"):
            await reseal(make(None)._core.broker)


class TestBullMQ:
    async def test_results_of_children_and_kept_adds(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue(key_ring=old_ring(results=True))
        window = {"id": "w", "keep_last_if_active": True}

        @queue.job(name="child")
        async def child(job: RunningJob) -> Any:
            return SECRET

        @queue.job(name="holds")
        async def holds(job: RunningJob) -> Any:
            kept = await queue.add("child", SECRET, deduplication=window, job_id="kept")
            assert not kept.created
            assert (await reseal(make_queue(key_ring=both_rings())._core.broker)).unopened == {}

        flow = await Flow(queue, "parent").after(Flow(queue, "child")).add()
        async with Worker(queue).running():
            await flow.children[0].result(20)
            await (await queue.add("holds", 1, deduplication=window)).result(20)
        assert sealed_with(store, "old") == 1  # the result of the job that ran meanwhile
        both = make_queue(key_ring=both_rings(results=True))
        assert (await reseal(both._core.broker)).resealed == 1
        renewed = make_queue(key_ring=new_ring(results=True))
        parent = renewed.jobs.handle(flow.id)
        assert list((await parent.children_values()).values()) == [SECRET]
        kept = await renewed.jobs.get("kept")
        assert kept is not None
        assert kept.data == SECRET

    async def test_a_missing_key_is_named(self, make_queue: MakeQueue) -> None:
        job = await make_queue(key_ring=old_ring()).add("task", 1)
        with pytest.raises(DecryptionError, match="'old'"):
            await make_queue(key_ring=new_ring()).jobs.get(job.id)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("q@example.com", "bull"), ("r", "bull:q"), ("q~gates2", "bull"), ("q@all;c=gpu@all;c=gpu", "bull")],
)
async def test_a_migration_leaves_queues_whose_names_begin_alike(
    make_queue: MakeQueue, store: redis.Redis, name: str, prefix: str
) -> None:
    job = await make_queue(name, prefix=prefix).add("task", {"in": "plaintext"})
    key = f"{prefix}:{name}:{job.id}"
    before = store.hgetall(key)
    queue = make_queue(key_ring=new_ring(migrating=True))
    store.hset("bull:q:old", mapping={"name": "task", "data": '"plain"', "opts": "{}", "timestamp": 1})
    done = await reseal(queue._core.broker)
    assert (done.resealed, done.unopened) == (1, {})
    assert store.hgetall(key) == before
