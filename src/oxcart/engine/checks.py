"""Checks and reads the arguments of a worker before anything begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import ValidationError
from oxcart.model.target import Abilities


def check_count(value: object, field: str, least: int) -> None:
    """Checks a count.

    Raises:
        ValidationError: The value is no integer, or too small.
    """
    if type(value) is not int:  # bool is a subclass of int, and concurrency=True is a mistake
        raise ValidationError(field, f"an integer, at least {least}", value)
    if value < least:
        raise ValidationError(field, f"at least {least}", value)


def read_lease(lock_duration: Duration, renew_every: Duration | None) -> tuple[int, float]:
    """Returns the ms that a lease lasts and the seconds between renewals.

    Raises:
        ValidationError: A value is no duration, or a lease would expire before its renewal.
    """
    lock_ms = parse_ms(lock_duration, "lock_duration", minimum=100)
    every = lock_ms // 2 if renew_every is None else parse_ms(renew_every, "renew_every", minimum=10)
    if every >= lock_ms:
        raise ValidationError("renew_every", f"less than lock_duration ({lock_ms} ms)", every)
    return lock_ms, every / 1000


def read_limiter(
    limiter: tuple[int, Duration] | None, queues: Iterable[Any]
) -> tuple[int | None, int | None]:
    """Returns the worker's rate limit as ``(max_jobs, window_ms)``, or ``(None, None)``.

    Raises:
        ValidationError: The limit cannot be read.
        NotSupported: The protocol of a queue has no such limits.
    """
    if limiter is None:
        return None, None
    for queue in queues:
        queue.capabilities.require("worker_limits")
    if not isinstance(limiter, tuple | list) or len(limiter) != 2:
        raise ValidationError("limiter", "(jobs, duration)", limiter)
    check_count(limiter[0], "limiter", 1)
    return limiter[0], parse_ms(limiter[1], "limiter", minimum=1)


def check_metrics(minutes: int, queues: Iterable[Any]) -> None:
    """Refuses counts by the minute that are no number, or that a protocol lacks.

    Raises:
        ValidationError: It is no number of minutes.
        NotSupported: The protocol of a queue keeps no such counts.
    """
    check_count(minutes, "metrics", 0)
    for queue in queues if minutes else ():
        queue.capabilities.require("minute_counts")


def read_abilities(given: Abilities | Mapping[str, Any] | None, name: str) -> Abilities:
    """Reads abilities as a user writes them; their server is the worker's name unless they name another.

    Raises:
        ValidationError: They cannot be read.
    """
    read = Abilities() if given is None else Abilities.read(given)
    return read if read.server is not None else read.named(name)
