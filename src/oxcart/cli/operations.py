"""``oxcart clean``, ``clear``, ``obliterate``, ``promote``, ``orphans`` and more: operations on whole queues.

Each shows a bar on a terminal and prints one line at the end, or JSON with ``--json``. An operation that
cannot be undone asks first; without a terminal it requires ``--yes``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from oxcart.cli import output, settings
from oxcart.cli.completion import state_names
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.options import wire_states
from oxcart.cli.progress import Bar
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.jobs import OnProgress
    from oxcart.queue import Queue

T = TypeVar("T")

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="How many at most.", show_default="all")]


def clean(
    ctx: typer.Context,
    queue: QueueArgument,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="completed, failed (with dead letters and cancelled jobs), scheduled, delayed (with "
            "retries) or running (without a lease); repeatable.",
            show_default="completed",
            autocompletion=state_names,
        ),
    ] = None,
    grace: Annotated[str, typer.Option(help="Keep jobs younger than this: 30s, 12h, 7d.")] = "0s",
    limit: LimitOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old jobs of a queue; completed jobs by default, other jobs after a question."""
    states = wire_states(state, "completed", "failed", "scheduled", "delayed", "running") or ["completed"]
    if states != ["completed"]:
        what = " and ".join(dict.fromkeys(state or ()))
        ask(f"Remove every job of queue {queue} that is {what} and older than {grace}, for good?", yes)

    async def work(source: Queue, progress: OnProgress) -> int:
        done = 0
        for one in states:
            if limit is None or done < limit:
                rest = None if limit is None else limit - done
                done += await source.jobs.clean(one, grace=grace, limit=rest, progress=progress)
        return done

    _operate(ctx, queue, "cleaning", work, "{} removed", "removed", as_json)


