"""bull-board on an Oxcart queue, in a real browser: it shows the queue, and its buttons work.

Oxcart adds and runs the jobs; only bull-board itself uses BullMQ. The tests read a button's effect through
Oxcart. The page must have no errors, neither on its console nor in a request.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from oxcart import Flow, PermanentError, Queue, RunningJob, Worker
from oxcart.broker.clock import now_ms
from oxcart.testing import drain
from tests.browser import Browser, Page
from tests.conftest import MakeQueue
from tests.nodes import bull_board, node_missing
from tests.servers import ValkeyServer, wait_until
from tests.signals import eventually

#: The names of states in bull-board.
TITLES = {
    "active": "ACTIVE",
    "waiting": "WAITING",
    "waiting-children": "WAITING CHILDREN",
    "prioritized": "PRIORITIZED",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "delayed": "DELAYED",
}
RETRY, PROMOTE, CLEAN = (
    f"button:has(svg.lucide-{name})" for name in ("refresh-cw", "corner-up-left", "trash-2")
)
MENU = "button:has(svg.lucide-ellipsis-vertical)"
#: "Clean all" spares jobs younger than five seconds.
OLD = 60_000


class Board:
    """The pages of bull-board, read and used as a person would."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self._base = base
        page.block("https://*")  # it asks Google for a font

    def open(self, path: str = "") -> None:
        """Opens one of its pages and waits until that shows a queue."""
        self.page.goto(self._base + path)
        self.page.wait_for("document.querySelectorAll('aside nav a').length > 0")
        if path:
            self.page.wait_for("document.querySelector('h1') !== null")

    def list(self, state: str) -> list[str]:
        """The ids that the list of a state shows, from the top."""
        self.open(f"queue/mail?status={state}")
        ids: list[str] = []

        def shown() -> bool:
            ids[:] = self.page.evaluate(
                "[...document.querySelectorAll('a[href^=\"/queue/mail/\"]')].map(e => e.innerText)"
            )
            return bool(ids) or f"No {state}" in self.page.text()

        wait_until(shown, f"the list of {state} jobs")
        return ids

    def counts(self) -> dict[str, int]:
        """Returns the counts beside the names of states; a state without a count has no jobs."""
        texts: list[str] = self.page.evaluate(
            "[...document.querySelectorAll('#root a[href*=\"status=\"]')].map(e => e.innerText)"
        )
        words = [text.split("\n") for text in texts]
        shown = {word[0].strip(): int(word[-1]) if len(word) > 1 else 0 for word in words}
        return {state: shown[title] for state, title in TITLES.items() if title in shown}

    def counts_are(self, counts: dict[str, int]) -> None:
        """Waits until it shows these figures."""
        wait_until(lambda: self.counts() == counts, f"the figures are {counts}")

    def shows(self, *texts: str) -> None:
        """Waits until the page shows all of these."""
        for text in texts:
            wait_until(lambda text=text: text in self.page.text(), f"{text!r} is shown")  # type: ignore[misc]

    def press(self, selector: str, text: str | None = None) -> None:
        """Presses a button and confirms the dialog."""
        self.page.click(selector, text)
        self.page.click("[role=alertdialog] button", "Confirm")
        self.page.wait_for("document.querySelector('[role=alertdialog]') === null")


