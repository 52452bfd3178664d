"""Shared by all suites: a private server per test process, empty at the start of every test."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis
from hypothesis import HealthCheck, settings

from oxcart import Queue
from tests import fast
from tests.fast import pytest_addoption as pytest_addoption
from tests.fast import pytest_configure as pytest_configure
from tests.fast import pytest_ignore_collect as pytest_ignore_collect
from tests.servers import ValkeyServer

# A run in the background of a shell inherits an ignored SIGINT, and so would every program a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow example is no failure: the machine may have been busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

MakeQueue = Callable[..., Queue]

#: Suites that watch the clock. They share one test process, so that only the rest runs beside them.
CLOCK_WATCHERS = "tests/chaos/"
#: Suites that share one test process, because a Spark session is slow to open. Files that only start programs
#: of their own are separate groups, for the other process.
GROUPS = {
    CLOCK_WATCHERS: "clock",
    "tests/spark/test_demo.py": "demo",
    "tests/spark/test_kill.py": "kill",
    "tests/spark/work/test_applications.py": "spark-jobs",
    "tests/spark/work/test_chaos.py": "spark-jobs",
    "tests/spark/work/test_medallion.py": "spark-jobs",
    "tests/spark/": "spark",
}
#: The longest suites start first.
FIRST = ("tests/chaos/", "tests/spark/", "tests/equality/", "tests/interop/")


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process: those of a file, or of a suite that `GROUPS` has."""
    file = nodeid.partition("::")[0]
    return next((name for start, name in GROUPS.items() if file.startswith(start)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spreads the tests over processes by group; for ``pytest -n 2 --dist loadgroup``.

    The marks of xdist itself have no effect: it appends them to the ids of tests, which pytest 9.2 does not
    allow.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # in the order of the collection
    made = LoadScopeScheduling(config, log)
    made._split_scope = group_of
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests so that the longest suites start first, and selects the tests of ``--fast``."""
    fast.select(config, items)
    items.sort(
        key=lambda item: next((i for i, at in enumerate(FIRST) if item.nodeid.startswith(at)), len(FIRST))
    )


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for all tests of a process. A test that stops, fills or slows it must restore it."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def url(valkey: ValkeyServer, store: redis.Redis) -> str:
    """The address of an empty server."""
    return valkey.url


@pytest.fixture
def store(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    """A plain client of the same empty server, to read the stored keys."""
    client = valkey.client()
    client.flushall()
    client.config_resetstat()
    yield client
    client.close()


@pytest_asyncio.fixture
async def make_queue(url: str) -> AsyncIterator[MakeQueue]:
    """Makes queues on the server, and closes them."""
    made: list[Queue] = []

    def make(name: str = "q", **options: Any) -> Queue:
        queue = Queue(name, url=url, **options)
        made.append(queue)
        return queue

    yield make
    for queue in made:
        await queue.close()


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    """A queue named ``q``."""
    return make_queue()


@pytest.fixture(autouse=True)
def _no_url_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own server is not to be touched by a test."""
    monkeypatch.delenv("OXCART_URL", raising=False)
