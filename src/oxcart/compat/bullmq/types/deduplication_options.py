"""The type of deduplication options, for annotations."""

from __future__ import annotations

from typing import TypedDict


class DeduplicationOptions(TypedDict, total=False):
    """The window that a job belongs to, and the treatment of jobs that it keeps out."""

    id: str
    ttl: int
    extend: bool
    replace: bool
    keepLastIfActive: bool
