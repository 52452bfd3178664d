"""Samples of queues at one moment, for a dashboard."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from oxcart.broker.workers import WorkerRecord


class Start(NamedTuple):
    """Where the sample of a queue begins.

    Attributes:
        since: The id of the last event seen; empty to read the newest ones.
        most: How many events to read at most.
        lanes_since: From which time on to read the events of its lanes, in ms; None to read none.
    """

    since: str
    most: int
    lanes_since: int | None


class SampledEvent(NamedTuple):
    """One of many events, as far as a dashboard counts them.

    Attributes:
        id: Its id in the stream.
        at_ms: When it was written.
        name: Its name, for example ``completed``.
        job_id: Its job; empty for an event of the queue.
    """

    id: str
    at_ms: int
    name: str
    job_id: str


class Sample(msgspec.Struct, kw_only=True):
    """A queue at one moment.

    Attributes:
        at_ms: The time, by the server's clock.
        counts: How many jobs of it and of its lanes are in each list of the wire.
        paused: Whether it is paused.
        version: The library that wrote its settings, if it left its name.
        oldest_ms: Since when the oldest ready job is ready, or None without one.
        events: Its events since the last sample, oldest first.
        cut: Whether there are more events than were read.
        has_lanes: Whether jobs of the queue may have targets.
        grouped: Jobs that wait for their group's turn. On the wire they are delayed, so they count there too.
        lane_events: Events of its lanes since the last sample, oldest first.
        lanes_cut: Whether there may be more of them than were read.
        partitions: The jobs of each partition in each list of the wire; empty for a queue without partitions.
        position: Where to continue instead of behind the last event; empty for there.
    """

    at_ms: int
    counts: dict[str, int]
    paused: bool = False
    version: str | None = None
    oldest_ms: int | None = None
    events: list[SampledEvent] = msgspec.field(default_factory=list)
    cut: bool = False
    has_lanes: bool = False
    grouped: int = 0
    lane_events: list[SampledEvent] = msgspec.field(default_factory=list)
    lanes_cut: bool = False
    partitions: list[dict[str, int]] = msgspec.field(default_factory=list)
    position: str = ""


class Crew(msgspec.Struct, kw_only=True):
    """The workers of a queue.

    Attributes:
        workers: Those that are registered: ours, and Bridge's.
        peers: Connections of other clients' workers, such as Node's, by the worker's name.
    """

    workers: list[WorkerRecord] = msgspec.field(default_factory=list)
    peers: list[str] = msgspec.field(default_factory=list)


class Sampling(Protocol):
    """Samples a queue together with others on its server."""

    @property
    def place(self) -> Hashable:
        """The place of the queue. One call samples all queues of a place."""

    async def sample(self, queues: Sequence[Sampling], starts: Sequence[Start]) -> list[Sample]:
        """Samples queues of this place."""

    async def crews(self, queues: Sequence[Sampling]) -> list[Crew]:
        """Returns the live workers of queues of this place."""
