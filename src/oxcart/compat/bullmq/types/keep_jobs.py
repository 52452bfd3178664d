"""What is kept of ended jobs, for those who annotate it."""

from __future__ import annotations

from typing import TypedDict


class KeepJobs(TypedDict, total=False):
    """What is kept of ended jobs: for so many seconds, so many of them."""

    age: int
    count: int
    limit: int
