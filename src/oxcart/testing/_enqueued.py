"""Assertions about what is enqueued.

May touch: the queue's server, to read.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Unpack, overload

from oxcart import sync
from oxcart.model import payload
from oxcart.model.job import Job
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.queue import Queue
from oxcart.testing._queues import AnyQueue, either, memory_of, unwrap

#: The states in which a job waits for a worker, for its time or for its children.
_WAITING = ("waiting", "prioritized", "delayed", "waiting-children")
_PAGE = 1000


@overload
def enqueued(queue: sync.Queue, name: str | None = ...) -> list[Job]: ...


@overload
def enqueued(queue: Queue, name: str | None = ...) -> Coroutine[Any, Any, list[Job]]: ...


def enqueued(queue: AnyQueue, name: str | None = None) -> list[Job] | Coroutine[Any, Any, list[Job]]:
    """The jobs that wait in a queue, oldest first; in inline mode also those that have run in the block.

    Args:
        queue: The queue.
        name: Only jobs of this name.
    """
    return either(queue, _enqueued(unwrap(queue), name))


@overload
def assert_enqueued(
    queue: sync.Queue, name: str, data: Any = ..., *, count: int | None = ..., **options: Unpack[OptionKwargs]
) -> list[Job]: ...


@overload
def assert_enqueued(
    queue: Queue, name: str, data: Any = ..., *, count: int | None = ..., **options: Unpack[OptionKwargs]
) -> Coroutine[Any, Any, list[Job]]: ...


def assert_enqueued(
    queue: AnyQueue, name: str, data: Any = ..., *, count: int | None = None, **options: Any
) -> list[Job] | Coroutine[Any, Any, list[Job]]:
    """Checks that a job is enqueued; what that means, see ``enqueued``.

    Args:
        queue: The queue.
        name: The job's name.
        data: Its payload; of an object, the given fields must be equal and others may be there.
        count: How many there must be; at least one unless given.
        **options: Options the job must have, in any form that ``add`` takes: ``delay="5m"``.

    Returns:
        The jobs that fit.

    Raises:
        AssertionError: There is none; the message lists those that are there.
    """
    return either(queue, _assert(unwrap(queue), name, data, count, options))


@overload
def refute_enqueued(
    queue: sync.Queue, name: str, data: Any = ..., **options: Unpack[OptionKwargs]
) -> None: ...


@overload
def refute_enqueued(
    queue: Queue, name: str, data: Any = ..., **options: Unpack[OptionKwargs]
) -> Coroutine[Any, Any, None]: ...


def refute_enqueued(
    queue: AnyQueue, name: str, data: Any = ..., **options: Any
) -> Coroutine[Any, Any, None] | None:
    """Checks that no such job is enqueued; the arguments are those of ``assert_enqueued``.

    Raises:
        AssertionError: There is one.
    """

    async def refute() -> None:
        await _assert(unwrap(queue), name, data, 0, options)

    return either(queue, refute())


async def _enqueued(queue: Queue, name: str | None) -> list[Job]:
    memory = memory_of(queue)
    if memory is not None:
        jobs = (
            memory.added if memory.at_once else [job for i in memory.waiting if (job := await queue.get(i))]
        )
    else:
        jobs = []
        for state in _WAITING:
            first = 0
            while page := await queue.jobs(state, first=first, limit=_PAGE, oldest=True):
                jobs += page
                first += _PAGE
        jobs.sort(key=lambda job: job.timestamp)
    return [job for job in jobs if name in (None, job.name)]


async def _assert(
    queue: Queue, name: str, data: Any, count: int | None, options: Mapping[str, Any]
) -> list[Job]:
    wanted = JobOptions.build(**options)
    there = await _enqueued(queue, None)
    found = [
        job
        for job in there
        if job.name == name
        and (data is ... or _fits(job.data, data))
        and all(_same(option, job.options, wanted) for option in options)
    ]
    if found if count is None else len(found) == count:
        return found
    what = "".join(
        [f"job {name!r}", "" if data is ... else f" with data {data!r}", f" and {options}" * bool(options)]
    )
    expected = "at least one" if count is None else str(count) if count else "no"
    listed = "".join(f"\n  {job.name} {job.data!r}" for job in there[:20]) or " none"
    more = f"\n  … and {len(there) - 20} more" if len(there) > 20 else ""
    raise AssertionError(
        f"expected {expected} {what} in queue {queue.name!r}, found {len(found)}; enqueued are:{listed}{more}"
    )


def _same(option: str, there: JobOptions, wanted: JobOptions) -> bool:
    if option != "backoff":
        return bool(getattr(there, option) == getattr(wanted, option))
    # A policy may be stored as another that waits equally long.
    one, other = there.backoff, wanted.backoff
    return one.name == other.name and all(
        one.delay_ms(attempt, rand) == other.delay_ms(attempt, rand)
        for rand in (lambda: 0.0, lambda: 0.3, lambda: 0.9)
        for attempt in range(1, min(there.attempts, 100))
    )


def _fits(data: Any, wanted: Any) -> bool:
    # By way of JSON, as the payload went: a tuple is a list there, a date is text.
    wanted = payload.decode(payload.encode(wanted))
    if isinstance(wanted, dict) and isinstance(data, dict):
        return all(key in data and data[key] == value for key, value in wanted.items())
    return bool(data == wanted)
