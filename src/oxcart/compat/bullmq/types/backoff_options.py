"""The type of backoff options, for annotations."""

from __future__ import annotations

from typing import TypedDict


class BackoffOptions(TypedDict, total=False):
    """How long to wait between attempts; ``jitter`` is Node's, from 0 to 1."""

    type: str
    delay: int
    jitter: float
