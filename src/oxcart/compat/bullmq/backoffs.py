"""Computes backoff as PyPI's package does; our workers use ``model.backoff``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from oxcart.compat.bullmq.options import backoff_of

#: Called with the number of the attempt, the type, the error and the job; returns ms.
Strategy = Callable[[int, str, Any, Any], Any]


def _fixed(delay: int) -> Strategy:
    return lambda attempts_made, type, err, job: delay


def _exponential(delay: int) -> Strategy:
    return lambda attempts_made, type, err, job: round(2 ** (attempts_made - 1) * delay)


class Backoffs:
    """The policies that every peer knows, and the hook for a worker's own."""

    builtin_strategies: ClassVar[dict[str, Callable[[int], Strategy]]] = {
        "fixed": _fixed,
        "exponential": _exponential,
    }

    @staticmethod
    def normalize(backoff: Any) -> Any:
        """Returns a policy as a dict; a plain number is a fixed wait, nothing is None."""
        return backoff_of(backoff)

    @staticmethod
    async def calculate(
        backoff: Mapping[str, Any] | None,
        attempts_made: int,
        err: Any,
        job: Any,
        customStrategy: Strategy | None,
    ) -> Any:
        """Returns the ms to wait after an attempt; None without a policy.

        Raises:
            Exception: The policy's type is unknown.
        """
        if not backoff:
            return None
        strategy = lookup_strategy(backoff, customStrategy)
        return strategy(attempts_made, str(backoff.get("type")), err, job)


def lookup_strategy(backoff: Mapping[str, Any], custom_strategy: Strategy | None) -> Strategy:
    """Returns the function that computes the waits of a policy.

    Raises:
        Exception: The policy's type is unknown.
    """
    kind = backoff.get("type")
    builtin = Backoffs.builtin_strategies.get(str(kind))
    if builtin is not None:
        return builtin(backoff.get("delay", 0))
    if custom_strategy is None:
        raise Exception(
            f"Unknown backoff strategy {kind}. "
            "If a custom backoff strategy is used, specify it when the queue is created."
        )
    return custom_strategy
