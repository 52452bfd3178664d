"""Attaching a pipeline to queues, so that nothing is forgotten before it is read.

While a reader is attached, a queue keeps more events, and our workers record what events do not carry. A
reader is attached until a time that it renews; one that is gone is forgotten by itself, and with its last
reader a queue becomes what it was before the first. Node's ``Queue`` constructors set the number of kept
events back to theirs: our scripts set it again whenever they run, and a reader does so at every renewal.

May touch: the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from oxcart.broker.clock import ServerClock
from oxcart.broker.connection import Server
from oxcart.model.errors import ValidationError
from oxcart.spark.access import Access

#: Events that an attached queue keeps: about 100 MB at most, and minutes at thousands of jobs a second.
KEEP = 500_000
#: How long a reader that does not renew stays attached, in ms.
TERM = 7 * 86_400_000


@dataclass(frozen=True)
class Attached:
    """What a queue is set to.

    Attributes:
        kept: How many events it keeps.
        before: How many it kept until this call; fewer than ``kept`` means that somebody had set it back.
        life: The mark of its event stream's life.
    """

    kept: int
    before: int
    life: str

    @property
    def was_reset(self) -> bool:
        """Whether it had to be set again."""
        return self.before < self.kept


def attach(
    access: Access,
    queue: str,
    reader: str,
    *,
    keep: int = KEEP,
    term_ms: int = TERM,
    server: Server | None = None,
    clock: Callable[[], int] | None = None,
) -> Attached | None:
    """Attaches a reader to a queue, or renews it; None where there is no such queue.

    Raises:
        ValidationError: ``keep`` is below 1000, or ``term_ms`` not above 0.
    """
    if keep < 1000:
        raise ValidationError("keep", "at least 1000", keep)
    if term_ms < 1:
        raise ValidationError("term_ms", "at least 1", term_ms)
    server = server or access.server()
    layout = access.layout(server)
    now = ServerClock(clock).argument
    with layout.wire(server, queue) as wire:
        told = layout.attach(wire, queue, reader, term_ms, keep, now, uuid.uuid4().hex)
    return Attached(int(told[0]), int(told[1]), told[2].decode()) if told else None


def detach(
    access: Access,
    queue: str,
    reader: str,
    *,
    server: Server | None = None,
    clock: Callable[[], int] | None = None,
) -> int:
    """Ends a reader's attachment; returns how many readers the queue has left."""
    server = server or access.server()
    layout = access.layout(server)
    with layout.wire(server, queue) as wire:
        return int(layout.detach(wire, queue, reader, ServerClock(clock).argument))


def readers(access: Access, queue: str, *, server: Server | None = None) -> dict[str, int]:
    """The readers of a queue, each with the time until which it is attached, in ms."""
    server = server or access.server()
    layout = access.layout(server)
    with layout.wire(server, queue) as wire:
        return layout.readers(wire, queue)
