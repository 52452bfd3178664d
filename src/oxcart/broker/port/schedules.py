"""The part of a broker for schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oxcart.broker.port.claimed import ClaimedJob
from oxcart.model.errors import OxcartError
from oxcart.model.options import JobOptions
from oxcart.model.schedule import Missed, Overlap, Schedule, Scheduler


class ScheduleLeader(Protocol):
    """One worker's part in firing the schedules of a namespace: one worker leads, the others wait.

    Attributes:
        term: The number of its term; 0 while another worker leads.
    """

    term: int

    async def tick(self) -> int:
        """Leads if no other worker does, and fires due schedules; returns how many jobs it made."""

    async def resign(self) -> None:
        """Lets another worker lead at once."""


class Schedules(Protocol):
    """The schedules of a queue."""

    def bound_id(self, schedule_id: str) -> str:
        """Returns the id that a sealed payload of a schedule is bound to."""

    async def upsert(
        self,
        schedule_id: str,
        schedule: Schedule,
        name: str,
        body: bytes,
        options: JobOptions,
        *,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        declared_by: str | None = None,
    ) -> str | None:
        """Makes or changes a schedule.

        Args:
            schedule_id: The schedule's id.
            schedule: When it fires.
            name: The name of its jobs.
            body: Their payload, as JSON.
            options: Their options.
            missed: What to do about firings that no worker made in time; None for the protocol's default.
            overlap: What to do about a firing while the last run still runs; None for the protocol's default.
            declared_by: The module whose handler declares it; None for a schedule made by hand.

        Returns:
            The id of the next run, or of the schedule's own record if runs get their ids when they are
            made; None if it never fires.

        Raises:
            NotSupported: The protocol lacks this kind of schedule, or an option of its jobs.
            ValidationError: A policy is unknown, or an option is not for schedules.
            JobError: A run of that time exists already.
        """

    async def get(self, schedule_id: str) -> Scheduler | None:
        """Reads a schedule."""

    async def page(self, first: int, last: int, *, latest: bool = False) -> list[Scheduler]:
        """Reads schedules by the time of their next run, soonest first unless ``latest``."""

    async def count(self) -> int:
        """Returns how many schedules there are."""

    async def remove(self, schedule_id: str) -> bool:
        """Removes a schedule and the run that waits for its time; False if there is none."""

    async def pause(self, schedule_id: str) -> bool:
        """Lets a schedule make no run until it is resumed; False if there is none.

        A paused schedule that is set again stays paused.

        Raises:
            ValidationError: It is a repeatable job of an older version.
        """

    async def resume(self, schedule_id: str) -> bool:
        """Lets a paused schedule make its next run; False if there is none.

        Raises:
            ValidationError: It would never fire again.
            JobError: A run of that time exists already.
        """

    def leader(self, worker: str) -> ScheduleLeader | None:
        """Returns the part that fires schedules; None if the claim of a run makes the next one."""

    async def advance(self, claims: Sequence[ClaimedJob]) -> list[str | OxcartError]:
        """Makes the next runs of claimed ones, if the claiming worker must do so.

        Returns:
            For each the id of the new run, empty if there was nothing to do; or the error that
            prevented it.
        """
