"""Ids of jobs that lead to their queue: 16 bits of a UUID are a hash of the queue's name."""

from __future__ import annotations

import hashlib
import uuid

_TAG_BITS = 16
_TAG_MASK = (1 << _TAG_BITS) - 1


def tag_of_queue(name: str) -> int:
    """Returns the 16 bits of a job id that lead to its queue."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=2).digest(), "big")


def tag_of_id(job_id: str) -> int | None:
    """Returns those bits of an id, or None if it is no UUID."""
    try:
        return uuid.UUID(job_id).int & _TAG_MASK
    except ValueError:
        return None


def new_id(queue: str) -> str:
    """Returns a UUID v4 for a new job, whose last 16 bits lead back to its queue."""
    made = uuid.uuid4().int & ~_TAG_MASK | tag_of_queue(queue)
    return str(uuid.UUID(int=made))
