"""Undecodable jobs fail once with the reason, keep their fields, and do not block others."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis

from oxcart import Queue, RunningJob, Worker
from oxcart.model.errors import JobFailed
from oxcart.model.state import State
from oxcart.observe.metrics import Metrics
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer
from tests.signals import eventually

DEEP = b"[" * 100_000 + b"]" * 100_000
DEEPER = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
LONG = b"9" * 400
LONGER = b"9" * 5000
SEEDS = range(6)

#: A field of a BullMQ job, its value, and the text that the reason contains.
BAD = {
    "opts deep": (b"opts", DEEP, "opts"),
    "opts deeper": (b"opts", DEEPER, "opts"),
    "opts cut": (b"opts", b'{"attempts":', "opts"),
    "opts list": (b"opts", b"[1]", "opts"),
    "opts digits": (b"opts", b'{"attempts":' + LONGER + b"}", "opts"),
    "tags": (b"ox:tags", DEEP, "ox:tags"),
    "backoff": (b"ox:backoff", DEEP, "ox:backoff"),
    "backoff bytes": (b"ox:backoff", b"\xff\xfe", "ox:backoff"),
    "stacktrace": (b"stacktrace", DEEP, "stacktrace"),
    "timeout": (b"ox:timeout", LONG, "ox:timeout"),
    "timeout text": (b"ox:timeout", b"soon", "ox:timeout"),
    "lifetime": (b"ox:lifetime", b"inf", "ox:lifetime"),
    "atm": (b"atm", LONGER, "atm"),
    "atm text": (b"atm", b"many", "atm"),
    "attemptsMade": (b"attemptsMade", LONG, "attemptsMade"),
    "stc": (b"stc", b"nan", "stc"),
    "ats": (b"ats", LONGER, "ats"),
    "timestamp": (b"timestamp", LONG, "timestamp"),
    "name": (b"name", b"\xff\xfe", "name"),
    "data": (b"data", DEEP, "data"),
    "data cut": (b"data", b'{"to":', "data"),
    "data digits": (b"data", b'{"to":' + LONGER + b"}", "data"),
}


@pytest_asyncio.fixture
async def raw(valkey: ValkeyServer, store: redis.Redis) -> AsyncIterator[Any]:
    """A client that does not decode."""
    client: Any = redis.Redis.from_url(valkey.url, decode_responses=False)
    yield client
    client.close()


def everything(job: RunningJob) -> str:
    """Reads every attribute that a handler may read."""
    seen = (job.name, job.data, job.options, job.tags, job.correlation_id, job.attempt, job.stalls)
    more = (job.attempt_id, job.idempotency_key, job.checkpointed, job.snapshot(), repr(job))
    return str(len(repr((seen, more))))


def ended_ids(store: Any, queue: str = "q") -> set[str]:
    return set(store.zrange(f"bull:{queue}:completed", 0, -1)) | set(
        store.zrange(f"bull:{queue}:failed", 0, -1)
    )


@pytest.mark.parametrize("bad", BAD)
async def test_undecodable_job_is_failed_once_and_its_neighbours_run(
    queue: Queue, store: redis.Redis, raw: Any, bad: str
) -> None:
    field, value, named = BAD[bad]
    metrics = Metrics()
    starts: list[str] = []

    @queue.fallback
    async def work(job: RunningJob, to: str = "") -> str:
        starts.append(job.id)
        return everything(job)

    await queue.add("job", {"to": "a"}, job_id="before")
    await queue.add("job", {"to": "a"}, job_id="bad", attempts=3)
    await queue.add("job", {"to": "a"}, job_id="after")
    raw.hset("bull:q:bad", field, value)
    stored = raw.hgetall("bull:q:bad")
    async with Worker(queue, concurrency=3, observer=metrics).running():
        await eventually(lambda: ended_ids(store) == {"before", "bad", "after"}, "all end")
    assert set(store.zrange("bull:q:completed", 0, -1)) == {"before", "after"}
    assert "bad" not in starts
    kept = raw.hgetall("bull:q:bad")
    # A start is counted before the record is decoded; all other fields of the producer stay.
    assert {name: kept[name] for name in stored if name != b"ats" or field == b"ats"} == {
        name: text for name, text in stored.items() if name != b"ats" or field == b"ats"
    }
    assert (kept[b"ox:category"], kept[b"ox:dead"]) == (b"system", b"undecodable")
    assert kept[b"failedReason"].startswith(f"the job cannot be decoded: {named}".encode())
    job = await queue.jobs.get("bad")
    assert job is not None
    assert job.fault is not None
    assert job.fault.startswith(named)
    (dead,) = await queue.dead_letters.list()
    assert (dead.id, dead.state) == ("bad", State.DEAD_LETTER)
    counted = (await metrics.scrape())[0].decode()
    assert 'bullmq_quarantined_jobs_total{queue="q"} 1.0' in counted


async def test_mended_job_runs_after_its_replay(queue: Queue, store: redis.Redis, raw: Any) -> None:
    @queue.fallback
    async def work(job: RunningJob) -> str:
        return everything(job)

    await queue.add("job", 1, job_id="bad")
    raw.hset("bull:q:bad", b"ox:tags", DEEP)
    async with Worker(queue).running():
        await eventually(lambda: store.zscore("bull:q:failed", "bad"), "it is quarantined")
        raw.hset("bull:q:bad", b"ox:tags", b'{"a":"b"}')
        await queue.dead_letters.replay("bad")
        await eventually(lambda: store.zscore("bull:q:completed", "bad"), "it runs")


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
def test_commands_show_an_undecodable_job(url: str, store: redis.Redis, raw: Any, bad: str) -> None:
    field, value, named = BAD[bad]
    commands = Commands(url)
    assert commands("add", "q", "job", "{}", "--job-id", "bad").code == 0
    raw.hset("bull:q:bad", field, value)
    for state in ("wait", "failed"):
        if state == "failed":
            raw.lrem("bull:q:wait", 0, "bad")
            raw.zadd("bull:q:failed", {"bad": 1})
            raw.hset("bull:q:bad", mapping={"ox:category": "system", "ox:dead": "undecodable"})
        for arguments in (("jobs", "q"), ("job", "q", "bad"), ("flow", "show", "q", "bad")):
            seen = commands(*arguments)
            assert (seen.code, seen.err) == (0, ""), seen.err
            assert "cannot be decoded" in seen.out
            assert named in seen.out
            seen = commands(*arguments, "--json")
            assert (seen.code, seen.err) == (0, ""), seen.err
            shown = seen.json[0] if isinstance(seen.json, list) else seen.json
            assert shown["fault"].startswith(named)
    assert "undecodable" in commands("dead", "list", "q").out
    for arguments in (("dead", "list", "q"), ("dead", "show", "q", "bad")):
        for more in ((), ("--json",)):
            assert (commands(*arguments, *more).code, commands(*arguments, *more).err) == (0, "")


# -- random bytes in any field

FIELDS = (
    *(
        b"name",
        b"data",
        b"opts",
        b"timestamp",
        b"delay",
        b"priority",
        b"ats",
        b"atm",
        b"attemptsMade",
        b"stc",
    ),
    *(b"processedOn", b"finishedOn", b"pb", b"progress", b"returnvalue", b"failedReason", b"stacktrace"),
    *(b"parentKey", b"parent", b"defa", b"rjk", b"deid", b"nrjid", b"ox:backoff", b"ox:timeout", b"ox:tags"),
    *(
        b"ox:corr",
        b"ox:limit",
        b"ox:group",
        b"ox:callback",
        b"ox:history",
        b"ox:attempts",
        b"ox:lifetime",
        b"ox:since",
    ),
    *(b"ox:noretry", b"ox:idem", b"ox:checkpoint", b"ox:forgiven", b"ox:category", b"ox:dead", b"ox:skip"),
)

#: Odd values for the members of a JSON object on the wire.
WORDS = (
    "attempts",
    "backoff",
    "delay",
    "removeOnFail",
    "removeOnComplete",
    "kl",
    "de",
    "jobId",
    "repeat",
    "id",
)


def odd(rand: random.Random) -> bytes:
    """Bytes that a field may hold."""
    chosen = rand.randrange(12)
    if chosen == 0:
        return rand.randbytes(rand.randrange(40))
    if chosen == 1:
        return rand.choice((DEEP, DEEPER, b'{"a":' * 1500 + b"1" + b"}" * 1500, b"[" * 990 + b"]" * 990))
    if chosen == 2:
        return rand.choice((b"9", b"-9", b"0.", b"1e")) * 1 + b"9" * rand.choice(
            (1, 14, 16, 20, 310, 400, 5000)
        )
    if chosen == 3:
        return rand.choice(
            (b"", b"0", b"-1", b"1.5", b"inf", b"-inf", b"nan", b"0x10", b"1e400", b"null", b"true")
        )
    if chosen == 4:
        return rand.choice(
            (b'"\\ud83d"', b'"\xed\xa0\xbd"', b"\xff\xfe", b"\x00", b"[red]\x1b[31m", b"{}", b"[]")
        )
    if chosen == 5:
        return json.dumps(rand.choice(([], {}, [[]], [1], {"a": 1}, "text", 5, -5, 1.5, None, True))).encode()
    values = [[], {}, -1, 10**30, 10**400, 1.5, "x", None, True, {"count": -5, "age": 10**300}, "\ud83d"]
    values += [{"type": "fixed", "delay": 10**400, "jitter": 10**400}, {"id": 5}, {"id": "w", "ttl": -1}]
    made = {word: rand.choice(values) for word in WORDS if rand.random() < 0.4}
    return json.dumps(made).encode()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_bytes_in_every_field_stop_no_queue(
    queue: Queue, store: redis.Redis, raw: Any, seed: int
) -> None:
    rand = random.Random(seed)
    poisoned, sound, done = [], set(), set()

    @queue.fallback
    async def work(job: RunningJob) -> str:
        if job.id in sound:
            done.add(job.id)  # the retention that an odd job asks for may remove it from the server
            return "done"
        return everything(job)

    for number in range(3 * len(FIELDS)):
        job_id = f"odd-{number}"
        poisoned.append(job_id)
        options: dict[str, Any] = {"attempts": 2, "backoff": 0.001}
        options |= rand.choice(({}, {"history": True}, {"lifetime": 600}, {"priority": 3}, {"delay": 0.001}))
        await queue.add("job", number, job_id=job_id, **options)
        names = [FIELDS[number % len(FIELDS)], *rand.choices(FIELDS, k=rand.randrange(3))]
        for name in names:
            raw.hset(f"bull:q:{job_id}", name, odd(rand))
        if number % 3 == 0:
            sound.add((await queue.add("job", number)).id)
    async with Worker(queue, concurrency=8).running() as worker:
        await eventually(lambda: sound <= done, f"the sound ones run, seed {seed}")
        ready = ("bull:q:wait", "bull:q:active")
        await eventually(lambda: not sum(map(store.llen, ready)), f"the odd ones end, seed {seed}")
        last = await queue.add("job")
        sound.add(last.id)
        assert await last.result(20)
        assert worker._failure is None
    assert not store.zcard("bull:q:prioritized")
    await _read_all(queue, poisoned)


#: Members of a Bridge record, including those that our workers write.
MEMBERS = (
    *(
        "type",
        "payload",
        "schedule",
        "retry",
        "priority",
        "dependsOn",
        "target",
        "metadata",
        "createdAt",
        "ox",
    ),
    *("attempts", "rateLimit", "jobId", "status"),
)
RUN = (
    b"ats",
    b"processedOn",
    b"pb",
    b"failedReason",
    b"stacktrace",
    b"ox:category",
    b"ox:checkpoint",
    b"delay",
)


def odd_record(rand: random.Random, record: dict[str, Any]) -> bytes:
    """A record with some odd members, or no valid record."""
    if rand.random() < 0.2:
        return odd(rand)
    parts = {name: json.dumps(value).encode() for name, value in record.items()}
    for member in rand.choices(MEMBERS, k=rand.randrange(1, 4)):
        parts[member] = odd(rand)
    return b"{" + b",".join(json.dumps(name).encode() + b":" + part for name, part in parts.items()) + b"}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_bytes_in_records_stop_no_namespace(
    valkey: ValkeyServer, store: redis.Redis, raw: Any, seed: int
) -> None:
    rand = random.Random(seed)
    poisoned, sound, done = [], set(), set()
    async with Queue("email", url=valkey.url, protocol="bridge", namespace="odd") as queue:

        @queue.fallback
        async def work(job: RunningJob) -> str:
            if job.id in sound:
                done.add(job.id)
                return "done"
            return everything(job)

        for number in range(100):
            handle = await queue.add("email", number, attempts=2, backoff=0.001)
            poisoned.append(handle.id)
            record = json.loads(raw.get(f"odd:jobs:data:{handle.id}"))
            raw.set(f"odd:jobs:data:{handle.id}", odd_record(rand, record))
            if rand.random() < 0.5:
                raw.hset(f"odd:ox:job:{handle.id}", rand.choice(RUN), odd(rand))
            if rand.random() < 0.5:  # as another client would write it
                raw.delete("odd:ox:facts", "odd:ox:listed")
            if number % 4 == 0:
                sound.add((await queue.add("email", number)).id)
        async with Worker(queue, concurrency=8).running() as worker:
            await eventually(lambda: sound <= done, f"the sound ones run, seed {seed}")
            last = await queue.add("email")
            sound.add(last.id)
            assert await last.result(20)
            assert worker._failure is None
        for job_id in poisoned:
            job = await queue.jobs.get(job_id)
            repr(job and (job.transitions, job.past_attempts, job.updated_at, job.fault))
        for state in ("waiting", "active", "delayed", "completed", "failed"):
            await queue.jobs.list(state, limit=1000)
        await queue.dead_letters.list()
        await queue.counts()


async def _read_all(queue: Queue, ids: list[str]) -> None:
    for job_id in ids:
        job = await queue.jobs.get(job_id)
        if job is not None:
            assert job.id == job_id
            repr((job.transitions, job.past_attempts, job.updated_at, job.created_at, job.attempts_left))
    for state in ("waiting", "active", "delayed", "completed", "failed"):
        for job in await queue.jobs.list(state, limit=1000):
            assert job.queue == "q"
    await queue.dead_letters.list()
    assert sum((await queue.counts()).values()) >= 1
    events = queue.events(since="0-0")
    async for event in events:
        if event.job_id == ids[-1]:
            break
    await events.close()


#: A Bridge record in place of ours, and the text that the reason contains.
BAD_RECORDS = {
    "no json": (b"{not json", "record"),
    "no object": (b"[1]", "record"),
    "bytes": (b"\xff\xfe\x00", "record"),
    "no type": (b'{"payload":{}}', "type"),
    "payload deep": (b'{"type":"email","payload":' + DEEP + b"}", "data"),
    "payload deeper": (b'{"type":"email","payload":' + DEEPER + b',"priority":5}', "data"),
    "payload digits": (b'{"type":"email","payload":' + LONGER + b"}", "data"),
    "timeout": (b'{"type":"email","payload":{},"ox":{"timeout":' + LONG + b"}}", "ox:timeout"),
}


@pytest.mark.parametrize("bad", BAD_RECORDS)
async def test_undecodable_record_is_failed_once_and_its_neighbours_run(
    valkey: ValkeyServer, store: redis.Redis, raw: Any, bad: str
) -> None:
    record, named = BAD_RECORDS[bad]
    starts: list[str] = []
    async with Queue("email", url=valkey.url, protocol="bridge", namespace="odd") as queue:

        @queue.fallback
        async def work(job: RunningJob, to: str = "") -> str:
            starts.append(job.id)
            return everything(job)

        before, poisoned, after = [await queue.add("email", {"to": "a"}) for _ in range(3)]
        raw.set(f"odd:jobs:data:{poisoned.id}", record)
        metrics = Metrics()
        async with Worker(queue, concurrency=3, observer=metrics).running():
            assert await before.result(20)
            assert await after.result(20)
            await eventually(
                lambda: raw.get(f"odd:jobs:status:{poisoned.id}") == b"dead", "it is quarantined"
            )
        assert poisoned.id not in starts
        kept = raw.get(f"odd:jobs:data:{poisoned.id}")
        assert kept == record or kept == record.replace(b"{", b'{"attempts":1,', 1)
        job = await queue.jobs.get(poisoned.id)
        assert job is not None
        assert job.failed_reason is not None
        assert job.failed_reason.startswith(f"the job cannot be decoded: {named}")
        assert (job.category, job.state) == ("system", State.DEAD_LETTER)
        assert [one.id for one in await queue.dead_letters.list()] == [poisoned.id]
        assert 'bullmq_quarantined_jobs_total{queue="email"} 1.0' in (await metrics.scrape())[0].decode()
        commands = Commands(valkey.url)
        shown = await asyncio.to_thread(commands, "--namespace", "odd", "job", "email", poisoned.id)
        assert shown.code == 0, shown.err
        assert "cannot be decoded" in shown.out
        await queue.dead_letters.replay(poisoned.id)
        assert raw.lrange("odd:jobs:waiting", 0, -1) == [poisoned.id.encode()]


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
async def test_half_a_surrogate_pair_goes_through_a_worker(
    valkey: ValkeyServer, store: redis.Redis, raw: Any, protocol: Any
) -> None:
    """Node writes it after cutting an emoji; PyPI's producer writes it too."""
    place: dict[str, Any] = {"namespace" if protocol == "bridge" else "prefix": "half"}
    half = {"s": "cut \ud83d", "n": 2**70}
    async with Queue("email", url=valkey.url, protocol=protocol, **place) as queue:

        @queue.job
        async def email(job: RunningJob, s: str, n: int) -> Any:
            assert job.data == {"s": s, "n": n} == half
            await job.checkpoint({"s": s})
            return {"s": s}

        added = await queue.add("email", {"s": "", "n": 0}, attempts=1)
        key = f"half:jobs:data:{added.id}" if protocol == "bridge" else f"half:email:{added.id}"
        written = rb'{"s":"cut \ud83d","n":1180591620717411303424}'
        if protocol == "bridge":
            raw.set(key, raw.get(key).replace(b'{"s":"","n":0}', written))
        else:
            raw.hset(key, "data", written)
        async with Worker(queue).running():
            assert await added.result(20) == {"s": "cut \ud83d"}
        job = await queue.jobs.get(added.id)
        assert job is not None
        assert (job.data, job.fault) == (half, None)
        if protocol == "bridge":
            assert rb'{"s":"cut \ud83d"}' in raw.get(f"half:jobs:result:{added.id}")
        else:
            assert raw.hget(key, "returnvalue") == rb'{"s":"cut \ud83d"}'


