"""The lag of a pipeline as Prometheus sees it; no Spark is needed for it."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
import redis

from oxcart.spark.lag import FRESH, LagMetrics, serve_lag
from oxcart.spark.lake.versions import Lake
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.attachment import attach
from oxcart.spark.status import Standing, standings


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_unread_entries_of_an_attached_queue_are_its_lag(
    url: str, store: redis.Redis, tmp_path: Path
) -> None:
    store.hset("bull:mail:meta", "opts.maxLenEvents", "10000")
    for number in range(7):
        store.xadd("bull:mail:events", {"event": "waiting", "jobId": str(number)})
    address = ServerAddress(url=url)
    assert attach(address, "mail", "main") is not None
    server = serve_lag(lambda: standings(address, Lake(tmp_path / "lake")), "127.0.0.1", 0)
    try:
        found = scrape(f"http://127.0.0.1:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
    place = '{queue="mail",stream="events"}'
    assert found[f"bullmq_pipeline_lag_entries{place}"] == 7
    assert 0 <= found[f"bullmq_pipeline_lag_seconds{place}"] < 600
    assert found[f"bullmq_pipeline_seconds_until_loss{place}"] > 3600


def test_live_answers_without_asking_the_server() -> None:
    asked: list[int] = []

    def read() -> list[Standing]:
        asked.append(1)
        return []

    server = serve_lag(read, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{base}/live", timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, b"live\n")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}/other", timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    refused.value.close()
    assert (refused.value.code, asked) == (404, [])


def test_a_reading_is_shared_for_a_time_and_a_failure_shows_no_number() -> None:
    now, calls = 0.0, 0

    def read() -> list[Standing]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("the server is away")
        return [Standing("mail", "events", 5, None, 2500, 100, None, 0.0, 0.0)]

    metrics = LagMetrics(read, clock=lambda: now)

    def samples() -> dict[str, float]:
        return {sample.name: sample.value for family in metrics.collect() for sample in family.samples}

    assert samples() == samples() == {"bullmq_pipeline_lag_seconds": 2.5}
    assert calls == 1
    now += FRESH
    assert samples() == {}
    now += FRESH
    assert samples() == {"bullmq_pipeline_lag_seconds": 2.5}
