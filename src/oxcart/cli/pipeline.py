"""``oxcart pipeline …``: keeps the history of jobs as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.query import query
from oxcart.cli.settings import JsonOption
from oxcart.cli.spark_options import (
    LAKE,
    ConfOption,
    LakeOption,
    MasterOption,
    MemoryOption,
    RemoteOption,
    SparkChoice,
    check_lake,
)

if TYPE_CHECKING:
    from oxcart.spark.options import QueueSelection, ServerAddress
    from oxcart.spark.pipeline import Pipeline

app = settings.group("pipeline", "Keep the history of jobs as tables, through Spark.")

QueuesOption = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", help="Only this queue; repeatable.", show_default="all"),
]
NameOption = Annotated[str, typer.Option("--name", help="The pipeline's name.")]
DayOption = Annotated[str | None, typer.Option("--day", help="YYYY-MM-DD.", show_default="the last")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=0, max=65535, help="Serve the lag at /metrics here.", show_default="off"
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="The address to serve it on.")]
RetainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--retain",
        metavar="[TABLE=]AGE",
        help="How long tables keep a day: 90d, or events=30d for one table; repeatable.",
        show_default="for ever",
    ),
]
BytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="Drop the oldest days when the tables are larger: 50GB.",
        show_default="no bound",
    ),
]
_NO_QUEUES = "there are no queues yet"


@app.command()
def run(
    ctx: typer.Context,
    lake: LakeOption = LAKE,
    queues: QueuesOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when all present events are read.")] = False,
    every: Annotated[str, typer.Option("--every", help="How often silver and gold are built.")] = "30s",
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    driver_memory: MemoryOption = None,
    name: NameOption = "main",
    keep: Annotated[int, typer.Option("--keep", help="Events that a queue keeps for us.")] = 500_000,
    retain: RetainOption = None,
    max_bytes: BytesOption = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Read the event streams, and keep the tables up to date."""
    from oxcart.model.duration import parse_ms
    from oxcart.spark.lake.retention import Retention

    pause = parse_ms(every, "every", minimum=1000) / 1000
    retention = Retention.read(retain or (), max_bytes)
    choice = SparkChoice.read(master, remote, conf, driver_memory)
    if not _attach(ctx, queues, name, keep):
        output.text(_NO_QUEUES)
    made = open_pipeline(
        ctx,
        lake,
        choice,
        queues,
        name,
        # A cluster reads the server, unless a tailer has begun a spool: it lies in the lake, which is shared.
        spool=_spool(lake, name) if choice.is_local or _spool(lake, name).is_dir() else None,
        keep=keep,
        retention=retention,
    )
    if once:
        days = made.once()
        output.text(f"bronze is up to date; built: {', '.join(days) or 'nothing new'}")
    else:
        output.text(f"reading into {lake}; silver and gold every {every}; end with Ctrl-C")
        _serve_lag(ctx, lake, name, metrics_host, metrics_port)
        made.run(pause)


