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

from oxcart.broker.bullmq import registry
from oxcart.broker.bullmq.codec import Encoded
from oxcart.broker.bullmq.registry import WorkerRecord
from oxcart.broker.caller import time_left
from oxcart.cancelling import Cancelling
from oxcart.handle import JobHandle
from oxcart.model.target import Target, lane_name

if TYPE_CHECKING:
    from oxcart._bound import Bound
    from oxcart.queue import Queue

__all__ = ["Routing", "WorkerRecord"]


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
        self, encoded: Sequence[Encoded], names: Sequence[str], lanes: Mapping[int, Self], timeout: float
    ) -> list[JobHandle[Any]]:
        """Adds jobs of which some go to lanes, by their places; each lane's go together."""
        groups: dict[Self, list[int]] = {}
        for place in range(len(encoded)):
            groups.setdefault(lanes.get(place, self), []).append(place)
        handles: dict[int, JobHandle[Any]] = {}
        left = time_left(timeout)
        for queue, places in groups.items():
            added = await queue.broker.add([encoded[i] for i in places], timeout=left())
            for i, one in zip(places, added, strict=True):
                where = queue if one.created else self  # one that was there before may be in another lane
                handles[i] = JobHandle(cast("Queue", where), one.id, names[i], one.created, one.duplicate)
        return [handles[i] for i in range(len(encoded))]

    async def lanes(self) -> dict[str, dict[str, int]]:
        """How many jobs each lane of the queue has in each state of the wire, by what they ask for."""
        return await self._store.lanes.counts()

    async def workers(self) -> list[WorkerRecord]:
        """The workers of the queue that live, as they have said within the last half minute."""
        return await registry.workers(self._store)

    async def unroutable(self) -> dict[str, int]:
        """How many jobs wait in lanes that no living worker can take from, by what they ask for."""
        return await self.broker.unroutable()
