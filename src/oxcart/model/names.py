"""The names a user chooses: of queues, of jobs, and of single jobs."""

from __future__ import annotations

import re

from oxcart.model.errors import ValidationError

#: How the names of hidden queues end, in which gates wait (docs/decisions/42).
HIDDEN = "~gates"

_INTEGER = re.compile(r"-?[0-9]+")

#: Suffixes under which a queue keeps its own keys. A job's hash lives beside them, so a job of such an
#: id would be written into the queue's own data: ``meta`` is a hash like the job's.
_QUEUE_KEYS = frozenset(
    {
        "active",
        "completed",
        "delayed",
        "events",
        "failed",
        "id",
        "limiter",
        "marker",
        "meta",
        "paused",
        "pc",
        "prioritized",
        "priority",
        "repeat",
        "stalled",
        "stalled-check",
        "wait",
        "waiting-children",
    }
)
_QUEUE_ROOMS = ("de:", "dn:", "metrics:", "ox:")


def check_queue_name(name: str, field: str = "queue name") -> str:
    """Return the name of a queue if every peer can use it.

    Raises:
        ValidationError: It is empty, holds a ``:``, cannot be written as UTF-8, or is that of a hidden queue.
    """
    _check_text(name, field)
    if ":" in name:
        raise ValidationError(field, "without ':'", name)
    if name.endswith(HIDDEN):
        raise ValidationError(field, f"one that does not end in {HIDDEN!r}, as hidden queues do", name)
    return name


def check_job_name(name: str, field: str = "job name") -> str:
    """Return the name of a job, i.e. of its handler.

    Raises:
        ValidationError: It is empty or cannot be written as UTF-8.
    """
    _check_text(name, field)
    return name


def check_job_id(job_id: str, field: str = "job_id") -> str:
    """Return a custom id if every peer accepts it and no key of the queue has that name.

    Raises:
        ValidationError: It is empty, looks like an integer (those belong to the queue's counter), starts
            with ``0:`` (an old marker), has a ``:`` but not exactly three segments (room for the ids of
            schedules), or is the name of one of the queue's own keys.
    """
    _check_text(job_id, field)
    # "NaN" is no integer, but Node's own check takes it for one.
    if _INTEGER.fullmatch(job_id) or job_id == "NaN":
        raise ValidationError(field, "an id that does not look like an integer", job_id)
    if job_id.startswith("0:"):
        raise ValidationError(field, "an id that does not start with '0:'", job_id)
    if ":" in job_id and job_id.count(":") != 2:
        raise ValidationError(field, "without ':', or of exactly three segments", job_id)
    if job_id in _QUEUE_KEYS or job_id.startswith(_QUEUE_ROOMS):
        raise ValidationError(field, "different from the queue's own keys", job_id)
    return job_id


def check_new_id(
    job_id: str | None, queue: tuple[str, str], what: str, ids: set[tuple[str, str, str]]
) -> None:
    """Checks the id of a job that is added together with others, and notes it.

    Args:
        job_id: The id; None where it has none of its own.
        queue: Its queue: what stands before the name in keys, and the name.
        what: What they are together, for example ``flow``.
        ids: The ids (prefix, queue, id) of the others; this one is added to them.

    Raises:
        ValidationError: It has a ``:``, or another one has it too.
    """
    if job_id is None:
        return
    if ":" in job_id:
        raise ValidationError(
            "job_id", f"without ':' in a {what}: its key tells which queue it is in", job_id
        )
    known = (*queue, job_id)
    if known in ids:
        raise ValidationError("job_id", f"different for every job of a {what}", job_id)
    ids.add(known)


def _check_text(value: str, field: str) -> None:
    if not isinstance(value, str) or not value:
        raise ValidationError(field, "a non-empty string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(field, "text that UTF-8 can hold", value) from None
