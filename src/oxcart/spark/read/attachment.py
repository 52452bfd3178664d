"""Attaches a pipeline to queues, so that no event is trimmed before it is read.

While a reader is attached, a queue keeps more events, and our workers record what events do not carry. A
reader renews its attachment; without a renewal it expires. With its last reader a queue gets its old settings
back.
Constructors of Node's ``Queue`` reset the number of kept events. Our scripts set it again whenever they run,
and a reader does so with every renewal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from oxcart.broker.clock import ServerClock
from oxcart.broker.export import Attached
from oxcart.model.errors import ValidationError
from oxcart.spark.options import ServerAddress
from oxcart.spark.read.connection import Connection

#: Events that an attached queue keeps: about 100 MB at most, and minutes at thousands of jobs a second.
KEEP = 500_000
#: How long a reader that does not renew stays attached, in ms.
TERM = 7 * 86_400_000


def attach(
    address: ServerAddress,
    queue: str,
    reader: str,
    *,
    keep: int = KEEP,
    term_ms: int = TERM,
    clock: Callable[[], int] | None = None,
) -> Attached | None:
    """Attaches a reader to a queue, or renews it; None where there is no such queue.

    Raises:
        ValidationError: ``keep`` is below 1000, or ``term_ms`` not above 0.
    """
    with Connection(address) as connection:
        return attach_over(connection, queue, reader, keep=keep, term_ms=term_ms, clock=clock)


def attach_over(
    connection: Connection,
    queue: str,
    reader: str,
    *,
    keep: int = KEEP,
    term_ms: int = TERM,
    clock: Callable[[], int] | None = None,
) -> Attached | None:
    """As `attach`, over a connection that is open."""
    if keep < 1000:
        raise ValidationError("keep", "at least 1000", keep)
    if term_ms < 1:
        raise ValidationError("term_ms", "at least 1", term_ms)
    now = ServerClock(clock).argument
    return connection.run(connection.export.attach(queue, reader, term_ms, keep, now, uuid.uuid4().hex))


def detach(address: ServerAddress, queue: str, reader: str, *, clock: Callable[[], int] | None = None) -> int:
    """Detaches a reader; returns how many readers the queue has left."""
    with Connection(address) as connection:
        return connection.run(connection.export.detach(queue, reader, ServerClock(clock).argument))


def readers(address: ServerAddress, queue: str) -> dict[str, int]:
    """Returns the readers of a queue, each with the time at which its attachment expires, in ms."""
    with Connection(address) as connection:
        return connection.run(connection.export.readers(queue))
