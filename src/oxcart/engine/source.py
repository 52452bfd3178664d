"""What a worker consumes, as it sees it: queues, and where their webhooks wait.

May touch: nothing; protocols.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any, Protocol

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.engine.callbacks import Deliveries
from oxcart.engine.handler import Registry


class HasQueue(Deliveries, Protocol):
    """Deliveries that wait in a queue."""

    @property
    def queue(self) -> Source:
        """That queue."""


class Source(Protocol):
    """What a worker consumes: a queue that knows its handlers and where it lives."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def registry(self) -> Registry:
        """Its handlers."""

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """A broker of its own for the worker."""

    def station_facts(self) -> dict[str, Any]:
        """What the renewer needs to find the queue."""


def deliveries_of(source: Source) -> HasQueue | None:
    """Where a queue's webhooks wait to be delivered, if it has any."""
    found: HasQueue | None = getattr(source, "deliveries", None)
    return found


def make_worker_id() -> str:
    """``{hostname}-{pid}-{6 hex}``."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
