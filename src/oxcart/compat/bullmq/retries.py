"""The retry rule of PyPI's package: every failure but ``UnrecoverableError`` is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oxcart.compat.bullmq.custom_errors import UnrecoverableError
from oxcart.model.backoff import Strategy
from oxcart.model.failure import Category, Classifier

if TYPE_CHECKING:
    from oxcart.compat.bullmq.job import Job

#: Finds the job whose attempt is being judged.
Finder = Callable[[], "Job | None"]


class OnlyUnrecoverable(Classifier, frozen=True):
    """Tells a final failure from others by its class alone, or by the job's having been discarded."""

    find: Finder = lambda: None

    def classify(self, error: BaseException) -> Category:
        """PERMANENT for what must not be tried again, TEMPORARY for all else."""
        job = self.find()
        final = isinstance(error, UnrecoverableError) or (job is not None and job.discarded)
        return Category.PERMANENT if final else Category.TEMPORARY


class Strategies(Mapping[str, Strategy]):
    """A worker's ``settings.backoffStrategy``, which answers to every name.

    Args:
        settings: The worker's ``settings``.
        find: Finds the job whose attempt is being judged.
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
