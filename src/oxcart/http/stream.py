"""The event stream: Server-Sent Events of all jobs or of one, which a client can resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from litestar import get
from litestar.openapi import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from oxcart.http.access import READ
from oxcart.http.hub import Listener, Message, Position
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service

#: Seconds after which a silent stream sends a comment.
KEEP_ALIVE = 30.0

_EVENT_STREAM = "text/event-stream"
#: NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR.
_ENDS = tuple(end.encode() for end in "\x85\u2028\u2029")


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
    service: Api,
    job_id: Annotated[str | None, QueryParameter(description="Only events of this job.")] = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="Resume after this event.")
    ] = None,
) -> Stream:
    """Streams events: job.created, .started, .progress, .completed, .failed, .cancelled, .retried, .deleted.

    Data is the job as it was when the event was read, and ``{"id"}`` of a deleted one. A stream that falls
    more than 4000 events behind ends; the client continues by ``Last-Event-ID``.
    """
    since = Position.parse(last_event_id) if last_event_id else None
    wanted = None if job_id in (None, "*") else job_id
    service.hub.check_room()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_lines(service, since, wanted), media_type=_EVENT_STREAM, headers=headers)


async def _lines(service: Service, since: Position | None, wanted: str | None) -> AsyncIterator[bytes]:
    # Joined here and not before: a stream whose client is already gone never starts, and never ends either.
    async with service.hub.listen(since, service.queues, wanted) as listener:
        async for line in _follow(service, listener, wanted):
            yield line


async def _follow(service: Service, listener: Listener, wanted: str | None) -> AsyncIterator[bytes]:
    yield _encode(str(listener.position), "connected", b'{"status":"connected"}')
    async for message in service.hub.missed(listener):
        if line := _line(listener, message, wanted):
            yield line
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE):
                next_one = await listener.messages.get()
        except TimeoutError:
            yield b": keep-alive\n\n"
            continue
        if next_one is None:
            return
        if line := _line(listener, next_one, wanted):
            yield line


def _line(listener: Listener, message: Message, wanted: str | None) -> bytes:
    listener.position.take(message)
    if wanted is not None and message.job_id != wanted:
        return b""
    return _encode(str(listener.position), message.name, message.data)


def one_line(data: bytes) -> bytes:
    """Escapes the ends of lines that JSON leaves as they are.

    The format ends lines only at CR and LF, but many clients split text as Python does. For them a job could
    forge an event.
    """
    for end in _ENDS:
        if end in data:
            data = data.replace(end, b"\\u%04x" % ord(end.decode()))
    return data


def _encode(position: str, name: str, data: bytes) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (position.encode(), name.encode(), one_line(data))


ROUTES = [events]
