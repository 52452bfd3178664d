"""Reads pages, and makes jobs that they show."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from oxcart import Queue, RunningJob, Worker
from tests.signals import eventually

#: What a field of a job may carry to break out of a page, a header or a line.
EVIL = "<img src=x onerror=alert(1)>'\"`${7*7}{{7*7}}</pre></script>\r\nSet-Cookie: a=b\u202e\u2028\x1b[31m"


class Tags(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


async def fail_one(
    queue: Queue, name: str = "send", data: Any = None, reason: str = "no", **options: Any
) -> str:
    """Adds a job, lets it fail for good, and returns its id."""

    async def fails(job: RunningJob) -> None:
        raise RuntimeError(reason)

    async def has_failed() -> bool:
        return await queue.jobs.state(job.id) == "failed"

    queue.fallback(fails)
    job = await queue.add(name, data, attempts=1, **options)
    async with Worker(queue).running():
        await eventually(has_failed, f"job {job.id} has failed")
    return job.id
