"""The jobs of queues as a table."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import redis

from oxcart import Queue

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT = 1_793_577_600_000


def ended(store: redis.Redis, queue: str, job_id: str, state: str, at_ms: int, **fields: Any) -> None:
    store.zadd(f"bull:{queue}:{state}", {job_id: at_ms})
    made = {
        "name": "n",
        "data": "{}",
        "opts": '{"attempts":1}',
        "timestamp": AT,
        "finishedOn": at_ms,
        **fields,
    }
    store.hset(f"bull:{queue}:{job_id}", mapping={name: str(value) for name, value in made.items()})


@pytest.mark.parametrize(
    "odd",
    [
        {b"stacktrace": b"[" * 100_000 + b"]" * 100_000},
        {b"stacktrace": b'["\\ud83d"]'},
        {b"opts": b'{"a":' * 2000 + b"1" + b"}" * 2000},
        {b"opts": b'{"attempts":1e400}'},
        {b"priority": b"999999999999999"},
        {b"atm": b"-9999999999999", b"ats": b"9999999999999", b"stc": b"9999999999999"},
    ],
    ids=["deep stack", "half a pair", "deep options", "endless attempts", "priority", "counts"],
)
def test_an_odd_job_does_not_hide_its_neighbours(odd: dict[bytes, bytes]) -> None:
    from oxcart.broker.bullmq.export import stored_job
    from oxcart.spark.read.jobs import batch_of, row_of

    sound = {b"name": b"n", b"data": b"{}", b"opts": b"{}", b"timestamp": b"%d" % AT}
    rows = [
        row_of(stored_job("q", None, job_id, "failed", fields))
        for job_id, fields in (("odd", sound | odd), ("sound", sound))
    ]
    assert batch_of(rows).column("job_id").to_pylist() == ["odd", "sound"]


@pytest.fixture
def table(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("oxcart").option("url", url).option("pattern", "*").load()


def test_a_queue_without_jobs_has_no_rows(store: redis.Redis, table: DataFrame) -> None:
    store.hset("bull:q:meta", "opts.maxLenEvents", "10000")
    assert table.collect() == []
    assert table.filter("queue = 'q' and state = 'completed'").count() == 0


async def test_jobs_of_every_state_with_all_that_is_known(
    queue: Queue, store: redis.Redis, table: DataFrame
) -> None:
    await queue.add("welcome", {"to": "ä"}, job_id="w1", attempts=5, correlation_id="c", tags={"a": "1"})
    await queue.add("later", 1, job_id="d1", delay="1h")
    await queue.add("first", None, job_id="p1", priority=3)
    ended(
        store, "q", "c1", "completed", AT + 5, returnvalue='{"x":1}', pb="worker-1", processedOn=AT + 2, ats=2
    )
    ended(store, "q", "f1", "failed", AT + 9, failedReason="no", stacktrace='["a","b"]', atm=3, stc=1)
    ended(store, "q", "x1", "failed", AT + 9, **{"ox:category": "cancelled", "ox:code": "E1"})
    rows = {row.job_id: row for row in table.collect()}
    assert {job_id: row.state for job_id, row in rows.items()} == {
        "w1": "waiting",
        "d1": "delayed",
        "p1": "prioritized",
        "c1": "completed",
        "f1": "failed",
        "x1": "failed",
    }
    assert {job_id: row.formal_state for job_id, row in rows.items()} == {
        "w1": "scheduled",
        "d1": "delayed",
        "p1": "scheduled",
        "c1": "completed",
        "f1": "dead_letter",
        "x1": "cancelled",
    }
    assert (rows["w1"].correlation_id, rows["w1"].tags, rows["x1"].code) == ("c", '{"a":"1"}', "E1")
    assert (rows["w1"].name, json.loads(rows["w1"].data)) == ("welcome", {"to": "ä"})
    assert json.loads(rows["w1"].options)["attempts"] == 5
    assert rows["w1"].ended_at is None
    assert rows["d1"].delay_ms == 3_600_000
    assert rows["p1"].priority == 3
    assert (rows["c1"].result, rows["c1"].worker, rows["c1"].attempts_started) == ('{"x":1}', "worker-1", 2)
    assert rows["c1"].ended_at.replace(tzinfo=UTC) == datetime.fromtimestamp((AT + 5) / 1000, UTC)
    assert (rows["f1"].reason, rows["f1"].stacktrace, rows["f1"].stalls) == ("no", ["a", "b"], 1)


def test_filters_are_answered_by_the_server(store: redis.Redis, table: DataFrame) -> None:
    from pyspark.sql.functions import col

    for queue in ("a", "b"):
        store.hset(f"bull:{queue}:meta", "version", "x")
        for number in range(3):
            ended(store, queue, f"c{number}", "completed", AT + number * 1000)
            ended(store, queue, f"f{number}", "failed", AT + number * 1000)
    # Jobs that a filter leaves out are not even read: a key of the wrong kind there would be an error.
    store.delete("bull:b:c1")
    store.rpush("bull:b:c1", "no hash")
    store.delete("bull:a:f0")
    store.rpush("bull:a:f0", "no hash")
    found = table.filter((col("queue") == "a") & col("state").isin("completed", "active"))
    assert sorted(row.job_id for row in found.collect()) == ["c0", "c1", "c2"]
    since = datetime.fromtimestamp((AT + 1000) / 1000, UTC)
    found = table.filter((col("queue") == "a") & (col("ended_at") > since))
    assert sorted(row.job_id for row in found.collect()) == ["c2", "f2"]


def test_a_job_that_is_gone_meanwhile_is_left_out(store: redis.Redis, table: DataFrame) -> None:
    store.hset("bull:q:meta", "version", "x")
    ended(store, "q", "c1", "completed", AT)
    store.zadd("bull:q:completed", {"gone": AT})
    assert [row.job_id for row in table.collect()] == ["c1"]
