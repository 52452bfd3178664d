"""The names of a queue's keys, as PyPI's package hands them out."""

from __future__ import annotations

#: What stands last in the keys of a queue.
NAMES = (
    *("", "active", "wait", "waiting-children", "paused", "completed", "failed", "delayed", "repeat"),
    *("stalled", "limiter", "prioritized", "id", "stalled-check", "meta", "pc", "events", "marker", "de"),
)


class QueueKeys:
    """Makes keys of queues with a prefix.

    Args:
        prefix: What stands before the queue's name.
    """

    def __init__(self, prefix: str = "bull") -> None:
        self.prefix = prefix

    def getKeys(self, name: str) -> dict[str, str]:
        """All keys of a queue, by what stands last in them."""
        return {last: self.toKey(name, last) for last in NAMES}

    def toKey(self, name: str, name_type: str) -> str:
        """A key of a queue by what stands last in it."""
        return f"{self.getQueueQualifiedName(name)}:{name_type}"

    def getQueueQualifiedName(self, name: str) -> str:
        """What all keys of a queue begin with."""
        return f"{self.prefix}:{name}"
