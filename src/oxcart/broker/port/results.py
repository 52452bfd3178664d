"""The arguments and results of the optional parts of a broker."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal

import msgspec

from oxcart.broker.progress import OnProgress, silent
from oxcart.model.filter import JobFilter

#: What to do with dead letters.
DeadVerb = Literal["list", "replay", "purge"]


class AddedNode(msgspec.Struct, frozen=True):
    """A job of a graph that was added.

    Attributes:
        id: Its id; that of the existing job if its idempotency key has one.
        created: Whether this add made the job.
        duplicate: Whether a job of the same name and idempotency key existed.
    """

    id: str
    created: bool
    duplicate: bool = False


class AddedTree(msgspec.Struct, frozen=True):
    """A job of a tree that was added, and its children.

    Attributes:
        queue: Its queue.
        id: Its id; for a tree that a deduplication window kept out, that of the job that owns the window.
        name: Its name.
        created: Whether this add made the job.
        children: Its children; none for a tree that was kept out.
    """

    queue: str
    id: str
    name: str
    created: bool
    children: tuple[AddedTree, ...] = ()


class CancelCode(IntEnum):
    """What a script did to cancel a job. A refusal is a negative `ReplyCode`."""

    #: The job has ended.
    CANCELLED = 1
    #: Its worker was asked to end it.
    ASKED = 2


class Cancellation(StrEnum):
    """The result of cancelling a job."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"


class Cancelled(msgspec.Struct, kw_only=True):
    """The result of cancelling many jobs.

    Attributes:
        matched: How many jobs the filter selected.
        cancelled: How many have ended as cancelled.
        asked: How many run and were asked to end; each ends when its handler does.
        refused: How many run in a worker of a peer, which cannot be asked; they continue.
        ids: The jobs that the filter selected.
        dry_run: Whether nothing was changed.
    """

    matched: int = 0
    cancelled: int = 0
    asked: int = 0
    refused: int = 0
    ids: list[str] = []
    dry_run: bool = False


class DeadWork(msgspec.Struct, frozen=True):
    """An operation on dead letters.

    Attributes:
        verb: What to do.
        chosen: The filter.
        reset: Whether a replay resets the attempts.
        newest: Begin with the newest end.
        limit: How many at most.
        rate: How many per second at most.
        progress: Called after every step.
    """

    verb: DeadVerb
    chosen: JobFilter = JobFilter()
    reset: bool = False
    newest: bool = False
    limit: int | None = None
    rate: float | None = None
    progress: OnProgress = silent


class DeadDone(msgspec.Struct, kw_only=True):
    """The result of an operation on dead letters.

    Attributes:
        matched: How many dead letters the filter selected.
        done: How many were replayed or removed; none in a dry run.
        ids: The dead letters that the filter selected.
        dry_run: Whether nothing was changed.
    """

    matched: int = 0
    done: int = 0
    ids: list[str] = []
    dry_run: bool = False


class LimitRules(msgspec.Struct, frozen=True):
    """The limits per type and key: how many jobs at once and per minute, 0 for unlimited.

    Attributes:
        types: By type.
        keys: Of every key.
    """

    types: dict[str, tuple[int, int]] = {}
    keys: tuple[int, int] = (0, 0)


class GroupSettings(msgspec.Struct, frozen=True):
    """The settings of a group, or of all groups; None where a group has none of its own.

    Attributes:
        concurrent: How many jobs run at once; 0 for unlimited.
        per_minute: How many start in a minute; 0 for unlimited.
        weight: How many jobs it lets through per round.
        paused: Whether it lets none through.
    """

    concurrent: int | None = None
    per_minute: int | None = None
    weight: float | None = None
    paused: bool = False


class GroupSummary(msgspec.Struct, frozen=True):
    """The waiting groups of a queue in a few numbers, at a cost that does not grow with their number.

    Attributes:
        groups: Groups with waiting jobs: exact up to 100, above that those that take turns at this moment.
        waiting: Jobs that wait for their group's turn.
        largest: The groups with the most waiting jobs and their numbers, largest first, at most 20. With more
            than 100 groups they are the largest of those that 64 random waiting jobs belong to.
        oldest_ms: For how long the next job of a group has waited, the longest of the groups looked at.
        exact: Whether every group was looked at.
    """

    groups: int = 0
    waiting: int = 0
    largest: dict[str, int] = {}
    oldest_ms: int = 0
    exact: bool = True


class QueueRow(msgspec.Struct, frozen=True):
    """One queue.

    Attributes:
        queue: Its name.
        counts: How many jobs of it and of its lanes are in each state of the wire.
        paused: Whether it is paused.
        version: The library that wrote its settings, if it left its name.
    """

    queue: str
    counts: dict[str, int]
    paused: bool
    version: str | None


class NamespaceStats(msgspec.Struct, frozen=True):
    """The monitoring list of Bridge's specification, for one namespace.

    Attributes:
        waiting: Jobs that are ready.
        active: Jobs under a lease.
        delayed: Jobs that are not due yet.
        cron: Schedules.
        dead: Dead letters.
        workers: Registered workers, and whether each has sent a heartbeat within 30 s.
        concurrent: Per job type, how many jobs are counted as running.
        processed: Jobs that completed.
        failed: Jobs that failed for good.
    """

    waiting: int
    active: int
    delayed: int
    cron: int
    dead: int
    workers: dict[str, bool]
    concurrent: dict[str, int]
    processed: int
    failed: int


class Rescued(msgspec.Struct):
    """The result of a search for lost jobs.

    Attributes:
        looked_at: How many jobs it checked.
        rescued: The ids that were put back, or would be.
        leased: Ids in no list that are leased.
        ended: Ids in no list whose jobs have ended; running them again would be wrong.
    """

    looked_at: int = 0
    rescued: list[str] = []
    leased: list[str] = []
    ended: list[str] = []


class Series(msgspec.Struct, frozen=True):
    """How many jobs ended, by the minute.

    Attributes:
        count: How many have ended since workers count them.
        points: How many ended per minute, the newest minute first. The current one is not among them.
        total: How many points there are, if only some were read.
        previous_at: When the newest point was made, in ms; 0 for never.
        previous_count: The value of ``count`` then.
    """

    count: int
    points: list[int]
    total: int
    previous_at: int
    previous_count: int


class Tended(msgspec.Struct):
    """The result of a maintenance tick over the lanes of a queue.

    Attributes:
        ran: False if another worker made it just now.
        expired: Lanes with expired jobs.
        gated: Lanes whose jobs wait for others.
        busy: Lanes with active jobs.
    """

    ran: bool
    expired: list[str] = []
    gated: list[str] = []
    busy: list[str] = []
