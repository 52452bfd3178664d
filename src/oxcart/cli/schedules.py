"""``oxcart schedules …``: the schedules of a queue."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.options import (
    CorrelationIdOption,
    LabelOption,
    LimitKeyOption,
    PriorityOption,
    RateLimitOption,
    RerouteOnOption,
    SkipOnOption,
    TargetOption,
)
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.model.schedule import Schedule, Scheduler
    from oxcart.schedules import Schedules

app = settings.group("schedules", "List, make, pause and remove schedules: rules that make jobs.")

IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids of schedules.", show_default=False)
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.", show_default=False)]


@app.command("list")
def list_(
    ctx: typer.Context,
    queue: QueueArgument,
    first: Annotated[int, typer.Option(min=0, help="How many to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    latest: Annotated[bool, typer.Option("--latest", help="The latest next run first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the schedules of a queue, soonest next run first."""

    async def read() -> list[Scheduler]:
        async with settings.of(ctx).queue(queue) as source:
            return list(await source.schedules.list(first=first, limit=limit, latest=latest))

    found = settings.run(read())
    if as_json:
        output.document([_as_document(one) for one in found])
        return
    if not found:
        output.text(f"{queue}: no schedules")
        return
    output.table(
        ["id", "job", "rule", "next", "runs#", "limit#"],
        (
            [
                one.id,
                one.name,
                _rule(one.schedule) + (" (legacy)" if one.legacy else ""),
                _next(one),
                one.fired,
                one.schedule.limit,
            ]
            for one in found
        ),
    )


@app.command()
def show(
    ctx: typer.Context, queue: QueueArgument, schedule_id: IdArgument, as_json: JsonOption = False
) -> None:
    """Show everything about a schedule; exit code 1 if there is none."""

    async def read() -> Scheduler | None:
        async with settings.of(ctx).queue(queue) as source:
            return await source.schedules.get(schedule_id)

    found = settings.run(read())
    if found is None:
        raise CommandError(f"queue {queue} has no schedule {schedule_id}", FAILED)
    if as_json:
        output.document(_as_document(found))
        return
    facts = {
        "id": found.id,
        "job": found.name,
        "rule": _rule(found.schedule),
        "next": _next(found),
        "next job": found.next_job_id,
        "runs": found.fired,
        "limit": found.schedule.limit,
        "not before": output.moment(found.schedule.start),
        "not after": output.moment(found.schedule.end),
        "legacy": "a repeatable job; BullMQ 6 makes no further run of it" if found.legacy else None,
        "options": found.options or None,
    }
    output.facts({name: value for name, value in facts.items() if value is not None} | {"data": found.data})


