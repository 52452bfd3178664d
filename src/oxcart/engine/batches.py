"""Batch handlers: one call for many jobs, each of which is still an attempt of its own.

Every job of a batch occupies a slot. Its attempt joins the batch of its handler and waits for its own result.
So each item has its own lease, timeout, cancellation, retries and outcome, and its own middleware around it.
The handler is called when the batch is full, when no more items can come, or after ``within``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from oxcart.engine.handler import Handler
from oxcart.engine.running import RunningJob
from oxcart.model.failure import PermanentError

log = logging.getLogger("oxcart.worker")

#: Calls a batch handler with the items and their jobs; returns what the handler returns.
CallBatch = Callable[[Handler, list[Any], list[RunningJob]], Awaitable[Any]]


class _Batch:
    """Items that wait for one call of a handler."""

    def __init__(self) -> None:
        self.items: dict[asyncio.Future[Any], tuple[Any, RunningJob]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class Batches:
    """The batches of a worker.

    Args:
        most: How many jobs the worker runs at once: no batch is larger.
        call: Calls a handler.
        context: Makes the context of a call; an empty one by default, because a batch has many jobs.
    """

    def __init__(
        self,
        most: int,
        call: CallBatch,
        *,
        context: Callable[[], contextvars.Context] = contextvars.Context,
    ) -> None:
        self._most = most
        self._call = call
        self._context = context
        self._open: dict[Handler, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, job: RunningJob, handler: Handler, item: Any) -> Any:
        """Joins the batch of a handler; returns the result of this item.

        Raises:
            Exception: What the handler raised, or returned for this item.
        """
        loop = asyncio.get_running_loop()
        batch = self._open.get(handler)
        if batch is None:
            batch = self._open[handler] = _Batch()
            batch.timer = loop.call_later(handler.within, self._start, handler, batch)
        answer: asyncio.Future[Any] = loop.create_future()
        batch.items[answer] = item, job
        if len(batch.items) >= min(handler.batch or 1, self._most):
            self._start(handler, batch)
        try:
            result = await answer
        except asyncio.CancelledError:
            self._leave(handler, batch, answer)
            raise
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """Cancels the calls under way."""
        for batch in self._open.values():
            if batch.timer is not None:
                batch.timer.cancel()
        self._open.clear()
        for task in self._tasks:
            task.cancel()

    def _start(self, handler: Handler, batch: _Batch) -> None:
        if self._open.get(handler) is batch:
            del self._open[handler]
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.task is None and batch.items:
            batch.task = asyncio.get_running_loop().create_task(
                self._work(handler, batch), name="oxcart-batch", context=self._context()
            )
            self._tasks.add(batch.task)
            batch.task.add_done_callback(self._tasks.discard)

    def _leave(self, handler: Handler, batch: _Batch, answer: asyncio.Future[Any]) -> None:
        """Takes out an item whose attempt was stopped; the call ends with its last item."""
        if batch.task is None:
            batch.items.pop(answer, None)
            if not batch.items and self._open.get(handler) is batch:
                self._start(handler, batch)
        elif all(one.done() for one in batch.items):
            batch.task.cancel()

    async def _work(self, handler: Handler, batch: _Batch) -> None:
        answers = list(batch.items)
        given = list(batch.items.values())
        try:
            result = await self._call(handler, [item for item, _ in given], [job for _, job in given])
            results = _results(handler, result, len(answers))
        except asyncio.CancelledError:
            results = [TimeoutError("the batch was cancelled")] * len(answers)
            self._answer(answers, results)
            raise
        except BaseException as error:
            results = [error] * len(answers)
        self._answer(answers, results)

    @staticmethod
    def _answer(answers: list[asyncio.Future[Any]], results: list[Any]) -> None:
        for answer, result in zip(answers, results, strict=True):
            if not answer.done():  # an item that timed out or was cancelled has its outcome already
                answer.set_result(result)


def warn_of_small_batches(handlers: Iterable[Handler], concurrency: int) -> None:
    """Logs a warning for handlers whose batches the worker cannot fill."""
    for handler in handlers:
        if handler.batch is not None and handler.batch > concurrency:
            text = "handler %s: batches have at most %d jobs, the concurrency, not %d"
            log.warning(text, handler.name, concurrency, handler.batch)


def _results(handler: Handler, result: Any, count: int) -> list[Any]:
    if result is None:
        return [None] * count
    if not isinstance(result, list | tuple) or len(result) != count:
        shown = f"{len(result)} results" if isinstance(result, list | tuple) else type(result).__name__
        raise PermanentError(
            f"batch handler {handler.name!r} must return one result per item, {count}, got {shown}",
            code="batch",
        )
    return list(result)
