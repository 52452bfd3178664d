"""``queue.lanes``: the queues of jobs that only some workers may run.

    await video.add("render", {"clip": 7}, target=Target(capabilities="gpu", region=["us-east", "us-west"]))
    Worker(video, abilities=Abilities(capabilities=["gpu", "cuda"], region="us-east"))
    print(await video.lanes.counts())

A job with a target waits in a lane: a queue named after the target, so that only workers that match it look
there (docs/decisions/60-lanes.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxcart.model.target import Target

if TYPE_CHECKING:
    from oxcart.queue import Queue


class Lanes:
    """The lanes of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def get(self, target: Target | Mapping[str, Any] | str) -> Queue:
        """Returns the queue of the lane for a target; the queue itself for a target without demands.

        Raises:
            ValidationError: It is no target, or this queue is itself a lane.
        """
        lane = self._queue._core.lane(target)
        return self._queue if lane is self._queue._core else self._queue._lane(lane)

    async def counts(self) -> dict[str, dict[str, int]]:
        """Returns how many jobs each lane has in each state of the wire, by the lane's target."""
        core = self._queue._core
        return await core.part(core.broker.lanes, "lanes").counts()
