"""Rows become jobs exactly once despite Spark's repeats; refused rows have a reason."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

pytest.importorskip("pyspark")

import pyarrow as pa

from oxcart import Queue
from oxcart.broker.keyring import KeyRing
from oxcart.model.errors import ValidationError
from oxcart.spark.options import ServerAddress
from oxcart.spark.sink import Aim, _add, job_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(rows: DataFrame, url: str, **options: str) -> None:
    writer = rows.write.format("oxcart").option("url", url).mode("append")
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def jobs(store: redis.Redis, queue: str = "q") -> list[dict[str, str]]:
    ids = cast(Any, store.lrange(f"bull:{queue}:wait", 0, -1))
    return [cast(dict[str, str], store.hgetall(f"bull:{queue}:{job_id}")) for job_id in reversed(ids)]


def test_columns_with_the_prefix_are_options_and_the_rest_is_the_payload(
    spark: SparkSession, url: str, store: redis.Redis
) -> None:
    rows = spark.createDataFrame(
        [("ada", date(2026, 11, 2), 5, "welcome"), ("bob", date(2026, 11, 3), 2, "welcome")],
        "user string, since date, ox_attempts int, ox_name string",
    )
    save(rows, url, queue="q", key="user")
    found = jobs(store)
    assert [json.loads(job["data"]) for job in found] == [
        {"user": "ada", "since": "2026-11-02"},
        {"user": "bob", "since": "2026-11-03"},
    ]
    assert [json.loads(job["opts"])["attempts"] for job in found] == [5, 2]
    assert store.exists(f"bull:q:{job_id_of('ada')}")
    save(rows, url, queue="q", key="user")
    assert len(jobs(store)) == 2, "the same rows again add nothing"


def test_payload_columns_may_be_named_like_options(spark: SparkSession, url: str, store: redis.Redis) -> None:
    rows = spark.createDataFrame(
        [("7", 1_700_000_000_000, "urgent", "5 days", "ada", "raw")],
        "job_id string, timestamp bigint, priority string, delay string, name string, data string",
    )
    save(rows, url, queue="q", key="job_id", name="n")
    (job,) = jobs(store)
    assert json.loads(job["data"]) == rows.collect()[0].asDict()
    assert (job["name"], job["priority"], job["delay"]) == ("n", "0", "0")


def test_payloads_are_sealed_with_keys_that_a_variable_holds(
    url: str, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyRing.generate()
    monkeypatch.setenv("SINK_KEYS", f"k1:{key}")
    aim = Aim("q", "user", "welcome", None, "SINK_KEYS")
    batch = pa.RecordBatch.from_pylist([{"user": "ada"}])
    asyncio.run(_add(ServerAddress(url=url), aim, iter([batch])))
    (job,) = jobs(store)
    assert list(json.loads(job["data"])) == ["$sealed"]

    async def read() -> Any:
        async with Queue("q", url=url, key_ring=KeyRing({"k1": key})) as queue:
            return await queue.jobs.get(job_id_of("ada"))

    assert asyncio.run(read()).data == {"user": "ada"}
    monkeypatch.delenv("SINK_KEYS")
    with pytest.raises(ValidationError, match="SINK_KEYS, which is not set"):
        asyncio.run(_add(ServerAddress(url=url), aim, iter([batch])))


def test_a_column_is_the_payload_and_another_one_the_queue(
    spark: SparkSession, url: str, store: redis.Redis
) -> None:
    rows = spark.createDataFrame(
        [("a", "1-x", '{"n": [1, 2]}'), ("b", "2-x", "7")],
        "ox_queue string, ox_job_id string, ox_data string",
    )
    save(rows, url, name="n")
    assert [json.loads(job["data"]) for queue in ("a", "b") for job in jobs(store, queue)] == [
        {"n": [1, 2]},
        7,
    ]


def test_refused_rows_fail_the_write_or_go_to_the_quarantine(
    spark: SparkSession, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [("a", "{}", 1), ("b", "{", 1), ("c", "{}", -5), (None, "{}", 1)],
        "k string, ox_data string, ox_priority int",
    )
    with pytest.raises(Exception, match=r"3 rows are refused.*option quarantine"):
        save(rows, url, queue="q", key="k", name="n")
    folder = tmp_path / "refused"
    save(rows, url, queue="q", key="k", name="n", quarantine=str(folder))
    assert len(cast(Any, store.keys("bull:q:k-*"))) == 1
    found = spark.read.parquet(str(folder)).collect()
    assert sorted(json.loads(row.row)["k"] or "" for row in found) == ["", "b", "c"]
    assert any("priority must be" in row.why for row in found)


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("k string", {"queue": "q", "name": "n"}, "what makes a row unique"),
        ("k string", {"key": "k", "name": "n"}, "say which queue"),
        ("k string", {"key": "k", "queue": "q"}, "which kind of job"),
        ("k string", {"key": "x", "queue": "q", "name": "n"}, "key must be a column of k"),
        ("k string, m map<int,int>", {"key": "k", "queue": "q", "name": "n"}, "column m is of type map"),
        (
            "k string, ox_dely int",
            {"key": "k", "queue": "q", "name": "n"},
            "column must be one of .*ox_delay",
        ),
        ("k string", {"key": "k", "queue": "a:b", "name": "n"}, "queue name must be"),
        ("k string", {"key": "k", "queue": "q", "name": "n", "keysEnv": "UNSET"}, "UNSET, which is not set"),
        ("k string", {"key": "k", "queue": "q", "name": "n", "spool": "x"}, "left out of a write"),
        ("k string, i interval day", {"key": "k", "queue": "q", "name": "n"}, "cast it to a text"),
    ],
)
def test_invalid_rows_are_refused_before_any_write(
    spark: SparkSession, url: str, store: redis.Redis, schema: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        save(spark.createDataFrame([], schema), url, **options)
    assert store.keys("*") == []


def test_a_quarantine_that_cannot_be_written_is_a_typed_error(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    batch = pa.RecordBatch.from_pylist([{"user": None}])
    aim = Aim("q", "user", "welcome", str(tmp_path / "file" / "below"))
    with pytest.raises(ValidationError, match=r"quarantine .* cannot be written: Not a directory; 1 rows"):
        asyncio.run(_add(ServerAddress(url=url), aim, iter([batch])))
