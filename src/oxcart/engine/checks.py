"""What a worker is told of counts and times, checked before anything begins.

May touch: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oxcart.broker.factory import CAPABILITIES
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError


def check_count(value: object, field: str, least: int) -> None:
    """Checks a number of something.

    Raises:
        ValidationError: It is no integer, or too small.
    """
    if type(value) is not int:  # bool is a subclass of int, and concurrency=True is a mistake
        raise ValidationError(field, f"an integer, at least {least}", value)
    if value < least:
        raise ValidationError(field, f"at least {least}", value)


def read_lease(lock_duration: Duration, renew_every: Duration | None) -> tuple[int, float]:
    """For how many ms a lease lasts, and after how many seconds it is renewed.

    Raises:
        ValidationError: One of them is no such time, or a lease would run out before it is renewed.
    """
    lock_ms = parse_ms(lock_duration, "lock_duration", minimum=100)
    every = lock_ms // 2 if renew_every is None else parse_ms(renew_every, "renew_every", minimum=10)
    if every >= lock_ms:
        raise ValidationError("renew_every", f"less than lock_duration ({lock_ms} ms)", every)
    return lock_ms, every / 1000


def read_limiter(
    limiter: tuple[int, Duration] | None, queues: Iterable[Any]
) -> tuple[int | None, int | None]:
    """How many jobs a worker may start in how many ms; None twice where it has no limit of its own.

    Raises:
        ValidationError: It is no such limit.
        NotSupported: The protocol of a queue knows none.
    """
    if limiter is None:
        return None, None
    for queue in queues:
        CAPABILITIES[getattr(queue, "protocol", "bullmq")].require("worker_limits")
    if not isinstance(limiter, tuple | list) or len(limiter) != 2:
        raise ValidationError("limiter", "(jobs, duration)", limiter)
    check_count(limiter[0], "limiter", 1)
    return limiter[0], parse_ms(limiter[1], "limiter", minimum=1)
