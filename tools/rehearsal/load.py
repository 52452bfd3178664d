"""The load of a rehearsal: a steady producer, and the comparison of what it added with what ran."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from oxcart import Job, Queue

#: Seconds that a busy machine may need for the jobs that are left.
LIMIT = 60.0


class Failed(Exception):
    """A step of the rehearsal failed."""


class Counts(NamedTuple):
    """What the server says of the jobs that ended."""

    failed: int
    stalled: int


def answers(port: int, path: str) -> bool:
    """Whether a service answers with 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def produce(url: str, count: int, acknowledged: list[str], stop_after: asyncio.Event) -> None:
    """Adds jobs steadily until it is stopped, and notes the id of every acknowledged one."""
    async with Queue("orders", url=url, attempts=3) as queue:
        number = 0
        while number < count or not stop_after.is_set():
            jobs = await queue.add_many([("charge", {"number": number + at}) for at in range(10)])
            acknowledged += [job.id for job in jobs]
            number += 10
            await asyncio.sleep(0.02)


async def settled(url: str, count: int) -> Counts:
    """Waits until so many jobs have ended.

    Raises:
        Failed: Jobs are left.
    """
    async with Queue("orders", url=url) as queue:
        end = time.monotonic() + LIMIT
        while True:
            counts = await queue.counts()
            if counts["completed"] + counts["failed"] >= count:
                break
            if time.monotonic() > end:
                raise Failed(f"jobs are left: {counts}")
            await asyncio.sleep(0.05)
        return Counts(counts["failed"], sum([job.stalled_count async for job in _all(queue)]))


def verdict(acknowledged: Sequence[str], diary: Path, counts: Counts) -> None:
    """Compares the jobs that producers know of with those that handlers wrote down.

    Raises:
        Failed: A job was lost, ran twice, stalled or failed.
    """
    runs = Counter(diary.read_text().split())
    lost = [one for one in acknowledged if one not in runs]
    twice = [one for one, times in runs.items() if times > 1]
    if lost or twice or counts.stalled or counts.failed:
        raise Failed(
            f"{len(lost)} lost, {len(twice)} ran twice, {counts.stalled} stalled, {counts.failed} failed"
        )


async def _all(queue: Queue) -> AsyncIterator[Job]:
    start = 0
    while page := await queue.jobs.list("completed", first=start, limit=500):
        for job in page:
            yield job
        start += len(page)
