"""``oxcart add``, ``job``, ``logs``, ``retry``, ``remove``, ``signal``: the jobs of a queue."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.cancel import tags_of
from oxcart.cli.completion import job_names
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.options import (
    AfterOption,
    CorrelationIdOption,
    GroupOption,
    LabelOption,
    LimitKeyOption,
    PartitionKeyOption,
    PriorityOption,
    RateLimitOption,
    RerouteOnOption,
    SkipOnOption,
    TargetOption,
)
from oxcart.cli.queues import missing, note_new
from oxcart.cli.settings import JsonOption, QueueArgument, Settings

if TYPE_CHECKING:
    from oxcart.model.job import Job
    from oxcart.queue import Queue

#: Fields of a job that may hold anything JSON can, at any depth.
_AS_STORED = ("data", "return_value", "progress", "parent", "checkpointed")
#: Fields of a job that its document shows in other words: its steps, transitions and attempts.
_RECORDS = ("step_records", "transition_records", "attempt_records")

JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.", show_default=False)]


def add(
    ctx: typer.Context,
    queue: QueueArgument,
    name: Annotated[
        str,
        typer.Argument(
            help="The job's name: which handler runs it.", show_default=False, autocompletion=job_names
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(help="The payload as JSON, @FILE, or - for standard input.", show_default=False),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of the input is the payload of a separate job.")
    ] = False,
    delay: Annotated[str | None, typer.Option(help="Wait before it runs: 250ms, 30s, 5m.")] = None,
    priority: PriorityOption = None,
    lifo: Annotated[bool, typer.Option("--lifo", help="Put it in front of the waiting jobs.")] = False,
    attempts: Annotated[int | None, typer.Option(help="How often it may be tried.")] = None,
    backoff: Annotated[str | None, typer.Option(help="Wait before a retry: 1s, or a JSON object.")] = None,
    job_id: Annotated[
        str | None, typer.Option(help="An id of your own; if a job has it, nothing is added.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="If a job of this name and key exists within 24 h, nothing is added.")
    ] = None,
    target: TargetOption = None,
    after: AfterOption = None,
    rate_limit: RateLimitOption = None,
    skip_on: SkipOnOption = None,
    reroute_on: RerouteOnOption = None,
    timeout: Annotated[str | None, typer.Option(help="How long an attempt may run.")] = None,
    lifetime: Annotated[
        str | None, typer.Option(help="How long it may live; then it is a dead letter.")
    ] = None,
    tag: LabelOption = None,
    correlation_id: CorrelationIdOption = None,
    group: GroupOption = None,
    limit_key: LimitKeyOption = None,
    partition_key: PartitionKeyOption = None,
    callback_url: Annotated[str | None, typer.Option(help="URL of the webhook that follows its end.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Keep its transitions and attempts.")] = False,
    remove_on_complete: Annotated[
        str | None, typer.Option(help="Retention of completed jobs: true, false, a count, JSON.")
    ] = None,
    remove_on_fail: Annotated[str | None, typer.Option(help="The same for failed ones.")] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait so long for the result, and print it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job.

    Options that a handler sets for its jobs (attempts, backoff, timeout) are in its code and unknown here:
    pass them again.
    """
    given = {
        "delay": delay,
        "priority": priority,
        "lifo": lifo or None,
        "attempts": attempts,
        "backoff": json_or_text(backoff),
        "job_id": job_id,
        "idempotency_key": idempotency_key,
        "target": target,
        "after": after,
        "rate_limit": json_or_text(rate_limit),
        "skip_on": skip_on,
        "reroute_on": reroute_on,
        "timeout": timeout,
        "lifetime": lifetime,
        "tags": tags_of(tag),
        "correlation_id": correlation_id,
        "group": group,
        "limit_key": limit_key,
        "partition_key": partition_key,
        "callback_url": callback_url,
        "history": history or None,
        "remove_on_complete": json_or_text(remove_on_complete),
        "remove_on_fail": json_or_text(remove_on_fail),
    }
    options = {option: value for option, value in given.items() if value is not None}
    payloads = read_payloads(data, lines)
    if wait is not None:
        from oxcart.model.duration import parse_ms

        parse_ms(wait, "wait")  # before anything is written
    settings.run(_add(settings.of(ctx), queue, name, payloads, options, wait, as_json, lines))


