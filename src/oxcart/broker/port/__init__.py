"""The port between storage and engine: the values that pass it and the protocols that a broker fulfils.

A broker is one queue on one server. A verb that takes several items answers each of them separately, and the
fault of one item does not affect another. A verb that changes something may be repeated after a lost reply:
the broker repeats it by itself, and the server answers the repeat from its journal.

`values` has the structs, `codes` the reply codes, `broker` the verbs, `parts` and `flows` the optional parts
and `results` what these take and return.
"""

from __future__ import annotations

from oxcart.broker.port.broker import Broker, BrokerSource, QueueKeys, ServedBroker
from oxcart.broker.port.claimed import ClaimedJob
from oxcart.broker.port.codes import Code, OutcomeKind
from oxcart.broker.port.values import (
    LARGE_OUTCOME,
    LIFETIME_OVER,
    NOTHING,
    UNDECODABLE,
    Added,
    Ask,
    Claimed,
    Encoded,
    Ended,
    Lease,
    Outage,
    Outcome,
    Recovered,
)

__all__ = [
    "LARGE_OUTCOME",
    "LIFETIME_OVER",
    "NOTHING",
    "UNDECODABLE",
    "Added",
    "Ask",
    "Broker",
    "BrokerSource",
    "Claimed",
    "ClaimedJob",
    "Code",
    "Encoded",
    "Ended",
    "Lease",
    "Outage",
    "Outcome",
    "OutcomeKind",
    "QueueKeys",
    "Recovered",
    "ServedBroker",
]
