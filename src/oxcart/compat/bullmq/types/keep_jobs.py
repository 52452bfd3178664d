"""The type of retention options, for annotations."""

from __future__ import annotations

from typing import TypedDict


class KeepJobs(TypedDict, total=False):
    """Which ended jobs are kept: for how many seconds, and how many of them."""

    age: int
    count: int
    limit: int
