"""Makes the broker of a protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.capabilities import BRIDGE, BULLMQ, Capabilities
from oxcart.model.backoff import Backoff
from oxcart.model.errors import ValidationError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.export import Export
    from oxcart.broker.keyring import KeyRing
    from oxcart.broker.port import ServedBroker
    from oxcart.broker.port.results import QueueRow

ProtocolName = Literal["bullmq", "bridge"]

#: The default prefix of each protocol's keys.
PREFIXES: dict[str, str] = {"bullmq": "bull", "bridge": "bridge"}

#: Protocols whose queues may have partitions.
PARTITIONABLE = frozenset({"bullmq"})

CAPABILITIES: dict[str, Capabilities] = {"bullmq": BULLMQ, "bridge": BRIDGE}

#: The default options of jobs: Bridge waits 2 s, 4 s … up to a minute between attempts.
DEFAULTS: dict[str, JobOptions] = {
    "bullmq": DEFAULT_OPTIONS,
    "bridge": DEFAULT_OPTIONS.replace(backoff=Backoff("exponential", 2000, cap=60_000)),
}


def check_place(protocol: str, name: str, prefix: str | None, namespace: str | None) -> str:
    """Checks the place of a queue; returns the prefix of its keys.

    Raises:
        ValidationError: The protocol is unknown, or the name, prefix or namespace is malformed.
    """
    if protocol not in PREFIXES:
        raise ValidationError("protocol", " or ".join(map(repr, PREFIXES)), protocol)
    if protocol == "bridge":
        from oxcart.broker.bridge.keys import BridgeKeys

        if prefix is not None:
            raise ValidationError("prefix", "left out with protocol='bridge', which has a namespace", prefix)
        return BridgeKeys(name, PREFIXES[protocol] if namespace is None else namespace).namespace
    from oxcart.broker.bullmq.keys import Keys

    if namespace is not None:
        raise ValidationError("namespace", "left out with protocol='bullmq', which has a prefix", namespace)
    return Keys(name, PREFIXES[protocol] if prefix is None else prefix).prefix


def make_broker(
    protocol: str,
    server: Server,
    queue: str,
    *,
    prefix: str,
    reconnect: Reconnect | None = None,
    key_ring: KeyRing | None = None,
    formal: bool = False,
    **more: Any,
) -> ServedBroker:
    """Returns a broker of a protocol with a connection of its own.

    Args:
        protocol: ``bullmq`` or ``bridge``.
        server: The server that the queue is on.
        queue: Its name.
        prefix: The prefix of its keys: BullMQ's prefix, Bridge's namespace.
        reconnect: Pauses and limit of attempts to reach a lost server.
        key_ring: Opens sealed payloads.
        formal: Whether priorities are the five formal ones, for which Bridge has numbers of its own.
        **more: Arguments that only one protocol takes.
    """
    if protocol == "bridge":
        from oxcart.broker.bridge.broker import BridgeBroker

        return BridgeBroker(
            server, queue, namespace=prefix, reconnect=reconnect, key_ring=key_ring, formal=formal, **more
        )
    return BullMQBroker(server, queue, prefix=prefix, reconnect=reconnect, key_ring=key_ring, **more)


def make_spread(
    servers: Sequence[Server],
    queue: str,
    size: int,
    *,
    prefix: str,
    reconnect: Reconnect | None = None,
    key_ring: KeyRing | None = None,
    keep_events: int | None = None,
) -> ServedBroker:
    """Returns a broker of a partitioned queue with connections of its own.

    Args:
        servers: The servers that its partitions are on, in turn.
        queue: Its name.
        size: How many partitions it gets if it is new.
        prefix: The prefix of its keys.
        reconnect: Pauses and limit of attempts to reach a lost server.
        key_ring: Opens sealed payloads.
        keep_events: About how many events each partition keeps.
    """
    from oxcart.broker.partitioned import PartitionedBroker, Spread

    return PartitionedBroker(
        Spread(
            queue,
            servers,
            size,
            prefix=prefix,
            reconnect=reconnect,
            key_ring=key_ring,
            keep_events=keep_events,
        )
    )


def overview(
    server: Server, prefix: str, reconnect: Reconnect | None = None, *, match: str | None = None
) -> AsyncIterator[list[QueueRow]]:
    """Yields all queues of BullMQ under a prefix, page by page.

    The queues of a page are sorted by name; pages come in the order in which the server lists keys.

    Args:
        server: The server.
        prefix: The prefix of queue names in keys.
        reconnect: Pauses and limit of attempts to reach a lost server.
        match: Only queues whose names fit, ``*`` and ``?`` as in a shell.
    """
    from oxcart.broker.bullmq.overview import overview as pages

    return pages(server, prefix, reconnect, match=match)


async def count_queues(
    server: Server, prefix: str, names: Sequence[str], reconnect: Reconnect | None = None
) -> list[QueueRow]:
    """Returns queues of BullMQ by their names, sorted, without those that do not exist."""
    from oxcart.broker.bullmq.overview import count_queues as count

    return await count(server, prefix, names, reconnect)


def export_of(protocol: str) -> type[Export]:
    """Returns the class that reads the streams and job records of a protocol."""
    if protocol == "bridge":
        from oxcart.broker.bridge.export import BridgeExport

        return BridgeExport
    from oxcart.broker.bullmq.export import BullMQExport

    return BullMQExport
