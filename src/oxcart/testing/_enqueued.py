"""Assertions about enqueued jobs."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Unpack, overload

from oxcart import sync
from oxcart.model import payload
from oxcart.model.job import Job
from oxcart.model.options import JobOptions, OptionKwargs
from oxcart.queue import Queue
from oxcart.testing._queues import AnyQueue, either, mode_of, unwrap

#: The states in which a job waits for a worker, its time or its children.
_WAITING = ("waiting", "prioritized", "delayed", "waiting-children")
_PAGE = 1000


@overload
def enqueued(queue: sync.Queue, name: str | None = ...) -> list[Job]: ...


@overload
def enqueued(queue: Queue, name: str | None = ...) -> Coroutine[Any, Any, list[Job]]: ...


def enqueued(queue: AnyQueue, name: str | None = None) -> list[Job] | Coroutine[Any, Any, list[Job]]:
    """Returns the jobs that wait in a queue, oldest first; in inline mode all jobs that the block enqueued.

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
    """Asserts that a job is enqueued, as ``enqueued`` defines it.

    Args:
        queue: The queue.
        name: The job's name.
        data: Its payload. An object may have more fields than the given ones, which must be equal.
        count: How many such jobs there must be; by default at least one.
        **options: Options that the job must have, in any form that ``add`` takes: ``delay="5m"``.

    Returns:
        The jobs that match.

    Raises:
        AssertionError: No job matches; the message lists the enqueued jobs.
    """
    __tracebackhide__ = True
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
    """Asserts that no such job is enqueued; the arguments are those of ``assert_enqueued``.

    Raises:
        AssertionError: A job matches.
    """
    __tracebackhide__ = True

    async def refute() -> None:
        __tracebackhide__ = True
        await _assert(unwrap(queue), name, data, 0, options)

    return either(queue, refute())


async def _enqueued(queue: Queue, name: str | None) -> list[Job]:
    mode = mode_of(queue)
    if mode is not None:
        jobs = mode.added
        if not mode.at_once:
            jobs = [job for job in await mode.broker.get(mode.waiting()) if job is not None]
    else:
        jobs = []
        for state in _WAITING:
            first = 0
            while page := await queue.jobs.list(state, first=first, limit=_PAGE, oldest=True):
                jobs += page
                first += _PAGE
        jobs.sort(key=lambda job: job.timestamp)
    return [job for job in jobs if name in (None, job.name)]


async def _assert(
    queue: Queue, name: str, data: Any, count: int | None, options: Mapping[str, Any]
) -> list[Job]:
    __tracebackhide__ = True
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
    # A policy may be stored as another one with equal pauses.
    one, other = there.backoff, wanted.backoff
    return one.name == other.name and all(
        one.delay_ms(attempt, rand) == other.delay_ms(attempt, rand)
        for rand in (lambda: 0.0, lambda: 0.3, lambda: 0.9)
        for attempt in range(1, min(there.attempts, 100))
    )


def _fits(data: Any, wanted: Any) -> bool:
    # Through JSON, as the payload: a tuple becomes a list, a date becomes text.
    wanted = payload.decode(payload.encode(wanted))
    if isinstance(wanted, dict) and isinstance(data, dict):
        return all(key in data and data[key] == value for key, value in wanted.items())
    return bool(data == wanted)
