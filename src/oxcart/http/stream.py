"""The event stream: Server-Sent Events of all jobs or of one, which a client can resume."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get
from litestar.openapi import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from oxcart.http import hub
from oxcart.http.access import READ
from oxcart.http.mailbox import Mailbox
from oxcart.http.position import Position
from oxcart.http.routes import Api, answers

_EVENT_STREAM = "text/event-stream"


@get(
    "/api/v1/events",
    summary="Follow events",
    media_type=_EVENT_STREAM,
    responses={
        **answers(429),
        200: ResponseSpec(
            str, generate_examples=False, description="Server-Sent Events.", media_type=_EVENT_STREAM
        ),
    },
    opt={**READ, "endless": True},
)
async def events(
    request: Request[Any, Any, Any],
    service: Api,
    job_id: Annotated[str | None, QueryParameter(description="Only events of this job.")] = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="Resume after this event.")
    ] = None,
) -> Stream:
    """Streams events: job.created, .started, .progress, .completed, .failed, .cancelled, .retried, .deleted.

    Data is the job as it was when the event was read, and ``{"id"}`` of a deleted one. A stream that falls
    more than 4000 events behind ends; the client continues by ``Last-Event-ID``. It also ends with the
    caller's key or session.
    """
    since = Position.parse(last_event_id) if last_event_id else None
    wanted = None if job_id in (None, "*") else job_id
    service.hub.check_room()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    listener = Mailbox(hub.BACKLOG)
    request.app.state.open_streams.add(request, listener)
    lines = service.hub.follow(since, service.queues, wanted, listener)
    return Stream(lines, media_type=_EVENT_STREAM, headers=headers)


ROUTES = [events]
