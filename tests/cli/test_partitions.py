"""``oxcart partitions``: the layout of a queue, and another number of partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oxcart.model.partitions import partition_of
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


def test_commands_work_on_all_partitions(ox: Commands, queue: Queue) -> None:
    """A plain queue of the same name would be one that no worker consumes."""
    queue.partitions.layout()
    made = ox("add", "events", "n", '{"a": 1}', "--partition-key", "k1", "--json").json
    job = queue.jobs.get(made["id"])
    assert job is not None
    assert job.queue == f"events#{partition_of('k1', 4)}"
    assert ox("add", "events", "n", "{}").err == "", "the queue exists"
    assert ox("queues", "events", "--json").json[0]["counts"]["waiting"] == 2
    assert ox("pause", "events").code == 0
    assert queue.is_paused()
    assert ox("resume", "events").code == 0
    assert not queue.is_paused()
    assert ox("limits", "set", "events", "--concurrency", "8").code == 0
    assert queue.limits.concurrency() == 8
    assert len(ox("jobs", "events", "--json").json) == 2
    assert ox("clear", "events", "--yes").code == 0
    assert queue.counts()["waiting"] == 0
    with Queue("events", url=queue._core.server.location.url) as plain:  # type: ignore[union-attr]
        assert not plain._core.partitions
        assert sum(plain.counts().values()) == 0


def test_a_partition_is_a_queue_of_its_own(ox: Commands, queue: Queue) -> None:
    queue.partitions.layout()
    assert ox("add", "events#2", "n", "{}").code == 0
    assert [row["waiting"] for row in queue.partitions.counts()] == [0, 0, 1, 0]


def test_a_queue_over_several_servers_needs_each_of_them(clean: ValkeyServer, ox: Commands) -> None:
    with ValkeyServer() as other, Queue("events", url=[clean.url, other.url], partitions=4) as queue:
        queue.add("n", partition_key="k1")
        both = ("--server", clean.url, "--server", other.url)
        assert ox("pause", "events", *both).code == 0
        assert queue.is_paused()
        assert ox(*both, "partitions", "show", "events", "--json").json["size"] == 4
        alone = ox("pause", "events")
        assert alone.code == 2
        assert "a list of 2 servers" in alone.err
        assert "--server" in alone.err
        assert "no partitions of queue 'mail'" in ox("priorities", "mail", *both).err
        assert "pass one with --url" in ox("queues", *both).err
