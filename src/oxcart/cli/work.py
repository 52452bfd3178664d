"""``oxcart work``: runs workers on the queues of an application."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli import settings
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import DEFAULT_PREFIX

if TYPE_CHECKING:
    from oxcart.cli.runner import Plan


class LogFormat(StrEnum):
    """The format of logs."""

    text = "text"
    json = "json"


class LogLevel(StrEnum):
    """The lowest level of logs that are shown."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def work(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="MODULE:QUEUE...", help="Where the queues are, for example app:emails."),
    ],
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=1, help="Handlers that run at once, per process.")
    ] = 10,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, help="Worker processes.")] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when the source changes.")] = False,
    name: Annotated[
        str | None, typer.Option(help="The worker's name, as peers see it.", show_default="its id")
    ] = None,
    app_version: Annotated[
        str | None,
        typer.Option(
            help="The version of your program, which a pipeline records with every attempt.",
            show_default="OXCART_APP_VERSION",
        ),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(help="What it can do, for jobs with a target; repeat for several."),
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="Where it is, for jobs with a target; repeat for several.")
    ] = None,
    stack: Annotated[
        list[str] | None,
        typer.Option(help="What it runs on, for jobs with a target.", show_default="python"),
    ] = None,
    lock_duration: Annotated[str, typer.Option(help="How long a lease lasts without renewal.")] = "30s",
    stalled_interval: Annotated[str, typer.Option(help="How often to recover jobs of lost workers.")] = "30s",
    shutdown_timeout: Annotated[str, typer.Option(help="How long running jobs may take to end.")] = "30s",
    max_started: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often a job may be started before it fails; 0 for no limit.",
            show_default="1000 starts without an end",
        ),
    ] = None,
    schedules: Annotated[
        bool, typer.Option(help="Store and remove the schedules that handlers declare.")
    ] = True,
    metrics_minutes: Annotated[
        int, typer.Option(min=0, help="Minutes for which the queue keeps its counts of ended jobs.")
    ] = 0,
    lifespan: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="An async context manager around the worker; handlers receive its value as job.state.",
        ),
    ] = None,
    middleware: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A layer around every handler; repeat for several, the first is the outermost.",
        ),
    ] = None,
    observer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="An observer, for example a hook for an error tracker; repeat for several.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /metrics, /live and /ready here; with several processes on this port and the next.",
            show_default="off",
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address to serve them on.")] = "127.0.0.1",
    log_format: Annotated[LogFormat, typer.Option(help="Logs for people or for machines.")] = LogFormat.text,
    log_level: Annotated[LogLevel, typer.Option(help="The lowest level shown.")] = LogLevel.info,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --log-format json.")] = False,
) -> None:
    """Run workers until interrupted.

    The first Ctrl-C or SIGTERM lets running jobs end, the second returns them to the queue at once. The
    process ends 5 s after the shutdown timeout, whatever runs. With several processes, or --reload, a process
    that dies is started again. A single process is not.
    """
    from oxcart.cli.runner import Plan, run
    from oxcart.model.duration import parse_ms
    from oxcart.model.target import Abilities

    using = settings.of(ctx)
    if using.prefix != DEFAULT_PREFIX:
        raise CommandError("a queue's prefix is set where the queue is made: Queue(..., prefix=...)", USAGE)
    parse_ms(lock_duration, "lock_duration", minimum=100)
    parse_ms(stalled_interval, "stalled_interval", minimum=10)
    parse_ms(shutdown_timeout, "shutdown_timeout")
    using.export()
    abilities = {"capabilities": capability, "region": region, "stack": stack}
    given = {name: words for name, words in abilities.items() if words}
    if given:
        Abilities.read(given)
    plan = Plan(
        targets=targets,
        concurrency=concurrency,
        name=name,
        version=app_version,
        abilities=given or None,
        lock_duration=lock_duration,
        stalled_interval=stalled_interval,
        shutdown_timeout=shutdown_timeout,
        max_started=max_started,
        schedules=schedules,
        metrics_minutes=metrics_minutes,
        lifespan=lifespan,
        middleware=middleware or [],
        observers=observer or [],
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        log_format="json" if as_json else log_format.value,
        log_level=log_level.value.upper(),
        reload=reload,
    )
    if processes == 1 and not reload:
        raise typer.Exit(run(plan))
    raise typer.Exit(_supervise(plan, processes))


def _supervise(plan: Plan, processes: int) -> int:
    import asyncio

    from oxcart.cli.fleet import Fleet
    from oxcart.observe import logs

    logs.configure(plan.log_format, plan.log_level)

    async def supervise() -> int:
        fleet = Fleet(plan, processes)
        fleet.catch_signals()
        return await fleet.run()

    return asyncio.run(supervise())
