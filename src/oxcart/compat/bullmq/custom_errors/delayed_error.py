"""``DelayedError``, which a processor raises."""

from __future__ import annotations


class DelayedError(Exception):
    """The job was moved to delayed by its processor."""
