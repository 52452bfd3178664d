"""Actions of pages: forms that pause queues and retry, cancel or remove jobs, then lead back to the page.

An action on many jobs shows first what it would do. Each form carries the token of the viewer's page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from oxcart.http.access import OPERATE, SUBMIT
from oxcart.http.audit import note
from oxcart.http.errors import ApiError
from oxcart.http.routes import Api
from oxcart.http.service import Service
from oxcart.http.sessions import safe_next
from oxcart.http.web import forms
from oxcart.http.web.dashboard import Web
from oxcart.http.web.jobs import Filters
from oxcart.http.web.page import AnyRequest
from oxcart.jobs import Cancellation
from oxcart.model.errors import JobError, ValidationError
from oxcart.model.job import Job
from oxcart.queue import Queue

#: Jobs that one action changes at most; repeat it for more.
MOST = 1000
#: Jobs that a dry run lists.
LISTED = 20

Fields = dict[str, str]
Act = Callable[[Service, Fields], Awaitable[tuple[str, int]]]


async def read_form(request: AnyRequest) -> tuple[Fields, list[str]]:
    """Reads a form, whose token the guard has checked; returns its fields, and the selected jobs."""
    data = await request.form()
    fields = {name: str(value) for name, value in [*request.query_params.items(), *data.items()]}
    return fields, [str(value) for value in data.getall("job", [])]


def action(path: str, act: Act, opt: dict[str, Any] = OPERATE) -> HTTPRouteHandler:
    """Returns the route of an action that needs no dry run."""

    @post(path, opt=opt, include_in_schema=False)
    async def run(request: Request[Any, Any, Any], service: Api) -> Response[Any]:
        fields, _ = await read_form(request)
        note(queue=fields.get("queue") or fields.get("name", ""), job_id=fields.get("id", ""))
        did, count = await act(service, fields)
        note(changed=count)
        back = "/jobs" if did == "removed" else fields.get("back", "/")
        return forms.done(request, back, did, count)

    return run


# -- queues


async def _pause(service: Service, fields: Fields) -> tuple[str, int]:
    await service.queue(fields.get("name", "")).pause()
    return "paused", 1


async def _resume(service: Service, fields: Fields) -> tuple[str, int]:
    await service.queue(fields.get("name", "")).resume()
    return "resumed", 1


# -- one job


async def _find(service: Service, fields: Fields) -> tuple[Queue, Job]:
    return await service.find(fields.get("id", ""), fields.get("queue") or None)


async def _retry(service: Service, fields: Fields) -> tuple[str, int]:
    queue, job = await _find(service, fields)
    await queue.jobs.retry(job.id, reset=True)
    return "retried", 1


async def _cancel(service: Service, fields: Fields) -> tuple[str, int]:
    queue, job = await _find(service, fields)
    how = await queue.jobs.cancel(job.id, fields.get("reason", ""), force=fields.get("force") == "yes")
    return ("asked" if how is Cancellation.REQUESTED else "cancelled"), 1


async def _remove(service: Service, fields: Fields) -> tuple[str, int]:
    queue, job = await _find(service, fields)
    await queue.jobs.remove(job.id)
    return "removed", 1


async def _promote(service: Service, fields: Fields) -> tuple[str, int]:
    queue, job = await _find(service, fields)
    await queue.jobs.handle(job.id).promote()
    return "promoted", 1


# -- many jobs

#: The actions on selected jobs, and what the next page says.
BULK: dict[str, tuple[str, str]] = {
    "retry": ("Retry", "retried"),
    "cancel": ("Cancel", "cancelled"),
    "promote": ("Run now", "promoted"),
    "remove": ("Remove", "removed"),
}


async def run_bulk(verb: str, jobs: Iterable[tuple[Queue, Job]]) -> tuple[int, list[tuple[Job, str]]]:
    """Applies an action to jobs; returns how many it changed, and why others were left as they are."""
    changed, refused = 0, []
    for queue, job in jobs:
        try:
            if verb == "retry":
                await queue.jobs.retry(job.id, reset=True)
            elif verb == "cancel":
                await queue.jobs.cancel(job.id)
            elif verb == "promote":
                await queue.jobs.handle(job.id).promote()
            else:
                await queue.jobs.remove(job.id)
        except JobError as error:
            refused.append((job, str(error)))
        else:
            changed += 1
    return changed, refused


async def _selected(service: Service, chosen: list[str]) -> list[tuple[Queue, Job]]:
    """Returns the jobs of a selection that still exist; each is written as its queue, a slash and its id."""
    found: list[tuple[Queue, Job]] = []
    for one in chosen[:MOST]:
        name, _, job_id = one.partition("/")
        try:
            found.append(await service.find(job_id, name))
        except ApiError:
            continue
    return found


@post("/jobs/bulk", opt=OPERATE, include_in_schema=False)
async def bulk(request: Request[Any, Any, Any], service: Api, dashboard: Web) -> Response[Any]:
    """Shows what an action on the selected jobs would do; with ``confirm`` it does it."""
    fields, chosen = await read_form(request)
    verb = fields.get("verb", "")
    if verb not in BULK:
        raise ValidationError("verb", f"one of {', '.join(BULK)}", verb)
    title, did = BULK[verb]
    every: list[tuple[str, str]] = []
    if fields.get("every") == "yes":
        filters = Filters(fields)
        queues = service.chosen([filters.queue] if filters.queue else None)
        jobs = await filters.matching(queues, MOST)
        every = [("every", "yes"), *filters.fields()]
    else:
        jobs = await _selected(service, chosen)
    back = safe_next(fields.get("back", "/jobs"))
    if fields.get("confirm") != "yes":
        values = {
            "title": f"{title} {len(jobs)} jobs",
            "nav": "jobs",
            "verb": title,
            "count": len(jobs),
            "sample": [(queue.name, job) for queue, job in jobs[:LISTED]],
            "target": "/jobs/bulk",
            "hidden": [
                *(("verb", verb), ("back", back)),
                *(every or (("job", f"{queue.name}/{job.id}") for queue, job in jobs)),
            ],
            "back": back,
            "words": {
                "retry": "They will run again with all their attempts.",
                "cancel": "Waiting ones end at once. The workers of running ones are asked to stop.",
                "promote": "They will run as soon as a worker is free.",
                "remove": "They are gone for good.",
            }[verb],
            "is_severe": verb in ("cancel", "remove"),
        }
        return dashboard.show(request, service, "confirm.html", values)
    changed, refused = await run_bulk(verb, jobs)
    note(verb=verb, changed=changed, refused=len(refused))
    if refused:
        values = {
            "title": title,
            "nav": "jobs",
            "changed": changed,
            "refused": refused[:LISTED],
            "back": back,
        }
        values |= {"count": len(refused), "did": did}
        return dashboard.show(request, service, "refused.html", values)
    return forms.done(request, back, did, changed)


ROUTES = [
    action("/queue/pause", _pause),
    action("/queue/resume", _resume),
    action("/job/retry", _retry),
    action("/job/cancel", _cancel, {**SUBMIT, "audit": True}),
    action("/job/remove", _remove),
    action("/job/promote", _promote),
    bulk,
]
