"""``oxcart workers``: lists the live workers and their abilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.completion import queue_names
from oxcart.cli.settings import JsonOption, Settings

if TYPE_CHECKING:
    from oxcart.broker.workers import WorkerRecord


#: Ms of difference between clocks that still count as in step.
IN_STEP = 500
#: A job type for all types that no worker of ours lists.
ANY = "any"


def workers(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUEUE]...",
            help="Only workers of these queues.",
            show_default=False,
            autocompletion=queue_names,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the workers with a heartbeat within the last half minute."""
    found = settings.run(_found(settings.of(ctx), names))
    if as_json:
        import msgspec

        output.document([msgspec.to_builtins(one) | {"skew_ms": one.skew_ms} for one in found])
        return
    if not found:
        output.text("no workers")
        return
    output.table(
        ["worker", "host", "pid#", "queues", "stack", "capabilities", "region", "jobs#", "version", "seen"],
        (_row(one) for one in found),
    )


def _row(one: WorkerRecord) -> list[Any]:
    def words(some: tuple[str, ...]) -> str | None:
        return ", ".join(some) or None

    return [
        one.name if one.name == one.server else f"{one.name} ({one.server})",
        one.hostname,
        str(one.pid),
        words(one.queues),
        words(one.stack),
        words(one.capabilities) if one.routed else "takes no targets",
        words(one.region),
        one.concurrency or None,
        one.version or None,
        f"{output.age(one.last_seen)}{_clock(one.skew_ms or 0)}",
    ]


def _clock(skew_ms: int) -> str:
    """Returns how far a worker's clock is from the server's, if they are not in step."""
    if abs(skew_ms) < IN_STEP:
        return ""
    side = "ahead" if skew_ms > 0 else "behind"
    return f", clock {output.span(abs(skew_ms) / 1000)} {side}"


async def _found(using: Settings, names: list[str] | None) -> list[WorkerRecord]:
    found: dict[str, WorkerRecord] = {}
    for name in names or await _everywhere(using):
        async with using.queue(name) as queue:
            found |= {one.id: one for one in await queue.workers.list()}
    return [found[one] for one in sorted(found)]


async def _everywhere(using: Settings) -> list[str]:
    """Returns all queues of the server, or all job types of the namespace that a worker takes."""
    if using.namespace is None:
        from oxcart.broker.discovery import find_queues

        return await find_queues(using.server, using.prefix, using.reconnect)
    from oxcart.cli.namespace import open_broker, workers_of

    broker = open_broker(using, ANY)
    try:
        return sorted({ANY, *(name for one in await workers_of(broker) for name in one.queues)})
    finally:
        await broker.close()
