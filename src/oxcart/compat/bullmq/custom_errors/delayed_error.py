"""``DelayedError``, which a processor raises.

May touch: nothing.
"""

from __future__ import annotations


class DelayedError(Exception):
    """The job was moved to delayed by its processor."""
