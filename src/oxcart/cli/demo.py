"""``oxcart demo``: the whole of it in ten seconds.

An embedded Valkey in a temporary folder, a producer, a fleet of worker processes, every kind of handler,
failures, retries, delays and priorities. Nothing is left behind, neither processes nor data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, INTERRUPTED, CommandError
from oxcart.cli.settings import JsonOption

if TYPE_CHECKING:
    from pathlib import Path

    from oxcart.cli.demo_story import Story
    from oxcart.cli.demo_view import View
    from oxcart.cli.fleet import Fleet
    from oxcart.queue import Queue

#: The producer adds jobs in so many waves, so many seconds apart.
WAVES, PAUSE = 20, 0.25
#: Without any end of a job for so many seconds the demo gives up.
PATIENCE = 60.0
CONCURRENCY = 20


def demo(
    jobs: Annotated[int, typer.Option(min=50, max=100_000, help="How many jobs.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, max=16, help="How many worker processes.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Show it all: a server, a producer, workers, failures and retries, in about ten seconds."""
    told = settings.run(_demo(jobs, workers, as_json))
    if as_json:
        output.document(told)
    else:
        from oxcart.cli.demo_view import show_summary

        show_summary(told)
    if not told["as_expected"]:
        raise CommandError("not every job ended as it should have", FAILED)


async def _demo(jobs: int, workers: int, quiet: bool) -> dict[str, Any]:
    import asyncio
    import signal

    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, me.cancel)
    try:
        return await _stage(jobs, workers, quiet)
    except asyncio.CancelledError:
        raise CommandError("interrupted; everything was taken down", INTERRUPTED) from None


async def _stage(jobs: int, workers: int, quiet: bool) -> dict[str, Any]:
    """Puts everything up, lets it play, and takes everything down again."""
    import asyncio
    import contextlib
    import shutil
    import tempfile
    from pathlib import Path

    from oxcart.broker.embedded import Embedded
    from oxcart.cli.demo_view import View
    from oxcart.queue import Queue

    folder = Path(tempfile.mkdtemp(prefix="oxcart-demo-"))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        embedded = Embedded(folder / "data")
        stack.push_async_callback(asyncio.to_thread, embedded.release, 10.0)
        view = stack.enter_context(View(jobs, quiet=quiet))
        location = await embedded.ensure_async()
        view.say(f"embedded Valkey at {location}")
        queue = Queue("shop", folder=folder / "data")
        stack.callback(queue.server.release)
        stack.push_async_callback(queue.close)
        log = stack.enter_context((folder / "workers.log").open("wb"))
        fleet = _fleet(folder / "data", workers, log, view)
        playing = asyncio.create_task(fleet.run())
        stack.push_async_callback(_take_down, fleet, playing)
        return await _play(queue, jobs, view, playing, folder / "workers.log")


def _fleet(data: Path, workers: int, log: Any, view: View) -> Fleet:
    import os

    from oxcart.cli.fleet import Fleet
    from oxcart.cli.runner import Plan

    # The workers find the server as those of any application in this folder would.
    environ = {name: value for name, value in os.environ.items() if name != "OXCART_URL"}
    environ["OXCART_HOME"] = str(data)
    plan = Plan(targets=["oxcart.cli.demo_app:shop"], concurrency=CONCURRENCY, shutdown_timeout="5s")
    return Fleet(
        plan,
        workers,
        environ=environ,
        output=log,
        started=lambda index, pid: view.say(f"worker process {index} is {pid}"),
    )


async def _take_down(fleet: Fleet, playing: Any) -> None:
    import asyncio

    fleet.stop()
    await asyncio.gather(playing, return_exceptions=True)


async def _play(queue: Queue, jobs: int, view: View, fleet: Any, log: Path) -> dict[str, Any]:
    import asyncio
    import time

    from oxcart.cli import demo_app
    from oxcart.cli.demo_story import Story

    story = Story()
    added = 0

    async def produce() -> None:
        nonlocal added
        for wave in range(WAVES):
            share = jobs * (wave + 1) // WAVES - jobs * wave // WAVES
            await queue.add_many(list(demo_app.orders(added, share)))
            added += share
            await asyncio.sleep(PAUSE)

    async with queue.events() as events:
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
    told = story.summary(jobs, seconds)
    failing = demo_app.failing(jobs)
    told["as_expected"] = (
        (story.completed, story.failed)
        == (jobs - failing, failing)
        == (counts["completed"], counts["failed"])
    )
    return told


async def _listen(events: Any, story: Story) -> None:
    async for event in events:
        story.tell(event)


async def _watch(
    queue: Queue, jobs: int, view: View, story: Story, added: Any, tasks: tuple[Any, ...]
) -> None:
    """Shows how it goes until all jobs have ended."""
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
            raise CommandError("the workers ended too early")
        if story.ended != last:
            last, last_change = story.ended, time.monotonic()
        elif time.monotonic() - last_change > PATIENCE:
            raise CommandError(f"no job has ended for {PATIENCE:g} s: {story.ended} of {jobs}")
