"""The application that ``oxcart demo`` runs: a shop with jobs of every kind."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from typing import Any

from oxcart import PermanentError, Queue, RunningJob, SyncRunningJob, TemporaryError

shop = Queue("shop")


@shop.job
async def receipt(order: int, seconds: float, job: RunningJob) -> dict[str, Any]:
    """An async handler that mostly waits, like a call to a mail service."""
    await asyncio.sleep(seconds)
    return {"order": order, "worker": job.worker_id}


@shop.job
def thumbnail(order: int, seconds: float, job: SyncRunningJob) -> dict[str, Any]:
    """A plain function: runs in a thread and may block."""
    time.sleep(seconds)
    return {"order": order, "worker": job.worker_id}


@shop.job(run="process")
def statement(order: int, rounds: int, job: SyncRunningJob) -> dict[str, Any]:
    """CPU-bound work: runs in a process and leaves the worker's event loop free."""
    digest = hashlib.pbkdf2_hmac("sha256", b"order %d" % order, b"shop", rounds)
    return {"order": order, "digest": digest.hex()[:16], "worker": job.worker_id}


@shop.job
async def payment(order: int, failures: int, job: RunningJob) -> dict[str, Any]:
    """Fails ``failures`` times, then succeeds."""
    if job.attempt <= failures:
        raise TemporaryError(f"the bank did not answer attempt {job.attempt}")
    return {"order": order, "attempt": job.attempt, "worker": job.worker_id}


@shop.job
async def refund(order: int) -> None:
    """Fails permanently: the worker does not retry it."""
    raise PermanentError(f"order {order} was never paid")


Row = tuple[str, dict[str, Any], dict[str, Any]]


def orders(first: int, count: int) -> Iterator[Row]:
    """Yields the name, data and options of the orders from ``first`` on. Equal arguments yield equal jobs."""
    for order in range(first, first + count):
        kind = order % 50
        if order % 250 == 0:
            yield "statement", {"order": order, "rounds": 30_000}, {}
        elif kind <= 2:
            yield "refund", {"order": order}, {}
        elif kind <= 8:
            options = {"attempts": 4, "backoff": {"type": "exponential", "delay": "200ms"}}
            yield "payment", {"order": order, "failures": order % 3}, options
        elif kind <= 14:
            yield "thumbnail", {"order": order, "seconds": 0.02}, {"priority": 1 + order % 3}
        elif kind <= 20:
            yield "receipt", {"order": order, "seconds": 0.01}, {"delay": f"{200 + order % 18 * 100}ms"}
        else:
            yield "receipt", {"order": order, "seconds": 0.005 + order % 5 * 0.005}, {}


def failing(count: int) -> int:
    """Returns how many of the first ``count`` jobs fail permanently."""
    return sum(name == "refund" for name, _, _ in orders(0, count))
