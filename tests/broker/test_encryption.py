"""Payloads at rest: sealed for readers without the key, opened for handlers, and never in logs."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, Worker, sync, testing
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.keyring import DecryptionError, KeyRing
from oxcart.broker.port import Outcome, OutcomeKind
from oxcart.model.errors import JobFailed, MissingExtra, PayloadTooLarge, ValidationError
from oxcart.model.flow import Tree
from oxcart.model.job import Job
from tests.conftest import MakeQueue
from tests.engine import process_handlers

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "the secret of the payload"


@pytest.fixture
def sealed(make_queue: MakeQueue) -> Queue:
    return make_queue(key_ring=KeyRing({"k1": KEY}))


def stored(store: redis.Redis, job_id: str) -> Any:
    return json.loads(str(store.hget(f"bull:q:{job_id}", "data")))


class TestAtRest:
    async def test_peers_see_an_envelope(self, sealed: Queue, queue: Queue, store: redis.Redis) -> None:
        job = await sealed.add("a", {"x": SECRET, "b": b"\x00"})
        assert list(stored(store, job.id)) == ["$sealed"]
        letter = stored(store, job.id)["$sealed"]
        assert (letter["v"], letter["key"], len(base64.b64decode(letter["nonce"]))) == (2, "k1", 12)
        for key in store.keys("*"):
            if store.type(key) == "hash":
                assert SECRET not in str(store.hgetall(key))
        assert (await job.get()).data == {"x": SECRET, "b": b"\x00"}
        without = await queue.jobs.get(job.id)
        assert without is not None
        assert list(without.data) == ["$sealed"]

    async def test_every_way_to_add_seals_the_payload(
        self, sealed: Queue, store: redis.Redis, url: str
    ) -> None:
        @sealed.job
        async def task(x: str) -> None: ...

        ids = [(await task.enqueue(SECRET)).id]
        ids += [job.id for job in await sealed.add_many([("a", SECRET), ("a", {"x": SECRET})])]
        tree = await Flow(sealed, "a", SECRET, children=[Flow(sealed, "a", SECRET, job_id="leaf")]).add()
        ids += [tree.id, "leaf"]
        ids.append((await sealed.schedules.upsert("s", every="1h", data={"x": SECRET})).id)
        with sync.Queue("q", url=url, key_ring=KeyRing({"k1": KEY})) as other:
            ids.append(other.add("a", SECRET).id)
        changed = await sealed.add("a", 1)
        await changed.update_data({"x": SECRET})
        for job_id in [*ids, changed.id]:
            assert "$sealed" in stored(store, job_id), job_id
            found = await sealed.jobs.get(job_id)
            assert found is not None
            assert found.data in (SECRET, {"x": SECRET})

    async def test_every_payload_has_a_nonce_of_its_own(self, sealed: Queue, store: redis.Redis) -> None:
        jobs = await sealed.add_many([("a", SECRET)] * 50)
        assert len({stored(store, job.id)["$sealed"]["nonce"] for job in jobs}) == 50

    async def test_the_limit_is_of_what_is_stored(self, sealed: Queue, store: redis.Redis) -> None:
        with pytest.raises(PayloadTooLarge):
            await sealed.add("a", "x" * 900, size_limit=1000)
        assert store.keys("*") == []


class TestHandlers:
    async def test_of_every_kind_see_what_was_added(self, sealed: Queue) -> None:
        @sealed.job
        async def in_loop(job: RunningJob, x: str) -> list[Any]:
            return [x, job.data, job.snapshot().data]

        @sealed.job
        def in_thread(x: str) -> str:
            return x

        sealed.job(run="process")(process_handlers.double)
        sealed.job(run="process")(process_handlers.snapshot)
        async with Worker(sealed, concurrency=4).running():
            jobs = [await in_loop.enqueue(SECRET), await in_thread.enqueue(SECRET)]
            more = [await sealed.add("double", {"number": 4}), await sealed.add("snapshot", [SECRET])]
            assert await jobs[0].result(20) == [SECRET, {"x": SECRET}, {"x": SECRET}]
            assert await jobs[1].result(20) == SECRET
            assert await more[0].result(20) == 8
            assert (await more[1].result(20))[2] == [SECRET]

    async def test_a_schedule_goes_on(self, sealed: Queue) -> None:
        seen: list[Any] = []

        @sealed.job
        async def tick(job: RunningJob) -> Any:
            seen.append(job.data)
            return job.data

        async with Worker(sealed).running():
            job = await sealed.schedules.upsert("tick", every="1s", data={"x": SECRET})
            assert await job.result(10) == {"x": SECRET}

    @pytest.mark.parametrize(
        ("ring", "message"),
        [
            ({"k2": OTHER}, "sealed with key 'k1'; this queue has k2"),
            ({"k1": OTHER}, "does not open with key 'k1'"),
            (None, "this queue was given no keys"),
        ],
    )
    async def test_of_a_worker_without_the_key(
        self, make_queue: MakeQueue, sealed: Queue, ring: Any, message: str
    ) -> None:
        job = await sealed.add("task", {"x": SECRET}, attempts=2, backoff="1ms")
        other = make_queue(key_ring=None if ring is None else KeyRing(ring))
        ran = []

        @other.job
        async def task(x: str) -> None:
            ran.append(x)

        async with Worker(other).running():
            with pytest.raises(JobFailed, match=message) as caught:
                await job.result(10)
        assert not ran
        # Another worker may have the key, so the job was retried and can be replayed.
        assert caught.value.category == "temporary"
        assert [dead.id for dead in await sealed.dead_letters.list()] == [job.id]
        assert SECRET not in str(caught.value)

    async def test_inline(self) -> None:
        queue = Queue("inline", key_ring=KeyRing({"k1": KEY}))

        @queue.job
        async def task(x: str) -> str:
            return x

        with testing.inline(queue):
            assert await (await task.enqueue(SECRET)).result() == SECRET


class TestKeys:
    async def test_rotation(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        old = make_queue(key_ring=KeyRing({"k1": KEY}))
        both = make_queue(key_ring=KeyRing({"k1": KEY, "k2": OTHER}, current="k2"))
        new = make_queue(key_ring=KeyRing({"k2": OTHER}))
        before, after = await old.add("a", "before"), await both.add("a", "after")
        assert stored(store, after.id)["$sealed"]["key"] == "k2"
        assert [job.data for job in await both.jobs.get_many([before.id, after.id]) if job] == [
            "before",
            "after",
        ]
        with pytest.raises(DecryptionError, match="sealed with key 'k1'"):
            await new.jobs.get(before.id)
        with pytest.raises(DecryptionError, match="sealed with key 'k2'"):
            await old.jobs.get(after.id)
        # A list shows the values that it can open, and the presence of the others.
        assert [type(job.data) for job in await new.jobs.list("waiting")] == [str, dict]

    async def test_altered_envelopes_do_not_open(self, sealed: Queue, store: redis.Redis) -> None:
        job = await sealed.add("a", SECRET)
        good = stored(store, job.id)["$sealed"]
        flipped = bytearray(base64.b64decode(good["data"]))
        flipped[0] ^= 1
        for broken in (
            {**good, "data": base64.b64encode(bytes(flipped)).decode()},
            {**good, "data": "%"},
            {**good, "nonce": ""},
            {**good, "v": 3},
            {"v": 1},
            "text",
        ):
            store.hset(f"bull:q:{job.id}", "data", json.dumps({"$sealed": broken}, separators=(",", ":")))
            with pytest.raises(DecryptionError):
                await job.get()

    async def test_of_another_queue_do_not_open(self, make_queue: MakeQueue, store: redis.Redis) -> None:
        one, two = (make_queue(name, key_ring=KeyRing({"k1": KEY})) for name in ("q", "r"))
        job, other = await one.add("a", SECRET), await two.add("a", 1)
        store.hset(f"bull:r:{other.id}", "data", str(store.hget(f"bull:q:{job.id}", "data")))
        with pytest.raises(DecryptionError):
            await other.get()

    @pytest.mark.parametrize(
        ("keys", "current", "message"),
        [
            ({}, None, "keys must be"),
            ({"a": b"short"}, None, "key 'a' must be 32 bytes, or their base64, got '5 bytes'"),
            ({"a": "not base64!"}, None, "key 'a' must be 32 bytes"),
            ({"a": 5}, None, "key 'a' must be"),
            ({"": KEY}, None, "key id must be"),
            ({"a": KEY, "b": OTHER}, None, "current must be"),
            ({"a": KEY}, "b", "current must be one of a"),
        ],
    )
    def test_bad_input(self, keys: Any, current: Any, message: str) -> None:
        with pytest.raises(ValidationError, match=message) as caught:
            KeyRing(keys, current)
        assert "short" not in str(caught.value)

    def test_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OXCART_KEYS", raising=False)
        assert KeyRing.from_env() is None
        monkeypatch.setenv("OXCART_KEYS", f"new:{KeyRing.generate()}, old:{KeyRing.generate()}")
        ring = KeyRing.from_env()
        assert ring is not None
        assert (ring.current, repr(ring)) == ("new", "KeyRing(new, old; current new)")
        monkeypatch.setenv("OXCART_KEYS", "nocolon")
        with pytest.raises(ValidationError, match="OXCART_KEYS must be"):
            KeyRing.from_env()

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
        with pytest.raises(MissingExtra, match=r"pip install 'oxcart\[encryption\]'"):
            KeyRing({"a": KEY})


class TestMasks:
    def test_of_values(self) -> None:
        values: list[Any] = [
            Job(id="1", name="a", queue="q", data=SECRET, return_value=SECRET, progress={"x": SECRET}),
            BullMQClaim("1", "t", 1, 1, {b"data": SECRET.encode()}),
            Outcome(OutcomeKind.COMPLETED, "1", "t", 1, 1, SECRET.encode()),
            Tree("q", "bull", "a", SECRET),
        ]
        for value in values:
            assert SECRET not in repr(value)
            assert "…" in repr(value)
        assert "data=None" in repr(Job(id="1", name="a", queue="q"))

    @pytest.mark.slow
    async def test_nothing_of_a_payload_is_logged(
        self, sealed: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        # Added before its handler is known here, as by another process: an add by name checks the payload.
        jobs = [await sealed.add(name, {"x": SECRET}, attempts=1) for name in ("task", "breaks")]

        @sealed.job(attempts=1)
        async def task(x: int) -> None: ...

        @sealed.job(attempts=1)
        async def breaks(x: str) -> None:
            raise ValueError("broke")

        async with Worker(sealed).running():
            for job in jobs:
                with pytest.raises(JobFailed):
                    await job.result(10)
        with pytest.raises(ValidationError) as refused:
            await sealed.add("task", {"x": SECRET})
        assert SECRET not in caplog.text + str(refused.value)

    async def test_invalid_json_is_not_shown_in_the_error(self, queue: Queue, store: redis.Redis) -> None:
        job = await queue.add("task", 1, attempts=1)
        store.hset(f"bull:q:{job.id}", "data", SECRET)

        @queue.job
        async def task(job: RunningJob) -> Any:
            return job.data

        async with Worker(queue).running():
            with pytest.raises(JobFailed, match="data must be JSON") as caught:
                await job.result(10)
        assert SECRET not in str(caught.value)
