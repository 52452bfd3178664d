"""Code on the pages that is no program of its own runs with the names that its page takes for granted."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import CodeType
from typing import Any

import pytest
import redis

from oxcart import Graph, Queue, Worker
from tests.deploy.test_deploy import unknown
from tests.documented import blocks
from tests.test_docs_code import ELSEWHERE, PAGES, name

pytestmark = pytest.mark.asyncio

#: Pages whose code stands line by line in examples, which `tests/test_examples.py` compares and runs.
OF_EXAMPLES = {"docs/flows.md", "docs/operations.md"}
#: Pages of ELSEWHERE whose tests run only their programs.
WITH_FRAGMENTS = {"docs/schedules.md", "docs/http.md"}
#: Blocks that only show what a reader types or sees, by page and language. They need a machine of their own
#: (packages, containers, a second cluster), keep running, or are read by a test of their page.
ILLUSTRATIVE = {
    "README.md": {"sh": 1, "": 1},
    "deploy/README.md": {"": 3},
    "docs/architecture.md": {"mermaid": 1},
    "docs/connections.md": {"": 3},
    "docs/dashboard.md": {"sh": 1},
    "docs/http.md": {"sh": 2, "json": 1},
    "docs/operations.md": {"js": 1, "": 2},
    "docs/partitions.md": {"javascript": 1, "bash": 2},
    "docs/pipeline.md": {"": 3, "sql": 1},
    "docs/playbook.md": {"": 1},
    "docs/releasing.md": {"": 1},
    "docs/tables.md": {"toml": 2, "sql": 2},
}
#: Pages whose commands a test runs one after the other.
RUN_WHOLE = {"docs/tutorial.md"}


class Stage:
    """Runs a fragment with the names that it needs.

    Args:
        text: The fragment.
    """

    def __init__(self, text: str) -> None:
        self._code: CodeType = compile(text, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run(self, **names: Any) -> dict[str, Any]:
        """Returns the names after the fragment has run; its queues and workers are closed at the end."""
        made: dict[str, Any] = {"__name__": "page", **names}
        waiting = eval(self._code, made)
        if inspect.isawaitable(waiting):
            await waiting
        return made


@asynccontextmanager
async def queues(*named: str) -> AsyncIterator[list[Queue]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Queue(one)) for one in named]


async def graph(stage: Stage) -> None:
    async with queues("reports", "pages") as (reports, pages):
        ran: list[str] = []

        async def note(job: Any) -> None:
            ran.append(job.name)

        reports.fallback(note)
        pages.fallback(note)
        orders, invoices = await pages.add("orders"), await pages.add("invoices")
        made = await stage.run(Graph=Graph, reports=reports, pages=pages, orders=orders, invoices=invoices)
        async with Worker(reports, pages, concurrency=4).running():
            for handle in (made["cleanup"], *made["handles"]):
                await handle.result(timeout=60)
    assert sorted(ran) == sorted(
        ["orders", "invoices", "report", "cleanup", "fetch", "parse", "parse", "join", "tidy", "tell"]
    )


async def limits(stage: Stage) -> None:
    async with queues("mail") as (mail,):
        await stage.run(mail=mail)
        assert (await mail.counts())["waiting"] == 1


async def grouped(stage: Stage) -> None:
    async with queues("mail") as (mail,):
        await stage.run(mail=mail)
        assert (await mail.counts())["waiting"] + (await mail.counts())["delayed"] == 1


async def group_settings(stage: Stage) -> None:
    async with queues("mail") as (mail,):
        await stage.run(mail=mail)
        assert (await mail.groups.settings("tenant-7")).weight == 3
        assert not (await mail.groups.settings("tenant-42")).paused


async def partitioned(stage: Stage) -> None:
    made = await stage.run(Queue=Queue)
    async with made["events"] as events:
        assert (await events.counts())["waiting"] == 1


async def alert(stage: Stage) -> None:
    made = await stage.run()
    async with made["ops"] as ops:
        job = await ops.add("alert", {"text": "burns"})
        async with Worker(ops).running():
            await job.result(timeout=60)


async def meters(stage: Stage) -> None:
    made = await stage.run()
    ran = asyncio.Event()

    async def welcome() -> None:
        ran.set()

    async with made["emails"] as emails:
        emails.fallback(welcome)
        await emails.add("welcome")
        async with made["worker"].running():
            await asyncio.wait_for(ran.wait(), 60)


async def behind_api(stage: Stage) -> None:
    from oxcart.http import app
    from oxcart.http.server import Server

    async with queues("emails") as (served,):

        async def welcome() -> str:
            return "hello"

        served.fallback(welcome)
        async with Server(app([served])) as server, Worker(served).running():
            # The page's address stands for the server's; the delay ends when the job is there.
            made = await stage.run(Queue=lambda name, url: Promoting(name, server.url, served))
            assert (await served.counts())["completed"] == 1
            await made["emails"].close()


class Promoting:
    """A queue behind an API whose delayed jobs are due at once."""

    def __init__(self, name: str, url: str, served: Queue) -> None:
        self._queue = Queue(name, url=url)
        self._served = served

    async def add(self, *arguments: Any, **options: Any) -> Any:
        job = await self._queue.add(*arguments, **options)
        await self._served.jobs.handle(job.id).promote()
        return job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


async def sentry(stage: Stage) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    async with queues("emails") as (emails,):

        async def welcome() -> str:
            return "hello"

        emails.fallback(welcome)
        made = await stage.run(emails=emails, Worker=Worker, DSN="https://key@sentry.invalid/1")
        try:
            job = await emails.add("welcome")
            async with made["worker"].running():
                assert await job.result(timeout=60) == "hello"
        finally:
            sentry_sdk.get_client().close()
            sentry_sdk.init()


#: The stage of each fragment, by its page and a word of it.
STAGES = {
    ("docs/groups.md", 'group="tenant-42"'): grouped,
    ("docs/groups.md", "groups.set_all("): group_settings,
    ("docs/http.md", 'url="https://jobs.example"'): behind_api,
    ("docs/model.md", "Graph(pages)"): graph,
    ("docs/partitions.md", "partition_key="): partitioned,
    ("docs/schedules.md", "set_key_limit"): limits,
    ("docs/tables.md", '@ops.job(name="alert")'): alert,
    ("docs/tracing.md", "MeterHook"): meters,
    ("docs/tracing.md", "SentryHook"): sentry,
}


def fragments() -> dict[tuple[str, str], str]:
    """Every Python block that no other test runs, by its page and its stage's word."""
    found: dict[tuple[str, str], str] = {}
    for page in PAGES:
        if name(page) in OF_EXAMPLES or (name(page) in ELSEWHERE and name(page) not in WITH_FRAGMENTS):
            continue
        for block in blocks(page):
            if block.language == "python" and "asyncio.run(" not in block.text:
                words = [word for place, word in STAGES if place == name(page) and word in block.text]
                found[name(page), words[0] if words else block.text] = block.text
    return found


