"""Searches for jobs: in which states to look, and what a job must match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from oxcart.model.errors import ValidationError
from oxcart.model.filter import JobFilter, read_texts
from oxcart.model.job import Job
from oxcart.model.moment import When
from oxcart.model.state import State

#: The wire's states, and the lists of the wire that hold their jobs.
WIRE: Mapping[str, tuple[str, ...]] = {
    "waiting": ("wait", "paused"),
    "prioritized": ("prioritized",),
    "active": ("active",),
    "delayed": ("delayed",),
    "waiting-children": ("waiting-children",),
    "completed": ("completed",),
    "failed": ("failed",),
}

#: The formal states of the jobs in each list of the wire.
IN_LIST: Mapping[str, frozenset[State]] = {
    "wait": frozenset({State.SCHEDULED}),
    "paused": frozenset({State.SCHEDULED}),
    "prioritized": frozenset({State.SCHEDULED}),
    "active": frozenset({State.RUNNING}),
    # A job that a limit holds back is ready, but in this list.
    "delayed": frozenset({State.DELAYED, State.RETRYING, State.SCHEDULED}),
    "waiting-children": frozenset({State.PENDING}),
    "completed": frozenset({State.COMPLETED}),
    "failed": frozenset({State.FAILED, State.DEAD_LETTER, State.CANCELLED}),
}

#: The lists whose jobs are in the order of their ends.
ENDED = ("completed", "failed")

#: The lists to search, and the formal states to accept there; None for all.
Lists = Mapping[str, frozenset[State] | None]


def choose_lists(states: str | Iterable[str] | None, *, wire: bool = False) -> Lists:
    """Returns the lists of the wire to search.

    Args:
        states: Formal states, or states of the wire; by default all.
        wire: Whether ``failed`` and ``delayed``, which both vocabularies have, are the wire's.

    Raises:
        ValidationError: There is no such state.
    """
    names = [*WIRE] if states is None else [states] if isinstance(states, str) else [*states]
    if states is None:
        wire = True
    formal = {state.value for state in State}
    found: dict[str, frozenset[State] | None] = {}
    for name in names:
        if name in WIRE and (wire or name not in formal):
            found |= dict.fromkeys(WIRE[name])
        elif name in formal:
            for place, accepted in _lists_of(State(name)).items():
                found[place] = _join(found.get(place, frozenset()), accepted, place)
        else:
            known = [*formal_names(), *(each for each in WIRE if each not in formal)]
            raise ValidationError("state", f"one of {', '.join(known)}", name)
    return found


def formal_names() -> list[str]:
    """Returns the names of the formal states, in the order of a job's life."""
    return [state.value for state in State]


def _lists_of(state: State) -> dict[str, frozenset[State]]:
    return {place: frozenset({state}) for place, states in IN_LIST.items() if state in states}


def _join(before: frozenset[State] | None, accepted: frozenset[State], place: str) -> frozenset[State] | None:
    joined = None if before is None else before | accepted
    return None if joined is None or joined >= IN_LIST[place] else joined


class JobSearch(JobFilter, frozen=True, kw_only=True):
    """What a job must match: all conditions that are set.

    Attributes:
        workers: The worker that claimed it last matches one of these patterns (``web-*``).
        priorities: Its priority is one of these numbers of the wire.
    """

    workers: tuple[str, ...] = ()
    priorities: tuple[int, ...] = ()

    @classmethod
    def build_search(
        cls,
        *,
        now_ms: int,
        name: str | Iterable[str] | None = None,
        reason: str | None = None,
        worker: str | Iterable[str] | None = None,
        category: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        priority: int | Iterable[int] | None = None,
        since: When | None = None,
        until: When | None = None,
    ) -> JobSearch:
        """Parses and checks a user's arguments.

        Raises:
            ValidationError: A category is unknown, a text is none, or a time, a tag or a priority is invalid.
        """
        plain = JobFilter.build(
            now_ms=now_ms,
            name=name,
            category=category,
            reason=reason,
            tags=tags,
            correlation_id=correlation_id,
            since=since,
            until=until,
        )
        numbers = () if priority is None else (priority,) if isinstance(priority, int) else tuple(priority)
        for number in numbers:
            if type(number) is not int or number < 0:
                raise ValidationError("priority", "an integer, at least 0", number)
        return cls(
            **msgspec.structs.asdict(plain),
            workers=read_texts(worker, "worker"),
            priorities=numbers,
        )

    @property
    def by_time_alone(self) -> bool:
        """Whether only times are set."""
        return not (
            self.names
            or self.categories
            or self.tags
            or self.correlation_id is not None
            or self.reason
            or self.workers
            or self.priorities
        )

    @property
    def has_times(self) -> bool:
        """Whether a time is set."""
        return self.since_ms is not None or self.before_ms is not None

    def fits(self, job: Job, at_ms: int) -> bool:
        """Returns whether a job matches. ``at_ms`` is the time that the times apply to."""
        return (
            super().fits(job, at_ms)
            and (not self.priorities or job.priority in self.priorities)
            and (
                not self.workers or any(fnmatchcase(job.worker_id or "", pattern) for pattern in self.workers)
            )
        )


def changed_ms(job: Job) -> int:
    """Returns when a job last changed: its end, or its latest start, or its add."""
    return job.finished_on or job.processed_on or job.timestamp
