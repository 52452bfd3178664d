"""The deduplication window of a job, for those who annotate it."""

from __future__ import annotations

from typing import TypedDict


class DeduplicationOptions(TypedDict, total=False):
    """Which window a job belongs to, and what happens to those that it keeps out."""

    id: str
    ttl: int
    extend: bool
    replace: bool
    keepLastIfActive: bool
