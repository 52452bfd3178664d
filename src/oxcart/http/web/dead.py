"""Dead letters: the jobs that used up their attempts or their lifetime, with replay and purge of many."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from oxcart.http.access import ADMIN, OPERATE
from oxcart.http.audit import note
from oxcart.http.routes import Api
from oxcart.http.sessions import safe_next
from oxcart.http.values import job_body
from oxcart.http.web import forms
from oxcart.http.web.actions import LISTED, read_form
from oxcart.http.web.dashboard import View, Web, page
from oxcart.http.web.page import link

#: Dead letters that the page lists: of one queue, or of each of several.
ROWS, EACH, MOST_QUEUES = 100, 20, 10
#: Dead letters that one action changes at most; repeat it for more.
MOST = 10_000


class DeadPage(View):
    """Dead letters."""

    title = "Dead letters"
    template = "dead.html"
    parts = ("dead",)
    every = 5.0
    nav = "dead"

    def read_address(self) -> None:
        """Reads the filters."""
        self._queue = self.query.get("queue", "")
        if self._queue:
            self.service.queue(self._queue)
        self._type = self.query.get("type", "").strip()
        self._reason = self.query.get("reason", "").strip()

    async def load(self) -> dict[str, Any]:
        """Reads the newest dead letters."""
        tracks = await self.tracks()
        full = sorted(
            (track for track in tracks.values() if track.count("failed")), key=lambda t: -t.count("failed")
        )
        names = [self._queue] if self._queue else [track.name for track in full[:MOST_QUEUES]]
        jobs = []
        for name in names:
            letters = self.service.queue(name).dead_letters
            found = await letters.list(
                limit=ROWS if self._queue else EACH, name=self._type or None, reason=self._reason or None
            )
            jobs += [job_body(job, name) for job in found]
        jobs.sort(key=lambda job: job.updated_at, reverse=True)
        return {
            "jobs": jobs[:ROWS],
            "queue": self._queue,
            "job_type": self._type,
            "reason": self._reason,
            "cut": len(jobs) >= ROWS,
            "link_of": lambda name: link("/dead", queue=name, type=self._type, reason=self._reason),
            "with_letters": [track.name for track in full[:MOST_QUEUES]],
        }


def _route(verb: str, opt: dict[str, Any]) -> HTTPRouteHandler:
    words = {
        "replay": ("Replay", "They run again, oldest first, with all their attempts.", "replayed"),
        "purge": ("Remove", "They are gone for good.", "purged"),
    }[verb]

    @post(f"/dead/{verb}", opt=opt, include_in_schema=False)
    async def run(request: Request[Any, Any, Any], service: Api, dashboard: Web) -> Response[Any]:
        fields, _ = await read_form(request)
        queue = service.queue(fields.get("queue", ""))
        back = safe_next(fields.get("back", "/dead"))
        which: Any = {
            name: fields.get(field) or None for name, field in (("name", "type"), ("reason", "reason"))
        }
        dry = fields.get("confirm") != "yes"
        letters = queue.dead_letters
        if verb == "replay":
            done = await letters.replay_all(dry_run=dry, limit=MOST, **which)
        else:
            done = await letters.purge_all(dry_run=dry, limit=MOST, **which)
        note(queue=queue.name, changed=0 if dry else done.done, dry_run=dry)
        if not dry:
            return forms.done(request, back, words[2], done.done)
        sample = await queue.jobs.get_many(done.ids[:LISTED])
        values = {
            "title": f"{words[0]} {done.matched} dead letters",
            "nav": "dead",
            "verb": words[0],
            "count": done.matched,
            "sample": [(queue.name, job) for job in sample if job is not None],
            "target": f"/dead/{verb}",
            "hidden": [
                *((name, fields.get(name, "")) for name in ("queue", "type", "reason")),
                ("back", back),
            ],
            "back": back,
            "words": words[1],
            "is_severe": verb == "purge",
        }
        return dashboard.show(request, service, "confirm.html", values)

    return run


ROUTES = [*page("/dead", DeadPage), _route("replay", OPERATE), _route("purge", ADMIN)]
