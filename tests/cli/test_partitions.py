"""``oxcart partitions``: the layout of a queue, and another number of partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Iterator[Queue]:
    with Queue("events", url=clean.url, partitions=4) as queue:
        yield queue


def test_show_resize_and_retire(ox: Commands, queue: Queue) -> None:
    for number in range(8):
        queue.add("n", partition_key=f"k{number}")
    shown = ox("partitions", "show", "events", "--json").json
    assert (shown["size"], shown["served"], len(shown["partitions"])) == (4, 4, 4)
    assert sum(row["waiting"] for row in shown["partitions"]) == 8
    text = ox("partitions", "show", "events").out
    assert "new jobs go to  4" in text
    assert "events#3" in text
    resized = ox("partitions", "resize", "events", "2", "--json").json
    assert (resized["size"], resized["served"]) == (2, 4)
    refused = ox("partitions", "retire", "events")
    assert refused.code != 0
    assert "partitions still have jobs" in refused.err
    queue.jobs.clear()
    assert ox("partitions", "retire", "events", "--json").json["served"] == 2
    assert queue.partitions.layout().size == 2


def test_a_queue_without_partitions_is_refused(ox: Commands, clean: ValkeyServer) -> None:
    shown = ox("partitions", "show", "mail")
    assert shown.code != 0
    assert "has no partitions" in shown.err
    with clean.client() as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize("size", ["0", "1025", "many"])
def test_a_wrong_number_is_refused(ox: Commands, queue: Queue, size: str) -> None:
    queue.add("n")
    assert ox("partitions", "resize", "events", size).code != 0
    assert queue.partitions.layout().version == 1
