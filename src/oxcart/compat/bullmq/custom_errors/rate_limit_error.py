"""``RateLimitError``, which a processor raises."""

from __future__ import annotations


class RateLimitError(Exception):
    """The job is given back because of a rate limit, without having used an attempt; as Node has it."""

    def __init__(self, message: str = "bullmq:rateLimitExceeded") -> None:
        super().__init__(message)
