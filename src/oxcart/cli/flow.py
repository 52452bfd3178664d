"""``oxcart flow …``: shows a job with the jobs below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.find import WireOption
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.model.flow import FlowView
    from oxcart.model.graph import Kind


app = settings.group("flow", "Jobs that wait for others, as a picture.")


@app.callback()
def _group() -> None:
    """Keeps this a group, although it has only one command."""


@app.command()
def show(
    ctx: typer.Context,
    queue: QueueArgument,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job at the top.", show_default=False)],
    depth: Annotated[int, typer.Option(min=1, max=100, help="How many generations.")] = 10,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Children of one job at most.")] = 20,
    as_svg: Annotated[bool, typer.Option("--svg", help="Draw it as SVG.")] = False,
    wire: WireOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job with the jobs that it waits for (children, dependencies), and its dependents."""
    from oxcart.cli.jobs import resolve

    async def read() -> tuple[FlowView | None, dict[str, Kind]]:
        async with settings.of(ctx).queue(queue) as source:
            top = await resolve(source, queue, job_id)
            found = await source.flows.get(top, depth=depth, limit=limit)
            return found, await source.flows.dependents(top)

    found, behind = settings.run(read())
    if found is None:
        raise CommandError(f"queue {queue} has no job {job_id}", FAILED)
    if as_json:
        output.document(_as_document(found) | {"dependents": behind})
        return
    if as_svg:
        from oxcart.cli.drawing import drawing

        output.block(drawing(found, behind, wire=wire))
        return
    for line in _lines(found, "", "", set(), wire):
        output.text(line)
    for key, kind in behind.items():
        output.text(f"waited for by {key} ({kind})")


def _as_document(view: FlowView) -> dict[str, Any]:
    from oxcart.cli.jobs import as_document

    return as_document(view.job, view.state) | {
        "children": [_as_document(child) for child in view.children],
        "more": view.more,
    }


def _lines(view: FlowView, before: str, under: str, seen: set[tuple[str, str]], wire: bool) -> list[str]:
    from oxcart.cli.drawing import state_of
    from oxcart.model.filter import failure_of

    job = view.job
    reason = failure_of(job)
    why = f": {reason}" if reason else ""
    made = [f"{before}{job.name} {job.queue}/{job.id} {state_of(view, wire=wire)}{why}"]
    if (job.queue, job.id) in seen and view.children:
        return [f"{made[0]} (shown above)"]  # several jobs may wait for the same one
    seen.add((job.queue, job.id))
    below: list[FlowView | None] = [*view.children, *([None] if view.more else [])]
    for at, child in enumerate(below):
        last = at == len(below) - 1
        branch, next_under = under + ("└─ " if last else "├─ "), under + ("   " if last else "│  ")
        if child is None:
            made.append(f"{branch}{view.more:,} more")
        else:
            made += _lines(child, branch, next_under, seen, wire)
    return made
