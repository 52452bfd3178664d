"""``UnrecoverableError``, which a processor raises."""

from __future__ import annotations


class UnrecoverableError(Exception):
    """The job failed for good: the only error that is not retried."""
