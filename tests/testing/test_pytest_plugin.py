"""The pytest plugin: its fixtures work in a project without a conftest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oxcart import Queue, Worker, sync
from oxcart.pytest_plugin import MakeMode
from oxcart.testing import drain

pytest_plugins = ("pytester",)

APP = """
from oxcart import Queue

emails = Queue("emails", url="redis://127.0.0.1:1")  # nobody answers there

@emails.job
def welcome(to: str) -> str:
    return f"hello {to}"
"""

#: Plugins of this project that a user need not have.
ALONE = ("-p", "no:xdist", "-p", "no:asyncio", "-p", "no:timeout")

TESTS = """
import asyncio
import pytest
from app import emails, welcome
from oxcart import Worker
from oxcart.testing import assert_enqueued, drain

def test_inline(oxcart_inline):
    async def main():
        report = oxcart_inline(emails)
        job = await welcome.enqueue("ada")
        assert await job.result() == "hello ada"
        assert report.counts == {"completed": 1}
    asyncio.run(main())

def test_the_mode_ended_with_its_test():
    assert emails._core.brokers is None

def test_manual(oxcart_manual):
    async def main():
        oxcart_manual(emails)
        await welcome.enqueue("ada")
        await assert_enqueued(emails, "welcome", {"to": "ada"})
        assert (await drain(emails)).counts == {"completed": 1}
    asyncio.run(main())

@pytest.mark.parametrize("turn", [1, 2])
def test_private_server(oxcart_queue, turn):
    async def main():
        async with oxcart_queue("emails") as queue:
            assert sum((await queue.counts()).values()) == 0
            queue.job(welcome.__wrapped__)
            job = await queue.add("welcome", {"to": "ada"})
            async with Worker(queue).running():
                assert await job.result(timeout=20) == "hello ada"
    asyncio.run(main())

def test_bridge(oxcart_queue):
    async def main():
        async with oxcart_queue("emails", protocol="bridge") as queue:
            job = await queue.add("welcome", {"to": "ada"})
            assert await job.state() == "waiting"
    asyncio.run(main())

def test_sync(oxcart_sync_queue, oxcart_server):
    queue = oxcart_sync_queue("emails")
    assert "://" in oxcart_server
    job = queue.add("welcome", {"to": "ada"})
    assert job.state() == "waiting"
"""


def test_fixtures_of_an_installed_package(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(app=APP, test_app=TESTS)
    strict = ("-W", "error::ResourceWarning", "-W", "error::RuntimeWarning")
    pytester.runpytest_subprocess("-q", *strict, *ALONE).assert_outcomes(passed=7)


def test_a_session_that_uses_no_fixture_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "oxcart.pytest_plugin" in sys.modules
            assert not {"oxcart.queue", "oxcart.testing", "msgspec"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-q", *ALONE).assert_outcomes(passed=1)


def test_fixtures_are_listed_with_their_docs(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest_subprocess("--fixtures", "-q", *ALONE).stdout.str()
    names = ("oxcart_server", "oxcart_queue", "oxcart_sync_queue", "oxcart_inline", "oxcart_manual")
    assert all(name in listed for name in names)
    assert "URL of a private, empty Valkey" in listed


async def test_in_an_async_test(oxcart_queue: Callable[..., Queue], oxcart_inline: MakeMode) -> None:
    async with oxcart_queue("emails", attempts=7) as queue:
        queue.fallback(lambda: "done")
        job = await queue.add("n")
        assert (await job.get()).options.attempts == 7
        assert (await drain(queue)).counts == {"completed": 1}
        async with Worker(queue).running():
            pass
        report = oxcart_inline(queue)
        await queue.add("n")
        assert report.counts == {"completed": 1}


def test_in_a_plain_test(oxcart_sync_queue: Callable[..., sync.Queue], oxcart_manual: Any) -> None:
    queue = oxcart_sync_queue()
    queue.fallback(lambda: "done")
    oxcart_manual(queue)
    queue.add("n")
    assert drain(queue).counts == {"completed": 1}
