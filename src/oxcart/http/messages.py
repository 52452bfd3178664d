"""The messages of the event stream: each is an event of the wire with the job as it is now."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oxcart.broker.port.streams import LanePlace
from oxcart.http.position import Position
from oxcart.http.times import rfc3339_ms
from oxcart.http.values import JobBody, job_body
from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.state import State
from oxcart.queue import Queue

#: The name and the job's state that each event of the wire stands for.
_NAMES = {
    "added": ("job.created", State.PENDING),
    "active": ("job.started", State.RUNNING),
    "progress": ("job.progress", State.RUNNING),
    "completed": ("job.completed", State.COMPLETED),
    "failed": ("job.failed", State.FAILED),
    "removed": ("job.deleted", None),
}
#: NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR.
_ENDS = tuple(end.encode() for end in "\x85\u2028\u2029")


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of the event stream.

    Attributes:
        queue: The queue's name.
        event_id: The id of the event in the queue's stream.
        job_id: The job.
        text: Its lines for the event stream, but for the position.
        place: The event's place among those of the queue's lanes; None for an event of the queue itself.
    """

    queue: str
    event_id: str
    job_id: str
    text: bytes
    place: LanePlace | None = None

    def move(self, position: Position) -> None:
        """Moves a position behind the message."""
        if self.place is None:
            position.move(self.queue, self.event_id)
        else:
            position.move_lanes(self.queue, self.place)

    def at(self, position: Position) -> bytes:
        """Returns the message as the event stream sends it."""
        return lines_of(position, self.text)


def lines_of(position: Position, text: bytes) -> bytes:
    """Returns the lines of a message at a position."""
    return b"id: %s\n%s\n\n" % (str(position).encode(), text)


def text_of(name: str, data: bytes) -> bytes:
    """Returns the lines of a message, but for its position."""
    return b"event: %s\ndata: %s" % (name.encode(), one_line(data))


def one_line(data: bytes) -> bytes:
    """Escapes the ends of lines that JSON leaves as they are.

    The format ends lines only at CR and LF, but many clients split text as Python does. For them a job could
    forge an event.
    """
    if data.isascii():
        return data
    for end in _ENDS:
        if end in data:
            data = data.replace(end, b"\\u%04x" % ord(end.decode()))
    return data


async def messages_of(
    queue: Queue, events: Sequence[Event], places: Sequence[LanePlace] | None = None
) -> list[Message | None]:
    """Returns the message of each event, with its job as it is now; None if an event has none.

    Args:
        queue: The queue.
        events: The events.
        places: Their places among those of the queue's lanes; None for events of the queue itself.
    """
    named = [_name(event) if event.job_id else ("", None) for event in events]
    wanted = {
        event.job_id or "": None
        for event, (name, _) in zip(events, named, strict=True)
        if name and name != "job.deleted"
    }
    found = await queue._core.broker.look(list(wanted), lenient=True) if wanted else ()
    jobs = dict(zip(wanted, found, strict=True))
    bodies = {job_id: job_body(job, queue.name) for job_id, job in jobs.items() if job is not None}
    texts: dict[str, bytes] = {job_id: msgspec.json.encode(body) for job_id, body in bodies.items()}
    made: list[Message | None] = []
    for number, (event, (name, state)) in enumerate(zip(events, named, strict=True)):
        job_id = event.job_id or ""
        if not name or (event.name == "delayed" and not _was_started(jobs.get(job_id))):
            made.append(None)  # an add with a delay has the same event on the wire as a retry
            continue
        if name == "job.deleted" or state is None:
            data = msgspec.json.encode({"id": job_id})
        elif (known := texts.get(job_id)) is not None:
            data = known
            if name == "job.failed" and bodies[job_id].state == State.CANCELLED:
                name = "job.cancelled"
        else:
            data = msgspec.json.encode(_removed(event, state))
        place = None if places is None else places[number]
        made.append(Message(queue.name, event.id, job_id, text_of(name, data), place))
    return made


def _was_started(job: Job | None) -> bool:
    return job is not None and bool(job.attempts_started)


def _name(event: Event) -> tuple[str, State | None]:
    if event.name == "delayed":
        return "job.retried", State.RETRYING
    if event.name == "waiting" and event.prev in ("active", "failed", "completed"):
        return "job.retried", State.SCHEDULED
    return _NAMES.get(event.name, ("", None))


def _removed(event: Event, state: State) -> JobBody:
    """Returns a job that was removed when it ended, of which the event is all that is left."""
    return JobBody(
        id=event.job_id or "",
        type=event.fields.get("name", ""),
        queue=event.queue,
        state=state.value,
        priority=0,
        attempt=0,
        max_attempts=1,
        progress=0.0,
        progress_message="",
        tags={},
        created_at=rfc3339_ms(event.timestamp),
        updated_at=rfc3339_ms(event.timestamp),
        last_error=event.failed_reason,
    )