async def test_a_handler_that_meets_an_undecodable_record_is_not_quarantined_for_it(
    valkey: ValkeyServer, store: redis.Redis
) -> None:
    async with (
        Queue("email", url=valkey.url, protocol="bridge", namespace="odd") as queue,
        Queue("other", url=valkey.url, protocol="bridge", namespace="odd") as other,
    ):
        poisoned = await other.add("other")
        store.set(f"odd:jobs:data:{poisoned.id}", "no record")

        @queue.fallback
        async def work(job: RunningJob) -> None:
            await other.jobs.handle(poisoned.id).update_data({"a": 1})

        async with Worker(queue).running():
            job = await queue.add("email", attempts=1)
            with pytest.raises(JobFailed, match="record must be a JSON object"):
                await job.result(20)
        ended = await queue.jobs.get(job.id)
        assert ended is not None
        assert ended.dead_reason is None


@pytest.mark.parametrize("known", [True, False], ids=["ours", "of another client"])
@pytest.mark.parametrize("part", ["jobs:data:", "jobs:status:", "ox:job:"])
async def test_a_key_of_the_wrong_kind_stops_no_namespace(
    valkey: ValkeyServer, store: redis.Redis, part: str, known: bool
) -> None:
    async with Queue("email", url=valkey.url, protocol="bridge", namespace="odd") as queue:

        @queue.fallback
        async def work(job: RunningJob) -> str:
            return "done"

        poisoned = await queue.add("email")
        store.delete(f"odd:{part}{poisoned.id}")
        if part == "ox:job:":
            store.set(f"odd:{part}{poisoned.id}", "text")
        else:
            store.hset(f"odd:{part}{poisoned.id}", "field", "value")
        if not known:
            store.delete("odd:ox:facts", "odd:ox:listed", "odd:ox:lane:5:email:", "odd:ox:lanes:email")
        sound = [await queue.add("email") for _ in range(3)]
        async with Worker(queue, concurrency=1).running() as worker:
            for job in sound:
                assert await job.result(20) == "done"
            await eventually(lambda: not store.llen("odd:jobs:waiting"), "the list is empty")
            await eventually(lambda: not store.scard("odd:jobs:active"), "nothing is held")
            assert worker._failure is None
