"""The options of readers and writers of events, for those who annotate it."""

from __future__ import annotations

from typing import TypedDict

from oxcart.compat.bullmq.types.connection_options import ConnectionOptions


class QueueEventsOptions(TypedDict, total=False):
    """Of whoever listens to a queue."""

    autorun: bool
    blockingTimeout: int
    connection: ConnectionOptions
    lastEventId: str
    prefix: str
    skipVersionCheck: bool


class QueueEventsProducerOptions(TypedDict, total=False):
    """Of whoever publishes events of its own."""

    connection: ConnectionOptions
    prefix: str
    skipVersionCheck: bool
