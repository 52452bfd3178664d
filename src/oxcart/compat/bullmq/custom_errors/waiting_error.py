"""``WaitingError``, which a processor raises."""

from __future__ import annotations


class WaitingError(Exception):
    """The processor returned the job to the queue, as in Node."""
