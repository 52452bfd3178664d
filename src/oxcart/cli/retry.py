"""``oxcart retry``: lets ended jobs run again, by their ids, all of them, or those that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.cancel import CorrelationOption, DryRunOption, NameOption, TagOption, tags_of
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.find import CategoryOption, ReasonOption, ScanOption, WorkerOption, unread
from oxcart.cli.jobs import each, report
from oxcart.cli.operations import LimitOption, moment_of, with_bar
from oxcart.cli.progress import Bar
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.jobs import Found
    from oxcart.queue import Queue

#: Jobs that match a filter and are retried by one command, unless ``--limit`` says less.
MOST = 10_000


def retry(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs.", show_default=False)
    ] = None,
    all_failed: Annotated[
        bool, typer.Option("--all-failed", help="Failed jobs, dead letters included, that match the options.")
    ] = False,
    all_completed: Annotated[
        bool, typer.Option("--all-completed", help="Completed jobs that match the options below.")
    ] = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    worker: WorkerOption = None,
    category: CategoryOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --all-…: only jobs that ended since then: 2h, 02:30."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --all-…: only jobs ended until then.")
    ] = None,
    limit: LimitOption = None,
    scan: ScanOption = MOST,
    reset: Annotated[bool, typer.Option("--reset", help="Reset their attempts.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let finished jobs run again.

    The filters are those of 'oxcart jobs' and 'oxcart failures': what these list can be retried.
    """
    if [bool(job_ids), all_failed, all_completed].count(True) != 1:
        raise CommandError("name the jobs to retry, or pass --all-failed or --all-completed", USAGE)
    chosen: dict[str, Any] = {
        "name": name,
        "reason": reason,
        "worker": worker,
        "category": category,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
    }
    if job_ids:
        if any(chosen.values()) or since or until or limit or dry_run:
            problem = (
                "filters, --dry-run, --since, --until and --limit go with --all-failed or --all-completed"
            )
            raise CommandError(problem, USAGE)
        _retry_some(ctx, queue, job_ids, reset, as_json)
        return
    state = "failed" if all_failed else "completed"
    if any(chosen.values()) or dry_run:
        _retry_found(
            ctx,
            queue,
            state,
            {**chosen, "since": since, "until": until},
            limit,
            scan,
            reset,
            dry_run,
            as_json,
        )
        return
    first = None if since is None else moment_of(since, "since")
    last = None if until is None else moment_of(until, "until")
    done = with_bar(
        ctx,
        queue,
        "retrying",
        lambda source, progress: source.jobs.retry_all(
            state, since=first, until=last, limit=limit, reset=reset, progress=progress
        ),
        quiet=as_json,
    )
    if as_json:
        output.document({"queue": queue, "retried": done})
    else:
        output.text(f"{queue}: {_jobs(done)} will run again")


def _retry_some(ctx: typer.Context, queue: str, job_ids: list[str], reset: bool, as_json: bool) -> None:
    results = settings.on_queue(
        ctx,
        queue,
        lambda source: each(source, job_ids, lambda one: source.jobs.retry(one, reset=reset)),
    )
    report(results, "will run again", as_json)


def _retry_found(
    ctx: typer.Context,
    queue: str,
    state: str,
    asked: dict[str, Any],
    limit: int | None,
    scan: int,
    reset: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Retries the jobs that match when the command begins, those that ended first at first.

    Each is retried once, so a job that fails again meanwhile does not run a third time.
    """

    async def work(source: Queue) -> tuple[Found, int, list[str]]:
        found = await source.jobs.search(
            state=state, wire=True, limit=limit or MOST, oldest=True, scan=scan, **asked
        )
        return found, *await _run_again(source, found, reset, dry_run, quiet=as_json)

    found, done, refused = settings.on_queue(ctx, queue, work)
    ids = [job.id for job in found.jobs]
    if as_json:
        shown = {"queue": queue, "matched": found.matched, "retried": done, "dry_run": dry_run, "ids": ids}
        output.document(shown | {"refused": refused})
    else:
        for job_id in ids if dry_run else ():
            output.text(job_id)
        words = "would run again" if dry_run else "will run again"
        output.text(
            f"{queue}: {_jobs(len(ids) if dry_run else done)}{_of(found)} {words}{_unread(found, scan)}"
        )
        for problem in refused:
            output.error(problem)
    if refused:
        raise typer.Exit(FAILED)


async def _run_again(
    source: Queue, found: Found, reset: bool, dry_run: bool, *, quiet: bool
) -> tuple[int, list[str]]:
    from oxcart.broker.progress import Progress
    from oxcart.model.errors import JobError

    done = 0
    refused: list[str] = []
    if dry_run:
        return done, refused
    with Bar(f"{source.name}: retrying", quiet=quiet) as bar:
        for job in found.jobs:
            try:
                await source.jobs.retry(job.id, reset=reset)
            except JobError as error:  # it was retried or removed meanwhile
                refused.append(str(error))
            else:
                done += 1
            bar.update(Progress("jobs", done, len(found.jobs)))
    return done, refused


def _of(found: Found) -> str:
    at_least = "" if found.exact else "at least "
    return "" if len(found.jobs) == found.matched else f" of {at_least}{found.matched:,} that match"


def _unread(found: Found, scan: int) -> str:
    return "" if found.exact else f"; {unread(found, scan)}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
