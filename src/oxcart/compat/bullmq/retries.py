"""The retry rule of PyPI's package: every failure except ``UnrecoverableError`` is retried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oxcart.compat.bullmq.custom_errors import UnrecoverableError
from oxcart.model.backoff import Strategy
from oxcart.model.failure import Category, Classifier

if TYPE_CHECKING:
    from oxcart.compat.bullmq.job import Job

#: Finds the job whose attempt has ended.
Finder = Callable[[], "Job | None"]


class OnlyUnrecoverable(Classifier, frozen=True):
    """Classifies a failure as final only by its class, or because the job was discarded."""

    find: Finder = lambda: None

    def classify(self, error: BaseException) -> Category:
        """Returns PERMANENT for a failure that must not be retried, TEMPORARY for all others."""
        job = self.find()
        final = isinstance(error, UnrecoverableError) or (job is not None and job.discarded)
        return Category.PERMANENT if final else Category.TEMPORARY


class Strategies(Mapping[str, Strategy]):
    """A worker's ``settings.backoffStrategy``, which applies to every name.

    Args:
        settings: The worker's ``settings``.
        find: Finds the job whose attempt has ended.
    """

    def __init__(self, settings: Mapping[str, Any] | None, find: Finder) -> None:
        self._strategy = (settings or {}).get("backoffStrategy")
        self._find = find

    def __getitem__(self, name: str) -> Strategy:
        strategy = self._strategy
        if strategy is None:
            raise KeyError(name)

        def wait(attempt: int, delay: int, cap: int | None) -> float:
            job = self._find()
            answer = strategy(attempt, name, None if job is None else job._error, job)
            return float(answer or 0)

        return wait

    def __iter__(self) -> Iterator[str]:
        return iter(() if self._strategy is None else ("*",))

    def __len__(self) -> int:
        return 0 if self._strategy is None else 1
