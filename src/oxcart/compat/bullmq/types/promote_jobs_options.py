"""The type of the options of ``promoteJobs``, for annotations."""

from __future__ import annotations

from typing import TypedDict


class PromoteJobsOptions(TypedDict, total=False):
    """Of ``promoteJobs``."""

    count: int
