"""Lanes and workers of a queue, for code without an event loop; see ``oxcart.routing``.

May touch: the server, through the queue it stands for.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

from oxcart import routing as _routing
from oxcart.model.job import Job
from oxcart.model.target import Target
from oxcart.routing import Namespace, WorkerRecord
from oxcart.sync._cancelling import Cancelling


class Routing(Cancelling):
    """The part of a queue that knows its lanes and its workers."""

    asynchronous: _routing.Routing

    def lane(self, target: Target | Mapping[str, Any] | str) -> Self:
        """The queue in which jobs of this one wait that have a target; this one where it asks for nothing.

        Raises:
            ValidationError: It is no target, or this queue is itself a lane.
        """
        found = self.asynchronous.lane(target)
        if found is self.asynchronous:
            return self
        lane = copy.copy(self)
        lane.asynchronous = found
        return lane

    def lanes(self) -> dict[str, dict[str, int]]:
        """How many jobs each lane of the queue has in each state of the wire, by what they ask for."""
        return self.run(self.asynchronous.lanes())

    def workers(self) -> list[WorkerRecord]:
        """The workers of the queue that live, as they have said within the last half minute."""
        return self.run(self.asynchronous.workers())

    def unroutable(self) -> dict[str, int]:
        """How many jobs wait in lanes that no living worker can take from, by what they ask for."""
        return self.run(self.asynchronous.unroutable())

    def unroutable_jobs(
        self, state: str = "waiting", *, first: int = 0, limit: int = 100, oldest: bool = False
    ) -> list[Job]:
        """A page of the jobs that no living worker can take, newest first unless ``oldest``."""
        return self.run(self.asynchronous.unroutable_jobs(state, first=first, limit=limit, oldest=oldest))

    def stats(self) -> Namespace:
        """How the Bridge namespace of the queue is, over all its job types."""
        return self.run(self.asynchronous.stats())
