"""What a sealed value is bound to: moved, swapped or unsealed values never reach a handler."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from oxcart import Flow, Graph, Queue, RunningJob, Target, Worker
from oxcart.broker.factory import ProtocolName
from oxcart.broker.keyring import Bond, DecryptionError, KeyRing, SealError
from oxcart.handle import JobHandle
from oxcart.model.errors import JobFailed
from oxcart.model.target import Abilities
from tests.conftest import MakeQueue

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
SECRET = "the secret of the payload"


class Place:
    """A queue of one of the protocols, with direct access to its stored values."""

    def __init__(self, protocol: ProtocolName, url: str, store: redis.Redis) -> None:
        self.protocol = protocol
        self._url = url
        self._store = store
        self._made: list[Queue] = []
        self.sealed = self.queue()

    def queue(self, name: str = "q", prefix: str | None = None, ring: Any = None, **options: Any) -> Queue:
        ring = KeyRing({"k1": KEY}) if ring is None else ring or None
        options |= {"prefix": prefix} if self.protocol == "bullmq" else {"namespace": prefix}
        made = Queue(name, url=self._url, protocol=self.protocol, key_ring=ring, **options)
        self._made.append(made)
        return made

    def read(self, job_id: str, prefix: str | None = None) -> str:
        if self.protocol == "bullmq":
            return str(self._store.hget(f"{prefix or 'bull'}:q:{job_id}", "data"))
        record = json.loads(str(self._store.get(f"{prefix or 'bridge'}:jobs:data:{job_id}")))
        return json.dumps(record["payload"], separators=(",", ":"))

    def write(self, job_id: str, raw: str, prefix: str | None = None) -> None:
        if self.protocol == "bullmq":
            self._store.hset(f"{prefix or 'bull'}:q:{job_id}", "data", raw)
            return
        key = f"{prefix or 'bridge'}:jobs:data:{job_id}"
        record = json.loads(str(self._store.get(key))) | {"payload": json.loads(raw)}
        self._store.set(key, json.dumps(record, separators=(",", ":")))

    def checkpoint(self, job_id: str) -> str:
        key = f"bull:q:{job_id}" if self.protocol == "bullmq" else f"bridge:ox:job:{job_id}"
        return str(self._store.hget(key, "ox:checkpoint"))

    async def close(self) -> None:
        for made in self._made:
            await made.close()


@pytest_asyncio.fixture(params=["bullmq", "bridge"])
async def place(request: pytest.FixtureRequest, url: str, store: redis.Redis) -> AsyncIterator[Place]:
    made = Place(request.param, url, store)
    yield made
    await made.close()


async def assert_refused(queue: Queue, job: JobHandle[Any], why: str) -> None:
    """Checks that the job fails for good with a reason, unseen by handler and middleware."""
    ran: list[str] = []

    async def layer(job: RunningJob, call: Callable[[RunningJob], Awaitable[Any]]) -> Any:
        ran.append(job.id)
        return await call(job)

    @queue.job(name="task")
    async def task(job: RunningJob) -> None:
        ran.append(job.id)

    async with Worker(queue, middleware=[layer]).running():
        with pytest.raises(JobFailed, match=why) as caught:
            await job.result(20)
    assert ran == []
    assert caught.value.category == "permanent"
    assert SECRET not in str(caught.value)


class TestARefusedPayload:
    async def test_swapped_between_two_jobs(self, place: Place) -> None:
        one = await place.sealed.add("task", SECRET, attempts=5)
        two = await place.sealed.add("task", {"amount": 1}, delay="1h")
        place.write(one.id, place.read(two.id))
        with pytest.raises(SealError, match="sealed for another job"):
            await one.get()
        await assert_refused(place.sealed, one, "altered, or sealed for another job or queue")

    async def test_in_plaintext(self, place: Place) -> None:
        plain = place.queue(ring=False)
        job = await plain.add("task", {"amount": 1_000_000}, attempts=5)
        with pytest.raises(SealError, match="plaintext"):
            await place.sealed.jobs.get(job.id)
        await assert_refused(
            place.sealed, place.sealed.jobs.handle(job.id), "is in plaintext, and this queue is sealed"
        )

    async def test_of_another_prefix(self, place: Place) -> None:
        ours = await place.sealed.add("task", 1, attempts=5, job_id=None)
        theirs = await place.queue(prefix="other").add("task", SECRET, job_id=ours.id)
        place.write(ours.id, place.read(theirs.id, "other"))
        await assert_refused(place.sealed, ours, "sealed for another job or queue")

    async def test_checkpoint_in_place_of_a_payload(self, place: Place) -> None:
        job = await place.sealed.add("task", {"step": 0}, attempts=5)
        saved = place.sealed.job(name="task")(_save)
        assert saved.name == "task"
        async with Worker(place.sealed).running():
            with pytest.raises(JobFailed, match="stop here"):
                await job.result(20)
        place.write(job.id, place.checkpoint(job.id))
        await place.sealed.jobs.retry(job.id, reset=True)
        again = place.queue()
        await assert_refused(again, again.jobs.handle(job.id), "was sealed as a checkpoint")

    async def test_of_a_schedule_in_a_single_job(self, place: Place) -> None:
        made = await place.sealed.schedules.upsert("tick", cron="0 0 1 1 *", data=SECRET)
        job = await place.sealed.add("task", 1, attempts=5)
        place.write(job.id, place.read(made.id))
        await assert_refused(place.sealed, job, "is that of a schedule, and it is no run of one")

    async def test_of_another_protocol(self, url: str, store: redis.Redis) -> None:
        bull, bridge = Place("bullmq", url, store), Place("bridge", url, store)
        ours = await bull.sealed.add("task", 1)
        namespace = bridge.queue(prefix="bull")
        theirs = await namespace.add("task", SECRET, job_id=ours.id)
        bull.write(ours.id, bridge.read(theirs.id, "bull"))
        with pytest.raises(SealError):
            await ours.get()
        for one in (bull, bridge):
            await one.close()


async def _save(job: RunningJob) -> None:
    from oxcart import PermanentError

    await job.checkpoint({"step": 7})
    raise PermanentError("stop here")


class TestAnAcceptedPayload:
    """Every way to add a job with an id of its own."""

    @pytest.mark.slow
    async def test_runs_of_a_schedule(self, place: Place) -> None:
        seen: list[Any] = []

        @place.sealed.job(name="tick")
        async def tick(job: RunningJob) -> Any:
            seen.append(job.data)
            return len(seen)

        await place.sealed.schedules.upsert("tick", cron="* * * * * *", data={"x": SECRET})
        found = await place.sealed.schedules.get("tick")
        assert found is not None
        assert found.data == {"x": SECRET}
        assert [one.data for one in await place.sealed.schedules.list()] == [{"x": SECRET}]
        async with Worker(place.sealed).running(), place.sealed.events(names=["completed"]) as events:
            async for _ in events:
                if len(seen) >= 2:
                    break
        assert seen[:2] == [{"x": SECRET}] * 2

    async def test_updates_and_checkpoints(self, place: Place) -> None:
        seen: list[Any] = []

        @place.sealed.job(name="task", attempts=3, backoff="1ms")
        async def task(job: RunningJob) -> Any:
            seen.append((job.data, job.checkpointed))
            if job.checkpointed is None:
                await job.checkpoint({"at": 1})
                await job.update_data({"changed": SECRET})
                raise RuntimeError("again")
            return job.data

        job = await place.sealed.add("task", {"x": SECRET}, attempts=3, backoff="1ms")
        async with Worker(place.sealed).running():
            assert await job.result(20) == {"changed": SECRET}
        assert seen == [({"x": SECRET}, None), ({"changed": SECRET}, {"at": 1})]

    async def test_a_replayed_dead_letter(self, place: Place) -> None:
        seen: list[Any] = []

        @place.sealed.job(name="task", attempts=1)
        async def task(job: RunningJob) -> Any:
            seen.append(job.data)
            if len(seen) == 1:
                raise RuntimeError("once")
            return job.data

        job = await place.sealed.add("task", SECRET, attempts=1)
        async with Worker(place.sealed).running():
            with pytest.raises(JobFailed, match="once"):
                await job.result(20)
            assert [one.data for one in await place.sealed.dead_letters.list()] == [SECRET]
            assert (await place.sealed.dead_letters.replay_all()).done == 1
            assert await job.result(20) == SECRET
        assert seen == [SECRET, SECRET]

    async def test_custom_ids_keys_and_windows(self, make_queue: MakeQueue) -> None:
        queue = make_queue(key_ring=KeyRing({"k1": KEY}))
        first = await queue.add("task", SECRET, job_id="mine")
        assert (await queue.add("task", "other", job_id="mine")).id == first.id
        keyed = await queue.add("task", SECRET, idempotency_key="k")
        assert (await queue.add("task", "other", idempotency_key="k")).id == keyed.id
        window = {"id": "w", "replace": True, "ttl": 60_000}
        await queue.add("task", 1, deduplication=window, delay="1h")
        replaced = await queue.add("task", SECRET, deduplication=window, delay="1h")
        jobs = await queue.jobs.get_many([first.id, keyed.id, replaced.id])
        assert [job.data for job in jobs if job] == [SECRET] * 3

    async def test_payload_of_an_add_that_a_window_keeps(self, make_queue: MakeQueue) -> None:
        queue = make_queue(key_ring=KeyRing({"k1": KEY}))
        window = {"id": "w", "keep_last_if_active": True}
        seen: list[Any] = []

        @queue.job(name="task")
        async def task(job: RunningJob) -> None:
            seen.append(job.data)
            if job.data == "first":
                await queue.add("task", SECRET, deduplication=window)

        async with queue.events(names=["completed"]) as events, Worker(queue).running():
            await queue.add("task", "first", deduplication=window)
            async for _ in events:
                if len(seen) == 2:
                    break
        assert seen == ["first", SECRET]

    async def test_lanes_flows_and_graphs(self, make_queue: MakeQueue) -> None:
        queue, other = (
            make_queue(name, key_ring=KeyRing({name: key})) for name, key in (("q", KEY), ("r", OTHER))
        )
        lane = await queue.add("task", SECRET, target=Target(capabilities=["gpu"]))
        flow = await Flow(queue, "task", SECRET).after(Flow(other, "task", SECRET)).add()
        graph = Graph(queue)
        graph.job("task", SECRET, after=[graph.job("task", SECRET, queue=other)])
        waits = await graph.add()

        async def task(job: RunningJob) -> Any:
            return job.data

        for one in (queue, other):
            one.job(name="task")(task)
        able = Abilities(capabilities=("gpu",))
        async with Worker(queue, abilities=able).running(), Worker(other).running():
            for job in (lane, flow, *waits):
                assert await job.result(20) == SECRET
        view = await queue.flows.get(flow.id)
        assert view is not None
        # The value of the other queue is sealed with a key that this queue lacks.
        assert (view.job.data, list(view.children[0].job.data)) == (SECRET, ["$sealed"])


class TestMigrating:
    async def test_plaintext_is_read_while_a_queue_is_moved(self, place: Place) -> None:
        moving = place.queue(ring=KeyRing({"k1": KEY}, migrating=True))
        old = await place.queue(ring=False).add("task", "old")
        new = await moving.add("task", "new")
        assert "$sealed" in place.read(new.id)

        @moving.job(name="task")
        async def task(job: RunningJob) -> Any:
            return job.data

        async with Worker(moving).running():
            assert [await moving.jobs.handle(job.id).result(20) for job in (old, new)] == ["old", "new"]

    async def test_version_1_is_read_while_a_queue_is_moved(self, place: Place) -> None:
        job = await place.sealed.add("task", 1)
        place.write(job.id, version_1(SECRET, "q"))
        with pytest.raises(DecryptionError, match="migrating=True") as caught:
            await job.get()
        # Another worker may have `migrating=True`, so the attempt fails temporarily, not for good.
        assert not isinstance(caught.value, SealError)
        found = await place.queue(ring=KeyRing({"k1": KEY}, migrating=True)).jobs.get(job.id)
        assert found is not None
        assert found.data == SECRET
        with pytest.raises(SealError):
            await place.queue(ring=KeyRing({"k1": OTHER}, migrating=True)).jobs.get(job.id)


def version_1(data: Any, queue: str, key: bytes = KEY, key_id: str = "k1") -> str:
    """An envelope as Oxcart wrote it before values were bound to their jobs."""
    nonce = os.urandom(12)
    body = AESGCM(key).encrypt(nonce, json.dumps(data).encode(), b"oxcart:1:" + queue.encode())
    letter = {"v": 1, "key": key_id, "nonce": b64encode(nonce).decode(), "data": b64encode(body).decode()}
    return json.dumps({"$sealed": letter}, separators=(",", ":"))


class TestResultsAndProgress:
    async def test_are_sealed_on_request(self, place: Place, store: redis.Redis) -> None:
        queue = place.queue(ring=KeyRing({"k1": KEY}, results=True, progress=True))

        @queue.job(name="task")
        async def task(job: RunningJob) -> Any:
            await job.update_progress({"note": SECRET})
            return {"x": SECRET}

        @queue.job(name="gone", remove_on_complete=True)
        async def gone(job: RunningJob) -> Any:
            return SECRET

        async with queue.events(names=["completed", "progress"]) as events:
            async with Worker(queue).running():
                job = await queue.add("task", 1)
                assert await job.result(20) == {"x": SECRET}
                assert await (await queue.add("gone", 1, remove_on_complete=True)).result(20) == SECRET
            received = await events.read(5)
        found = await job.get()
        assert (found.return_value, found.progress) == ({"x": SECRET}, {"note": SECRET})
        assert {SECRET in str(event.data or event.return_value) for event in received} == {True}
        assert SECRET not in everything(store)
        assert "$sealed" in everything(store)

    async def test_are_plain_by_default(self, place: Place, store: redis.Redis) -> None:
        @place.sealed.job(name="task")
        async def task(job: RunningJob) -> Any:
            return SECRET

        async with Worker(place.sealed).running():
            assert await (await place.sealed.add("task", 1)).result(20) == SECRET
        assert SECRET in everything(store)

    async def test_a_result_in_plaintext_is_refused(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue(key_ring=KeyRing({"k1": KEY}, results=True))
        job = await queue.add("task", 1)

        @queue.job(name="task")
        async def task(job: RunningJob) -> Any:
            return "true"

        async with Worker(queue).running():
            assert await job.result(20) == "true"
        store.hset(f"bull:q:{job.id}", "returnvalue", '"forged"')
        with pytest.raises(SealError, match="plaintext"):
            await job.result(20)

    async def test_parents_read_results_of_children(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        queue = make_queue(key_ring=KeyRing({"k1": KEY}, results=True))
        plain = make_queue("plain")

        async def child(job: RunningJob) -> Any:
            return job.data

        @queue.job(name="parent")
        async def parent(job: RunningJob) -> Any:
            return sorted((await job.children_values()).values())

        queue.job(name="child")(child)
        plain.job(name="child")(child)
        flow = Flow(queue, "parent").after(Flow(queue, "child", SECRET), Flow(plain, "child", "open"))
        async with Worker(queue, plain, concurrency=3).running():
            assert await (await flow.add()).result(20) == sorted(["open", SECRET])
        assert SECRET not in everything(store)


def everything(store: redis.Redis) -> str:
    """Returns every stored value as text."""
    found = []
    readers: dict[str, Callable[[Any], Any]] = {
        "hash": store.hgetall,
        "string": store.get,
        "stream": store.xrange,
        "list": lambda key: store.lrange(key, 0, -1),
        "set": store.smembers,
        "zset": lambda key: store.zrange(key, 0, -1),
    }
    client = redis.Redis(
        connection_pool=redis.ConnectionPool(
            **{**store.connection_pool.connection_kwargs, "encoding_errors": "replace"}
        )
    )
    readers["string"] = client.get
    for key in store.keys("*"):
        found.append(str(readers[str(store.type(key))](key)))
    client.close()
    return "\n".join(found)


class TestBonds:
    def test_no_two_read_the_same(self) -> None:
        bonds = [
            Bond("bullmq", "bull", "q", "1", "payload"),
            Bond("bridge", "bull", "q", "1", "payload"),
            Bond("bullmq", "bull:q", "", "1", "payload"),
            Bond("bullmq", "bull", "q:1", "", "payload"),
            Bond("bullmq", "bull", "q", "1:7", "payload"),
            Bond("bullmq", "bull", "q", "1", "checkpoint"),
            Bond("bullmq", "bull", "q", "\udcff", "payload"),
        ]
        assert len({bond.authenticated() for bond in bonds}) == len(bonds)


async def test_an_unsealed_schedule_does_not_hide_the_others(
    make_queue: MakeQueue, store: redis.Redis
) -> None:
    queue = make_queue(key_ring=KeyRing({"a": bytes(32)}))
    await queue.schedules.upsert("sealed", cron="0 0 1 1 *", data={"x": 1})
    store.hset("bull:q:repeat:odd", mapping={"name": "n", "ic": 1, "every": 1000, "data": "9" * 30})
    store.zadd("bull:q:repeat", {"odd": 1})
    assert [one.id for one in await queue.schedules.list()] == ["odd", "sealed"]