def clear(
    ctx: typer.Context,
    queue: QueueArgument,
    delayed: Annotated[bool, typer.Option("--delayed", help="Also delayed jobs, retries included.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove every waiting job; running and finished jobs stay."""
    ask(f"Remove every {'waiting and delayed' if delayed else 'waiting'} job of queue {queue}?", yes)
    _operate(
        ctx,
        queue,
        "clearing",
        lambda source, progress: source.jobs.clear(delayed=delayed, progress=progress),
        "{} removed",
        "removed",
        as_json,
    )


def obliterate(
    ctx: typer.Context,
    queue: QueueArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also if jobs are running; their results will be refused.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a queue with everything in it, for good."""
    ask(f"Remove queue {queue} with all its jobs, schedules and events, for good?", yes)
    _operate(
        ctx,
        queue,
        "removing",
        lambda source, progress: source.jobs.obliterate(force=force, progress=progress),
        "the queue is gone, {} with it",
        "removed",
        as_json,
    )


def promote(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every delayed job of the queue.")] = False,
    within: Annotated[
        str | None, typer.Option(help="With --all: only those due within this time: 10m, 2h.")
    ] = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Promote delayed jobs now."""
    from oxcart.cli.jobs import each, report

    if bool(job_ids) == every:
        raise CommandError("name the jobs to promote, or pass --all", USAGE)
    if job_ids:

        async def work() -> list[dict[str, Any]]:
            async with settings.of(ctx).queue(queue) as source:
                return await each(source, job_ids, lambda one: source.jobs.handle(one).promote())

        report(settings.run(work()), "will run now", as_json)
        return
    until = None if within is None else moment_of(within, "within", ahead=True)
    _operate(
        ctx,
        queue,
        "promoting",
        lambda source, progress: source.jobs.promote_all(until=until, limit=limit, progress=progress),
        "{} will run now",
        "promoted",
        as_json,
    )


def orphans(
    ctx: typer.Context,
    queue: QueueArgument,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them instead of listing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find jobs that are in no state, which no worker would ever run or remove.

    `oxcart doctor --rescue` puts back those that have not ended.
    """

    async def work() -> Sequence[str]:
        async with settings.of(ctx).queue(queue) as source:
            with Bar(f"{queue}:", quiet=as_json) as bar:
                return await source.jobs.remove_orphans(dry_run=not remove, progress=bar.update)

    found = settings.run(work())
    if as_json:
        output.document({"queue": queue, "orphans": found, "removed": remove})
        return
    for job_id in found:
        output.text(job_id)
    if not found:
        output.text(f"{queue}: no orphans")


def priorities(ctx: typer.Context, queue: QueueArgument, as_json: JsonOption = False) -> None:
    """Count the waiting jobs of a queue by their priority."""

    async def work() -> dict[int, int]:
        async with settings.of(ctx).queue(queue) as source:
            return await source.jobs.counts_per_priority()

    found = settings.run(work())
    if as_json:
        output.document([{"priority": priority, "jobs": count} for priority, count in found.items()])
    else:
        output.table(["priority#", "jobs#"], found.items())


def metrics(
    ctx: typer.Context,
    queue: QueueArgument,
    minutes: Annotated[int, typer.Option(min=1, help="How many of the newest minutes to show.")] = 15,
    as_json: JsonOption = False,
) -> None:
    """Show how many jobs completed and failed per minute, if workers count them."""
    import msgspec

    async def work() -> dict[str, Any]:
        async with settings.of(ctx).queue(queue) as source:
            return {
                state: await source.jobs.metrics(state, last=minutes - 1) for state in ("completed", "failed")
            }

    found = settings.run(work())
    if as_json:
        output.document({state: msgspec.to_builtins(series) for state, series in found.items()})
        return
    if not any(series.count for series in found.values()):
        raise CommandError(f"no worker of queue {queue} counts: start one with --metrics-minutes", FAILED)
    rows = []
    for state, series in found.items():
        for ago, count in enumerate(series.points):
            rows.append([_minute(series.previous_at, ago), state, count])
    output.table(["minute", "state", "jobs#"], sorted(rows, reverse=True))
    output.facts({f"{state} in all": series.count for state, series in found.items()})


def trim_events(
    ctx: typer.Context,
    queue: QueueArgument,
    keep: Annotated[int, typer.Option(min=0, help="About how many events stay.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Drop the oldest events of a queue."""
    _operate(
        ctx,
        queue,
        "trimming",
        lambda source, progress: source.events.trim(keep, progress=progress),
        "{} dropped",
        "dropped",
        as_json,
        noun="event",
    )


def clear_logs(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.", show_default=False)],
    keep: Annotated[int, typer.Option(min=0, help="How many of the newest lines stay.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Drop the logs of jobs."""
    from oxcart.cli.jobs import each, report

    async def work() -> list[dict[str, Any]]:
        async with settings.of(ctx).queue(queue) as source:
            return await each(source, job_ids, lambda one: source.jobs.handle(one).clear_logs(keep))

    report(settings.run(work()), "log cleared", as_json)


def publish(
    ctx: typer.Context,
    queue: QueueArgument,
    event: Annotated[str, typer.Argument(help="The event's name, one of your own.", show_default=False)],
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Its fields.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add an event of your own to a queue's events."""
    values: dict[str, Any] = {}
    for field in fields or ():
        name, given, value = field.partition("=")
        if not name or not given:
            raise CommandError(f"a field is NAME=VALUE, got {field!r}", USAGE)
        values[name] = value
    if "keep_events" in values:
        raise CommandError("keep_events cannot be the name of a field", USAGE)

    async def work() -> str:
        async with settings.of(ctx).queue(queue) as source:
            return await source.events.publish(event, **values)

    event_id = settings.run(work())
    if as_json:
        output.document({"queue": queue, "event": event, "id": event_id})
    else:
        output.text(event_id)


def _operate(
    ctx: typer.Context,
    queue: str,
    doing: str,
    work: Callable[[Queue, OnProgress], Awaitable[int]],
    words: str,
    field: str,
    as_json: bool,
    noun: str = "job",
) -> None:
    """Runs an operation with a bar, and prints how much was done."""
    done = with_bar(ctx, queue, doing, work, quiet=as_json)
    if as_json:
        output.document({"queue": queue, field: done})
    else:
        counted = f"1 {noun}" if done == 1 else f"{done:,} {noun}s"
        output.text(f"{queue}: {words.format(counted)}")


def with_bar(
    ctx: typer.Context,
    queue: str,
    doing: str,
    work: Callable[[Queue, OnProgress], Awaitable[T]],
    *,
    quiet: bool,
) -> T:
    """Runs an operation on a queue with a progress bar."""

    async def act(source: Queue) -> T:
        with Bar(f"{queue}: {doing}", quiet=quiet) as bar:
            return await work(source, bar.update)

    return settings.on_queue(ctx, queue, act)


def ask(question: str, yes: bool) -> None:
    """Asks before an operation that cannot be undone."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("this cannot be undone: pass --yes", USAGE)
    if not typer.confirm(question):
        raise CommandError("nothing was done", FAILED)


def moment_of(text: str, field: str, *, ahead: bool = False) -> datetime:
    """Returns a time: ``02:30``, ``2026-11-15T12:00Z``, or ``2h`` before now; after now if ``ahead``."""
    from oxcart.model.duration import parse_ms
    from oxcart.model.errors import ValidationError
    from oxcart.model.moment import parse_moment

    now = datetime.now(UTC)
    if ahead:
        with contextlib.suppress(ValidationError):
            return now + timedelta(milliseconds=parse_ms(text, field))
    found = parse_moment(text, field, now_ms=round(now.timestamp() * 1000))
    return datetime.fromtimestamp(found / 1000, UTC)


def _minute(newest_ms: int, ago: int) -> str:
    at = datetime.fromtimestamp(newest_ms // 60_000 * 60 - 60 * (ago + 1), UTC)
    return at.strftime("%Y-%m-%d %H:%MZ")
