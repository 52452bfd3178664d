"""The queues with handlers that a worker consumes."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, Protocol

from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.engine.handler import Handlers
from oxcart.model.errors import ValidationError

if TYPE_CHECKING:
    from oxcart.engine.tracing import Tracing
    from oxcart.engine.webhooks.queue import WebhookQueue

#: Characters of a program's version at most: every attempt record has it.
LONGEST_VERSION = 100


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

    @property
    def tracing(self) -> Tracing | None:
        """Makes spans of what happens to its jobs; None for none."""

    @property
    def partitions(self) -> int | None:
        """How many partitions a new queue gets; None for a queue without, and for a partition."""

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


def read_version(given: str | None) -> str:
    """Returns the version of the program, by default that of ``OXCART_APP_VERSION``; empty for none.

    Raises:
        ValidationError: It is longer than `LONGEST_VERSION` characters, or no text.
    """
    field = "version" if given is not None else "OXCART_APP_VERSION"
    version = os.environ.get("OXCART_APP_VERSION", "") if given is None else given
    if not isinstance(version, str) or len(version) > LONGEST_VERSION:
        raise ValidationError(field, f"a text of at most {LONGEST_VERSION} characters", version)
    return version


def make_worker_id() -> str:
    """Makes an id: ``{hostname}-{pid}-{6 hex}``."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
