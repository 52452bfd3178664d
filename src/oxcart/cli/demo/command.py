"""``oxcart demo``: starts a server, a producer and workers, and ends with a report.

The demo runs an embedded Valkey in a temporary folder and jobs of every kind: failures, retries, delays and
priorities. Spark builds tables from the events. The demo removes everything but the report's page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, INTERRUPTED, CommandError
from oxcart.cli.settings import JsonOption

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from oxcart.cli.demo.reporter import Reporter
    from oxcart.cli.demo.story import Story
    from oxcart.cli.demo.view import View
    from oxcart.cli.fleet import Fleet
    from oxcart.queue import Queue

#: Number of batches that the producer adds, and the seconds between them.
WAVES, PAUSE = 20, 0.25
#: The demo fails when no job ended for this many seconds.
PATIENCE = 60.0
CONCURRENCY = 20
QUEUE = "shop"
_HTML = Path("oxcart-demo.html")


def demo(
    jobs: Annotated[int, typer.Option(min=50, max=100_000, help="Number of jobs.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of worker processes.")] = 2,
    report: Annotated[bool, typer.Option("--report/--no-report", help="End with Spark's report.")] = True,
    html: Annotated[Path, typer.Option("--html", help="File of the report's page.")] = _HTML,
    lake: Annotated[
        Path | None, typer.Option("--lake", help="Keep the tables in this folder.", show_default="not kept")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a server, a producer and workers with failures and retries, and show Spark's report."""
    summary = settings.run(_demo(Show(jobs, workers, as_json, html.absolute() if report else None, lake)))
    if as_json:
        output.document(summary)
    if not summary["as_expected"]:
        raise CommandError("not every job ended as it should have", FAILED)


@dataclass(frozen=True)
class Show:
    """The arguments of one demo.

    Attributes:
        jobs: Number of jobs.
        workers: Number of worker processes.
        quiet: Print no progress.
        html: File of the report's page, or None for no report.
        lake: Folder that keeps the tables, or None to remove them at the end.
    """

    jobs: int
    workers: int
    quiet: bool
    html: Path | None
    lake: Path | None


async def _demo(show: Show) -> dict[str, Any]:
    import asyncio
    import signal

    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, me.cancel)
    try:
        return await _stage(show)
    except asyncio.CancelledError:
        raise CommandError("interrupted: processes and data are removed", INTERRUPTED) from None


async def _stage(show: Show) -> dict[str, Any]:
    """Starts everything, runs the jobs, and stops everything."""
    import asyncio
    import contextlib
    import shutil
    import tempfile

    from oxcart.broker.embedded import Embedded
    from oxcart.cli.demo.view import View, show_summary
    from oxcart.queue import Queue

    folder = Path(tempfile.mkdtemp(prefix="oxcart-demo-"))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        embedded = Embedded(folder / "data")
        stack.push_async_callback(asyncio.to_thread, embedded.release, 10.0)
        with View(show.jobs, quiet=show.quiet) as view:
            location = await embedded.ensure_async()
            view.say(f"embedded Valkey at {location}")
            reporter = await _reporter(show, folder, str(location), stack)
            queue = Queue(QUEUE, folder=folder / "data")
            stack.callback(queue._core.server.release)
            stack.push_async_callback(queue.close)
            summary = await _run(show, queue, reporter, view, folder)
        if not show.quiet:
            show_summary(summary)
        if reporter is not None:
            summary["report"] = await _show_report(reporter, summary, show.quiet)
        return summary


async def _reporter(show: Show, folder: Path, url: str, stack: AsyncExitStack) -> Reporter | None:
    """Starts Spark before the jobs, because Spark needs seconds to start."""
    from oxcart.cli.demo.reporter import Reporter
    from oxcart.cli.demo.spark import Task

    if show.html is None:
        return None
    lake = (show.lake or folder / "lake").absolute()
    task = Task(url, QUEUE, str(lake), str(show.html), str(folder / "spark"))
    made = Reporter(task, folder / "spark.log", say=lambda text: None if show.quiet else output.text(text))
    stack.push_async_callback(made.take_down)
    await made.start()
    return made


