"""``oxcart groups …``: groups of jobs that take turns, and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.queue import Queue

app = settings.group("groups", "Show and steer groups of jobs that take turns.")

GroupArgument = Annotated[
    str, typer.Argument(help='The group; "" for the jobs without one.', show_default=False)
]


@app.command()
def show(
    ctx: typer.Context,
    queue: QueueArgument,
    group: Annotated[str | None, typer.Argument(help="Only this group.", show_default=False)] = None,
    after: Annotated[str | None, typer.Option(help="The last group of the page before.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many groups to show.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Show the groups with waiting jobs, or the settings and jobs of one group."""
    if group is not None:
        _show(ctx, queue, group, as_json)
        return

    async def list_groups(source: Queue) -> dict[str, int]:
        return await source.groups.list(after=after, limit=limit)

    found = settings.on_queue(ctx, queue, list_groups)
    if as_json:
        output.document({"queue": queue, "groups": found})
        return
    output.table(("group", "waiting"), [(name or "(none)", many) for name, many in found.items()])


@app.command("set")
def set_(
    ctx: typer.Context,
    queue: QueueArgument,
    group: Annotated[
        str | None, typer.Argument(help="The group; all without their own if left out.", show_default=False)
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(min=0, help="How many jobs may run at once; 0 for any number.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(min=0, help="How many may start in a minute; 0 for any number.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="How many jobs a group has per round.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the limits and the weight of one group, or the limits of all groups."""
    given: dict[str, Any] = {"concurrent": concurrent, "per_minute": per_minute, "weight": weight}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise CommandError("pass --concurrent, --per-minute or --weight", USAGE)
    if group is None and weight is not None:
        raise CommandError("--weight needs a group", USAGE)

    async def change(source: Queue) -> None:
        if group is None:
            await source.groups.set_all(**changes)
        else:
            await source.groups.set(group, **changes)

    settings.on_queue(ctx, queue, change)
    _show(ctx, queue, group, as_json)


@app.command()
def pause(
    ctx: typer.Context, queue: QueueArgument, group: GroupArgument, as_json: JsonOption = False
) -> None:
    """Let no further job of a group through; running jobs continue."""
    settings.on_queue(ctx, queue, lambda source: source.groups.pause(group))
    _show(ctx, queue, group, as_json)


@app.command()
def resume(
    ctx: typer.Context, queue: QueueArgument, group: GroupArgument, as_json: JsonOption = False
) -> None:
    """Let a paused group take turns again."""
    settings.on_queue(ctx, queue, lambda source: source.groups.resume(group))
    _show(ctx, queue, group, as_json)


@app.command()
def clear(
    ctx: typer.Context, queue: QueueArgument, group: GroupArgument, as_json: JsonOption = False
) -> None:
    """Remove the jobs that wait for a group's turn; running and delayed jobs stay."""
    many = settings.on_queue(ctx, queue, lambda source: source.groups.clear(group))
    _tell(queue, group, "removed", many, as_json)


@app.command()
def cancel(
    ctx: typer.Context,
    queue: QueueArgument,
    group: GroupArgument,
    reason: Annotated[str, typer.Option(help="The reason, for the jobs' records.")] = "",
    force: Annotated[bool, typer.Option("--force", help="End running jobs at once.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel the waiting and the running jobs of a group; delayed jobs stay."""
    many = settings.on_queue(ctx, queue, lambda source: source.groups.cancel(group, reason, force=force))
    _tell(queue, group, "cancelled", many, as_json)


def _tell(queue: str, group: str, what: str, many: int, as_json: bool) -> None:
    if as_json:
        output.document({"queue": queue, "group": group, what: many})
    else:
        output.text(f"{what} {many:,} jobs of the group {group!r}")


def _show(ctx: typer.Context, queue: str, group: str | None, as_json: bool) -> None:
    """Prints the settings of a group with its jobs, or those of all groups."""

    async def read(source: Queue) -> dict[str, Any]:
        import msgspec

        found = msgspec.structs.asdict(await source.groups.settings(group))
        if group is None:
            return {"concurrent": found["concurrent"], "per_minute": found["per_minute"]}
        return found | msgspec.structs.asdict(await source.groups.usage(group))

    found = settings.on_queue(ctx, queue, read)
    if as_json:
        output.document({"queue": queue, "group": group, **found})
        return
    bounds = {None: "that of all groups", 0: "any"}
    shown = {name: bounds.get(found[name], found[name]) for name in ("concurrent", "per_minute")}
    output.facts({**found, **shown})
