"""``oxcart top``: queues, their jobs and logs, driven by keys; once in a real terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import RichLog, Static

from oxcart import Queue, RunningJob, Worker
from oxcart.cli.screens import Jobs, OneJob, Queues, Table, Top
from oxcart.cli.settings import Settings
from tests.conftest import MakeQueue


async def until(pilot: Pilot[None], condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await pilot.pause(0.05)
    assert condition(), what


def cells(app: Top) -> list[list[str]]:
    table = app.screen.query_one(Table)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def test_queues_jobs_and_logs_by_keys(make_queue: MakeQueue, url: str) -> None:
    emails, video = make_queue("emails"), make_queue("video")

    @emails.job(attempts=1)
    async def welcome(job: object, to: str) -> None:
        raise RuntimeError("mailbox \x1b[31mfull")

    failed = await emails.add("welcome", {"to": "ada"}, attempts=1)
    await emails.jobs.handle(failed.id).log("first line \x1b[2J", "[bold]second[/bold]")
    async with Worker(emails).running():
        async with asyncio.timeout(60):
            while not (await emails.counts())["failed"]:
                await asyncio.sleep(0.05)
    await video.add("encode")
    app = Top(Settings(url=url))
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, Queues) and len(cells(app)) == 2, "two queues")
        failing = app.screen.query_one("#failing", Static)
        assert [(row[0], row[1], row[5]) for row in cells(app)] == [("emails", "0", "1"), ("video", "1", "0")]
        oldest, workers = cells(app)[1][8:10]
        assert (oldest.endswith("s"), workers) == (True, "0")
        assert cells(app)[0][8] == ""
        await until(pilot, lambda: "emails/welcome 1" in str(failing.render()), "the failing type")
        await pilot.press("down", "p")
        await until(pilot, lambda: cells(app)[1][-1] == "paused", "video is paused")
        assert await video.is_paused()
        await pilot.press("p")
        await until(pilot, lambda: cells(app)[1][-1] == "", "video is resumed")
        await pilot.press("up", "enter")
        await until(pilot, lambda: isinstance(app.screen, Jobs) and len(cells(app)) == 1, "the jobs")
        (row,) = cells(app)
        assert (row[0], row[1], row[2]) == (failed.id, "welcome", "dead_letter")
        assert "mailbox \\x1b[31mfull" in row[5]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, OneJob), "the job")
        await until(pilot, lambda: len(app.screen.query_one(RichLog).lines) >= 2, "its log")
        text = "\n".join(line.text for line in app.screen.query_one(RichLog).lines)
        assert "first line \\x1b[2J" in text
        assert "[bold]second[/bold]" in text
        await emails.jobs.handle(failed.id).log("a third line")
        await until(pilot, lambda: len(app.screen.query_one(RichLog).lines) >= 3, "the tail of the log")
        await pilot.press("r")
        await until(
            pilot, lambda: "scheduled" in str(app.screen.query_one("#facts", Static).render()), "retry"
        )
        assert (await emails.counts())["waiting"] == 1
        await pilot.press("escape", "escape")
        await until(pilot, lambda: isinstance(app.screen, Queues), "back at the queues")
        await pilot.press("q")


async def test_job_types_of_a_namespace_of_bridge(make_queue: MakeQueue, url: str) -> None:
    resize = make_queue("resize", protocol="bridge", namespace="media")
    encode = make_queue("encode", protocol="bridge", namespace="media")
    failed = await resize.add("resize", {"picture": "hat.png"}, attempts=1)
    resize.fallback(_fails)
    async with Worker(resize).running():
        async with asyncio.timeout(60):
            while not (await resize.counts())["failed"]:
                await asyncio.sleep(0.05)
    await encode.add("encode", {})
    app = Top(Settings(url=url, namespace="media"))
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, Queues) and len(cells(app)) == 2, "two types")
        assert [(row[0], row[1], row[5]) for row in cells(app)] == [
            ("encode", "1", "0"),
            ("resize", "0", "1"),
        ]
        await pilot.press("p")
        await until(pilot, lambda: cells(app)[0][-1] == "paused", "encode is paused")
        assert await encode.is_paused()
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, Jobs) and len(cells(app)) == 1, "the jobs")
        (row,) = cells(app)
        assert (row[0], row[1]) == (failed.id, "resize")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, OneJob), "the job")

        def facts() -> str:
            return str(app.screen.query_one("#facts", Static).render())

        await until(pilot, lambda: "no such picture" in facts(), "its failure")
        await pilot.press("r")
        await until(pilot, lambda: "scheduled" in facts(), "retry")
        assert (await resize.counts())["waiting"] == 1
        await pilot.press("q")


async def _fails(job: RunningJob) -> None:
    raise RuntimeError("no such picture")


async def test_it_says_when_the_server_is_away(make_queue: MakeQueue) -> None:
    app = Top(Settings(url="redis://127.0.0.1:9", attempts=1))
    async with app.run_test(size=(100, 20)) as pilot:
        await until(
            pilot,
            lambda: "server away" in str(app.screen.query_one("#status", Static).render()),
            "the status line says it",
        )


def test_in_a_real_terminal(url: str, tmp_path: Path) -> None:
    async def add() -> None:
        async with Queue("emails", url=url) as queue:
            await queue.add("welcome")

    asyncio.run(add())
    leader, follower = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30", "OXCART_URL": url}
    process = subprocess.Popen(
        [sys.executable, "-m", "oxcart.cli", "top"],
        stdin=follower, stdout=follower, stderr=follower, cwd=tmp_path, env=environ, close_fds=True,
    )  # fmt: skip
    os.close(follower)
    seen, ends = b"", time.monotonic() + 80
    try:
        while b"emails" not in seen and time.monotonic() < ends:
            if select.select([leader], [], [], 0.2)[0]:
                seen += os.read(leader, 65536)
        assert b"emails" in seen, seen[-2000:]
        os.write(leader, b"q")
        while process.poll() is None and time.monotonic() < ends:
            if select.select([leader], [], [], 0.2)[0]:
                try:
                    seen += os.read(leader, 65536)
                except OSError:
                    break
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
