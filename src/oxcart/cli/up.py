"""``oxcart up``: a whole small installation by one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import DEFAULT_PREFIX, Settings
from oxcart.cli.spark_options import LAKE

if TYPE_CHECKING:
    from oxcart.cli.installation import Program


def up(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Option("--app", metavar="MODULE:QUEUE", help="Where the queues are; repeatable."),
    ],
    host: Annotated[str, typer.Option(help="Where the API and the dashboard listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_534, help="Their port; metrics are on the next.")] = 8080,
    metrics_host: Annotated[
        str, typer.Option(help="Where the workers' metrics listen; they need no key.")
    ] = "127.0.0.1",
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=1, help="Handlers that run at once, per process.")
    ] = 10,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, help="Worker processes.")] = 1,
    pipeline: Annotated[
        bool | None,
        typer.Option("--pipeline/--no-pipeline", help="Run the pipeline.", show_default="if Spark is there"),
    ] = None,
    lake: Annotated[Path, typer.Option(help="The folder of the pipeline's lake.")] = LAKE,
) -> None:
    """Run a server, workers, API, dashboard, metrics and pipeline until interrupted.

    Without --url the server is the embedded Valkey, which writes every change to its file. One Ctrl-C ends
    everything in order. A program that dies is named and started again.
    """
    import asyncio
    import importlib.util

    if importlib.util.find_spec("litestar") is None or importlib.util.find_spec("uvicorn") is None:
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("oxcart up", "web")
    using = settings.of(ctx)
    if using.prefix != DEFAULT_PREFIX or using.namespace is not None:
        raise CommandError("a queue's prefix and namespace are set where the queue is made", USAGE)
    using.export()
    has_spark = _has_spark()
    if pipeline and not has_spark:
        raise CommandError("--pipeline needs Java and pip install 'oxcart[spark]'", USAGE)
    with_pipeline = has_spark if pipeline is None else pipeline
    _check(targets)
    metrics = (metrics_host, port + 1)
    programs = _programs(
        targets, (host, port), metrics, concurrency, processes, lake if with_pipeline else None
    )
    raise typer.Exit(asyncio.run(_run(using, programs, _address(host, port), _address(*metrics))))


async def _run(using: Settings, programs: list[Program], address: str, metrics: str) -> int:
    from oxcart.cli.installation import Installation

    server = using.server
    await server.endpoint()  # starts the embedded server, and keeps it until the end
    try:
        output.text(f"server: {server.name}")
        output.text(f"API and dashboard: {address}, metrics of workers: {metrics}/metrics")
        made = Installation(programs, os.environ)
        made.catch_signals()
        return await made.run()
    finally:
        server.release()


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _programs(
    targets: list[str],
    api_at: tuple[str, int],
    metrics_at: tuple[str, int],
    concurrency: int,
    processes: int,
    lake: Path | None,
) -> list[Program]:
    from oxcart.cli.installation import Program

    workers = ["--concurrency", str(concurrency), "--processes", str(processes)]
    workers += ["--metrics-host", metrics_at[0], "--metrics-port", str(metrics_at[1])]
    api = ["serve", "--host", api_at[0], "--port", str(api_at[1])]
    api += [word for target in targets for word in ("--app", target)]
    if lake is not None:
        api += ["--lake", str(lake)]
    found = [Program("work", ["work", *targets, *workers], last=True), Program("api", api)]
    if lake is not None:
        found.append(Program("pipeline", ["pipeline", "run", "--lake", str(lake)]))
    return found


def _check(targets: list[str]) -> None:
    """Refuses an application that no worker could run, before anything is started."""
    from oxcart.cli import apps

    apps.load(targets)


def _has_spark() -> bool:
    import importlib.util
    import shutil

    java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
    return java and importlib.util.find_spec("pyspark") is not None
