"""The lists of ready jobs, and how a pause moves them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import redis

QUEUE = "pausing"


@dataclass
class Lists:
    """The two lists of ready jobs, newest first, and whether the queue is paused."""

    wait: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    is_paused: bool = False

    @property
    def ids(self) -> Counter[str]:
        return Counter(self.wait) + Counter(self.paused)

    @classmethod
    def of(cls, client: redis.Redis) -> Lists:
        """Reads the lists on the server."""
        pipe = client.pipeline(transaction=False)
        pipe.lrange(f"bull:{QUEUE}:wait", 0, -1)
        pipe.lrange(f"bull:{QUEUE}:paused", 0, -1)
        pipe.hexists(f"bull:{QUEUE}:meta", "paused")
        wait, paused, is_paused = pipe.execute()
        return cls(wait, paused, bool(is_paused))


def after_bullmq_5(lists: Lists, verb: str, job_id: str) -> Lists:
    """The lists after a rename by BullMQ 5, which overwrites the target list."""
    wait, paused = lists.wait, lists.paused
    match verb:
        case "pause":
            return Lists([], wait, True) if wait else replace(lists, is_paused=True)
        case "resume":
            return Lists(paused, [], False) if paused else replace(lists, is_paused=False)
        case _:
            return (
                replace(lists, paused=[job_id, *paused])
                if lists.is_paused
                else replace(lists, wait=[job_id, *wait])
            )


def after_bullmq_6(lists: Lists, verb: str, job_id: str) -> Lists:
    """The lists after BullMQ 6, which adds only to `wait` and appends the other list when it resumes."""
    match verb:
        case "pause":
            return replace(lists, is_paused=True)
        case "resume":
            return Lists(lists.wait + lists.paused, [], False)
        case _:
            return replace(lists, wait=[job_id, *lists.wait])