async def _run(
    show: Show, queue: Queue, reporter: Reporter | None, view: View, folder: Path
) -> dict[str, Any]:
    """Adds and runs all jobs, then stops the workers."""
    import asyncio

    from oxcart.cli.demo import shop

    async with queue.events() as events:
        first = show.jobs // WAVES
        await queue.add_many(list(shop.orders(0, first)))
        if reporter is not None:
            await _attach(folder / "data")
            reporter.begin()
        with (folder / "workers.log").open("wb") as log:
            fleet = _fleet(folder / "data", show.workers, log, view)
            playing = asyncio.create_task(fleet.run())
            try:
                return await _play(queue, events, show.jobs, view, playing, folder / "workers.log")
            finally:
                fleet.stop()
                await asyncio.gather(playing, return_exceptions=True)


async def _attach(data: Path) -> None:
    """Makes the queue keep all its events, and the workers record every attempt."""
    import asyncio

    from oxcart.spark.options import ServerAddress
    from oxcart.spark.read.attachment import attach

    await asyncio.to_thread(attach, ServerAddress(folder=str(data)), QUEUE, "main")


async def _show_report(reporter: Reporter, summary: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Waits for the report and prints it, or prints why Spark cannot run on this machine."""
    report = await reporter.finish()
    if quiet:
        report.pop("tables", None)
    if "absent" in report:
        if not quiet:
            output.text("")
            output.text(f"no report: {report['absent']}")
        return report
    ended = (summary["completed"], summary["failed"])
    summary["as_expected"] &= (report["completed"], report["failed"]) == ended
    if not quiet:
        for title, columns, rows in report.pop("tables"):
            if rows:
                output.text(title)
                output.table(columns, rows)
        output.text(f"the same with charts: {report['html']}")
    return report


def _fleet(data: Path, workers: int, log: Any, view: View) -> Fleet:
    import os

    from oxcart.cli.fleet import Fleet
    from oxcart.cli.runner import Plan

    # Without OXCART_URL the workers use the embedded server of this folder.
    environ = {name: value for name, value in os.environ.items() if name != "OXCART_URL"}
    environ["OXCART_HOME"] = str(data)
    plan = Plan(targets=["oxcart.cli.demo.shop:shop"], concurrency=CONCURRENCY, shutdown_timeout="5s")
    return Fleet(
        plan,
        workers,
        environ=environ,
        output=log,
        started=lambda index, pid: view.say(f"worker process {index} is {pid}"),
    )


async def _play(queue: Queue, events: Any, jobs: int, view: View, fleet: Any, log: Path) -> dict[str, Any]:
    import asyncio
    import time

    from oxcart.cli.demo import shop
    from oxcart.cli.demo.story import Story

    story = Story()
    added = jobs // WAVES

    async def produce() -> None:
        nonlocal added
        for wave in range(1, WAVES):
            await asyncio.sleep(PAUSE)
            share = jobs * (wave + 1) // WAVES - jobs * wave // WAVES
            await queue.add_many(list(shop.orders(added, share)))
            added += share

    started = time.monotonic()
    producing = asyncio.create_task(produce())
    listening = asyncio.create_task(_listen(events, story))
    try:
        await _watch(queue, jobs, view, story, lambda: added, (producing, listening, fleet))
    except CommandError as error:
        raise CommandError(f"{error}\n{await asyncio.to_thread(log.read_text)}".rstrip()) from None
    finally:
        for task in (producing, listening):
            task.cancel()
        await asyncio.gather(producing, listening, return_exceptions=True)
    seconds = time.monotonic() - started
    counts = await queue.counts()
    summary = story.summary(jobs, seconds)
    failing = shop.failing(jobs)
    summary["as_expected"] = (
        (story.completed, story.failed)
        == (jobs - failing, failing)
        == (counts["completed"], counts["failed"])
    )
    return summary


async def _listen(events: Any, story: Story) -> None:
    async for event in events:
        story.record(event)


async def _watch(
    queue: Queue, jobs: int, view: View, story: Story, added: Any, tasks: tuple[Any, ...]
) -> None:
    """Shows the progress until all jobs have ended."""
    import asyncio
    import time

    last, last_change = -1, time.monotonic()
    while story.ended < jobs:
        view.show(await queue.counts(), story, added())
        await asyncio.sleep(0.1)
        producing, listening, fleet = tasks
        for task in (producing, listening):
            if task.done() and task.exception() is not None:
                raise task.exception()
        if fleet.done():
            raise CommandError("the workers ended before the jobs")
        if story.ended != last:
            last, last_change = story.ended, time.monotonic()
        elif time.monotonic() - last_change > PATIENCE:
            raise CommandError(f"no job has ended for {PATIENCE:g} s: {story.ended} of {jobs}")
