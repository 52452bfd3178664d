"""The registry of workers: one record per worker, which each protocol stores in its own form."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Protocol

import msgspec

from oxcart.model.target import Abilities

#: Seconds between heartbeats, and seconds after which a worker without one counts as gone.
EVERY = 10.0
LIFE = 30.0
#: Heartbeats that a worker of many queues sends per second at most.
BEATS = 2


class Wakes(StrEnum):
    """Which adds to lanes wake a worker that is idle."""

    NOTHING = ""
    NEW_LANES = "1"
    EVERY_ADD = "2"


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the registry shows it.

    Attributes:
        id: The worker's id.
        server: The name that ``Target(server=…)`` matches: its name, unless its abilities set another.
        name: Its name, as peers see it.
        stack: The stacks that it runs on.
        region: The regions that it is in.
        capabilities: What it can do.
        routed: Whether it takes jobs with a target; a worker without abilities does not.
        pid: Its process id.
        hostname: Its machine.
        queues: The queues that it consumes; empty if a worker of another client does not list them. Of a
            worker with more than 64 queues it is the one with this record.
        concurrency: How many jobs it runs at once.
        version: The version of Oxcart that it runs.
        started_at: When it started, in ms by the server's clock.
        last_seen: When it wrote this record, in ms by the server's clock.
        clock: The same time by the clock of its machine; None if it is unknown.
        alive: Whether it gave a sign of life within 30 s.
        beats_in: The queue whose record the worker renews every ten seconds, if it is another one. A worker
            of more than 20 queues renews the other records seldom: it lives as long as that one.
    """

    id: str
    server: str = ""
    name: str = ""
    stack: tuple[str, ...] = ()
    region: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    routed: bool = False
    pid: int = 0
    hostname: str = ""
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    version: str = ""
    started_at: int = 0
    last_seen: int = 0
    clock: int | None = None
    alive: bool = True
    beats_in: str = ""

    @property
    def skew_ms(self) -> int | None:
        """How far the clock of its machine is ahead of the server's, in ms; None if it is unknown."""
        return None if self.clock is None else self.clock - self.last_seen

    @property
    def abilities(self) -> Abilities:
        """Its abilities as a value of the model."""
        return Abilities(self.server or None, self.stack, self.capabilities, self.region)

    def may_take(self, queue: str) -> bool:
        """Whether it takes jobs of a queue; a worker that does not list its queues may take any."""
        return not self.queues or queue in self.queues


class WorkerRegistry(Protocol):
    """The workers of a queue, or of the namespace that the queue belongs to.

    Attributes:
        by_name: Whether a worker is known by its name, in one entry for all queues with the same base key.
            Jobs of a worker without an entry then count as lost, so it must register before it claims.
    """

    by_name: bool

    @property
    def place(self) -> Hashable:
        """Equal for queues that share one entry per worker."""

    def check_name(self, name: str) -> None:
        """Raises ``ValidationError`` if the registry cannot have a worker of this name."""

    async def beat(self, record: WorkerRecord, wakes: Wakes = Wakes.NOTHING, *, life: float = LIFE) -> None:
        """Writes a worker's record, which counts as a sign of life for so many seconds."""

    async def leave(self, worker_id: str) -> None:
        """Removes a worker that has stopped."""

    async def everyone(self) -> list[WorkerRecord]:
        """Returns all registered workers, by their ids, including those that are gone."""

    async def living(self) -> list[WorkerRecord]:
        """Returns the workers that live and may take jobs of the queue, by their ids."""

    async def sweep(self) -> int:
        """Removes entries of workers that are long gone; returns how many."""
