"""The names of a queue's keys, as in PyPI's package."""

from __future__ import annotations

#: The last parts of a queue's keys.
NAMES = (
    *("", "active", "wait", "waiting-children", "paused", "completed", "failed", "delayed", "repeat"),
    *("stalled", "limiter", "prioritized", "id", "stalled-check", "meta", "pc", "events", "marker", "de"),
)


class QueueKeys:
    """Makes keys of queues with a prefix.

    Args:
        prefix: The text before the queue's name.
    """

    def __init__(self, prefix: str = "bull") -> None:
        self.prefix = prefix

    def getKeys(self, name: str) -> dict[str, str]:
        """Returns all keys of a queue, by their last parts."""
        return {last: self.toKey(name, last) for last in NAMES}

    def toKey(self, name: str, name_type: str) -> str:
        """Returns a key of a queue by its last part."""
        return f"{self.getQueueQualifiedName(name)}:{name_type}"

    def getQueueQualifiedName(self, name: str) -> str:
        """Returns the common beginning of a queue's keys."""
        return f"{self.prefix}:{name}"
