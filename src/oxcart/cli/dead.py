"""``oxcart dead …``: lists, replays and removes jobs that used up their attempts or their lifetime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli import output, settings
from oxcart.cli.cancel import CorrelationOption, DryRunOption, NameOption, TagOption, tags_of
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.find import CategoryOption, ReasonOption, SinceOption, UntilOption, UtcOption
from oxcart.cli.jobs import as_document, each, report, show_job
from oxcart.cli.operations import LimitOption, YesOption, ask, with_bar
from oxcart.cli.queues import require
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.dead_letters import DeadDone, Which
    from oxcart.jobs import OnProgress
    from oxcart.model.job import Job
    from oxcart.queue import Queue

app = settings.group("dead", "Dead letters: jobs that used up their attempts or their lifetime.")

OlderOption = Annotated[str | None, typer.Option("--older-than", help="Only dead letters at least this old.")]
NewerOption = Annotated[str | None, typer.Option("--newer-than", help="Only dead letters at most this old.")]
PermanentOption = Annotated[
    bool, typer.Option("--permanent", help="Also jobs that failed for good, which a retry alone cannot fix.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that match the options below.")]
JobIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs.", show_default=False)
]


@app.command("list")
def list_(
    ctx: typer.Context,
    queue: QueueArgument,
    name: NameOption = None,
    category: CategoryOption = None,
    reason: ReasonOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    permanent: PermanentOption = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    oldest: Annotated[bool, typer.Option("--oldest", help="Oldest first instead of newest.")] = False,
    utc: UtcOption = False,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, newest first."""
    which = _which(
        name, category, reason, tag, correlation_id, since, until, older_than, newer_than, permanent
    )

    found = settings.on_queue(
        ctx,
        queue,
        lambda source: source.dead_letters.list(limit=limit, oldest=oldest, **which),
    )
    if as_json:
        output.document([as_document(job, "failed") for job in found])
    if not found:
        require(ctx, queue)
    if as_json:
        return
    output.table(
        ["id", "name", "category", "attempts#", "ended" if utc else "age#", "reason"],
        (
            [
                job.id,
                job.name,
                job.dead_reason or job.category,
                f"{job.attempts_used}/{job.options.attempts}",
                (output.moment if utc else output.age)(job.finished_on),
                job.failed_reason,
            ]
            for job in found
        ),
    )


@app.command()
def show(
    ctx: typer.Context,
    queue: QueueArgument,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    permanent: PermanentOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show everything about a dead letter."""

    async def read(source: Queue) -> Job:
        return await source.dead_letters.get(await source.jobs.resolve(job_id), permanent=permanent)

    found = settings.on_queue(ctx, queue, read)
    if as_json:
        output.document(as_document(found, "failed"))
        return
    show_job(found, "failed")


@app.command()
def replay(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: JobIds = None,
    every: AllOption = False,
    name: NameOption = None,
    category: CategoryOption = None,
    reason: ReasonOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    permanent: PermanentOption = False,
    rate: Annotated[float | None, typer.Option(help="How many per second at most.")] = None,
    keep_attempts: Annotated[
        bool,
        typer.Option("--keep-attempts", help="Allow one more attempt, instead of resetting their attempts."),
    ] = False,
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let dead letters run again."""
    which = _which(
        name, category, reason, tag, correlation_id, since, until, older_than, newer_than, permanent
    )
    _check(job_ids, every, bool(which.keys() - {"permanent"} or dry_run or limit or rate))
    reset = not keep_attempts
    if job_ids:
        _each(
            ctx,
            queue,
            job_ids,
            lambda source, one: source.dead_letters.replay(one, reset=reset, permanent=permanent),
            as_json,
        )
        return
    _all(
        ctx,
        queue,
        "replaying",
        lambda source, progress: source.dead_letters.replay_all(
            reset=reset, rate=rate, dry_run=dry_run, limit=limit, progress=progress, **which
        ),
        "will run again",
        as_json,
    )


@app.command()
def purge(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: JobIds = None,
    every: AllOption = False,
    name: NameOption = None,
    category: CategoryOption = None,
    reason: ReasonOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    permanent: PermanentOption = False,
    dry_run: DryRunOption = False,
    limit: LimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters for good."""
    which = _which(
        name, category, reason, tag, correlation_id, since, until, older_than, newer_than, permanent
    )
    _check(job_ids, every, bool(which.keys() - {"permanent"} or dry_run or limit))
    if not dry_run:
        ask(f"Remove {'these' if job_ids else 'all such'} dead letters of queue {queue} for good?", yes)
    if job_ids:
        _each(
            ctx,
            queue,
            job_ids,
            lambda source, one: source.dead_letters.purge(one, permanent=permanent),
            as_json,
            "removed",
        )
        return
    _all(
        ctx,
        queue,
        "removing",
        lambda source, progress: source.dead_letters.purge_all(
            dry_run=dry_run, limit=limit, progress=progress, **which
        ),
        "removed",
        as_json,
    )


def _which(
    name: list[str] | None,
    category: list[str] | None,
    reason: str | None,
    tag: list[str] | None,
    correlation_id: str | None,
    since: str | None,
    until: str | None,
    older_than: str | None,
    newer_than: str | None,
    permanent: bool,
) -> Which:
    given: Which = {}
    if permanent:
        given["permanent"] = True
    if name:
        given["name"] = name
    if category:
        given["category"] = category
    if reason is not None:
        given["reason"] = reason
    if tag:
        given["tags"] = tags_of(tag)
    if correlation_id is not None:
        given["correlation_id"] = correlation_id
    if since is not None:
        given["since"] = since
    if until is not None:
        given["until"] = until
    if older_than is not None:
        given["older_than"] = older_than
    if newer_than is not None:
        given["newer_than"] = newer_than
    return given


def _check(job_ids: list[str] | None, every: bool, chooses: bool) -> None:
    if bool(job_ids) == every:
        raise CommandError("name the dead letters, or pass --all", USAGE)
    if job_ids and chooses:
        raise CommandError("filters, --dry-run, --limit and --rate go with --all", USAGE)


def _each(
    ctx: typer.Context,
    queue: str,
    job_ids: list[str],
    act: Callable[[Queue, str], Awaitable[None]],
    as_json: bool,
    what: str = "will run again",
) -> None:
    results = settings.on_queue(
        ctx, queue, lambda source: each(source, job_ids, lambda one: act(source, one))
    )
    report(results, what, as_json)


def _all(
    ctx: typer.Context,
    queue: str,
    doing: str,
    work: Callable[[Queue, OnProgress], Awaitable[DeadDone]],
    what: str,
    as_json: bool,
) -> None:
    found = with_bar(ctx, queue, doing, work, quiet=as_json)
    if as_json:
        import msgspec

        output.document({"queue": queue, **msgspec.to_builtins(found)})
        return
    if found.dry_run:
        for job_id in found.ids:
            output.text(job_id)
        output.text(f"{queue}: {_counted(found.matched)} fit")
    else:
        output.text(f"{queue}: {_counted(found.done)} {what}")


def _counted(number: int) -> str:
    return "1 dead letter" if number == 1 else f"{number:,} dead letters"
