"""The page of jobs by state: filters that live in the address, pages, selection and bulk actions."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, get
from litestar.response import Response

from oxcart.http import listing
from oxcart.http.access import READ
from oxcart.http.errors import ApiError
from oxcart.http.routes import Api
from oxcart.http.sessions import root_of
from oxcart.http.values import JobBody, job_body
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.page import link
from oxcart.http.web.pulse import Track
from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.search import WIRE
from oxcart.model.state import State
from oxcart.queue import Queue

#: Jobs of a page.
ROWS = 50
#: Jobs of one queue that a page reads at most: without filters, by a state that is no list of its own, and
#: with filters.
SCAN, SORTED_OUT, FILTERED = 500, 1000, 5000
#: Delayed jobs that one call reads in search of those that failed before.
STEP = 100
#: Queues that a page over all queues reads, those with most jobs first.
MOST_QUEUES = 40

#: The states that a page can show: the words for the search, and the lists of the wire that hold them.
STATES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ready": (("waiting", "prioritized"), ("wait", "paused", "prioritized")),
    "running": (("active",), ("active",)),
    "delayed": (("delayed",), ("delayed",)),
    "pending": (("waiting-children",), ("waiting-children",)),
    "completed": (("completed",), ("completed",)),
    "failed": (("failed",), ("failed",)),
    "retrying": (("retrying",), ("delayed",)),
    "dead_letter": (("dead_letter",), ("failed",)),
    "cancelled": (("cancelled",), ("failed",)),
}
#: Those that have a tab with an exact count.
TABS = ("ready", "running", "delayed", "pending", "completed", "failed")
#: The state that a page without one shows: the jobs of every tab, latest change first.
ALL = "all"
STATES[ALL] = (tuple(WIRE), tuple(place for places in WIRE.values() for place in places))
#: Filters beside state and queue, as they stand in the address.
FILTERS = ("type", "reason", "tag", "correlation_id", "worker", "category", "since")


class Filters:
    """What a page of jobs shows, as read from its address.

    Attributes:
        state: The state.
        queue: The queue; empty for all.
        texts: The other filters, by name.
    """

    def __init__(self, given: Any) -> None:
        self.state = str(given.get("state", "")) or ALL
        self.queue = str(given.get("queue", ""))
        self.texts = {name: str(given.get(name, "")).strip() for name in FILTERS}
        if self.state not in STATES:
            raise ValidationError("state", f"one of {', '.join(STATES)}", self.state)

    @property
    def has_texts(self) -> bool:
        """Whether more than a state and a queue are chosen."""
        return any(self.texts.values())

    @property
    def is_plain(self) -> bool:
        """Whether only a state and a queue are chosen, so that nothing has to be searched."""
        return not self.has_texts and self.state in (*TABS, ALL)

    def asked(self, state: str = "") -> dict[str, Any]:
        """Returns the arguments of a search, by default in the page's own state."""
        texts = self.texts
        return {
            "state": list(STATES[state or self.state][0]),
            "wire": True,
            "name": texts["type"] or None,
            "reason": texts["reason"] or None,
            "tags": listing.tags_of([texts["tag"]]) if texts["tag"] else None,
            "correlation_id": texts["correlation_id"] or None,
            "worker": texts["worker"] or None,
            "category": texts["category"] or None,
            "since": texts["since"] or None,
        }

    def fields(self) -> list[tuple[str, str]]:
        """Returns the filters as the fields of a form."""
        return [("state", self.state), ("queue", self.queue), *self.texts.items()]

    async def matching(self, queues: list[Queue], most: int) -> list[tuple[Queue, Job]]:
        """Returns the jobs of queues that match, the newest of each queue first, at most so many."""
        found: list[tuple[Queue, Job]] = []
        for queue in queues:
            if len(found) < most:
                page = await queue.jobs.search(**self.asked(), limit=most - len(found), scan=listing.SCAN)
                found += ((queue, job) for job in page.jobs)
        return found

    def address(self, **changed: Any) -> str:
        """Returns the address of a page with some filters changed; None removes one."""
        state = "" if self.state == ALL else self.state
        return link("/jobs", **{"state": state, "queue": self.queue, **self.texts, **changed})