@app.command()
def add(
    ctx: typer.Context,
    queue: QueueArgument,
    schedule_id: IdArgument,
    data: Annotated[
        str | None,
        typer.Argument(help="The payload as JSON, @FILE, or - for standard input.", show_default=False),
    ] = None,
    every: Annotated[str | None, typer.Option(help="The interval: 30s, 5m, 1d.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Or a cron expression of five fields, or of six with seconds first.")
    ] = None,
    tz: Annotated[str, typer.Option(help="The expression's time zone.")] = "UTC",
    offset: Annotated[str | None, typer.Option(help="How far after full intervals: 5m.")] = None,
    start: Annotated[str | None, typer.Option(help="No run before this: 2026-11-15T12:00Z.")] = None,
    end: Annotated[str | None, typer.Option(help="No run after this.")] = None,
    limit: Annotated[int | None, typer.Option(help="How many runs at most.")] = None,
    immediately: Annotated[
        bool, typer.Option("--immediately", help="The first run of a cron expression is now.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="The jobs' name.", show_default="the id")] = None,
    missed: Annotated[
        str | None,
        typer.Option(help="With --namespace, firings that no worker made in time: skip, once or all."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(help="With --namespace, a firing while the last one runs: beside, skip or queue."),
    ] = None,
    priority: PriorityOption = None,
    target: TargetOption = None,
    rate_limit: RateLimitOption = None,
    skip_on: SkipOnOption = None,
    reroute_on: RerouteOnOption = None,
    tag: LabelOption = None,
    correlation_id: CorrelationIdOption = None,
    limit_key: LimitKeyOption = None,
    lifetime: Annotated[str | None, typer.Option(help="When a run must have ended, from its start.")] = None,
    attempts: Annotated[int | None, typer.Option(help="How often a run may be tried.")] = None,
    backoff: Annotated[str | None, typer.Option(help="Wait before a retry: 1s, or a JSON object.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long an attempt may run.")] = None,
    remove_on_complete: Annotated[
        str | None, typer.Option(help="What to keep of completed jobs: true, false, a count, JSON.")
    ] = None,
    remove_on_fail: Annotated[str | None, typer.Option(help="The same for failed ones.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a schedule, or change the one of this id; the same call again changes nothing."""
    from oxcart.cli.cancel import tags_of
    from oxcart.cli.jobs import json_or_text, read_payloads

    given = {
        "missed": missed,
        "overlap": overlap,
        "priority": priority,
        "target": target,
        "rate_limit": json_or_text(rate_limit),
        "skip_on": skip_on,
        "reroute_on": reroute_on,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
        "limit_key": limit_key,
        "lifetime": lifetime,
        "attempts": attempts,
        "backoff": json_or_text(backoff),
        "timeout": timeout,
        "remove_on_complete": json_or_text(remove_on_complete),
        "remove_on_fail": json_or_text(remove_on_fail),
    }
    options: Any = {option: value for option, value in given.items() if value is not None}
    (payload,) = read_payloads(data, False)

    async def work() -> Scheduler | None:
        async with settings.of(ctx).queue(queue) as source:
            await source.schedules.upsert(
                schedule_id,
                every=every,
                cron=cron,
                tz=tz,
                offset=offset,
                start=start,
                end=end,
                limit=limit,
                immediately=immediately,
                name=name,
                data=payload,
                **options,
            )
            return await source.schedules.get(schedule_id)

    found = settings.run(work())
    if found is None:  # another client removed it at once
        raise CommandError(f"queue {queue} has no schedule {schedule_id}", FAILED)
    if as_json:
        output.document(_as_document(found))
    else:
        then = "paused" if found.paused else f"next at {output.moment(found.next_ms)}"
        output.text(f"{found.id}: {_rule(found.schedule)}, {then}")


@app.command()
def remove(
    ctx: typer.Context,
    queue: QueueArgument,
    schedule_ids: IdsArgument,
    as_json: JsonOption = False,
) -> None:
    """Remove schedules, each with its delayed run."""
    _steer(ctx, queue, schedule_ids, lambda schedules, one: schedules.remove(one), "removed", as_json)


@app.command()
def pause(
    ctx: typer.Context, queue: QueueArgument, schedule_ids: IdsArgument, as_json: JsonOption = False
) -> None:
    """Let schedules make no run until they are resumed; a run that is due is the last."""
    _steer(ctx, queue, schedule_ids, lambda schedules, one: schedules.pause(one), "paused", as_json)


@app.command()
def resume(
    ctx: typer.Context, queue: QueueArgument, schedule_ids: IdsArgument, as_json: JsonOption = False
) -> None:
    """Let paused schedules run again, from their next times on."""
    _steer(ctx, queue, schedule_ids, lambda schedules, one: schedules.resume(one), "resumed", as_json)


def _steer(
    ctx: typer.Context,
    queue: str,
    schedule_ids: list[str],
    act: Callable[[Schedules, str], Awaitable[bool]],
    what: str,
    as_json: bool,
) -> None:
    from oxcart.cli.jobs import report

    async def work() -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        async with settings.of(ctx).queue(queue) as source:
            for one in schedule_ids:
                if await act(source.schedules, one):
                    done.append({"id": one, "ok": True})
                else:
                    error = f"queue {queue} has no schedule {one}"
                    done.append({"id": one, "ok": False, "error": error})
        return done

    report(settings.run(work()), what, as_json)


def _as_document(one: Scheduler) -> dict[str, Any]:
    import msgspec

    return {
        "id": one.id,
        "name": one.name,
        **msgspec.to_builtins(one.schedule),
        "next_ms": None if one.paused else one.next_ms,
        "paused": one.paused,
        "next_job_id": one.next_job_id,
        "runs": one.runs,
        "fired": one.fired,
        "legacy": one.legacy,
        "data": one.data,
        "options": one.options,
    }


def _next(schedule: Scheduler) -> str:
    """Returns when the next run is due, and whether it is late."""
    from oxcart.cli.queue_checks import MISSED

    if schedule.paused:
        return "paused"
    late = 0 < schedule.next_ms < (time.time() - MISSED) * 1000
    return f"{output.moment(schedule.next_ms)}{' (overdue)' if late else ''}"


def _rule(schedule: Schedule) -> str:
    """Returns the rule in words."""
    if schedule.every is not None:
        behind = f", offset {_span(schedule.offset)}" if schedule.offset else ""
        return f"every {_span(schedule.every)}{behind}"
    zone = f" {schedule.tz}" if schedule.tz else ""
    return f"{schedule.cron}{zone}"


def _span(ms: int) -> str:
    """Returns a duration in the form of an argument."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % size == 0 and ms:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
