"""Splits adds into calls of bounded size, and writes their arguments (``lua/add.lua`` reads them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from oxcart.broker.bullmq import codec

#: Jobs per add call: keeps a call at about 3 ms of the server's time.
ADD_CHUNK = 150
ADD_BYTES = 1_048_576
#: What a job of a run has behind its timestamp: no delay, no priority, no flags and no further fields.
_PLAIN: list[bytes | str | int] = [0, 0, "", 0]


def split_adds(
    jobs: Sequence[codec.Encoded], lane: str | None, whole: bool = False
) -> Iterator[tuple[Sequence[codec.Encoded], list[bytes | str | int]]]:
    """Splits an add into calls: the jobs of each, and its arguments."""
    start = 0
    while start < len(jobs):
        size = count = tied = 0
        is_plain = lane is None
        for _, job in islice(jobs, start, len(jobs) if whole else start + ADD_CHUNK):
            weight = len(job[2])  # type: ignore[arg-type]
            if count and not whole and size + weight > ADD_BYTES:
                break
            size += weight
            count += 1
            if job[5:] != _PLAIN:
                is_plain = False
                tied += job[codec.FLAGS][:1] == codec.TIED  # type: ignore[index]
        part = jobs[start : start + count]
        ids = {job_id for job_id, _ in part} if is_plain and count > 1 else ()
        if len(ids) == count and "" not in ids:
            yield part, _runs(part)
        else:
            args: list[bytes | str | int] = [count, tied if lane is None else f"{tied}@{lane}"]
            for _, job in part:
                args += job
            yield part, args
        start += count


def _runs(part: Sequence[codec.Encoded]) -> list[bytes | str | int]:
    """Returns the arguments for a batch of plain jobs; neighbours pass what they share once."""
    args: list[bytes | str | int] = [len(part), "="]
    before: tuple[bytes | str | int, ...] = ()
    many = place = 0
    for _, job in part:
        shared = (job[1], job[3], job[4])
        if shared != before:
            if before:
                args[place] = many
            args += (*shared, 0)
            before, many, place = shared, 0, len(args) - 1
        many += 1
        args += (job[0], job[2])
    args[place] = many
    return args
