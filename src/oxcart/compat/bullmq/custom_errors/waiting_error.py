"""``WaitingError``, which a processor raises."""

from __future__ import annotations


class WaitingError(Exception):
    """The job was given back by its processor, as Node has it."""
