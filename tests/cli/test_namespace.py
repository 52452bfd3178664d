"""The commands on a Bridge namespace: what they do, say, and end with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Iterator[Queue]:
    with Queue("email", url=clean.url, protocol="bridge", namespace="bridge") as queue:
        yield queue


def test_a_namespace_at_a_glance(ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
    queue.add("email", {})
    queue.add("email", {}, delay="1h")
    with clean.client() as client:
        client.sadd("bridge:workers:active", "worker-1")
    seen = ox("namespace", "--json")
    assert seen.code == 0
    assert (seen.json["waiting"], seen.json["delayed"], seen.json["active"], seen.json["dead"]) == (
        1,
        1,
        0,
        0,
    )
    assert [(one["id"], one["alive"]) for one in seen.json["workers"]] == [("worker-1", False)]
    assert "worker-1" in ox("namespace").out
    assert ox("--namespace", "other", "namespace", "--json").json["waiting"] == 0


def test_queues_are_its_job_types(ox: Commands, queue: Queue) -> None:
    job = queue.add("email", {"to": "ada"})
    (row,) = ox("queues", "--namespace", "bridge", "--json").json
    assert (row["queue"], row["counts"]["waiting"]) == ("email", 1)
    assert ox("queues", "--json").json == [], "BullMQ's are others"
    assert ox("pause", "email", "--namespace=bridge").code == 0
    assert ox("queues", "--namespace", "bridge", "--json").json[0]["paused"]
    shown = ox("job", "email", job.id, "--namespace", "bridge", "--json")
    assert shown.code == 0
    assert shown.json["data"] == {"to": "ada"}
    assert ox("remove", "email", job.id, "--yes", "--namespace", "bridge").code in (0, 2)


def test_what_it_cannot_express_is_said(ox: Commands, queue: Queue) -> None:
    refused = ox("drain", "email", "--yes", "--namespace", "bridge")
    assert refused.code != 0
    assert "bridge protocol has no place" in refused.err
