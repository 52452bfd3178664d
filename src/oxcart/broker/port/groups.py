"""The part of a broker that lets groups of jobs take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import UNSET, UnsetType

from oxcart.broker.port.results import GroupSettings, GroupSummary


class Groups(Protocol):
    """The groups of a queue, which take turns. Every write may be repeated without harm."""

    async def set(
        self,
        group: str | None,
        *,
        concurrent: int | UnsetType | None = UNSET,
        per_minute: int | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
        paused: bool | UnsetType = UNSET,
    ) -> None:
        """Changes the settings of a group, or of all groups for None; what is unset stays as it is.

        Args:
            group: The group; empty for the jobs without one.
            concurrent: How many of its jobs run at once; 0 for unlimited, None for the number of all groups.
            per_minute: How many start in a minute, in the same way.
            weight: How many jobs it lets through per round; None for 1.
            paused: Whether it lets none through.
        """

    async def settings(self, group: str | None) -> GroupSettings:
        """Returns the settings of a group, or of all groups for None."""

    async def usage(self, group: str) -> tuple[int, int, int]:
        """Returns how many jobs of a group wait, how many run, and how many started in this minute.

        Starts are counted if they are limited.
        """

    async def page(self, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Returns groups with waiting jobs by their names, from behind one, and how many each has."""

    async def summary(self) -> GroupSummary:
        """Returns the waiting groups in a few numbers, with a bounded number of commands."""

    def jobs(self, group: str) -> AsyncIterator[list[str]]:
        """Yields the ids of the jobs that wait for a group's turn, in steps, the next one first."""

    async def ready(self, group: str) -> list[str]:
        """Returns the ids of a group's jobs that are let through or run."""
