"""Searches the jobs of a queue and its lanes page by page, on any protocol.

A search reads at most as many jobs as its caller allows. In lists that are ordered by the end of their jobs,
it finds the requested span of time by bisection and reads nothing outside of it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from oxcart.broker.port.broker import ServedBroker
from oxcart.model.job import Job
from oxcart.model.search import ENDED, JobSearch, Lists, changed_ms
from oxcart.model.state import State

#: Jobs that one call reads.
PAGE = 100
#: Jobs that a search reads at most unless its caller chooses another bound.
MOST = 10_000


class _Source(msgspec.Struct, frozen=True):
    """One list of the wire in a queue or lane, and its length."""

    broker: ServedBroker
    place: str
    count: int


class Found(msgspec.Struct):
    """The result of a search.

    Attributes:
        jobs: The requested page of the matching jobs, by the time of their last change.
        wire_states: The state of each of these jobs on the wire.
        matched: How many jobs match, as far as the search has looked.
        exact: Whether it has looked at all jobs: ``matched`` is the total then, otherwise at least so many
            match.
        looked_at: How many jobs it has read.
        total: How many jobs are in the searched lists.
        other_states: How many of the jobs that it has read match but for their formal state, by state.
    """

    jobs: list[Job] = msgspec.field(default_factory=list)
    wire_states: list[str] = msgspec.field(default_factory=list)
    matched: int = 0
    exact: bool = True
    looked_at: int = 0
    total: int = 0
    other_states: Counter[State] = msgspec.field(default_factory=Counter)


class Scan:
    """A search under way: yields the matching jobs and counts what it has read.

    Args:
        broker: The queue.
        lists: Which lists of the wire to read.
        chosen: What a job must match.
        most: How many jobs to read at most.
        oldest: Whether to begin with the oldest jobs.
    """

    def __init__(
        self, broker: ServedBroker, lists: Lists, chosen: JobSearch, *, most: int = MOST, oldest: bool = False
    ) -> None:
        self._broker = broker
        self._lists = lists
        self._chosen = chosen
        self._left = most
        self._oldest = oldest
        self._seen: set[str] = set()
        self.found = Found()

    async def run(self, wanted: int | None = None, *, count: bool = True) -> AsyncIterator[tuple[str, Job]]:
        """Yields matching jobs with the wire's list that holds each.

        Args:
            wanted: How many jobs of each list suffice where the rest can be counted without reading it; None
                reads all.
            count: Whether to read the rest where it cannot be counted otherwise. Only lists in the order of
                the result can do without.
        """
        for source in await self._sources():
            self.found.total += source.count
            begin, end = await self._span(source)
            if (
                wanted is not None
                and self._lists[source.place] is None
                and self._needs_no_reading(source.place)
            ):
                self.found.matched += max(0, end - begin)
                end = min(end, begin + wanted)
                counted = True
            else:
                counted = False
            stops = wanted is not None and not count and source.place in ENDED
            taken = 0
            async with contextlib.aclosing(self._read(source, begin, end)) as jobs:
                async for job in jobs:
                    if not counted:
                        self.found.matched += 1
                    yield source.place, job
                    taken += 1
                    if stops and not counted and taken == wanted:
                        self.found.exact = False
                        break

    def _needs_no_reading(self, place: str) -> bool:
        return self._chosen.by_time_alone and (place in ENDED or not self._chosen.has_times)

    async def _sources(self) -> list[_Source]:
        spread = self._broker.partitions
        if spread is None:
            return await self._sources_of(self._broker)
        await spread.refresh()
        return [source for broker in spread.brokers() for source in await self._sources_of(broker)]

    async def _sources_of(self, broker: ServedBroker) -> list[_Source]:
        counts = await broker.counts()
        # Completed jobs are many and seldom what is searched for: they come last.
        places = sorted(self._lists, key=lambda place: place == "completed")
        if self._chosen.reason:
            places = [place for place in places if place != "completed"]
        found = [_Source(broker, place, counts[place]) for place in places]
        if (lanes := broker.lanes) is not None:
            for lane, rows in (await lanes.counts()).items():
                if any(rows[place] for place in places):
                    found += [_Source(lanes.open(lane), place, rows[place]) for place in places]
        return [source for source in found if source.count]

    async def _read(self, source: _Source, begin: int, end: int) -> AsyncGenerator[Job]:
        accepted = self._lists[source.place]
        at = begin
        while at < end:
            if not self._left:
                self.found.exact = False
                return
            size = min(PAGE, end - at, self._left)
            page = await source.broker.page(source.place, at, at + size - 1, oldest=self._oldest)
            at += size
            self._left -= size
            for job in page:
                self.found.looked_at += 1
                # A job that moved between two pages is met twice.
                if job.id in self._seen or not self._chosen.fits(job, changed_ms(job)):
                    continue
                self._seen.add(job.id)
                if accepted is None or job.state in accepted:
                    yield job
                elif job.state is not None:
                    self.found.other_states[job.state] += 1

    async def _span(self, source: _Source) -> tuple[int, int]:
        """Returns the places of a list between which the jobs of the requested time are."""
        since, before = self._chosen.since_ms, self._chosen.before_ms
        if source.place not in ENDED:
            return 0, source.count
        first, last = (since, before) if self._oldest else (before, since)
        # The bisection looks for the first job that ended after a time, or newest first, at a time or before.
        begin = 0 if first is None else await self._bisect(source, first - self._oldest, late=False)
        end = (
            source.count if last is None else await self._bisect(source, last - (not self._oldest), late=True)
        )
        return begin, end

    async def _bisect(self, source: _Source, at_ms: int, *, late: bool) -> int:
        """Returns a place in a list; ``late`` is the side to err on at an id without a job."""
        low, high = 0, source.count
        while low < high:
            middle = (low + high) // 2
            page = await source.broker.page(source.place, middle, middle, oldest=self._oldest)
            goes_left = (changed_ms(page[0]) > at_ms) == self._oldest if page else not late
            low, high = (low, middle) if goes_left else (middle + 1, high)
        return low


async def search(
    broker: ServedBroker,
    lists: Lists,
    chosen: JobSearch,
    *,
    first: int = 0,
    limit: int = 20,
    oldest: bool = False,
    most: int = MOST,
    count: bool = True,
) -> Found:
    """Returns a page of the jobs that match, sorted by their last change.

    Args:
        broker: The queue.
        lists: Which lists of the wire to read.
        chosen: What a job must match.
        first: How many matching jobs to skip.
        limit: How many jobs to return at most.
        oldest: Whether to begin with the oldest.
        most: How many jobs to read at most.
        count: Whether to read on for the number of matches once the page is full.
    """
    scan = Scan(broker, lists, chosen, most=most, oldest=oldest)
    kept: list[tuple[str, Job]] = []
    wanted = first + limit
    async for place, job in scan.run(wanted, count=count):
        kept.append((place, job))
        if len(kept) >= 2 * wanted + PAGE:
            kept = _sorted(kept, wanted, oldest)
    for place, job in _sorted(kept, wanted, oldest)[first:]:
        scan.found.jobs.append(job)
        scan.found.wire_states.append(WIRE_STATES.get(place, place))
    return scan.found


#: The wire's states of the jobs in its lists, where the names differ.
WIRE_STATES = {"wait": "waiting", "paused": "waiting"}


def _sorted(rows: list[tuple[str, Job]], most: int, oldest: bool) -> list[tuple[str, Job]]:
    pick = heapq.nsmallest if oldest else heapq.nlargest
    return pick(most, rows, key=lambda row: changed_ms(row[1]))
