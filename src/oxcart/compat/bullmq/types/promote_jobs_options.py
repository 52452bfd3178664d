"""The options of ``promoteJobs``, for those who annotate it."""

from __future__ import annotations

from typing import TypedDict


class PromoteJobsOptions(TypedDict, total=False):
    """Of ``promoteJobs``."""

    count: int
