"""One cluster per test process, three masters with a replica each, and queues on each master."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart.broker.bullmq.keys import Keys
from tests.servers import ValkeyCluster, ValkeyServer

_numbers = itertools.count()


class Masters:
    """A cluster, with helpers for tests."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self.cluster = cluster
        self.url = cluster.url

    def nodes(self) -> Iterator[tuple[ValkeyServer, Any]]:
        for node in self.cluster.nodes:
            with node.client() as client:
                yield node, client

    def owner(self, slot: int) -> ValkeyServer:
        """Returns the node that currently claims to serve a slot."""
        for node, client in self.nodes():
            mine = client.execute_command("CLUSTER", "MYID")
            for first, last, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last and _text(master[2]) == _text(mine):
                    return node
        raise AssertionError(f"no node serves slot {slot}")

    def all_keys(self) -> list[str]:
        """Every key of every master."""
        return [key for _, client in self.nodes() for key in client.scan_iter()]

    def flush(self) -> None:
        for _, client in self.nodes():
            with contextlib.suppress(Exception):
                client.flushall()

    def queue_on(self, node: ValkeyServer) -> str:
        """Returns a new queue name whose slot is on a node."""
        while True:
            name = f"queue-{next(_numbers)}"
            if self.owner(Keys(name, tagged=True).slot()) is node:
                return name


def _text(raw: str | bytes) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


@pytest.fixture(scope="session")
def _cluster() -> Iterator[ValkeyCluster]:
    # No node is killed here, and a paused machine must not make a node count as dead.
    with ValkeyCluster(replicas=1, node_timeout=15_000) as cluster:
        yield cluster


@pytest.fixture
def masters(_cluster: ValkeyCluster) -> Masters:
    """An empty cluster."""
    masters = Masters(_cluster)
    masters.flush()
    return masters
