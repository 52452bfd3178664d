"""The list of jobs over all queues, in pages that continue by a cursor."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromQuery, QueryParameter

from oxcart.http import values
from oxcart.http.access import READ
from oxcart.http.routes import Api, answers
from oxcart.model.errors import ValidationError
from oxcart.model.job import Job
from oxcart.model.search import changed_ms
from oxcart.queue import Queue

#: Jobs of one page at most.
MAX_PAGE = 1000
#: Jobs of one queue that a page reads at most.
SCAN = 10_000


class Cursor(msgspec.Struct, array_like=True):
    """Where the next page begins.

    Attributes:
        until_ms: The time of the last job of the page before.
        skip: How many jobs of exactly that time each queue has already shown.
    """

    until_ms: int
    skip: dict[str, int]

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Reads a cursor.

        Raises:
            ValidationError: The text is none.
        """
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            made = msgspec.json.decode(raw, type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
            raise ValidationError("cursor", "the next_cursor of a page", text) from None
        if made.until_ms < 0 or any(not 0 <= count <= SCAN for count in made.skip.values()):
            raise ValidationError("cursor", "the next_cursor of a page", text)
        return made


Tag = Annotated[
    list[str] | None,
    QueryParameter(name="tag", description="Only jobs with this tag, as name=value; repeatable."),
]


@get(
    "/api/v1/jobs",
    summary="List jobs",
    responses=answers(404, ok=(200, values.Page, "A page of jobs, latest change first.")),
    opt=READ,
)
async def jobs(
    service: Api,
    in_state: Annotated[
        list[str] | None, QueryParameter(name="state", description="Only jobs in these formal states.")
    ] = None,
    job_type: Annotated[
        list[str] | None, QueryParameter(name="type", description="Only jobs of these types.")
    ] = None,
    in_queue: Annotated[
        list[str] | None, QueryParameter(name="queue", description="Only jobs of these queues.")
    ] = None,
    tag: Tag = None,
    correlation_id: FromQuery[str | None] = None,
    reason: Annotated[
        str | None, QueryParameter(description="Only jobs whose failure contains this text.")
    ] = None,
    category: Annotated[
        list[str] | None, QueryParameter(description="Only failures of these categories.")
    ] = None,
    worker: Annotated[
        list[str] | None, QueryParameter(description="Only jobs last claimed by these workers: web-*.")
    ] = None,
    priority: Annotated[
        list[int] | None, QueryParameter(description="Only jobs of these priorities, as jobs show them.")
    ] = None,
    since: Annotated[
        str | None, QueryParameter(description="Only jobs changed since then: 2h, 2026-11-15T12:00Z.")
    ] = None,
    until: Annotated[str | None, QueryParameter(description="Only jobs changed until then.")] = None,
    limit: FromQuery[int] = 100,
    cursor: Annotated[str | None, QueryParameter(description="The next_cursor of the page before.")] = None,
) -> values.Page:
    """Lists jobs over all queues, latest change first.

    A page reads at most 10 000 jobs of each queue, and completed and failed ones only until it is full;
    ``exact`` is false if there are more.
    """
    values.check_page_size(limit, MAX_PAGE)
    at = None if cursor is None else Cursor.parse(cursor)
    asked: dict[str, Any] = {
        "state": in_state,
        "name": job_type,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
        "reason": reason,
        "category": category,
        "worker": worker,
        "priority": priority,
        "since": since,
        "until": until if at is None else at.until_ms,
    }
    return await page(service.chosen(in_queue), asked, limit, at)


async def page(
    queues: list[Queue], asked: dict[str, Any], limit: int, at: Cursor | None, scan: int = SCAN
) -> values.Page:
    """Returns a page of the jobs of some queues, of each of which it reads at most so many."""
    skip = {} if at is None else at.skip
    found = await asyncio.gather(
        *(
            queue.jobs.search(**asked, first=skip.get(queue.name, 0), limit=limit + 1, scan=scan, count=False)
            for queue in queues
        )
    )
    rows = [
        (changed_ms(job), queue.name, job)
        for queue, one in zip(queues, found, strict=True)
        for job in one.jobs
    ]
    rows.sort(key=lambda row: -row[0])  # stable: jobs of one queue and time keep their order
    shown = rows[:limit]
    more = len(rows) > limit
    return values.Page(
        jobs=[values.job_body(job, name) for _, name, job in shown],
        count=len(shown),
        matched=sum(one.matched for one in found) - sum(skip.get(queue.name, 0) for queue in queues),
        exact=all(one.exact for one in found),
        next_cursor=str(_next(shown, at)) if more else None,
    )


def _next(shown: list[tuple[int, str, Job]], at: Cursor | None) -> Cursor:
    last = shown[-1][0]
    skip = dict(at.skip) if at is not None and at.until_ms == last else {}
    for changed, queue, _ in shown:
        if changed == last:
            skip[queue] = skip.get(queue, 0) + 1
    return Cursor(last, skip)


def tags_of(pairs: list[str] | None) -> dict[str, str] | None:
    """Reads tags written as ``name=value``.

    Raises:
        ValidationError: One has another form.
    """
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValidationError("tag", "name=value", pair)
        found[name] = value
    return found or None


ROUTES = [jobs]