@pytest.fixture(scope="module")
def served(valkey: ValkeyServer) -> Iterator[str]:
    """The address at which bull-board shows the queue ``mail``."""
    if (missing := node_missing()) is not None:
        pytest.skip(missing)
    command = ["node", str(bull_board() / "board.js"), valkey.url, "mail"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        try:
            yield node.stdout.readline().strip()
        finally:
            node.stdin.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def board(browser: Browser, served: str) -> Iterator[Board]:
    board = Board(browser.page(), served)
    yield board
    # It preloads a script that a page may not need.
    assert [error for error in board.page.errors if "preloaded using link preload" not in error] == []


@pytest.fixture
def mail(make_queue: MakeQueue) -> Queue:
    """A queue with a working handler and a handler that fails until its data is corrected."""
    queue = make_queue("mail")

    @queue.job
    async def send(job: RunningJob, to: str) -> dict[str, str]:
        await job.update_progress(40)
        await job.log(f"connecting for {to}", "sent")
        return {"sent": to}

    @queue.job(attempts=1)
    async def deliver(to: str, mended: bool = False) -> str:
        if not mended:
            raise PermanentError(f"no such mailbox: {to}")
        return "delivered"

    return queue


async def test_lists_and_counts_are_those_of_the_queue(board: Board, mail: Queue) -> None:
    await mail.add_many([("send", {"to": f"{number}"}) for number in range(3)])
    await mail.add_many([("deliver", {"to": f"{number}"}) for number in range(2)], attempts=1)
    await drain(mail)
    await mail.add_many([("send", {"to": "later"})] * 2, delay="1h")
    for priority in (7, 3):
        await mail.add("send", {"to": "soon"}, priority=priority)
    await Flow(mail, "send", {"to": "all"}).after(Flow(mail, "send", {"to": "one"})).add()
    counts = await mail.counts()
    assert list(counts.values()) == [1, 2, 0, 2, 1, 3, 2], counts
    for state in TITLES:
        assert board.list(state) == [job.id for job in await mail.jobs.list(state)], state
        board.counts_are(counts)
    board.open()
    board.shows(f"{sum(counts.values())} Jobs")
    board.counts_are(counts)


async def test_a_completed_job_shows_its_data_result_worker_and_log(board: Board, mail: Queue) -> None:
    job = await mail.add("send", {"to": "ada@example.com"}, priority=7, attempts=4)
    await drain(mail)
    done = await job.get()
    assert done.worker_id is not None
    board.open(f"queue/mail/{job.id}")
    board.shows(job.id, f"by {done.worker_id}", "Finished at", "priority 7")
    board.shows('to:"ada@example.com"', 'sent:"ada@example.com"')
    board.page.click("button", "Progress")
    board.shows("40")
    board.page.click("button", "Options")
    board.shows("attempts:4")
    board.page.click("button", "Logs")
    logs = await job.logs()
    assert logs == ["connecting for ada@example.com", "sent"]
    board.shows(*logs)


async def test_a_failed_job_shows_its_stack_trace(board: Board, mail: Queue) -> None:
    job = await mail.add("deliver", {"to": "bob@example.com"}, attempts=1)
    await drain(mail)
    (trace,) = (await job.get()).stacktrace
    board.open(f"queue/mail/{job.id}")
    board.shows("Failed at", "no such mailbox: bob@example.com")
    assert " ".join(trace.split()) in " ".join(board.page.text().split())


async def test_a_running_job_and_its_worker_are_shown(board: Board, make_queue: MakeQueue) -> None:
    mail = make_queue("mail")
    begun, end = asyncio.Event(), asyncio.Event()

    @mail.job
    async def hold() -> None:
        begun.set()
        await end.wait()

    async with Worker(mail, name="anna").running():
        job = await hold.enqueue()
        await begun.wait()
        assert await asyncio.to_thread(board.list, "active") == [job.id]
        board.shows("by anna")
        assert "No workers" not in board.page.text()
        board.page.click("button[title='Queue info']")
        board.shows("Workers\n1")
        end.set()
        await job.result(timeout=20)
    await asyncio.to_thread(board.list, "active")
    board.shows("No workers")


async def test_a_flow_is_shown_as_a_tree(board: Board, mail: Queue) -> None:
    flow = (
        await Flow(mail, "send", {"to": "all"})
        .after(
            Flow(mail, "send", {"to": "one"}),
            Flow(mail, "deliver", {"to": "nobody"}, on_failure="ignore", attempts=1),
        )
        .add()
    )
    board.open(f"queue/mail/{flow.id}")
    board.shows("Job flow", "2 unfinished")
    for child in flow.children:
        board.shows(f"…{child.id[-8:]}")
    await drain(mail)
    assert await flow.state() == "completed"
    board.open(f"queue/mail/{flow.id}")
    board.shows("Job flow", "1 done", "1 ignored")


async def test_retry(board: Board, mail: Queue) -> None:
    jobs = [await mail.add("deliver", {"to": f"{number}"}, attempts=1) for number in range(3)]
    await drain(mail)
    for job in jobs:
        await job.update_data({"to": "somebody", "mended": True})
    board.open(f"queue/mail/{jobs[0].id}")
    board.press(RETRY)
    await eventually(lambda: _in(mail, "waiting", [jobs[0].id]), "one job waits again")
    board.list("failed")
    board.press("button", "Retry all")
    await eventually(lambda: _count(mail, "failed", 0), "all jobs wait again")
    await drain(mail)
    assert [await job.result(timeout=20) for job in jobs] == ["delivered"] * 3
    assert board.list("completed") == [job.id for job in await mail.jobs.list("completed")]


async def test_promote(board: Board, mail: Queue) -> None:
    jobs = [await mail.add("send", {"to": f"{number}"}, delay="1h") for number in range(3)]
    board.open(f"queue/mail/{jobs[1].id}")
    board.press(PROMOTE)
    await eventually(lambda: _in(mail, "waiting", [jobs[1].id]), "one job waits")
    board.list("delayed")
    board.press("button", "Promote all")
    await eventually(lambda: _count(mail, "delayed", 0), "no job is delayed")
    await drain(mail)
    assert [await job.result(timeout=20) for job in jobs] == [{"sent": f"{number}"} for number in range(3)]


async def test_clean(board: Board, mail: Queue, store: redis.Redis) -> None:
    jobs = [await mail.add("send", {"to": f"{number}"}) for number in range(3)]
    kept = await mail.add("deliver", {"to": "nobody"}, attempts=1)
    await drain(mail)
    board.list("completed")
    board.press(f'div:has(> div > a[href*="{jobs[0].id}"]) {CLEAN}')
    await eventually(lambda: _gone(mail, jobs[0].id), "one job is removed, with its log")
    assert store.keys(f"bull:mail:{jobs[0].id}*") == []
    ended = now_ms() - OLD
    for job in jobs[1:]:
        store.zadd("bull:mail:completed", {job.id: ended})
        store.hset(f"bull:mail:{job.id}", mapping={"finishedOn": ended, "timestamp": ended})
    board.list("completed")
    board.press("button", "Clean all")
    await eventually(lambda: _count(mail, "completed", 0), "no completed job is left")
    assert await mail.jobs.get_many([job.id for job in jobs]) == [None] * 3
    assert (await kept.get()).failed_reason == "no such mailbox: nobody"


async def test_pause_and_resume(board: Board, mail: Queue) -> None:
    board.open("queue/mail")
    board.page.click(MENU)
    board.press("[role=menuitem]", "Pause")
    await eventually(mail.is_paused, "the queue is paused")
    job = await mail.add("send", {"to": "ada@example.com"})
    async with Worker(mail).running() as worker:
        assert await _count(mail, "waiting", 1)
        assert worker.processed == 0
        await asyncio.to_thread(board.open, "queue/mail")
        await asyncio.to_thread(board.page.click, MENU)
        await asyncio.to_thread(board.press, "[role=menuitem]", "Resume")
        assert await job.result(timeout=20) == {"sent": "ada@example.com"}
    assert not await mail.is_paused()


async def _in(queue: Queue, state: str, ids: list[str]) -> bool:
    return [job.id for job in await queue.jobs.list(state)] == ids


async def _count(queue: Queue, state: str, count: int) -> bool:
    return (await queue.counts())[state] == count


async def _gone(queue: Queue, job_id: str) -> Any:
    return await queue.jobs.get(job_id) is None
