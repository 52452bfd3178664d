"""``DelayedError``, which a processor raises."""

from __future__ import annotations


class DelayedError(Exception):
    """The processor moved the job to delayed."""
