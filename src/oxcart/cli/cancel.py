"""``oxcart cancel``: cancels some jobs by their ids, or all that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.completion import job_names, state_names
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.operations import LimitOption
from oxcart.cli.options import wire_states
from oxcart.cli.progress import Bar
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.jobs import Cancelled

NameOption = Annotated[
    list[str] | None,
    typer.Option("--name", help="Only jobs of this name; repeatable.", autocompletion=job_names),
]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="Only jobs with this tag; repeatable.")
]
CorrelationOption = Annotated[
    str | None, typer.Option("--correlation-id", help="Only jobs of this correlation id.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def cancel(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job that matches the options below.")] = False,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="pending, scheduled, delayed (with retries) or running; repeatable.",
            show_default="all",
            autocompletion=state_names,
        ),
    ] = None,
    name: NameOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    older_than: Annotated[str | None, typer.Option(help="Only jobs created so long ago: 10m, 2h.")] = None,
    newer_than: Annotated[str | None, typer.Option(help="Only jobs created within this time.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for the jobs' records.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="End running jobs at once; their handlers' results are refused.")
    ] = False,
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs: waiting jobs end at once, running jobs are asked to end."""
    if bool(job_ids) == every:
        raise CommandError("name the jobs to cancel, or pass --all", USAGE)
    if job_ids:
        if dry_run or state or name or tag or correlation_id or older_than or newer_than or limit:
            raise CommandError("filters, --dry-run and --limit go with --all", USAGE)
        _cancel_some(ctx, queue, job_ids, reason, force, as_json)
        return

    states = wire_states(state, "pending", "scheduled", "delayed", "running")

    async def work() -> Cancelled:
        async with settings.of(ctx).queue(queue) as source:
            with Bar(f"{queue}: cancelling", quiet=as_json) as bar:
                return await source.jobs.cancel_all(
                    state=states,
                    name=name,
                    tags=tags_of(tag),
                    correlation_id=correlation_id,
                    older_than=older_than,
                    newer_than=newer_than,
                    reason=reason,
                    force=force,
                    dry_run=dry_run,
                    limit=limit,
                    progress=bar.update,
                )

    found = settings.run(work())
    if as_json:
        import msgspec

        output.document({"queue": queue, **msgspec.to_builtins(found)})
        return
    if dry_run:
        for job_id in found.ids:
            output.text(job_id)
        output.text(f"{queue}: {found.matched:,} would be cancelled")
        return
    output.text(f"{queue}: {found.cancelled:,} cancelled, {found.asked:,} asked to end")
    if found.refused:
        problem = f"{queue}: {found.refused:,} run in workers of peers and continue; --force ends them"
        raise CommandError(problem, FAILED)


def _cancel_some(
    ctx: typer.Context, queue: str, job_ids: list[str], reason: str, force: bool, as_json: bool
) -> None:
    from oxcart.model.errors import JobError

    async def work() -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        async with settings.of(ctx).queue(queue) as source:
            for given in job_ids:
                job_id = given
                try:
                    job_id = await source.jobs.resolve(given)
                    came = await source.jobs.cancel(job_id, reason, force=force)
                except JobError as error:
                    done.append({"id": job_id, "ok": False, "error": str(error)})
                else:
                    done.append({"id": job_id, "ok": True, "state": came.value})
        return done

    done = settings.run(work())
    if as_json:
        output.document(done)
    else:
        words = {"cancelled": "cancelled", "requested": "asked to end"}
        for one in done:
            if one["ok"]:
                output.text(f"{one['id']}: {words[one['state']]}")
            else:
                output.error(one["error"])
    if not all(one["ok"] for one in done):
        raise typer.Exit(FAILED)


def tags_of(given: list[str] | None) -> dict[str, str] | None:
    """Returns tags from the command line."""
    found: dict[str, str] = {}
    for tag in given or ():
        name, equals, value = tag.partition("=")
        if not name or not equals:
            raise CommandError(f"a tag is NAME=VALUE, got {tag!r}", USAGE)
        found[name] = value
    return found or None
