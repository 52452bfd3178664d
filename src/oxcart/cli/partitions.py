"""``oxcart partitions …``: the partitions of a queue, and another number of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import CommandError
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.queue import Queue

    Work = Callable[[Queue], Awaitable[Any]]

app = settings.group("partitions", "Show and change the partitions of a queue.")


@app.command()
def show(ctx: typer.Context, queue: QueueArgument, as_json: JsonOption = False) -> None:
    """Show the layout of a partitioned queue, and how many jobs each partition has."""
    _show(ctx, queue, as_json)


@app.command()
def resize(
    ctx: typer.Context,
    queue: QueueArgument,
    size: Annotated[int, typer.Argument(help="The number of partitions for new jobs.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Let new jobs go to another number of partitions. No job moves, and workers follow by themselves."""
    _show(ctx, queue, as_json, lambda source: source.partitions.resize(size))


@app.command()
def retire(ctx: typer.Context, queue: QueueArgument, as_json: JsonOption = False) -> None:
    """Give up the partitions that get no new jobs. Workers do so an hour after the last resize."""
    _show(ctx, queue, as_json, lambda source: source.partitions.retire())


def _show(ctx: typer.Context, queue: str, as_json: bool, work: Work | None = None) -> None:
    """Changes the layout of a queue, and prints it."""

    async def act() -> dict[str, Any]:
        async with settings.of(ctx).partitioned(queue) as source:
            if source is None:
                raise CommandError(f"queue {queue!r} has no partitions: make it with Queue(…, partitions=)")
            if work is not None:
                await work(source)
            layout = await source.partitions.layout()
            return {
                "queue": queue,
                "version": layout.version,
                "size": layout.size,
                "served": layout.served,
                "partitions": await source.partitions.counts(),
            }

    found = settings.run(act())
    if as_json:
        output.document(found)
        return
    output.facts({"new jobs go to": found["size"], "served": found["served"], "version": found["version"]})
    rows = [
        [f"{queue}#{number}", *(str(row[state]) for state in row)]
        for number, row in enumerate(found["partitions"])
    ]
    output.table(["partition", *found["partitions"][0]], rows)
