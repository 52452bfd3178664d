"""Jobs that ask for a certain worker, and the workers that answer.

    await video.add("render", {"clip": 7}, target=Target(capabilities="gpu", region=["us-east", "us-west"]))
    Worker(video, abilities=Abilities(capabilities=["gpu", "cuda"], region="us-east"))

A job with a target waits in a lane of its queue: a queue of its own that is named after the target, so that
only workers that fit it look there (docs/decisions/60-lanes.md). The methods here are part of ``Queue``.

May touch: the server, through the queue's broker.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.looking import Namespace
from oxcart.broker.bullmq.codec import Encoded
from oxcart.broker.bullmq.registry import WorkerRecord
from oxcart.broker.caller import time_left
from oxcart.broker.factory import NO_SERVER
from oxcart.cancelling import Cancelling
from oxcart.handle import JobHandle
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.job import Job
from oxcart.model.target import Target, lane_name

if TYPE_CHECKING:
    from oxcart._bound import Bound
    from oxcart.queue import Queue

__all__ = ["Namespace", "Routing", "WorkerRecord"]

#: The states in which a job may wait in vain, and where the wire keeps them.
UNROUTABLE = {"waiting": ("wait", "paused"), "prioritized": ("prioritized",), "delayed": ("delayed",)}


class Routing(Cancelling):
    """The part of a queue that knows its lanes and its workers."""

    name: str
    _root: Self | None = None
    _bounds: dict[asyncio.AbstractEventLoop, Bound]

    def lane(self, target: Target | Mapping[str, Any] | str) -> Self:
        """The queue in which jobs of this one wait that have a target; this one where it asks for nothing.

        Raises:
            ValidationError: It is no target, or this queue is itself a lane.
        """
        read = Target.read(target)
        name = lane_name(self.name, read)
        if name == self.name or "_bind" in vars(self):  # one that oxcart.testing stands in for has no lanes
            return self
        found: Self | None = self._opened.get(name)
        if found is None:
            found = copy.copy(self)
            found.name, found._root, found._bounds = name, self, {}
            vars(found).update(_bound=None, _deliveries=None, _lanes={})
            self._opened[name] = found
        return found

    @property
    def _opened(self) -> dict[str, Self]:
        opened: dict[str, Self] = vars(self).setdefault("_lanes", {})
        return opened

    async def _add_routed(
        self,
        encoded: Sequence[Encoded],
        names: Sequence[str],
        lanes: Mapping[int, Self],
        timeout: float,
        replicated: bool,
    ) -> list[JobHandle[Any]]:
        """Adds jobs of which some go to lanes, by their places; each lane's go together."""
        groups: dict[Self, list[int]] = {}
        for place in range(len(encoded)):
            groups.setdefault(lanes.get(place, self), []).append(place)
        handles: dict[int, JobHandle[Any]] = {}
        left = time_left(timeout)
        for queue, places in groups.items():
            jobs = [encoded[i] for i in places]
            added = await queue.broker.add(jobs, timeout=left(), replicated=replicated)
            for i, one in zip(places, added, strict=True):
                where = queue if one.created else self  # one that was there before may be in another lane
                handles[i] = JobHandle(cast("Queue", where), one.id, names[i], one.created, one.duplicate)
        return [handles[i] for i in range(len(encoded))]

    async def lanes(self) -> dict[str, dict[str, int]]:
        """How many jobs each lane of the queue has in each state of the wire, by what they ask for."""
        return await self._store.lanes.counts()

    async def workers(self) -> list[WorkerRecord]:
        """The workers of the queue that live, as they have said within the last half minute.

        On Bridge a worker of another client does not say which types it takes, and so is among them.
        """
        return await self.broker.workers()

    async def unroutable(self) -> dict[str, int]:
        """How many jobs wait whose targets no living worker fits, by what they ask for."""
        return await self.broker.unroutable()

    async def unroutable_jobs(
        self, state: str = "waiting", *, first: int = 0, limit: int = 100, oldest: bool = False
    ) -> list[Job]:
        """A page of the jobs that no living worker can take, newest first unless ``oldest``.

        Args:
            state: ``waiting``, ``prioritized`` or ``delayed``.
            first: How many to leave out; where lanes are queues, of each lane.
            limit: How many at most; where lanes are queues, of each lane.
            oldest: Begin with the oldest.

        Raises:
            ValidationError: There is no such state.
        """
        if state not in UNROUTABLE:
            raise ValidationError("state", "one of " + ", ".join(UNROUTABLE), state)
        found: list[Job] = []
        for key in UNROUTABLE[state] if limit > 0 else ():
            found += await self.broker.unroutable_page(key, first, first + limit - 1, oldest=oldest)
        return found

    async def stats(self) -> Namespace:
        """How the Bridge namespace of the queue is, over all its job types: lengths, workers, running jobs.

        Raises:
            NotSupported: The queue is on BullMQ's protocol, which has no namespaces.
        """
        broker = self.broker
        broker.capabilities.require("stats")
        if not isinstance(broker, BridgeBroker):
            raise OxcartError(NO_SERVER)
        return await broker.namespace(await broker.census.types())