@pytest.mark.parametrize("place", list(STAGES), ids=lambda place: f"{place[0]}-{place[1]}")
async def test_a_fragment_of_a_page_runs(
    place: tuple[str, str], url: str, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXCART_URL", url)
    await STAGES[place](Stage(fragments()[place]))


async def test_every_fragment_has_a_stage() -> None:
    assert fragments().keys() == STAGES.keys()


async def test_code_without_a_language_is_no_python() -> None:
    """A block that is not labelled would not be run."""
    wrong = [
        f"{name(page)}: {block.text}"
        for page in PAGES
        for block in blocks(page)
        if block.language in ("", "sh", "text") and "await " in block.text
    ]
    assert wrong == []


async def test_every_other_block_runs_or_is_known_to_be_illustrative() -> None:
    """A new block has to be run by a test, or to be counted here on purpose."""
    found = {
        name(page): dict(Counter(block.language for block in blocks(page) if block.language != "python"))
        for page in PAGES
        if name(page) not in RUN_WHOLE
    }
    assert {page: counts for page, counts in found.items() if counts} == ILLUSTRATIVE


async def test_commands_of_illustrative_blocks_exist() -> None:
    """What is not run is at least a command of ours with options that it has."""
    wrong = []
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("", "sh", "bash"):
                for line in re.findall(r"^oxcart [^\n#|&]+", block.text, re.MULTILINE):
                    wrong += [f"{name(page)}: {line}: {word}" for word in unknown(line.split()[1:])]
    assert wrong == []
