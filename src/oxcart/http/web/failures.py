"""Failures by cause: groups with a trend, and the retry of a whole group after a dry run."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, post
from litestar.response import Response
from markupsafe import Markup

from oxcart.broker.search import Scan
from oxcart.drawing.sparks import bars
from oxcart.http.access import OPERATE
from oxcart.http.audit import note
from oxcart.http.routes import Api
from oxcart.http.sessions import safe_next
from oxcart.http.web import forms
from oxcart.http.web.actions import LISTED, MOST, read_form, run_bulk
from oxcart.http.web.dashboard import View, Web, page
from oxcart.model.failure_groups import mask, raised_in
from oxcart.model.filter import failure_of
from oxcart.model.job import Job
from oxcart.model.search import JobSearch, changed_ms, choose_lists
from oxcart.queue import Queue

#: Failed jobs of one queue that the page reads, and queues.
SCAN, MOST_QUEUES = 1000, 10
#: Groups that the page shows.
GROUPS = 40
#: Bars of a trend.
TREND = 24
_HOUR = 3_600_000
#: The spans that the page offers, in ms.
SPANS = {"1h": _HOUR, "24h": 24 * _HOUR, "7d": 168 * _HOUR}


class Cause(msgspec.Struct, kw_only=True):
    """Failed jobs of a queue with one cause."""

    queue: str
    reason: str
    frame: str | None
    example: str
    job: str
    category: str | None
    first_ms: int
    last_ms: int
    times: list[int] = msgspec.field(default_factory=list)
    types: dict[str, int] = msgspec.field(default_factory=dict)


def scan_failed(queue: Queue, since_ms: int, most: int) -> Scan:
    """Returns a scan of failed jobs and dead letters, newest first."""
    chosen = JobSearch(since_ms=since_ms)
    return Scan(queue._core.broker, choose_lists(["failed", "dead_letter"]), chosen, most=most)


def cause_of(job: Job) -> tuple[str, str | None]:
    """Returns the masked reason of a failure, and the frame that raised it."""
    return mask(failure_of(job) or "(no reason)"), raised_in(job.stacktrace[-1] if job.stacktrace else "")


class FailuresPage(View):
    """Failures by cause."""

    title = "Failures"
    template = "failures.html"
    parts = ("failures",)
    every = 10.0
    nav = "failures"

    def read_address(self) -> None:
        """Reads the queue and the span."""
        self._queue = self.query.get("queue", "")
        if self._queue:
            self.service.queue(self._queue)
        self._span = self.query.get("since", "24h")
        if self._span not in SPANS:
            self._span = "24h"

    async def load(self) -> dict[str, Any]:
        """Reads and groups failed jobs."""
        tracks = await self.tracks()
        names = [self._queue] if self._queue else [
            track.name
            for track in sorted(tracks.values(), key=lambda track: -track.count("failed"))
            if track.count("failed")
        ]  # fmt: skip
        span = SPANS[self._span]
        causes: dict[tuple[str, str, str | None], Cause] = {}
        read = now = 0
        cut: list[str] = []
        for name in names[:MOST_QUEUES]:
            queue = self.service.queue(name)
            now = tracks[name].sample.at_ms
            scan = scan_failed(queue, now - span, SCAN)
            async for _, job in scan.run():
                read += 1
                _add(causes, (name, *cause_of(job)), job)
            cut += [] if scan.found.exact else [name]
        rows = sorted(causes.values(), key=lambda cause: (-len(cause.times), -cause.last_ms))
        return {
            "causes": [(cause, self._trend(cause, now, span)) for cause in rows[:GROUPS]],
            "more": max(0, len(rows) - GROUPS),
            "read": read,
            "cut": cut,
            "queue": self._queue,
            "spans": list(SPANS),
            "span": self._span,
            "left_out": names[MOST_QUEUES:],
        }

    def _trend(self, cause: Cause, now: int, span: int) -> Markup:
        counts = [0.0] * TREND
        for at in cause.times:
            place = TREND - 1 - min(TREND - 1, max(0, (now - at) * TREND // span))
            counts[int(place)] += 1
        return Markup(bars(counts, "bad", f"{len(cause.times)} failures over the last {self._span}"))


def _add(
    causes: dict[tuple[str, str, str | None], Cause], key: tuple[str, str, str | None], job: Job
) -> None:
    at = changed_ms(job)
    cause = causes.get(key)
    if cause is None:
        queue, reason, frame = key
        cause = causes[key] = Cause(
            queue=queue,
            reason=reason,
            frame=frame,
            example=failure_of(job) or "",
            job=job.id,
            category=job.category,
            first_ms=at,
            last_ms=at,
        )
    cause.first_ms, cause.last_ms = min(at, cause.first_ms), max(at, cause.last_ms)
    cause.times.append(at)
    cause.types[job.name] = cause.types.get(job.name, 0) + 1


@post("/failures/retry", opt=OPERATE, include_in_schema=False)
async def retry_group(request: Request[Any, Any, Any], service: Api, dashboard: Web) -> Response[Any]:
    """Shows which jobs have a cause; with ``confirm`` it retries them, at most 1000 at once."""
    fields, _ = await read_form(request)
    queue = service.queue(fields.get("queue", ""))
    wanted = (fields.get("reason", ""), fields.get("frame") or None)
    found = [job async for _, job in scan_failed(queue, 0, 10 * MOST).run() if cause_of(job) == wanted][:MOST]
    back = safe_next(fields.get("back", "/failures"))
    if fields.get("confirm") == "yes":
        changed, refused = await run_bulk("retry", [(queue, job) for job in found])
        note(queue=queue.name, reason=wanted[0], changed=changed, refused=len(refused))
        return forms.done(request, back, "retried", changed)
    values = {
        "title": f"Retry {len(found)} jobs",
        "nav": "failures",
        "verb": "Retry",
        "count": len(found),
        "sample": [(queue.name, job) for job in found[:LISTED]],
        "target": "/failures/retry",
        "hidden": [("queue", queue.name), ("reason", wanted[0]), ("frame", wanted[1] or ""), ("back", back)],
        "back": back,
        "words": f"They failed with “{wanted[0]}”. They will run again with all their attempts.",
        "is_severe": False,
    }
    return dashboard.show(request, service, "confirm.html", values)


ROUTES = [*page("/failures", FailuresPage), retry_group]