class JobsPage(View):
    """Jobs by state."""

    title = "Jobs"
    template = "jobs.html"
    parts = ("tabs", "rows")
    nav = "jobs"

    def read_address(self) -> None:
        """Reads the filters and the place of the page."""
        self._filters = Filters(self.query)
        self._cursor = self.query.get("cursor") or None
        self._first = _first(self.query.get("first"))
        if self._filters.queue:
            self.service.queue(self._filters.queue)
        # A search reads many jobs: a page that searches is looked at less often.
        self.every = 15.0 if not self._filters.is_plain else 5.0 if self._filters.state == ALL else 2.0

    async def load(self) -> dict[str, Any]:
        """Reads a page of jobs."""
        filters = self._filters
        tracks = await self.tracks()
        chosen = [tracks[filters.queue]] if filters.queue else list(tracks.values())
        counts = {state: sum(_count(track, state) for track in chosen) for state in (ALL, *TABS)}
        found = await self._page(chosen, counts)
        return {
            "filters": filters,
            "tabs": [*counts.items()],
            "states": STATES,
            "is_first": not (self._cursor or self._first),
            **found,
        }

    async def _page(self, chosen: list[Track], counts: dict[str, int]) -> dict[str, Any]:
        filters, service = self._filters, self.service
        if filters.state == ALL:
            return await self._of_all_states(chosen, counts[ALL])
        if filters.queue and filters.is_plain:
            return await self._by_place(service.queue(filters.queue), chosen[0], counts[filters.state])
        if filters.queue and filters.state == "retrying" and not filters.has_texts:
            return await self._retrying(service.queue(filters.queue), chosen[0].count("delayed"))
        full = [track for track in chosen if _count(track, filters.state)]
        full.sort(key=lambda track: -_count(track, filters.state))
        queues = [service.queue(track.name) for track in full[:MOST_QUEUES]]
        at = None if self._cursor is None else listing.Cursor.parse(self._cursor)
        asked = filters.asked()
        if at is not None:
            asked["until"] = at.until_ms
        scan = SCAN if filters.is_plain else FILTERED if filters.has_texts else SORTED_OUT
        found = await listing.page(queues, asked, ROWS, at, scan)
        return {
            "jobs": found.jobs,
            "matched": counts[filters.state] if filters.is_plain else found.matched,
            "exact": filters.is_plain or found.exact,
            "next": filters.address(cursor=found.next_cursor) if found.next_cursor else "",
            "left_out": max(0, len(full) - MOST_QUEUES),
        }

    async def _of_all_states(self, chosen: list[Track], count: int) -> dict[str, Any]:
        """Reads the latest jobs of every state. Each state is searched by itself: a long list must not use up
        what may be read of the others.
        """
        filters = self._filters
        full = sorted(
            (track for track in chosen if _count(track, ALL)), key=lambda track: -_count(track, ALL)
        )
        scan = SCAN if filters.is_plain else FILTERED // len(TABS)
        found = await asyncio.gather(
            *(
                listing.page(
                    [self.service.queue(track.name) for track in full[:MOST_QUEUES] if _count(track, state)],
                    filters.asked(state),
                    ROWS,
                    None,
                    scan,
                )
                for state in TABS
            )
        )
        # A job that moved meanwhile is met twice.
        jobs = {(job.queue, job.id): job for one in found for job in one.jobs}
        matched = count if filters.is_plain else sum(one.matched for one in found)
        return {
            "jobs": sorted(jobs.values(), key=lambda job: job.updated_at, reverse=True)[:ROWS],
            "matched": matched,
            "exact": filters.is_plain or all(one.exact for one in found),
            "next": "",
            "left_out": max(0, len(full) - MOST_QUEUES),
        }

    async def _by_place(self, queue: Queue, track: Track, count: int) -> dict[str, Any]:
        """Reads a page by its place, which takes the same time however many jobs there are."""
        first = skip = self._first
        jobs: list[JobBody] = []
        for word in STATES[self._filters.state][0]:
            length = sum(track.count(place) for place in WIRE[word])
            if skip < length and len(jobs) < ROWS:
                found = await queue.jobs.list(word, first=skip, limit=ROWS - len(jobs))
                jobs += [job_body(job, queue.name) for job in found]
            skip = max(0, skip - length)
        more = first + ROWS < count
        return {
            "jobs": jobs[:ROWS],
            "matched": count,
            "exact": True,
            "next": self._filters.address(first=first + ROWS) if more else "",
            "left_out": 0,
        }

    async def _retrying(self, queue: Queue, length: int) -> dict[str, Any]:
        """Reads delayed jobs by their place until a page of them has failed before."""
        at, jobs = self._first, list[JobBody]()
        end = min(length, at + FILTERED)
        while len(jobs) < ROWS and at < end:
            found = await queue.jobs.list("delayed", first=at, limit=STEP)
            for place, job in enumerate(found):
                if job.state is State.RETRYING:
                    jobs.append(job_body(job, queue.name))
                if len(jobs) == ROWS:
                    at += place + 1
                    break
            else:
                at += STEP
        is_over = at >= length
        return {
            "jobs": jobs,
            "matched": len(jobs),
            "exact": is_over and not self._first,
            "next": "" if is_over else self._filters.address(first=at),
            "left_out": 0,
        }


def _count(track: Track, state: str) -> int:
    if state == ALL:  # jobs that wait for their group's turn are among the delayed ones of the wire
        return sum(track.sample.counts.values())
    return sum(track.count(place) for place in STATES[state][1])


def _first(given: str | None) -> int:
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise ValidationError("first", "an integer from 0 to 999999999", given)
    return int(given)


@get("/search", opt=READ, include_in_schema=False)
async def search(request: Request[Any, Any, Any], service: Api) -> Response[None]:
    """Leads to a job by its id, or to jobs that match: ``type:welcome``, ``tag:tenant=acme``, or a reason."""
    text = request.query_params.get("q", "").strip()
    name, separator, value = text.partition(":")
    place = link("/jobs", state="failed", reason=text)
    if not text:
        place = "/jobs"
    elif separator and name in (*FILTERS, "state", "queue"):
        place = link("/jobs", **{"state": "failed" if name in ("reason", "category") else "", name: value})
    elif text in service.queues:
        place = link("/queue", name=text)
    else:
        try:
            queue, job = await service.find(text)
            place = link("/job", queue=queue.name, id=job.id)
        except ApiError:
            pass
    return Response(None, status_code=303, headers={"Location": root_of(request) + place})


ROUTES = [*page("/jobs", JobsPage), search]
