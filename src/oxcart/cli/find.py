"""``oxcart jobs`` and ``oxcart failures``: find jobs by their facts, and failed jobs by their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.cancel import CorrelationOption, NameOption, TagOption, tags_of
from oxcart.cli.completion import category_names, state_names, worker_names
from oxcart.cli.jobs import as_document
from oxcart.cli.options import wire_states
from oxcart.cli.queues import require
from oxcart.cli.settings import JsonOption, QueueArgument, Settings

if TYPE_CHECKING:
    from oxcart.jobs import Failures, Found
    from oxcart.model.job import Job
    from oxcart.queue import Queue

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help="Only this state, for example dead_letter; repeatable.",
        show_default="all",
        autocompletion=state_names,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only jobs changed since then: 2h, 02:30, 2026-11-15T12:00Z."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only jobs changed until then; as --since.")
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="TEXT", help="Only jobs whose failure, or its code, contains this text."
    ),
]
WorkerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="Only jobs last claimed by it: web-*; repeatable.",
        autocompletion=worker_names,
    ),
]
CategoryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--category",
        help="Only failures of this category: temporary, permanent, …; repeatable.",
        autocompletion=category_names,
    ),
]
UtcOption = Annotated[
    bool, typer.Option("--utc", help="Show times in UTC instead of ages: 2026-11-15 12:00:00.000Z.")
]
WireOption = Annotated[
    bool, typer.Option("--wire", help="Show and read the states of BullMQ's wire: waiting, active, …")
]
ScanOption = Annotated[
    int, typer.Option("--scan", min=1, help="How many jobs to read at most, newest first.", show_default=True)
]


def jobs(
    ctx: typer.Context,
    queue: QueueArgument,
    state: StateOption = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    worker: WorkerOption = None,
    category: CategoryOption = None,
    tag: TagOption = None,
    correlation_id: CorrelationOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    first: Annotated[int, typer.Option(min=0, help="How many to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 20,
    oldest: Annotated[bool, typer.Option("--oldest", help="Oldest first instead of newest.")] = False,
    scan: ScanOption = 10_000,
    unroutable: Annotated[
        bool, typer.Option("--unroutable", help="Only jobs whose targets no registered worker fits.")
    ] = False,
    utc: UtcOption = False,
    wire: WireOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs of a queue, latest change first."""
    asked: dict[str, Any] = {
        "name": name,
        "reason": reason,
        "worker": worker,
        "category": category,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
        "since": since,
        "until": until,
    }
    using = settings.of(ctx)

    async def read(source: Queue) -> Found:
        if unroutable:
            return await _unroutable(source, state, first, limit, oldest)
        found = await source.jobs.search(
            state=state, wire=wire, first=first, limit=limit, oldest=oldest, scan=scan, **asked
        )
        if using.namespace is not None and not any(asked.values()):
            await _add_foreign(using, queue, state, found, limit)
        return found

    found = settings.on_queue(ctx, queue, read)
    if as_json:
        pairs = zip(found.jobs, found.wire_states, strict=True)
        output.document([as_document(job, place) for job, place in pairs])
    if not found.jobs:
        require(ctx, queue)
    if as_json:
        return
    _show(found, utc=utc, wire=wire)
    output.text(_total(found, first, scan))


def failures(
    ctx: typer.Context,
    queue: QueueArgument,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="failed, dead_letter, retrying or cancelled; repeatable.",
            show_default="the first two",
            autocompletion=state_names,
        ),
    ] = None,
    name: NameOption = None,
    reason: ReasonOption = None,
    worker: WorkerOption = None,
    category: CategoryOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many groups at most.")] = 20,
    scan: ScanOption = 10_000,
    utc: UtcOption = False,
    as_json: JsonOption = False,
) -> None:
    """Group failed jobs by their reason and by where it was raised, most frequent first.

    Ids, numbers and addresses in a reason are masked: failures that differ only in these are one group.
    """
    found = settings.on_queue(
        ctx,
        queue,
        lambda source: source.jobs.failures(
            state=state or ("failed", "dead_letter"),
            name=name,
            reason=reason,
            worker=worker,
            category=category,
            tags=tags_of(tag),
            since=since,
            until=until,
            scan=scan,
        ),
    )
    if as_json:
        import msgspec

        document = msgspec.to_builtins(found)
        output.document({"queue": queue, **document, "groups": document["groups"][:limit]})
    if not found.groups:
        require(ctx, queue)
    if as_json:
        return
    _show_groups(found, limit, utc)
    at_least = "" if found.exact else "at least "
    number = len(found.groups)
    groups = f"{number} group" if number == 1 else f"{number} groups"
    shown = f"{min(limit, number)} of {groups}, {at_least}{_jobs(found.failed)}"
    output.text(shown if found.exact else f"{shown}; {unread(found, scan)}")


