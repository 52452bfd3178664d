"""``WaitingChildrenError``, which a processor raises."""

from __future__ import annotations


class WaitingChildrenError(Exception):
    """The job was made to wait for its children by its processor."""
