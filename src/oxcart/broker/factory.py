"""Makes the broker of a protocol, and finds BullMQ's where a feature needs it.

May touch: nothing; the brokers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.capabilities import BRIDGE, BULLMQ, Capabilities
from oxcart.model.backoff import Backoff
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.options import DEFAULT_OPTIONS, JobOptions

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server
    from oxcart.broker.keyring import KeyRing
    from oxcart.broker.port import Broker, ServedBroker

ProtocolName = Literal["bullmq", "bridge"]

#: What stands before the keys of each protocol where nobody says otherwise.
PREFIXES: dict[str, str] = {"bullmq": "bull", "bridge": "bridge"}

CAPABILITIES: dict[str, Capabilities] = {"bullmq": BULLMQ, "bridge": BRIDGE}

#: What is said of a queue that lives in memory, where something needs more.
NO_SERVER = "this needs a server, and a queue that is inline or manual has no server"

#: The options of jobs that say nothing: Bridge waits 2 s, 4 s … up to a minute between attempts.
DEFAULTS: dict[str, JobOptions] = {
    "bullmq": DEFAULT_OPTIONS,
    "bridge": DEFAULT_OPTIONS.replace(backoff=Backoff("exponential", 2000, cap=60_000)),
}


def check_place(protocol: str, name: str, prefix: str | None, namespace: str | None) -> str:
    """Checks where a queue is to be; returns what stands before its keys.

    Raises:
        ValidationError: The protocol is unknown, or the name, prefix or namespace cannot be.
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
    """A broker of a protocol with a connection of its own.

    Args:
        protocol: ``bullmq`` or ``bridge``.
        server: Where the queue lives.
        queue: Its name.
        prefix: What stands before its keys: BullMQ's prefix, Bridge's namespace.
        reconnect: Pauses and limit of attempts to reach a lost server.
        key_ring: Opens payloads that are sealed.
        formal: Whether priorities are the five formal ones, for which Bridge has numbers of its own.
        **more: What only one protocol takes.
    """
    if protocol == "bridge":
        from oxcart.broker.bridge.broker import BridgeBroker

        return BridgeBroker(
            server, queue, namespace=prefix, reconnect=reconnect, key_ring=key_ring, formal=formal, **more
        )
    return BullMQBroker(server, queue, prefix=prefix, reconnect=reconnect, key_ring=key_ring, **more)


def native(broker: Broker, feature: str, without: str = NO_SERVER) -> BullMQBroker:
    """The broker, where it is BullMQ's: what a feature is made of in that protocol alone needs it.

    Args:
        broker: A queue's storage.
        feature: The feature, as the table of capabilities names it.
        without: What to say where there is no server at all.

    Raises:
        NotSupported: The queue's protocol has no place for the feature.
    """
    if is_native(broker):
        return broker
    known: Capabilities | None = getattr(broker, "capabilities", None)
    if known is not None:
        known.require(feature)
    raise OxcartError(without)


def is_native(broker: object) -> TypeGuard[BullMQBroker]:
    """Whether a broker is BullMQ's."""
    return isinstance(broker, BullMQBroker)
