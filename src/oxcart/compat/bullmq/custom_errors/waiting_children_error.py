"""``WaitingChildrenError``, which a processor raises."""

from __future__ import annotations


class WaitingChildrenError(Exception):
    """The processor moved the job to waiting-children."""
