"""Partitions of a queue: their names, the routing of jobs, and the versions of a layout.

The rules are independent of a language, so that a producer without Oxcart can follow them
(docs/partitions.md, docs/decisions/124-partitions.md).
"""

from __future__ import annotations

import re
from zlib import crc32

import msgspec

from oxcart.model.errors import ValidationError
from oxcart.model.options import JobOptions

#: Most partitions of a queue.
MOST_PARTITIONS = 1024
#: The characters of a job's id that are its partition.
_AT = slice(20, 23)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAME = re.compile(r"(.+)#(0|[1-9][0-9]{0,3})")


class Layout(msgspec.Struct, frozen=True):
    """One version of the layout of a partitioned queue.

    Attributes:
        version: Grows with every change.
        size: New jobs go to the partitions below it.
        served: Workers consume, and reads span, the partitions below it.
        at_ms: When it was made, by the server's clock.
        servers: How many standalone servers the partitions are on; 1 for a server or a cluster.
    """

    version: int
    size: int
    served: int
    at_ms: int = 0
    servers: int = 1

    def resized(self, size: int, at_ms: int) -> Layout:
        """Returns the next version, with another size."""
        served = max(self.served, size)
        return Layout(self.version + 1, check_partitions(size), served, at_ms, self.servers)

    def reclaimed(self, served: int, at_ms: int) -> Layout:
        """Returns the next version, with further partitions that get no new jobs."""
        return Layout(self.version + 1, self.size, served, at_ms, self.servers)

    def retired(self, at_ms: int) -> Layout:
        """Returns the next version, without the partitions that get no new jobs."""
        return Layout(self.version + 1, self.size, self.size, at_ms, self.servers)


def check_partitions(count: object, field: str = "partitions") -> int:
    """Returns a number of partitions.

    Raises:
        ValidationError: It is no integer from 1 to `MOST_PARTITIONS`.
    """
    if type(count) is not int or not 1 <= count <= MOST_PARTITIONS:
        raise ValidationError(field, f"an integer from 1 to {MOST_PARTITIONS}", count)
    return count


def partition_name(queue: str, number: int) -> str:
    """Returns the name of a partition, which is a queue.

    Example:
        >>> partition_name("events", 3)
        'events#3'
    """
    return f"{queue}#{number}"


def split_partition(queue: str) -> tuple[str, int] | None:
    """Returns the queue and the number of a partition by its name; None for another queue.

    Example:
        >>> split_partition("events#3")
        ('events', 3)
    """
    found = _NAME.fullmatch(queue)
    return None if found is None else (found[1], int(found[2]))


def partition_of(key: str, size: int) -> int:
    """Returns the partition of a key: the CRC-32 of its UTF-8, modulo the number of partitions.

    Example:
        >>> partition_of("tenant-42", 16)
        12
    """
    return crc32(key.encode("utf-8", "surrogateescape")) % size


def routing_key(options: JobOptions) -> str | None:
    """Returns the text that decides about the partition of a job; None if any partition will do."""
    if options.partition_key is not None:
        return options.partition_key
    if options.idempotency_key is not None:
        return options.idempotency_key
    if options.deduplication is not None:
        return options.deduplication.id
    return options.job_id if options.job_id is not None else options.limit_key


def marked_id(job_id: str, number: int) -> str:
    """Returns a new UUID with the partition of its job in it."""
    return f"{job_id[:20]}{number:03x}{job_id[23:]}"


def marked_partition(job_id: str) -> int | None:
    """Returns the partition that an id names; None if it is no UUID of version 4."""
    return int(job_id[_AT], 16) if _UUID.fullmatch(job_id) else None
