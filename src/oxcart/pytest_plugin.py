"""The pytest plugin: fixtures for tests of code that uses queues. It needs no conftest.

    async def test_sign_up(oxcart_inline):
        report = oxcart_inline(emails)  # the queue of the application, now without a server
        await sign_up("ada@example.com")
        assert report.counts == {"completed": 1}

    async def test_worker(oxcart_queue):
        queue = oxcart_queue("emails")  # a queue on a private server
        async with Worker(queue).running(): ...

Nothing of Oxcart is loaded before a test uses a fixture.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from oxcart import sync
    from oxcart.queue import Queue
    from oxcart.testing import Report

_numbers = itertools.count(1)


class MakeMode(Protocol):
    """What ``oxcart_inline`` and ``oxcart_manual`` are."""

    def __call__(self, *queues: Queue | sync.Queue, **options: Any) -> Report:
        """Switches queues to the mode until the test ends; returns a report that grows.

        Args:
            *queues: The queues.
            **options: As for ``oxcart.testing.inline`` and ``manual``.
        """


@pytest.fixture(scope="session")
def oxcart_server() -> Iterator[str]:
    """The URL of a private, empty Valkey. It starts when first used and is removed after the last test."""
    from oxcart.testing import embedded_server

    with embedded_server() as url:
        yield url


@pytest.fixture
def oxcart_queue(oxcart_server: str) -> Callable[..., Queue]:
    """Makes queues on the private server: ``oxcart_queue("emails", attempts=5)``.

    Queues of one test share their names with no other test. The arguments are those of ``Queue``.
    """
    from oxcart.queue import Queue

    return _factory(Queue, oxcart_server)


@pytest.fixture
def oxcart_sync_queue(oxcart_server: str) -> Iterator[Callable[..., sync.Queue]]:
    """Makes queues of ``oxcart.sync`` on the private server, and closes them after the test."""
    from oxcart import sync

    with contextlib.ExitStack() as stack:
        make = _factory(sync.Queue, oxcart_server)

        def made(name: str = "queue", **options: Any) -> sync.Queue:
            queue: sync.Queue = stack.enter_context(make(name, **options))
            return queue

        yield made


@pytest.fixture
def oxcart_inline() -> Iterator[MakeMode]:
    """Runs jobs of queues as they are added, without a server, until the test ends."""
    from oxcart.testing import inline

    with contextlib.ExitStack() as stack:
        yield lambda *queues, **options: stack.enter_context(inline(*queues, **options))


@pytest.fixture
def oxcart_manual() -> Iterator[MakeMode]:
    """Keeps jobs of queues in memory, until the test drains them or ends."""
    from oxcart.testing import manual

    with contextlib.ExitStack() as stack:
        yield lambda *queues, **options: stack.enter_context(manual(*queues, **options))


def _factory(kind: Any, url: str) -> Callable[..., Any]:
    place = f"test{next(_numbers)}"

    def make(name: str = "queue", **options: Any) -> Any:
        if options.get("protocol") == "bridge":
            options.setdefault("namespace", place)
        else:
            options.setdefault("prefix", place)
        return kind(name, **{"url": url, **options})

    return make
