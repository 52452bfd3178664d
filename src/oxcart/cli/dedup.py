"""``oxcart dedup …``: deduplication windows, which let one job of a name in and keep others out."""

from __future__ import annotations

from typing import Annotated

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.settings import JsonOption, QueueArgument

app = typer.Typer(
    name="dedup",
    help="Show and release deduplication windows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The deduplication id.", show_default=False)]


@app.command()
def show(ctx: typer.Context, queue: QueueArgument, key: KeyArgument, as_json: JsonOption = False) -> None:
    """Show which job keeps others of this id out; exit code 1 when none does."""

    async def read() -> tuple[str | None, str]:
        async with settings.of(ctx).queue(queue) as source:
            owner = await source.deduplicated_by(key)
            return owner, "unknown" if owner is None else await source.state(owner)

    owner, state = settings.run(read())
    if owner is None:
        raise CommandError(f"queue {queue} keeps nothing out for {key}", FAILED)
    if as_json:
        output.document({"queue": queue, "key": key, "job": owner, "state": state})
    else:
        output.facts({"job": owner, "state": state})


@app.command()
def release(ctx: typer.Context, queue: QueueArgument, key: KeyArgument, as_json: JsonOption = False) -> None:
    """Let the next job of this id in; exit code 1 when none was kept out."""

    async def work() -> bool:
        async with settings.of(ctx).queue(queue) as source:
            return await source.release_deduplication(key)

    released = settings.run(work())
    if not released:
        raise CommandError(f"queue {queue} keeps nothing out for {key}", FAILED)
    if as_json:
        output.document({"queue": queue, "key": key, "released": True})
    else:
        output.text(f"{key}: released")
