"""The queues with handlers that a worker consumes."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, Protocol

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.engine.handler import Handlers

if TYPE_CHECKING:
    from oxcart.engine.webhooks.queue import WebhookQueue


class Source(Protocol):
    """A queue as a worker consumes it: its handlers and its broker."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def handlers(self) -> Handlers:
        """Its handlers."""

    def open_broker(self, reconnect: Reconnect | None = None) -> ServedBroker:
        """Opens a broker with a connection of its own for the worker."""

    @property
    def webhook_queue(self) -> WebhookQueue | None:
        """The queue in which its webhooks wait to be sent; None if it has none."""

    def station_facts(self) -> dict[str, Any]:
        """Returns the facts by which the renewer process finds the queue; empty if only this process can."""


class Consumable(Protocol):
    """A queue that a worker consumes: ``oxcart.Queue`` or ``oxcart.sync.Queue``."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def _core(self) -> Source:
        """The core behind the queue's face."""


def make_worker_id() -> str:
    """Makes an id: ``{hostname}-{pid}-{6 hex}``."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