def job(
    ctx: typer.Context,
    queue: QueueArgument,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    logs: Annotated[bool, typer.Option("--logs", help="Show the job's log as well.")] = False,
    wire: Annotated[bool, typer.Option("--wire", help="Show its state on BullMQ's wire as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show everything about a job."""

    async def read() -> tuple[Job | None, str, list[str]]:
        async with settings.of(ctx).queue(queue) as source:
            found = await resolve(source, queue, job_id)
            return (
                await source.jobs.get(found),
                await source.jobs.state(found),
                await source.jobs.handle(found).logs() if logs else [],
            )

    found, state, log = settings.run(read())
    if found is None:
        raise CommandError(f"queue {queue} has no job {job_id}", FAILED)
    if as_json:
        output.document(as_document(found, state) | ({"logs": log} if logs else {}))
        return
    show_job(found, state, wire=wire)
    if logs:
        output.text("")
        for line in log:
            output.text(line)


def logs(
    ctx: typer.Context,
    queue: QueueArgument,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Print a job's log, oldest line first."""

    async def read() -> tuple[str, list[str]]:
        async with settings.of(ctx).queue(queue) as source:
            found = await resolve(source, queue, job_id)
            return found, await source.jobs.handle(found).logs()

    found, lines = settings.run(read())
    if as_json:
        output.document({"queue": queue, "id": found, "logs": lines})
        return
    for line in lines:
        output.text(line)


def remove(
    ctx: typer.Context,
    queue: QueueArgument,
    job_ids: JobIds,
    children: Annotated[bool, typer.Option("--children", help="Remove their children as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove jobs that are not running."""

    async def work() -> list[dict[str, Any]]:
        async with settings.of(ctx).queue(queue) as source:
            return await each(source, job_ids, lambda one: source.jobs.remove(one, children=children))

    report(settings.run(work()), "removed", as_json)


def signal(
    ctx: typer.Context,
    queue: QueueArgument,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    name: Annotated[str, typer.Argument(help="The signal's name.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Argument(help="Its data as JSON, @FILE, or - for standard input.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a signal to a job whose handler waits for it, now or later."""
    (value,) = read_payloads(data, False)

    async def send() -> tuple[str, bool]:
        async with settings.of(ctx).queue(queue) as source:
            found = await resolve(source, queue, job_id)
            return found, await source.jobs.signal(found, name, value)

    found, woken = settings.run(send())
    if as_json:
        output.document({"id": found, "signal": name, "woken": woken})
    else:
        output.text(f"{found}: {'runs now' if woken else 'kept until its handler waits for it'}")


async def resolve(source: Queue, queue: str, job_id: str) -> str:
    """Returns the id of a job by its id or a unique beginning.

    Raises:
        CommandError: There is no such job.
        AmbiguousId: Several jobs have such ids.
    """
    from oxcart.model.errors import JobNotFound

    try:
        return await source.jobs.resolve(job_id)
    except JobNotFound as error:
        raise CommandError(f"queue {queue} has no job {job_id}", FAILED) from error


async def _add(
    using: Settings,
    queue_name: str,
    name: str,
    payloads: list[Any],
    options: dict[str, Any],
    wait: str | None,
    as_json: bool,
    many: bool,
) -> None:
    new = await missing(using, [queue_name])
    async with using.queue(queue_name) as queue:
        if "after" in options:
            handles = [await queue.add(name, payload, **options) for payload in payloads]
        else:
            handles = await queue.add_many([(name, payload) for payload in payloads], **options)
        note_new(new)
        made = [
            {"id": handle.id, "queue": queue.name, "created": handle.created, "duplicate": handle.duplicate}
            for handle in handles
        ]
        if wait is not None:
            for one, handle in zip(made, handles, strict=True):
                one["result"] = await handle.result(wait)
        if as_json:
            output.document(made if many else made[0])
        elif wait is None:
            for handle in handles:
                output.text(handle.id if handle.created else f"{handle.id} (was there already)")
        else:
            for one in made:
                output.line(one["result"])


def read_payloads(data: str | None, lines: bool) -> list[Any]:
    """Returns the payloads of a command: from JSON, a file, or standard input."""
    if data is None and not lines:
        return [None]
    if data in (None, "-"):
        raw = sys.stdin.read()
    elif data.startswith("@"):
        try:
            raw = Path(data[1:]).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise CommandError(f"cannot read {data}: {error}", USAGE) from error
    else:
        raw = str(data)
    texts = [text for text in raw.splitlines() if text.strip()] if lines else [raw]
    return [_read_json(text) for text in texts]


def _read_json(text: str) -> Any:
    from oxcart.model import payload
    from oxcart.model.errors import PayloadError

    try:
        return payload.decode(text)
    except PayloadError as error:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise CommandError(f"data must be JSON, got {shown!r}", USAGE) from error


def json_or_text(value: str | None) -> Any:
    """Returns an option as JSON if it can be parsed, and as text otherwise: ``true``, ``100``, ``1s``."""
    if value is None:
        return None
    from oxcart.model import payload
    from oxcart.model.errors import PayloadError

    try:
        return payload.decode(value)
    except PayloadError:
        return value


async def each(source: Queue, ids: list[str], act: Callable[[str], Awaitable[None]]) -> list[dict[str, Any]]:
    """Applies a call to each job, by its id or a unique beginning; a refused job does not stop the others."""
    from oxcart.model.errors import JobError

    done: list[dict[str, Any]] = []
    for given in ids:
        job_id = given
        try:
            job_id = await source.jobs.resolve(given)
            await act(job_id)
        except JobError as error:
            done.append({"id": job_id, "ok": False, "error": str(error)})
        else:
            done.append({"id": job_id, "ok": True})
    return done


def report(done: list[dict[str, Any]], what: str, as_json: bool) -> None:
    """Prints the outcome for each job, and ends with an exit code if one was refused."""
    refused = [one for one in done if not one["ok"]]
    if as_json:
        output.document(done)
    else:
        for one in done:
            if one["ok"]:
                output.text(f"{one['id']}: {what}")
            else:
                output.error(one["error"])
    if refused:
        raise typer.Exit(FAILED)


def as_document(job: Job, wire_state: str) -> dict[str, Any]:
    """Returns a job for JSON: its formal state, and its state on the wire."""
    import msgspec

    state = wire_state if job.state is None else job.state.value
    document: dict[str, Any] = {"id": job.id, "name": job.name, "state": state, "wire_state": wire_state}
    document["steps"] = msgspec.to_builtins(job.steps)
    document["signals"] = job.signals
    document["put_off"] = job.put_off
    if job.options.history:
        document["transitions"] = msgspec.to_builtins(job.transitions)
        document["past_attempts"] = msgspec.to_builtins(job.past_attempts)
    for field in job.__struct_fields__:
        if field in _RECORDS:
            continue
        value = getattr(job, field)
        if field != "state":
            document[field] = value if field in _AS_STORED else msgspec.to_builtins(value)
    return document


def show_job(job: Job, wire_state: str, *, wire: bool = False) -> None:
    """Prints a job, its outcome, and why its attempts failed, the newest last."""
    output.facts(_facts(job, wire_state, wire))
    if job.steps:
        _show_steps(job)
    if job.options.history:
        _show_history(job)
    traces = [trace.rstrip() for trace in job.stacktrace]
    for trace, group in itertools.groupby(enumerate(traces, 1), key=lambda one: one[1]):
        numbers = [number for number, _ in group]
        if len(numbers) > 1:
            which = f"Traces {numbers[0]} to {numbers[-1]} of {len(traces)}, all the same:"
        else:
            which = f"Trace {numbers[0]} of {len(traces)}:"
        output.block(f"\n{which}\n{trace}" if len(traces) > 1 else f"\n{trace}")


def _show_steps(job: Job) -> None:
    now = time.time() * 1000  # a time that has come needs no column
    output.text("")
    output.table(
        ["step", "kind", "when", "took#", "start#", "until", "result"],
        (
            [
                step.name,
                step.kind,
                output.moment(step.at_ms),
                output.took(step.took_ms) if step.kind in ("step", "signal", "timeout") else None,
                step.start,
                output.moment(step.until_ms) if (step.until_ms or 0) > now else None,
                None if step.value is None else output.data(step.value),
            ]
            for step in job.steps
        ),
    )


def _show_history(job: Job) -> None:
    output.text("")
    output.table(
        ["attempt#", "started", "took#", "outcome", "category", "message", "worker"],
        (
            [
                one.number,
                output.moment(one.started),
                None if one.started is None or one.ended is None else output.took(one.ended - one.started),
                one.outcome,
                one.category,
                one.message,
                one.worker,
            ]
            for one in job.past_attempts
        ),
    )
    output.text("")
    output.table(
        ["when", "from", "to", "why", "worker"],
        (
            [
                output.moment(one.at),
                one.source,
                one.target,
                one.why + (" (inferred)" if one.inferred else ""),
                one.worker,
            ]
            for one in job.transitions
        ),
    )


def _seconds(ms: object) -> str | None:
    return f"{ms / 1000:,g} s" if isinstance(ms, int) else None


def _facts(job: Job, wire_state: str, wire: bool) -> dict[str, Any]:
    facts = {
        "id": job.id,
        "name": job.name,
        "queue": job.queue,
        "target": job.lane,
        "state": wire_state if job.state is None else job.state.value,
        "wire state": wire_state if wire else None,
        "attempts": f"{job.attempts_used} of {job.options.attempts} used",
        "timeout": _seconds(job.options.timeout),
        "lifetime": _seconds(job.options.lifetime),
        "priority": job.priority or None,
        "delay": output.span(job.delay / 1000) if job.delay else None,
        "created": output.moment(job.timestamp),
        "started": output.moment(job.processed_on),
        "finished": output.moment(job.finished_on),
        "worker": job.worker_id,
        "progress": output.data(job.progress) if job.progress else None,
        "parent": job.parent_key,
        "stalled": job.stalled_count or None,
        "reason": job.failed_reason,
        "put off": job.put_off,
        "cannot be decoded": job.fault,
        "category": job.category,
        "code": job.code,
        "tags": job.tags or None,
        "correlation id": job.correlation_id,
        "idempotency key": job.idempotency_key,
        "group": job.options.group,
        "limit key": job.options.limit_key,
        "callback": job.callback_url,
        "unreceived signals": ", ".join(job.signals) or None,
        "result": output.data(job.return_value) if wire_state == "completed" else None,
    }
    shown = {name: value for name, value in facts.items() if value is not None}
    return shown | {"data": output.data(job.data)}
