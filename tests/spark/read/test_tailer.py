"""The tailer spools entries before the server trims them, and Spark reads them from the spool."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from oxcart.spark.options import QueueSelection, ServerAddress
from oxcart.spark.read.position import Position

pytest.importorskip("pyarrow")

from oxcart.spark.read.spool import Spool, position_of, read_segment
from oxcart.spark.read.tailer import Tailer

if TYPE_CHECKING:
    from tests.spark.conftest import Sunk

Emit = Callable[..., list[str]]
MINUTE = 60_000


def many(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"event": "waiting", "jobId": str(number)} for number in range(first, first + count)]


class Clock:
    now = 1_793_577_600_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def tailer(url: str, spool: Spool, clock: Clock) -> Tailer:
    return Tailer(ServerAddress(url=url), QueueSelection(("q",)), spool, keep=50_000, clock=clock)


def rows(spool: Spool, key: str = "q", after: Position | None = None) -> list[dict[str, Any]]:
    return [
        row
        for segment in spool.segments(key)
        for batch in read_segment(segment.path, after or Position())
        for row in batch.to_pylist()
    ]


def test_everything_is_spooled_once_and_found_again_after_a_restart(
    url: str, tailer: Tailer, spool: Spool, clock: Clock, emit: Emit
) -> None:
    emit("q", *many(10))
    assert tailer.step() == 10
    assert tailer.step() == 0
    again = Tailer(ServerAddress(url=url), QueueSelection(("q",)), spool, clock=clock)
    emit("q", *many(5, 10))
    assert again.step() == 5
    entries = [row for row in rows(spool) if row["kind"] == "entry"]
    assert [row["ordinal"] for row in entries] == list(range(1, 16))
    end = spool.end("q")
    assert end is not None
    assert (end.n, end.life) == (15, 1)


def test_lengths_are_sampled_every_minute_also_when_nothing_happens(
    tailer: Tailer, spool: Spool, clock: Clock, emit: Emit, store: redis.Redis
) -> None:
    emit("q", *many(1))
    store.rpush("bull:q:wait", "1", "2", "3")
    for _ in range(3):
        tailer.step()
        tailer.step()
        clock.now += MINUTE
    samples = [json.loads(row["data"])["wait"] for row in rows(spool) if row["kind"] == "counts"]
    assert samples == [3, 3, 3]


def test_a_pass_over_idle_queues_asks_once_for_each(
    url: str, spool: Spool, clock: Clock, emit: Emit, store: redis.Redis
) -> None:
    names = [f"q{number}" for number in range(20)]
    for name in names:
        emit(name, *many(2))
    tailer = Tailer(ServerAddress(url=url), QueueSelection(tuple(names)), spool, clock=clock)
    assert tailer.step() == 40
    assert tailer.step() == 0
    store.config_resetstat()
    assert tailer.step() == 0
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] == len(names)
    emit("q7", *many(3))
    assert tailer.step() == 3
    assert rows(spool, "q7")[-1]["ordinal"] == 5
    clock.now += MINUTE  # an idle queue is sampled, too
    tailer.step()
    assert all([row["kind"] for row in rows(spool, name)].count("counts") == 2 for name in names)


def test_a_sample_is_not_older_than_the_entries_that_were_read_before_it(
    tailer: Tailer, spool: Spool, emit: Emit
) -> None:
    """The clock is behind the server's. A sample among settled rows would rebuild the whole day."""
    last = emit("q", *many(3))[-1]
    tailer.step()
    (sample,) = (row for row in rows(spool) if row["kind"] == "counts")
    assert sample["at_ms"] == int(last.partition("-")[0])
    assert str(sample["day"]) == str(rows(spool)[0]["day"])


def test_reset_attachment_is_restored_and_logged(
    tailer: Tailer, emit: Emit, store: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    emit("q", *many(1))
    tailer.step()
    assert store.hget("bull:q:meta", "opts.maxLenEvents") == "50000"
    store.hset("bull:q:meta", "opts.maxLenEvents", "10000")
    tailer._renewed = float("-inf")
    with caplog.at_level(logging.WARNING, "oxcart.spark.read.tailer"):
        tailer.step()
    assert store.hget("bull:q:meta", "opts.maxLenEvents") == "50000"
    assert "skipMetasUpdate" in caplog.text


@pytest.mark.parametrize(
    "selection", [QueueSelection(("q",)), QueueSelection(pattern="*")], ids=["named", "pattern"]
)
def test_a_queue_that_comes_later_is_attached_with_the_next_pass(
    selection: QueueSelection, url: str, spool: Spool, clock: Clock, emit: Emit, store: redis.Redis
) -> None:
    tailer = Tailer(ServerAddress(url=url), selection, spool, keep=50_000, clock=clock)
    assert tailer.step() == 0
    emit("q", *many(3))
    tailer._look_at = 0  # the interval of pattern searches depends on their duration
    assert tailer.step() == 3
    assert store.hget("bull:q:meta", "opts.maxLenEvents") == "50000"


def test_trimmed_entries_are_a_gap_in_the_spool(
    tailer: Tailer, spool: Spool, emit: Emit, store: redis.Redis
) -> None:
    emit("q", *many(10))
    tailer.step()
    emit("q", *many(20))
    store.xtrim("bull:q:events", maxlen=5, approximate=False)
    tailer.step()
    gaps = [row for row in rows(spool) if row["kind"] == "gap"]
    assert [(gap["ordinal"], gap["lost"]) for gap in gaps] == [(11, 15)]


def test_rows_before_a_position_are_left_out(tailer: Tailer, spool: Spool, emit: Emit) -> None:
    emit("q", *many(10))
    tailer.step()
    found = [row for row in rows(spool, after=Position("x", 7, 1)) if row["kind"] == "entry"]
    assert [row["ordinal"] for row in found] == [8, 9, 10]


def test_forget_keeps_the_last_segment(tailer: Tailer, spool: Spool, emit: Emit) -> None:
    for number in range(3):
        emit("q", *many(2, number))
        tailer.step()
    end = spool.end("q")
    assert end is not None
    assert spool.forget({"q": end}) == 2
    assert [position_of(segment.path) for segment in spool.segments("q")] == [end]


def test_spark_reads_the_spool_and_takes_turns_with_the_server(
    tailer: Tailer, spool: Spool, emit: Emit, store: redis.Redis, drain: Callable[..., Sunk]
) -> None:
    emit("q", *many(10))
    assert len(drain().rows) == 10  # from the server
    emit("q", *many(10, 10))
    tailer.step()
    store.delete("bull:q:events")  # the server has trimmed them; the spool has not
    found = [row for row in drain(spool=str(spool.root)).rows if row["kind"] == "entry"]
    assert [row["ordinal"] for row in found] == list(range(11, 21))
    assert drain(spool=str(spool.root)).rows == []
