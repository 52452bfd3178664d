"""Completes names of queues, jobs and workers in the shell from the server, and states and categories.

A shell asks at every press of a key, so an answer that takes longer than `TIMEOUT` is dropped. Failures are
silent: an error text would end up in the user's command line. It never starts an embedded server.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from oxcart.cli.settings import Settings
    from oxcart.queue import Queue

#: Seconds that the server may take, unless the environment variable sets another number.
TIMEOUT = 1.0
TIMEOUT_VARIABLE = "OXCART_COMPLETION_TIMEOUT"
#: Jobs of each list whose names are offered.
SAMPLE = 50


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the queues of the server whose names begin as typed."""
    return [name for name in _ask(ctx, _queues) if name.startswith(incomplete)]


def state_names(incomplete: str) -> list[str]:
    """Returns the formal states that begin as typed."""
    from oxcart.model.search import formal_names

    return [name for name in formal_names() if name.startswith(incomplete)]


def category_names(incomplete: str) -> list[str]:
    """Returns the categories of failures that begin as typed."""
    from oxcart.model.failure import Category

    return [one.value for one in Category if one.value.startswith(incomplete)]


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns names of the queue's latest jobs that begin as typed."""

    async def names(source: Queue) -> list[str]:
        found = await source.jobs.search(limit=SAMPLE)
        return sorted({job.name for job in found.jobs})

    return _of_queue(ctx, incomplete, names)


def worker_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the workers that claimed the queue's latest jobs."""

    async def names(source: Queue) -> list[str]:
        found = await source.jobs.search(limit=SAMPLE)
        return sorted({job.worker_id for job in found.jobs if job.worker_id})

    return _of_queue(ctx, incomplete, names)


def _of_queue(
    ctx: typer.Context, incomplete: str, question: Callable[[Queue], Awaitable[list[str]]]
) -> list[str]:
    # The parser stops at an option without its value, and leaves the arguments before it unread.
    queue = ctx.params.get("queue") or next(iter(ctx.args), None)
    if not isinstance(queue, str):
        return []

    async def names(using: Settings) -> list[str]:
        async with using.queue(queue) as source:
            return await question(source)

    return [name for name in _ask(ctx, names) if name.startswith(incomplete)]


async def _queues(using: Settings) -> list[str]:
    if using.namespace is not None:
        from oxcart.cli.namespace import open_broker, part_of

        broker = open_broker(using, "any")
        try:
            return await part_of(broker).types()
        finally:
            await broker.close()
    from oxcart.broker.discovery import find_queues

    return await find_queues(using.server, using.prefix, using.reconnect)


def _ask(ctx: typer.Context, question: Callable[[Settings], Awaitable[list[str]]]) -> list[str]:
    import asyncio
    import logging

    logging.getLogger("oxcart").addHandler(logging.NullHandler())

    async def answer(using: Settings) -> list[str]:
        async with asyncio.timeout(float(os.environ.get(TIMEOUT_VARIABLE) or TIMEOUT)):
            return await question(using)

    try:
        using = _settings(ctx)
        return [] if using is None else asyncio.run(answer(using))
    except Exception:  # whatever it is, the user types on
        return []


def _settings(ctx: typer.Context) -> Settings | None:
    """Returns the settings of a command line that is being typed; None if no server runs."""
    from oxcart.cli.settings import DEFAULT_PREFIX, Settings

    given: dict[str, Any] = ctx.find_root().params
    url = (given.get("url") or "").strip() or None
    if url is None:
        from oxcart.broker import embedded

        if embedded.status() is None:
            return None
    return Settings(
        url=url, prefix=given.get("prefix") or DEFAULT_PREFIX, namespace=given.get("namespace"), attempts=1
    )