def _show_groups(found: Failures, limit: int, utc: bool) -> None:
    for group in found.groups[:limit]:
        when = (output.moment if utc else output.ago)(group.last_ms)
        first = (output.moment if utc else output.ago)(group.first_ms)
        output.facts(
            {
                _jobs(group.count): group.reason,
                "  raised in": group.frame,
                "  when": when if group.count == 1 else f"first {first}, last {when}",
                "  what": ", ".join(
                    f"{name} ({count})" if len(group.names) > 1 else name
                    for name, count in sorted(group.names.items(), key=lambda item: -item[1])[:5]
                ),
                "  code": ", ".join(sorted(group.codes)) or None,
                "  category": ", ".join(sorted(each for each in group.categories if each)) or None,
                "  state": ", ".join(f"{state} ({count})" for state, count in sorted(group.states.items())),
                "  last reason": group.example if group.example != group.reason else None,
                "  ids": ", ".join(group.ids) + (", …" if group.count > len(group.ids) else ""),
            },
            skip_none=True,
        )
        output.text("")


def _show(found: Found, *, utc: bool, wire: bool) -> None:
    # Most queues have no targets, and an empty column would cost width.
    routed = ["target"] if any(job.lane for job in found.jobs) else []
    output.table(
        ["id", "name", "state", *routed, "attempts#", "changed" if utc else "age#", "reason or result"],
        (
            [
                job.id,
                job.name,
                place if wire or job.state is None else job.state.value,
                *(job.lane for _ in routed),
                f"{job.attempts_used}/{job.options.attempts}",
                (output.moment if utc else output.age)(_changed(job)),
                _outcome(job, place),
            ]
            for job, place in zip(found.jobs, found.wire_states, strict=True)
        ),
    )


def _changed(job: Job) -> int:
    from oxcart.model.search import changed_ms

    return changed_ms(job)


def _outcome(job: Job, place: str) -> Any:
    from oxcart.model.filter import failure_of

    return (
        job.put_off
        or failure_of(job)
        or (output.data(job.return_value) if place == "completed" and job.return_value is not None else None)
    )


def _total(found: Found, first: int, scan: int) -> str:
    shown = f"{len(found.jobs)} of {'' if found.exact else 'at least '}{found.matched}"
    if first:
        shown += f", from {first + 1}"
    if not found.exact:
        shown += f"; {unread(found, scan)}"
    if found.other_states:
        others = sorted(found.other_states.items(), key=lambda item: -item[1])
        shown += "; not shown: " + ", ".join(f"{count} {state.value}" for state, count in others)
    return shown


def unread(found: Found | Failures, scan: int) -> str:
    """Returns how many jobs a search read, and how to read more."""
    return f"read {found.looked_at} of {found.total} jobs, --scan {10 * scan} reads more"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


async def _unroutable(source: Queue, states: list[str] | None, first: int, limit: int, oldest: bool) -> Found:
    from oxcart.jobs import Found

    found = Found()
    for one in wire_states(states, "scheduled", "delayed") or ("waiting", "prioritized", "delayed"):
        jobs = await source.workers.unroutable_jobs(one, first=first, limit=limit, oldest=oldest)
        found.jobs += jobs
        found.wire_states += [one] * len(jobs)
    found.matched = sum((await source.workers.unroutable()).values())
    return found


async def _add_foreign(
    using: Settings, job_type: str, states: list[str] | None, found: Found, limit: int
) -> None:
    """Adds jobs that workers of other clients completed and no worker recorded."""
    from oxcart.cli.namespace import completed_elsewhere

    if states is not None and "completed" not in states:
        return
    jobs = await completed_elsewhere(using, job_type)
    found.matched += len(jobs)
    taken = jobs[: max(0, limit - len(found.jobs))]
    found.jobs += taken
    found.wire_states += ["completed"] * len(taken)
