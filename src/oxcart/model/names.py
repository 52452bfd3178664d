"""Checks of the names that users choose: queues, job names and job ids."""

from __future__ import annotations

import re

from oxcart.model.errors import ValidationError

#: The suffix of hidden queues, which contain gates (docs/decisions/42).
HIDDEN = "~gates"

_INTEGER = re.compile(r"-?[0-9]+")

#: Suffixes of the queue's own keys. A job with such an id would overwrite the queue's data: ``meta`` is a
#: hash like the job's.
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
    """Returns the name of a queue if every peer can use it.

    Raises:
        ValidationError: It is empty, contains ``:``, is not valid UTF-8, or names a hidden queue.
    """
    _check_text(name, field)
    if ":" in name:
        raise ValidationError(field, "without ':'", name)
    if name.endswith(HIDDEN):
        raise ValidationError(field, f"a name that does not end in {HIDDEN!r}, as of hidden queues", name)
    return name


def check_job_name(name: str, field: str = "job name") -> str:
    """Returns the name of a job, which is the name of its handler.

    Raises:
        ValidationError: It is empty or not valid UTF-8.
    """
    _check_text(name, field)
    return name


def check_job_id(job_id: str, field: str = "job_id") -> str:
    """Returns a custom id if every peer accepts it and no key of the queue has that name.

    Raises:
        ValidationError: It is empty, looks like an integer (reserved for the queue's counter), starts
            with ``0:`` (an old marker), contains ``:`` but not exactly three segments (ids of schedules), or
            is the name of one of the queue's own keys.
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
    """Checks the custom id of a job of a flow or graph, and records it in ``ids``.

    Args:
        job_id: The id, or None if the client generates it.
        queue: Prefix and name of its queue.
        what: What contains the job, for example ``flow``.
        ids: The ids (prefix, queue, id) of the jobs checked before; this one is added.

    Raises:
        ValidationError: It contains ``:``, or another job has the same id.
    """
    if job_id is None:
        return
    if ":" in job_id:
        raise ValidationError("job_id", f"without ':' in a {what}: its key must name its queue", job_id)
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