@app.command()
def tail(
    ctx: typer.Context,
    lake: LakeOption = LAKE,
    queues: QueuesOption = None,
    name: NameOption = "main",
    keep: Annotated[int, typer.Option("--keep", help="Events that a queue keeps for us.")] = 500_000,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Follow the event streams into the lake's spool, so that no event is lost while Spark is away."""
    import threading

    from oxcart.spark.lake.versions import Lake, explained
    from oxcart.spark.read.spool import Spool
    from oxcart.spark.read.tailer import Tailer

    address, selection = _address(ctx, queues)
    begin = Lake(lake).head().marks.get(f"ingest:{name}", {})
    tailer = Tailer(address, selection, Spool(_spool(lake, name)), name=name, keep=keep, begin=begin)
    with explained(lake, "spool"):
        _spool(lake, name).mkdir(parents=True, exist_ok=True)  # a run on a cluster looks for it
    output.text(f"following into {_spool(lake, name)}; end with Ctrl-C")
    _serve_lag(ctx, lake, name, metrics_host, metrics_port)
    tailer.run(threading.Event())


def _serve_lag(ctx: typer.Context, lake: Path, name: str, host: str, port: int | None) -> None:
    if port is None:
        return
    from oxcart.spark.lag import serve_lag
    from oxcart.spark.lake.versions import Lake
    from oxcart.spark.status import standings

    address, _ = _address(ctx, None)
    try:
        server = serve_lag(lambda: standings(address, Lake(lake), name), host, port)
    except OSError as error:
        raise CommandError(f"cannot serve metrics on {host}:{port}: {error}", USAGE) from error
    output.text(f"lag at http://{host}:{server.server_port}/metrics")


@app.command()
def attach(
    ctx: typer.Context,
    queues: QueuesOption = None,
    name: NameOption = "main",
    keep: Annotated[int, typer.Option("--keep", help="Events that a queue keeps for us.")] = 500_000,
) -> None:
    """Make queues keep more events, and workers record attempts, for a pipeline."""
    held = _attach(ctx, queues, name, keep)
    if not held:
        output.text(_NO_QUEUES)
    for queue, kept in held.items():
        output.text(f"{queue}: keeps {kept} events" if kept else f"{queue}: no such queue yet")


@app.command()
def detach(ctx: typer.Context, queues: QueuesOption = None, name: NameOption = "main") -> None:
    """Restore the settings of queues from before the pipeline."""
    from oxcart.spark.read.attachment import detach as detach_reader

    address, selection = _address(ctx, queues)
    found = _found(address, selection)
    if not found:
        output.text(_NO_QUEUES)
    for queue in found:
        left = detach_reader(address, queue, name)
        output.text(f"{queue}: {f'{left} other readers' if left else 'as before'}")


@app.command()
def status(
    ctx: typer.Context, lake: LakeOption = LAKE, name: NameOption = "main", as_json: JsonOption = False
) -> None:
    """Show how far the tables are behind, and how long until an event would be lost."""
    import msgspec

    from oxcart.spark.lake.versions import Lake
    from oxcart.spark.status import standings

    address, _ = _address(ctx, None)
    found = standings(address, Lake(lake), name)
    if as_json:
        output.document([msgspec.to_builtins(one) for one in found])
        return
    if not found:
        output.text(
            f"no queue is attached, and nothing has been read into {lake}: see 'oxcart pipeline run --help'"
        )
        return
    output.table(
        ["queue", "stream", "read#", "lag#", "lag ms#", "kept#", "lost in#", "entries/s#", "rows/s#"],
        (
            [o.queue, o.stream, o.read, o.lag, o.lag_ms, o.kept, _span(o.lost_in_ms), o.rate, o.rows_s]
            for o in found
        ),
    )


@app.command()
def rebuild(
    ctx: typer.Context,
    first: Annotated[str, typer.Option("--from", help="The first day, YYYY-MM-DD.")],
    last: Annotated[str | None, typer.Option("--to", help="The last day.", show_default="the first")] = None,
    lake: LakeOption = LAKE,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    driver_memory: MemoryOption = None,
) -> None:
    """Rebuild silver and gold of some days from bronze."""
    begin, end = _day(first, "--from"), _day(last or first, "--to")
    if end < begin:
        raise CommandError(f"--to {end} is before --from {begin}", USAGE)
    check_lake(lake)
    days = open_pipeline(ctx, lake, SparkChoice.read(master, remote, conf, driver_memory)).builder.rebuild(
        begin, end
    )
    output.text(f"built: {', '.join(days) or 'no such days'}")


@app.command()
def compact(lake: LakeOption = LAKE) -> None:
    """Merge many small files into few large ones; the rows stay the same."""
    from oxcart.spark.lake.upkeep import compact as make_fewer
    from oxcart.spark.lake.versions import Lake

    check_lake(lake)
    output.text(f"{make_fewer(Lake(lake))} files fewer")


@app.command()
def expire(
    lake: LakeOption = LAKE,
    older_than: Annotated[str, typer.Option("--older-than", help="Files that went later stay.")] = "1d",
    retain: RetainOption = None,
    max_bytes: BytesOption = None,
) -> None:
    """Drop old days, if --retain or --max-bytes is given, and delete files that the tables do not name."""
    from oxcart.model.duration import parse_ms
    from oxcart.spark.lake.retention import Retention
    from oxcart.spark.lake.retention import retain as drop_days
    from oxcart.spark.lake.upkeep import expire as delete_old
    from oxcart.spark.lake.versions import Lake

    limits = Retention.read(retain or (), max_bytes)
    check_lake(lake)
    drop_days(Lake(lake), limits)
    gone = delete_old(Lake(lake), older_than_ms=parse_ms(older_than, "older-than"))
    output.text(f"{gone} files deleted")


@app.command()
def migrate(lake: LakeOption = LAKE) -> None:
    """Convert a lake of an earlier release to Delta tables; stop its pipeline before."""
    from oxcart.spark.build.migrate import migrate as convert
    from oxcart.spark.lake.versions import OLD_LAYOUT, Lake

    if not (lake / OLD_LAYOUT).is_dir():
        check_lake(lake)
    found = convert(Lake(lake), _show_progress)
    if not found.before:
        output.text("the lake has Delta tables already")
    else:
        output.text(f"{found.rows} rows of {found.before} files are in {found.after} files now")


@app.command()
def iceberg(lake: LakeOption = LAKE) -> None:
    """Make Iceberg tables of the newest version, over the same files, in the lake's own catalog."""
    from oxcart.spark.lake.iceberg import show_iceberg
    from oxcart.spark.lake.versions import Lake

    check_lake(lake)
    made = show_iceberg(Lake(lake))
    for table, files in made.items():
        output.text(f"{table}: {files} files")
    if not made:
        output.text("nothing new")


@app.command()
def plain(lake: LakeOption = LAKE) -> None:
    """Show the newest version as plain folders of Parquet files, for programs that cannot read Delta."""
    from oxcart.spark.lake.plain import CURRENT, PLAIN, show_plain
    from oxcart.spark.lake.versions import Lake

    check_lake(lake)
    show_plain(Lake(lake))
    output.text(str(lake / PLAIN / CURRENT))


@app.command()
def erase(
    ctx: typer.Context,
    correlation_id: Annotated[str, typer.Option("--correlation-id", help="Whose jobs.", show_default=False)],
    lake: LakeOption = LAKE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how much would be erased.")] = False,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    driver_memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite the tables without the jobs of a correlation id, and delete older versions of the tables."""
    from oxcart.model.metadata import check_correlation_id

    check_correlation_id(correlation_id)  # before Spark is started
    check_lake(lake)
    made = open_pipeline(ctx, lake, SparkChoice.read(master, remote, conf, driver_memory))
    from oxcart.spark.build.erase import erase as leave_out

    found = leave_out(made.tables, made.builder, correlation_id, dry_run=dry_run)
    if as_json:
        output.document(
            {"jobs": found.jobs, "rows": found.rows, "days": list(found.days), "dry_run": dry_run}
        )
    elif not found.rows:
        output.text("the tables have no job of that correlation id")
    else:
        which = "that would be erased" if dry_run else "erased"
        built = "" if dry_run else f"; rebuilt: {', '.join(found.days) or 'nothing'}"
        output.text(f"jobs {which}: {found.jobs}, with {found.rows} events and records{built}")


app.command()(query)


@app.command()
def report(
    ctx: typer.Context,
    lake: LakeOption = LAKE,
    day: DayOption = None,
    first: Annotated[
        str | None, typer.Option("--from", help="The first of several days.", show_default=False)
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="The last of them.", show_default="the last with figures")
    ] = None,
    in_spark: Annotated[
        bool, typer.Option("--spark", help="Compute the figures in Spark instead of DuckDB.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with charts here.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write a picture of the charts here.")] = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    driver_memory: MemoryOption = None,
) -> None:
    """Show the figures of a day, or of several (--from, --to); --master and --remote ask Spark."""
    asked, until = _days(day, first, last)
    check_lake(lake)
    choice = SparkChoice.read(master, remote, conf, driver_memory)
    from oxcart.history.report.collect import collect
    from oxcart.history.report.overview import sentences
    from oxcart.history.report.page import page
    from oxcart.history.report.picture import picture
    from oxcart.history.report.text import lines

    if in_spark or choice:
        pipeline = open_pipeline(ctx, lake, choice)
        found = collect(pipeline.lake, asked, last=until, source=pipeline.tables.source)
    else:
        from oxcart.spark.lake.versions import Lake

        found = collect(Lake(lake), asked, last=until)
    if not found.day:
        raise CommandError("there is no day yet: run 'oxcart pipeline run --once' first", FAILED)
    if not found.queues:
        raise CommandError(f"the tables have nothing of {found.title}", FAILED)
    for path, render in ((html, page), (svg, picture)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(found), encoding="utf-8")
            output.text(f"written: {path}")
    if html or svg:
        return
    for sentence in sentences(found):
        output.text(sentence)
    for title, columns, rows in lines(found):
        if rows:
            output.text(title)
            output.table(columns, rows)


def open_pipeline(
    ctx: typer.Context,
    lake: Path,
    choice: SparkChoice,
    queues: list[str] | None = None,
    name: str = "main",
    **more: Any,
) -> Pipeline:
    """Opens the pipeline of a command, in a session of Spark."""
    address, selection = _address(ctx, queues)
    spark = choice.open()
    from oxcart.spark.pipeline import Pipeline, Plan

    return Pipeline(
        spark,
        Plan(lake, address, selection, name, **more),
        progress=_show_progress,
        built=_alerts(ctx, lake, name),
    )


def _alerts(ctx: typer.Context, lake: Path, name: str) -> Callable[[], object]:
    """Returns what evaluates alerts after a build."""
    from oxcart.history.alerts import Alerts

    using = settings.of(ctx)

    async def add(queue: str, report: Mapping[str, Any], job_id: str) -> None:
        async with using.queue(queue) as opened:
            # Bridge makes ids itself.
            await opened.add("alert", dict(report), job_id=None if using.namespace else job_id)

    return Alerts(lake, lambda *given: settings.run(add(*given)), name=name).check


def _span(ms: int | None) -> str | None:
    return None if ms is None else output.span(ms / 1000)


def _spool(lake: Path, name: str) -> Path:
    return lake / "_spool" / name


def _show_progress(what: str, done: int, whole: int) -> None:
    if whole > 1:
        typer.echo(f"{what}: {done} of {whole} {'parts' if what == 'migrate' else 'days'}", err=True)


def _address(ctx: typer.Context, queues: list[str] | None) -> tuple[ServerAddress, QueueSelection]:
    from oxcart.broker.location import Location
    from oxcart.spark.options import QueueSelection, ServerAddress

    using = settings.of(ctx)
    url = None
    if using.single:
        using.export()  # Spark shows options: an address with a password goes through the environment.
        location = Location.parse(using.single)
        url = None if location.password or location.sentinel_password else using.single
    selection = QueueSelection(tuple(queues)) if queues else QueueSelection(pattern="*")
    return ServerAddress(url, prefix=using.prefix, namespace=using.namespace), selection


def _found(address: ServerAddress, selection: QueueSelection) -> list[str]:
    from oxcart.spark.read.connection import Connection

    with Connection(address) as connection:
        return connection.queues(selection)


def _attach(ctx: typer.Context, queues: list[str] | None, name: str, keep: int) -> dict[str, int]:
    from oxcart.spark.read.attachment import attach_over
    from oxcart.spark.read.connection import Connection

    address, selection = _address(ctx, queues)
    with Connection(address) as connection:
        found = connection.queues(selection)
        made = {queue: attach_over(connection, queue, name, keep=keep) for queue in found}
    return {queue: one.kept if one else 0 for queue, one in made.items()}


def _days(day: str | None, first: str | None, last: str | None) -> tuple[str | None, str | None]:
    """The first and the last day of a report."""
    if day is not None and (first is not None or last is not None):
        raise CommandError("--day is one day: give either --day, or --from and --to", USAGE)
    if first is None:
        if last is not None:
            raise CommandError("--to needs --from", USAGE)
        return day and _day(day, "--day"), None
    begin, end = _day(first, "--from"), "9999-12-31" if last is None else _day(last, "--to")
    if end < begin:
        raise CommandError(f"--to {end} is before --from {begin}", USAGE)
    return begin, end


def _day(text: str, option: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise CommandError(f"{option} must be a day like 2026-11-02, got {text!r}", USAGE)
    try:
        datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise CommandError(f"{option} must be a day of the calendar, got {text!r}", USAGE) from None
    return text
