"""What assertions on jobs find and say, and servers of tests."""

from __future__ import annotations

import os

import pytest
import redis

from oxcart import (
    JobOptions,
    Queue,
)
from oxcart.model.errors import (
    ValidationError,
)
from oxcart.testing import (
    assert_enqueued,
    drain,
    embedded_server,
    enqueued,
    inline,
    refute_enqueued,
    reset,
)
from tests.conftest import MakeQueue
from tests.servers import wait_until


class TestAssertions:
    async def test_on_a_server(self, queue: Queue) -> None:
        await queue.add("welcome", {"to": "ada", "name": "Ada"}, delay="5m", attempts=2)
        await queue.add("welcome", {"to": "bob", "name": "Bob"}, priority=3)
        await queue.add("bye", [1, 2])
        assert {job.name for job in await enqueued(queue)} == {"welcome", "bye"}
        assert len(await enqueued(queue, "welcome")) == 2
        found = await assert_enqueued(queue, "welcome", data={"to": "ada"}, delay=300, attempts=2)
        assert [job.data["name"] for job in found] == ["Ada"]
        await assert_enqueued(queue, "welcome", count=2)
        await assert_enqueued(queue, "bye", data=(1, 2))
        await refute_enqueued(queue, "welcome", data={"to": "eve"})
        await refute_enqueued(queue, "welcome", priority=4)
        await assert_enqueued(queue, "bye", backoff="exponential")
        await refute_enqueued(queue, "bye", backoff="1s")
        await refute_enqueued(queue, "other")

    async def test_messages(self, queue: Queue) -> None:
        with pytest.raises(
            AssertionError, match=r"expected at least one job 'n' in queue 'q', found 0; .* none"
        ):
            await assert_enqueued(queue, "n")
        await queue.add("n", {"a": 1})
        message = (
            r"expected at least one job 'n' with data {'a': 2} and {'delay': 5} .*found 0;(.|\n)*n {'a': 1}"
        )
        with pytest.raises(AssertionError, match=message):
            await assert_enqueued(queue, "n", {"a": 2}, delay=5)
        with pytest.raises(AssertionError, match="expected no job 'n' in queue 'q', found 1"):
            await refute_enqueued(queue, "n")
        with pytest.raises(AssertionError, match="expected 2 job 'n' in queue 'q', found 1"):
            await assert_enqueued(queue, "n", count=2)

    async def test_refuses_options_that_do_not_exist(self, queue: Queue) -> None:
        with pytest.raises(ValidationError, match="unknown option 'atempts': did you mean attempts"):
            await assert_enqueued(queue, "n", atempts=3)  # type: ignore[call-overload]

    async def test_more_than_a_page(self, queue: Queue) -> None:
        await queue.add_many([("n", number) for number in range(1203)])
        await queue.add_many([("d", number) for number in range(3)], delay=60)
        assert len(await enqueued(queue)) == 1206

    async def test_inline_sees_what_ran(self, emails: Queue) -> None:
        emails.fallback(lambda: None)
        with inline(emails):
            await emails.add("n", {"a": 1}, remove_on_complete=True, delay="5m")
            await assert_enqueued(emails, "n", {"a": 1}, delay="5m", count=1)


class TestServer:
    async def test_a_private_server_that_leaves_nothing(self) -> None:
        with embedded_server() as url:
            async with Queue("q", url=url) as queue:
                queue.fallback(lambda: 5)
                job = await queue.add("n")
                assert (await drain(queue)).counts == {"completed": 1}
                assert await job.result(timeout=5) == 5
        path = url.removeprefix("unix://").partition("?")[0]
        wait_until(lambda: not os.path.exists(path), "the server's folder is gone")

    async def test_reset_removes_one_queue_and_no_other(
        self, make_queue: MakeQueue, store: redis.Redis
    ) -> None:
        one, two = make_queue("a*"), make_queue("ab")
        await one.add("n")
        await two.add("n")
        await reset(one)
        assert [key for key in map(str, store.scan_iter()) if not key.startswith("bull:ab:")] == []
        assert store.llen("bull:ab:wait") == 1


def test_options_of_the_model_are_what_assertions_compare() -> None:
    """The names are those of `JobOptions`, so that assertions know a new option automatically."""
    assert set(JobOptions.__struct_fields__) >= {"delay", "attempts", "priority"}
