"""The event streams as a Spark stream: every entry once, and every lost entry counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
import redis

pytest.importorskip("pyspark")

from oxcart.spark.errors import WorkerLate, unwrapped
from oxcart.spark.pipeline import MOST_BEGINNINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Sunk

Emit = Callable[..., list[str]]
Drain = Callable[..., "Sunk"]


def many(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"event": "waiting", "jobId": str(number)} for number in range(first, first + count)]


def columns_of(rows: list[dict[str, Any]], *columns: str) -> list[Any]:
    return [tuple(row[name] for name in columns) if len(columns) > 1 else row[columns[0]] for row in rows]


def test_every_entry_comes_once_with_its_ordinal(emit: Emit, drain: Drain) -> None:
    ids = emit("q", *many(10))
    first = drain()
    assert columns_of(first.rows, "entry_id", "ordinal", "job_id") == [
        (entry_id, number + 1, str(number)) for number, entry_id in enumerate(ids)
    ]
    assert set(columns_of(first.rows, "kind", "stream", "queue", "life", "event")) == {
        ("entry", "events", "q", 1, "waiting")
    }
    emit("q", *many(5, 10))
    second = drain()
    assert columns_of(second.rows, "ordinal", "job_id") == [(n + 1, str(n)) for n in range(10, 15)]
    assert drain().rows == []


def test_batches_are_bounded_and_streams_share_them(emit: Emit, drain: Drain) -> None:
    emit("a", *many(9000))
    emit("b", *many(9000))
    sunk = drain("a,b", maxRowsPerBatch=6000)
    assert max(len(batch) for batch in sunk.batches.values()) <= 6000
    for queue in ("a", "b"):
        assert sorted(r["ordinal"] for r in sunk.rows if r["queue"] == queue) == list(range(1, 9001))
    assert {row["queue"] for row in sunk.batches[0]} == {"a", "b"}


def test_a_single_stream_fills_the_whole_batch(emit: Emit, drain: Drain) -> None:
    emit("q", *many(9000))
    assert [len(batch) for batch in drain(maxRowsPerBatch=6500).batches.values()] == [6500, 2500]


def test_a_pattern_takes_queues_of_any_maker(emit: Emit, drain: Drain) -> None:
    for queue in ("mail-a", "mail-b", "video"):
        emit(queue, *many(2))
    assert {row["queue"] for row in drain("", pattern="mail-*").rows} == {"mail-a", "mail-b"}


def test_every_field_is_kept(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    at, raw = 1_793_577_600_000, cast(Any, store)
    emit(
        "q",
        {"event": "added", "jobId": "1", "name": "welcome"},
        {"event": "delayed", "jobId": "1", "delay": "1793577605000"},
        {"event": "failed", "jobId": "1", "failedReason": "no", "prev": "active"},
        {"event": "retries-exhausted", "jobId": "1", "attemptsMade": "3"},
        {"event": "completed", "jobId": "2", "returnvalue": '{"a":1}', "prev": "active"},
        {"event": "progress", "jobId": "2", "data": "50"},
        {"event": "mine", "own": "ü", "delay": "soon"},
        {"nothing": "known"},
        at=at,
    )
    raw.execute_command("XADD", "bull:q:events", f"{at + 100}-0", "event", b"b\xffd", "x", b"\xfe")
    raw.execute_command("XADD", "bull:q:events", f"{at + 101}-0", "event", "twice", "a", "1", "a", "2")
    rows = drain().rows
    assert {row["day"] for row in rows} == {date(2026, 11, 2)}
    assert columns_of(rows, "event") == [
        "added",
        "delayed",
        "failed",
        "retries-exhausted",
        "completed",
        "progress",
        "mine",
        None,
        "b\ufffdd",
        "twice",
    ]
    assert (rows[0]["name"], rows[0]["at_ms"]) == ("welcome", at)
    assert rows[1]["due_ms"] == 1_793_577_605_000
    assert (rows[2]["reason"], rows[2]["prev"]) == ("no", "active")
    assert rows[3]["attempts_made"] == 3
    assert rows[4]["result"] == '{"a":1}'
    assert rows[5]["data"] == "50"
    assert json.loads(rows[6]["extra"]) == {"own": "ü", "delay": "soon"}
    assert json.loads(rows[7]["extra"]) == {"nothing": "known"}
    assert msgspec.msgpack.decode(rows[8]["raw"]) == [b"event", b"b\xffd", b"x", b"\xfe"]
    assert msgspec.msgpack.decode(rows[9]["raw"]) == [b"event", b"twice", b"a", b"1", b"a", b"2"]
    assert [row["raw"] for row in rows[:8]] == [None] * 8


def test_entries_trimmed_between_runs_are_a_gap_of_the_exact_size(
    emit: Emit, drain: Drain, store: redis.Redis
) -> None:
    ids = emit("q", *many(100))
    drain()
    emit("q", *many(300, 100))
    store.xtrim("bull:q:events", maxlen=50, approximate=False)
    rows = drain().rows
    assert columns_of(rows[:1], "kind", "ordinal", "lost", "cause", "entry_id") == [
        ("gap", 101, 250, "trimmed", ids[-1])
    ]
    assert columns_of(rows[1:], "kind", "ordinal") == [("entry", n) for n in range(351, 401)]


def test_entries_trimmed_before_the_first_run_are_a_gap(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    emit("q", *many(100))
    store.xtrim("bull:q:events", maxlen=10, approximate=False)
    rows = drain().rows
    assert columns_of(rows[:1], "kind", "ordinal", "lost", "cause") == [("gap", 1, 90, "before")]
    assert columns_of(rows[1:], "ordinal") == list(range(91, 101))


def test_a_stream_trimmed_to_nothing_is_a_gap(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    emit("q", *many(10))
    drain()
    emit("q", *many(7))
    store.xtrim("bull:q:events", maxlen=0, approximate=False)
    assert columns_of(drain().rows, "kind", "ordinal", "lost") == [("gap", 11, 7)]
    emit("q", *many(1))
    assert columns_of(drain().rows, "kind", "ordinal") == [("entry", 18)]


def test_recreated_stream_is_reported(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    emit("q", *many(10))
    drain()
    store.delete("bull:q:events", "bull:q:meta")
    emit("q", *many(3))
    rows = drain().rows
    assert columns_of(rows[:1], "kind", "lost", "ordinal", "life") == [("recreated", None, 11, 1)]
    assert columns_of(rows[1:], "ordinal", "life") == [(1, 2), (2, 2), (3, 2)]


def test_a_vanished_stream_is_waited_for(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    emit("q", *many(10))
    drain()
    store.delete("bull:q:events")
    assert drain().rows == []
    emit("q", *many(2))
    assert columns_of(drain().rows, "kind", "life") == [("recreated", 1), ("entry", 2), ("entry", 2)]


def test_a_query_may_begin_at_the_end_or_at_an_offset(emit: Emit, drain: Drain) -> None:
    ids = emit("q", *many(10))
    assert drain(startingOffsets="latest").rows == []
    offset = json.dumps({"q": {"id": ids[4], "n": 5, "life": 1}})
    assert columns_of(drain(checkpoint="other", startingOffsets=offset).rows, "ordinal") == [6, 7, 8, 9, 10]


def test_lengths_are_sampled_once_a_minute(emit: Emit, drain: Drain, store: redis.Redis) -> None:
    emit("q", *many(2))
    store.rpush("bull:q:wait", "1", "2")
    rows = [row for row in drain(samples="true").rows if row["kind"] == "counts"]
    assert len(rows) == 1
    assert json.loads(rows[0]["data"])["wait"] == 2


def test_attempt_records_come_with_the_events(emit: Emit, drain: Drain) -> None:
    emit("q", *many(1))
    emit("q", {"job": "0", "kind": "c"}, suffix="ox:attempts")
    rows = drain().rows
    assert sorted(columns_of(rows, "stream")) == ["events", "ox:attempts"]
    assert {row["stream"] for row in drain(checkpoint="o", attempts="false").rows} == {"events"}


def failure(reader: Any) -> str:
    """The error of a stream that cannot start; started again if its process was too late."""
    for left in reversed(range(MOST_BEGINNINGS)):
        with pytest.raises(Exception, match=r"\S") as caught:
            reader.load().writeStream.format("noop").start().processAllAvailable()
        if not left or not isinstance(unwrapped(caught.value, Path()), WorkerLate):
            break
    return str(caught.value)


class TestErrors:
    def test_a_password_in_the_url_is_refused_and_not_repeated(self, spark: SparkSession) -> None:
        reader = spark.readStream.format("oxcart").option("content", "events").option("queue", "q")
        message = failure(reader.option("url", "redis://:hunter2@127.0.0.1:1/0"))
        assert "passwordEnv" in message
        assert "hunter2" not in message

    def test_an_unreachable_server_says_what_to_do(self, drain: Drain) -> None:
        with pytest.raises(Exception, match=r"cannot reach 127\.0\.0\.1:1.*run this again: nothing is lost"):
            drain(url="redis://127.0.0.1:1/0")

    def test_misspelt_option_is_refused(self, drain: Drain) -> None:
        with pytest.raises(Exception, match="option must be one of"):
            drain(maxRows="5")

    def test_streaming_read_of_jobs_is_refused(self, spark: SparkSession, url: str) -> None:
        reader = spark.readStream.format("oxcart").option("queue", "q").option("url", url)
        assert "a stream has events" in failure(reader)
