"""The types of the options of event readers and writers, for annotations."""

from __future__ import annotations

from typing import TypedDict

from oxcart.compat.bullmq.types.connection_options import ConnectionOptions


class QueueEventsOptions(TypedDict, total=False):
    """Options of a reader of a queue's events."""

    autorun: bool
    blockingTimeout: int
    connection: ConnectionOptions
    lastEventId: str
    prefix: str
    skipVersionCheck: bool


class QueueEventsProducerOptions(TypedDict, total=False):
    """Options of a producer of application events."""

    connection: ConnectionOptions
    prefix: str
    skipVersionCheck: bool
