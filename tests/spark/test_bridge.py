"""A Bridge namespace in the pipeline: our jobs by events, jobs of other clients by records."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
import redis

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.engine.running import RunningJob
from oxcart.model.errors import NotSupported, ValidationError
from oxcart.spark import sink
from oxcart.spark.lake.versions import Lake
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.attachment import attach, detach, readers
from oxcart.spark.session import SETTINGS
from oxcart.spark.sink import Aim, job_id_of
from tests.broker.bridge.document import DocumentClient
from tests.cli.conftest import Commands
from tests.signals import eventually

pytest.importorskip("pyspark")

from oxcart.spark.lake.tables import Tables
from oxcart.spark.pipeline import Pipeline, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "mesh"
LIMIT = 60.0
#: The source's options for the namespace.
BRIDGE = {"protocol": "bridge", "namespace": NAMESPACE}


@pytest.fixture
def address(url: str) -> ServerAddress:
    return ServerAddress(url=url, namespace=NAMESPACE)


@pytest.fixture
def own_settings(spark: SparkSession) -> Iterator[None]:
    """Restores the session after a command that joins it and changes its settings."""
    before = {name: spark.conf.get(name) for name in SETTINGS if spark.conf.isModifiable(name)}
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


async def handle(job: RunningJob) -> str:
    if job.name == "broken" or (job.name == "charge" and job.attempt == 1):
        raise TemporaryError(f"card {job.attempt} refused")
    if job.name == "wrong":
        raise PermanentError("no such user")
    return "done"


async def our_jobs(url: str, store: Any, foreign: DocumentClient) -> dict[str, str]:
    """Our worker runs jobs of every outcome, one of another client among them. Returns ids by name."""
    async with Queue("email", protocol="bridge", namespace=NAMESPACE, url=url) as emails:
        emails.fallback(handle)
        soon: Any = {"attempts": 2, "backoff": "10ms"}
        ids = {
            "welcome": (await emails.add("welcome", 1, tags={"tenant": "acme"}, correlation_id="o-7")).id,
            "charge": (await emails.add("charge", 2, **soon)).id,
            "broken": (await emails.add("broken", 3, **soon)).id,
            "wrong": (await emails.add("wrong", 4)).id,
            "later": (await emails.add("later", 5, delay="1h")).id,
            "found": foreign.dispatch("email", {"n": 6}, metadata={"tenant": "else"}),
        }
        ends = {"welcome": "completed", "charge": "completed", "broken": "dead", "wrong": "dead"}
        ends["found"] = "completed"
        async with Worker(emails, concurrency=4, name="ours", version="7f3a").running():
            keys = [f"{NAMESPACE}:jobs:status:{ids[name]}" for name in ends]
            await eventually(lambda: store.mget(keys) == list(ends.values()), "all have ended", LIMIT)
        return ids


async def old_jobs(url: str) -> None:
    """Jobs of a type whose stream is trimmed to almost nothing."""
    async with Queue("old", protocol="bridge", namespace=NAMESPACE, url=url) as old:
        old.fallback(handle)
        async with Worker(old).running():
            for n in range(3):
                await (await old.add("old", n)).result(LIMIT)


async def digests(url: str, store: Any) -> tuple[str, list[int]]:
    """Runs a schedule of ours and one of another client. Returns their id, and when they were due."""
    ran: list[str] = []
    async with Queue("digest", protocol="bridge", namespace=NAMESPACE, url=url) as queue:

        @queue.fallback
        async def run(job: RunningJob) -> None:
            ran.append(job.id)

        await queue.schedules.upsert("weekly", name="send", cron="0 9 * * 1", tz="Europe/Berlin")
        (mine,) = cast(list[str], store.zrange(f"{NAMESPACE}:jobs:cron", 0, -1))
        record = json.loads(store.get(f"{NAMESPACE}:jobs:data:{mine}"))
        theirs = str(uuid.uuid4())
        del record["ox"]
        store.set(f"{NAMESPACE}:jobs:data:{theirs}", json.dumps({**record, "jobId": theirs}))
        now = int(time.time() * 1000)
        due = {mine: now - 3000, theirs: now - 2000}
        store.zadd(f"{NAMESPACE}:jobs:cron", due)
        async with Worker(queue).running():
            await eventually(lambda: len(ran) == 2, "both have run", LIMIT)
        return theirs, sorted(due.values())


async def reports(url: str, foreign: DocumentClient) -> dict[str, str]:
    """Jobs that a worker of another client runs, one of ours among them."""

    def fail(job: dict[str, Any]) -> None:
        raise ValueError("no paper")

    async with Queue("report", protocol="bridge", namespace=NAMESPACE, url=url) as queue:
        ids = {"mine": (await queue.add("monthly", {})).id}
        assert foreign.work(lambda job: "printed") == ids["mine"]
    ids["theirs"] = foreign.dispatch("report", {})
    assert foreign.work(lambda job: "printed") == ids["theirs"]
    ids["dead"] = foreign.dispatch("report", {}, retry={"attempts": 1})
    assert foreign.work(fail) == ids["dead"]
    ids["waits"] = foreign.dispatch("report", {})
    return ids


def by_name(rows: DataFrame, ids: dict[str, str]) -> dict[str, Any]:
    names = {job_id: name for name, job_id in ids.items()}
    return {names[row.job_id]: row for row in rows.collect() if row.job_id in names}


@pytest.mark.usefixtures("one_day")
def test_a_namespace_from_its_keys_to_the_tables(
    spark: SparkSession,
    url: str,
    address: ServerAddress,
    store: redis.Redis,
    drain: Callable[..., Any],
    own_settings: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setenv("OXCART_LAKE", str(lake))
    monkeypatch.setenv("OXCART_URL", url)
    foreign = DocumentClient(store, "elsewhere", namespace=NAMESPACE)

    def pipeline(*words: str) -> str:
        done = Commands(url)("pipeline", *words, "--namespace", NAMESPACE)
        assert done.code == 0, done
        return done.out

    for queue in ("email", "digest"):
        assert attach(address, queue, "main") is not None
    ids = asyncio.run(our_jobs(url, store, foreign))
    asyncio.run(old_jobs(url))
    forgotten = cast(Any, store.xlen(f"{NAMESPACE}:ox:events:old")) - 1
    store.xtrim(f"{NAMESPACE}:ox:events:old", 1, approximate=False)
    ids |= asyncio.run(reports(url, foreign))
    theirs, due = asyncio.run(digests(url, store))

    assert "built: " in pipeline("run", "--once", "--master", "local[1]")
    tables = Tables(spark, Lake(lake))

    jobs = by_name(tables.read("jobs"), ids)
    assert {
        name: (row.queue, row.name, row.state, row.attempts, row.retries) for name, row in jobs.items()
    } == {
        "welcome": ("email", "welcome", "completed", 1, 0),
        "charge": ("email", "charge", "completed", 2, 1),
        "broken": ("email", "broken", "dead_letter", 2, 1),
        "wrong": ("email", "wrong", "failed", 1, 0),
        "later": ("email", "later", "delayed", 0, 0),
        "found": ("email", "email", "completed", 1, 0),
        "mine": ("report", "monthly", "completed", 1, 0),
        "theirs": ("report", "report", "completed", 1, 0),
        "dead": ("report", "report", "dead_letter", 1, 0),
    }, "what waits at another client is a job of the batch source until a worker claims it"
    actual = {name: (row.category, row.code, row.reason, row.worker) for name, row in jobs.items()}
    assert actual["broken"] == ("temporary", "TemporaryError", "card 2 refused", "ours")
    assert actual["wrong"][0] == "permanent"
    assert actual["welcome"] == actual["found"] == (None, None, None, "ours")
    assert actual["mine"] == actual["theirs"] == (None, None, None, None), "no record names the worker"
    assert actual["dead"] == (None, "ValueError", "no paper", None)
    assert (jobs["welcome"].correlation_id, jobs["welcome"].tags) == ("o-7", {"tenant": "acme"})
    assert jobs["found"].tags == {"tenant": "else"}
    for name in ("found", "theirs"):
        record = json.loads(cast(str, store.get(f"{NAMESPACE}:jobs:data:{ids[name]}")))
        assert jobs[name].created_ms == record["createdAt"]
    assert all(row.born == "added" for row in jobs.values())

    attempts = [row for row in tables.read("attempts").collect() if row.job_id in ids.values()]
    outcomes = {
        name: [
            row.outcome for row in sorted(attempts, key=lambda row: row.attempt) if row.job_id == ids[name]
        ]
        for name in ("welcome", "charge", "broken", "wrong", "later", "found", "theirs", "dead")
    }
    assert outcomes == {
        "welcome": ["completed"],
        "charge": ["retried", "completed"],
        "broken": ["retried", "failed"],
        "wrong": ["failed"],
        "later": [],
        "found": ["completed"],
        "theirs": ["completed"],
        "dead": ["failed"],
    }
    broken = [row for row in attempts if row.job_id == ids["broken"]]
    assert {(row.worker, row.category, row.told_by) for row in broken} == {("ours", "temporary", "record")}
    assert all("TemporaryError" in row.stack and row.run_ms is not None for row in broken)
    labels = {(row.version, row.tenant) for row in attempts if row.job_id in (ids["welcome"], ids["dead"])}
    assert labels == {("7f3a", "acme"), (None, None)}, "another client records no version"
    assert tables.read("transitions").filter("legal = false").collect() == []
    assert tables.read("quarantine").collect() == []

    (day,) = (
        tables.read("queue_metrics").filter("window = 'day' AND name = '*' AND queue = 'email'").collect()
    )
    assert (day.arrivals, day.completed, day.failed, day.retries) == (6, 3, 2, 2)
    assert (day.failures_temporary, day.failures_permanent, day.backlog_delayed) == (3, 1, 1)
    (gap,) = tables.read("gaps").collect()
    assert (gap["queue"], gap["count"]) == ("old", forgotten)
    assert 0 < gap["refilled"] <= forgotten, "a moment at the very edge of a gap may be missed"
    assert [row.state for row in tables.read("jobs", queues=["old"]).collect()] == ["completed"] * 3

    runs = tables.read("firings").orderBy("expected_ms").collect()
    assert [(row.queue, row.schedule, row.name, row.state, row.expected_ms) for row in runs] == [
        ("digest", "weekly", "send", "completed", due[0]),
        ("digest", theirs, "digest", "completed", due[1]),
    ], "a run names its schedule, and that of another client has no name but its id"
    assert {(row.cron, row.tz, row.every_ms, row.run, row.attempts) for row in runs} == {
        ("0 9 * * 1", "Europe/Berlin", None, 1, 1)
    }
    for row in runs:
        assert row.expected_ms < row.made_ms <= row.ready_ms <= row.started_ms <= row.ended_ms
        assert row.late_ms == row.started_ms - row.expected_ms

    standings = {one["queue"]: one for one in json.loads(pipeline("status", "--json"))}
    assert standings.keys() == {"digest", "email", "old", "report"}
    assert {(one["stream"], one["lag"], one["kept"]) for one in standings.values()} == {
        ("events", 0, 500_000)
    }

    rows = tables.read("events").filter("kind IN ('entry', 'refill')").count()
    Pipeline(spark, Plan(lake, address, samples=False)).once()
    assert tables.read("events").filter("kind IN ('entry', 'refill')").count() == rows, (
        "each event is there once"
    )

    the_jobs_are_there(spark, url, ids)
    entries = drain("email", **BRIDGE).rows
    assert [row["ordinal"] for row in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == store.xlen(f"{NAMESPACE}:ox:events:email")
    assert "email: as before" in pipeline("detach")
    assert not store.exists(f"{NAMESPACE}:ox:reading:email")


def the_jobs_are_there(spark: SparkSession, url: str, ids: dict[str, str]) -> None:
    """The batch source: jobs in any state, made and run by any client."""
    source = spark.read.format("oxcart").options(url=url, pattern="*", **BRIDGE).load()
    rows = by_name(source, ids)
    assert {name: (row.state, row.formal_state, row.attempts_started) for name, row in rows.items()} == {
        "welcome": ("completed", "completed", 1),
        "charge": ("completed", "completed", 2),
        "broken": ("failed", "dead_letter", 2),
        "wrong": ("failed", "failed", 1),
        "later": ("delayed", "delayed", 0),
        "found": ("completed", "completed", 1),
        "mine": ("completed", "completed", 1),
        "theirs": ("completed", "completed", 1),
        "dead": ("failed", "dead_letter", 1),
        "waits": ("waiting", "scheduled", 0),
    }
    assert (rows["theirs"].result, rows["theirs"].worker) == ('"printed"', None)
    assert rows["theirs"].created_at <= rows["theirs"].started_at <= rows["theirs"].ended_at
    assert (rows["welcome"].name, rows["welcome"].worker, rows["welcome"].data) == ("welcome", "ours", "1")
    assert (rows["dead"].reason, rows["dead"].code, rows["dead"].category) == ("no paper", "ValueError", None)
    assert rows["dead"].stalls is None
    failed = source.filter("state = 'failed' AND queue = 'report'").collect()
    assert [row.job_id for row in failed] == [ids["dead"]]


def test_rows_become_jobs_of_a_type(spark: SparkSession, url: str, store: redis.Redis) -> None:
    rows = spark.createDataFrame([("ada", 9), ("bob", 2)], "user string, ox_priority int")
    writer = (
        rows.write.format("oxcart").mode("append").options(url=url, queue="email", name="welcome", **BRIDGE)
    )
    for _ in range(2):
        writer.option("key", "user").save()
    assert store.llen(f"{NAMESPACE}:jobs:waiting") == 2, "the same rows again add nothing"
    job_id = job_id_of("ada", Queue("email", protocol="bridge", url=url).capabilities)
    assert uuid.UUID(job_id)
    record = json.loads(cast(str, store.get(f"{NAMESPACE}:jobs:data:{job_id}")))
    assert (record["payload"], record["priority"], record["ox"]["name"]) == ({"user": "ada"}, 9, "welcome")


def test_options_unknown_to_bridge_are_refused_before_any_write(
    spark: SparkSession, url: str, store: redis.Redis
) -> None:
    rows = spark.createDataFrame([("ada", "1h")], "user string, ox_lifetime string")
    writer = rows.write.format("oxcart").mode("append").options(url=url, queue="email", name="n", key="user")
    with pytest.raises(NotSupported, match="lifetimes"):
        Aim.read({"queue": "email", "name": "n", "key": "user", **BRIDGE}, rows.schema)
    with pytest.raises(Exception, match=r"bridge.*lifetimes"):
        writer.options(**BRIDGE).save()
    assert store.keys("*") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "bridge", "prefix": "bull"}, "prefix must be left out with protocol='bridge'"),
        ({"namespace": "mesh"}, "namespace must be left out with protocol='bullmq'"),
        ({"protocol": "kafka"}, "protocol must be 'bullmq' or 'bridge', got 'kafka'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerAddress.read(options)


def test_access_is_the_same_after_its_way_through_options(address: ServerAddress) -> None:
    assert ServerAddress.read(address.options()) == address


def test_reading_ends_with_the_last_reader(address: ServerAddress, store: redis.Redis) -> None:
    made = attach(address, "email", "a", keep=20_000)
    assert made is not None
    assert (made.kept, made.before) == (20_000, 10_000)
    again = attach(address, "email", "b", keep=5000)
    assert again is not None
    assert (again.kept, again.mark) == (20_000, made.mark)
    assert set(readers(address, "email")) == {"a", "b"}
    assert detach(address, "email", "a") == 1
    assert detach(address, "email", "b") == 0
    assert store.keys("*") == []


def test_a_reader_that_does_not_renew_is_forgotten(address: ServerAddress, store: redis.Redis) -> None:
    attach(address, "email", "gone", term_ms=1000, clock=lambda: 1_000_000)
    attach(address, "email", "here")
    assert set(readers(address, "email")) == {"here"}
    assert 0 < cast(Any, store.pttl(f"{NAMESPACE}:ox:reading:email")) <= 7 * 86_400_000


async def test_row_with_a_missing_dependency_is_refused_alone(url: str, store: redis.Redis) -> None:
    """Spark would retry a task that fails because of it, and the task would fail again."""
    table = pa.table({"ox_job_id": [str(uuid.uuid4()) for _ in range(2)], "ox_after": [["nobody"], []]})
    address, aim = ServerAddress(url=url, namespace="bridge"), Aim("email", None, "email", None)
    with pytest.raises(ValidationError, match=r"1 rows are refused.*the dependency nobody does not exist"):
        await sink._add(address, aim, iter(table.to_batches()))
    assert len(store.keys("bridge:jobs:data:*")) == 1
