"""Limits how often a caller may send requests: a bucket of tokens per key or address."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from oxcart.http.errors import ApiError
from oxcart.model.errors import ValidationError

#: Buckets that are kept; the one used longest ago goes first, which at worst fills it again.
MOST = 10_000


class Rates:
    """Token buckets that share one rate.

    Args:
        rate: Requests per second in the long run; None for no limit.
        burst: Requests at once, after a pause.
        clock: Returns seconds.

    Raises:
        ValidationError: A number is not positive.
    """

    def __init__(self, rate: float | None, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise ValidationError("rate", "more than 0 requests per second", rate)
        self._rate = rate
        self._burst = max(burst, 1.0)
        self._clock = clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> None:
        """Takes a token from the bucket of a key.

        Raises:
            ApiError: 429 with ``Retry-After``: the bucket is empty.
        """
        if self._rate is None:
            return
        now = self._clock()
        left, at = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        taken = left >= 1
        self._buckets[key] = (left - taken, now)
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)
        if not taken:
            wait = max(1, math.ceil((1 - left) / self._rate))
            error = ApiError(429, "quota_exceeded", f"too many requests; try again in {wait} s")
            error.headers["Retry-After"] = str(wait)
            raise error
