"""``oxcart dedup …``: deduplication windows, which admit one job of a name and keep others out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.find import WireOption
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.model.job import Job
    from oxcart.queue import Queue

app = settings.group("dedup", "Show and release deduplication windows.")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The deduplication id.", show_default=False)]


@app.command()
def show(
    ctx: typer.Context,
    queue: QueueArgument,
    key: KeyArgument,
    wire: WireOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which job owns the window of this id; exit code 1 if it is not open."""

    async def read(source: Queue) -> tuple[str | None, Job | None, str]:
        owner = await source.deduplication.owner(key)
        if owner is None:
            return None, None, "unknown"
        return owner, await source.jobs.get(owner), await source.jobs.state(owner)

    owner, job, wire_state = settings.on_queue(ctx, queue, read)
    if owner is None:
        raise CommandError(f"queue {queue} keeps nothing out for {key}", FAILED)
    state = wire_state if wire or job is None or job.state is None else job.state.value
    if as_json:
        output.document({"queue": queue, "key": key, "job": owner, "state": state, "wire_state": wire_state})
    else:
        output.facts({"job": owner, "state": state})


@app.command()
def release(ctx: typer.Context, queue: QueueArgument, key: KeyArgument, as_json: JsonOption = False) -> None:
    """Close the window of this id, so that the next job is added; exit code 1 if it is not open."""
    released = settings.on_queue(ctx, queue, lambda source: source.deduplication.release(key))
    if not released:
        raise CommandError(f"queue {queue} keeps nothing out for {key}", FAILED)
    if as_json:
        output.document({"queue": queue, "key": key, "released": True})
    else:
        output.text(f"{key}: released")
