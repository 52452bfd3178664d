"""``RateLimitError``, which a processor raises."""

from __future__ import annotations


class RateLimitError(Exception):
    """A rate limit returns the job to the queue without using an attempt, as in Node."""

    def __init__(self, message: str = "bullmq:rateLimitExceeded") -> None:
        super().__init__(message)
