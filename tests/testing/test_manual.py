"""Manual mode keeps jobs in memory until the test drains them."""

from __future__ import annotations

import pytest

from oxcart import (
    Queue,
    sync,
)
from oxcart.model.errors import (
    ResultTimeout,
    ValidationError,
)
from oxcart.testing import (
    assert_enqueued,
    drain,
    manual,
)


def shown(caught: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    """Returns the files of the frames that pytest shows."""
    return [str(entry.path) for entry in caught.traceback if not entry.ishidden(caught)]


class TestManual:
    async def test_waits_for_drain(self, emails: Queue) -> None:
        ran: list[str] = []

        @emails.job
        async def first() -> None:
            ran.append("first")
            await second.enqueue()

        @emails.job
        async def second() -> None:
            ran.append("second")

        with manual(emails) as whole:
            job = await first.using(delay="1h").enqueue()
            with pytest.raises(ResultTimeout, match="drain the queue first"):
                await job.result(timeout=60)
            await emails.add("unknown")
            assert ran == []
            report = await drain(emails)
            assert ran == ["first", "second"]
            assert report.counts == {"completed": 2, "unhandled": 1}
            assert [job.name for job in report.unhandled] == ["unknown"]
            assert (await drain(emails)).counts == {"unhandled": 1}
        assert len(whole.attempts) == 2

    async def test_a_failed_assertion_shows_the_line_of_the_test_alone(self, emails: Queue) -> None:
        letters = sync.Queue("letters", url="redis://127.0.0.1:1")
        with manual(emails), pytest.raises(AssertionError) as caught:
            await assert_enqueued(emails, "welcome", {"to": "nobody"})
        assert shown(caught) == [__file__]
        with manual(letters), pytest.raises(AssertionError) as caught:
            assert_enqueued(letters, "welcome")
        assert shown(caught) == [__file__]

    async def test_drains_by_priority(self, emails: Queue) -> None:
        ran: list[str] = []
        emails.fallback(lambda job: ran.append(job.name))
        with manual(emails):
            for name, priority in (("c", 9), ("b", 2), ("a", 0)):
                await emails.add(name, priority=priority)
            await drain(emails)
        assert ran == ["a", "b", "c"]

    async def test_does_not_mix_with_a_server(self, emails: Queue, queue: Queue) -> None:
        with manual(emails), pytest.raises(ValidationError, match="all in manual mode"):
            await drain(emails, queue)
