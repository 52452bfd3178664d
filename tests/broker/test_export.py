"""Reads of streams and job records, by code without an event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from oxcart.broker.blocking import Blocking
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.export import EVENTS, Export, StreamFacts
from oxcart.broker.factory import export_of
from oxcart.model.errors import BrokerUnavailable


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.close()


@pytest.fixture
def export(url: str, blocking: Blocking) -> Iterator[Export]:
    made = export_of("bullmq")(Server(url), "bull", Reconnect(attempts=3))
    yield made
    blocking.run(made.close())


def fill(store: redis.Redis, count: int) -> list[str]:
    return [str(store.xadd("bull:q:events", {"event": "waiting", "jobId": str(n)})) for n in range(count)]


def test_a_stride_counts_entries_after_an_id(blocking: Blocking, export: Export, store: redis.Redis) -> None:
    ids = fill(store, 10)
    stride = blocking.run(export.stride("q", EVENTS, ids[2], "+", 5))
    assert (stride.count, stride.last) == (5, ids[7])
    assert (stride.facts.added, stride.facts.kept, stride.facts.first) == (10, 10, ids[0])


def test_facts_and_entries_are_of_one_moment(blocking: Blocking, export: Export, store: redis.Redis) -> None:
    ids = fill(store, 10)
    store.xtrim("bull:q:events", maxlen=4, approximate=False)
    facts, entries = blocking.run(export.page_with_facts("q", EVENTS, ids[0], "+", 3))
    assert facts.gone == 6
    assert [entry_id.decode() for entry_id, _ in entries] == ids[6:9]


def test_a_missing_stream_has_no_facts_and_no_entries(blocking: Blocking, export: Export) -> None:
    assert blocking.run(export.page_with_facts("q", EVENTS, "0-0", "+", 3)) == (StreamFacts(), [])


def test_a_read_survives_a_lost_connection(blocking: Blocking, export: Export, store: redis.Redis) -> None:
    ids = fill(store, 3)
    assert len(blocking.run(export.page("q", EVENTS, ids[0], "+", 10))) == 3
    store.client_kill_filter(_type="normal", skipme=True)
    assert len(blocking.run(export.page("q", EVENTS, ids[0], "+", 10))) == 3


def test_an_absent_server_is_given_up_after_the_attempts(blocking: Blocking) -> None:
    export = export_of("bullmq")(Server("redis://127.0.0.1:1/0"), "bull", Reconnect(0.01, attempts=2))
    with pytest.raises(BrokerUnavailable, match=r"gave up after 2 attempts: cannot reach 127\.0\.0\.1:1"):
        blocking.run(export.kept("q"))
    blocking.run(export.close())
