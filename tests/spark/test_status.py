"""How a pipeline stands: lag, rates and the time that is left, from server and snapshots alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis

from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.attachment import attach
from oxcart.spark.read.connection import Connection
from oxcart.spark.status import Standing, standings

Emit = Callable[..., list[str]]
NOW = 1_793_577_600_000


def stand(lake: Lake, url: str, at: int = NOW) -> Standing:
    (standing,) = standings(ServerAddress(url=url), lake, clock=lambda: at)
    return standing


def read(lake: Lake, url: str, rows: int) -> None:
    """Says that everything there is has been read, and how many rows that were."""
    with Connection(ServerAddress(url=url)) as connection:
        end = connection.stream("mail").end()
    actual = {"id": end.id, "n": end.n, "life": 1, "mark": "", "minute": 0}
    lake.publish(Change("ingest", marks={"ingest:main": {"mail": actual}}, rows={"mail": rows}))


def test_a_lag_and_the_time_until_it_is_a_loss(url: str, emit: Emit, tmp_path: Path) -> None:
    lake = Lake(tmp_path, clock=lambda: NOW - 10_000)
    some = [{"event": "waiting", "jobId": str(number)} for number in range(60)]
    emit("mail", *some, at=NOW - 90_000)
    read(lake, url, 60)
    emit("mail", *some[:30], at=NOW - 30_000)
    standing = stand(lake, url)
    assert (standing.queue, standing.stream, standing.read) == ("mail", "events", 60)
    assert (standing.lag, standing.lag_ms, standing.kept) == (30, 30_000, 10_000)
    assert (standing.rate, standing.rows_s) == (0.5, 1.0), "30 came and 60 were read in the last minute"
    assert standing.lost_in_ms == (10_000 - 30) * 2000


def test_no_lag_without_new_entries(url: str, emit: Emit, tmp_path: Path) -> None:
    lake = Lake(tmp_path, clock=lambda: NOW - 100_000)
    emit("mail", {"event": "waiting", "jobId": "1"}, at=NOW - 100_000)
    read(lake, url, 1)
    standing = stand(lake, url)
    assert (standing.lag, standing.lag_ms, standing.lost_in_ms) == (0, 0, None)
    assert (standing.rate, standing.rows_s) == (0.0, 0.0)


def test_a_stream_that_is_another_one_now(url: str, emit: Emit, store: redis.Redis, tmp_path: Path) -> None:
    lake = Lake(tmp_path, clock=lambda: NOW)
    emit("mail", *[{"event": "waiting", "jobId": "1"}] * 3, at=NOW - 5000)
    read(lake, url, 3)
    store.delete("bull:mail:events")
    emit("mail", {"event": "waiting", "jobId": "1"}, at=NOW - 1000)
    assert stand(lake, url).lag is None


def test_an_attached_queue_is_listed_before_its_first_batch(
    url: str, emit: Emit, store: redis.Redis, tmp_path: Path
) -> None:
    address = ServerAddress(url=url)
    emit("mail", *[{"event": "waiting", "jobId": "1"}] * 3, at=NOW - 5000)
    emit("other", {"event": "waiting", "jobId": "1"}, at=NOW - 5000)
    assert standings(address, Lake(tmp_path), clock=lambda: NOW) == []
    attach(address, "mail", "main")
    attach(address, "other", "another pipeline")
    standing = stand(Lake(tmp_path), url)
    assert (standing.queue, standing.stream, standing.read, standing.lag) == ("mail", "events", 0, 3)
    assert (standing.lag_ms, standing.kept) == (5000, 500_000)
