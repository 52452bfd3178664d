"""Registers the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from oxcart.cli import (
    access,
    cancel,
    dead,
    dedup,
    doctor,
    events,
    exits,
    find,
    flow,
    groups,
    history,
    jobs,
    keys,
    limits,
    operations,
    output,
    partitions,
    pipeline,
    queues,
    retry,
    schedules,
    serve,
    server,
    top,
    up,
    work,
    workers,
)
from oxcart.cli import namespace as namespace_
from oxcart.cli.demo.command import demo
from oxcart.cli.settings import DEFAULT_PREFIX, Settings

#: Options that may stand anywhere on the command line, not only before the command.
_GLOBAL = ("--url", "--server", "--prefix", "--namespace")


class Root(TyperGroup):
    """The group of all commands, by task."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line, global options first."""
        return super().parse_args(ctx, _hoist(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands by task, with their first lines whole."""
        found: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                text = command.get_short_help_str(limit=200)
                found[cast(Any, command).rich_help_panel].append((name, text))
        width = max(len(name) for rows in found.values() for name, _ in rows)
        for panel, rows in found.items():
            with formatter.section(panel):
                # One width for all sections, so that the texts are in one column.
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def _hoist(arguments: list[str]) -> list[str]:
    """Moves global options to the front, where the group reads them."""
    front: list[str] = []
    rest: list[str] = []
    taken = iter(arguments)
    for argument in taken:
        if argument == "--":
            rest += [argument, *taken]
        elif argument in _GLOBAL:
            front.append(argument)
            front += [value for value in (next(taken, None),) if value is not None]
        elif argument.startswith(tuple(f"{name}=" for name in _GLOBAL)):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest


app = typer.Typer(
    cls=Root,
    name="oxcart",
    help="Jobs for Python on queues shared with BullMQ.",
    epilog="--url, --server, --prefix and --namespace may stand anywhere. "
    "Exit codes: 0 fine, 1 not found or failed, 2 wrong usage, 3 server unreachable.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="OXCART_URL",
            show_envvar=True,
            show_default="the embedded Valkey",
            help="The server: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://.",
        ),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="Each of the standalone servers of a partitioned queue, in their order, instead of --url.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="The prefix of queue names in keys.")] = DEFAULT_PREFIX,
    namespace: Annotated[
        str | None,
        typer.Option(help="A Bridge namespace: its job types are the queues.", show_default=False),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        import oxcart

        typer.echo(f"oxcart {oxcart.__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
    ctx.obj = Settings(
        url=(url or "").strip() or None, prefix=prefix, namespace=namespace, servers=tuple(server or ())
    )


#: The commands by task, in the order of the help.
PANELS: Mapping[str, Sequence[Callable[..., None] | typer.Typer]] = {
    "Run": (demo, up.up, work.work, serve.serve, access.app, server.app, workers.workers),
    "Look": (
        top.top,
        queues.queues,
        find.jobs,
        find.failures,
        jobs.job,
        jobs.logs,
        flow.app,
        events.events,
        operations.metrics,
        operations.priorities,
        namespace_.namespace,
    ),
    "Steer": (
        jobs.add,
        queues.pause,
        queues.resume,
        retry.retry,
        cancel.cancel,
        jobs.signal,
        operations.promote,
        schedules.app,
        limits.app,
        groups.app,
        partitions.app,
        dedup.app,
        operations.publish,
    ),
    "Repair": (
        doctor.doctor,
        dead.app,
        operations.clean,
        jobs.remove,
        operations.clear,
        operations.obliterate,
        operations.orphans,
        operations.clear_logs,
        operations.trim_events,
        keys.app,
    ),
    "Data": (pipeline.app, history.app),
}
for _panel, _commands in PANELS.items():
    for _one in _commands:
        if isinstance(_one, typer.Typer):
            app.add_typer(_one, name=_one.info.name or "server", rich_help_panel=_panel)
        else:
            app.command(rich_help_panel=_panel)(_one)


def run(arguments: list[str]) -> int:
    """Runs a command line; returns the exit code."""
    try:
        code = app(args=arguments, prog_name="oxcart", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        judged = exits.judge(error)
        if judged is None:
            raise
        code, message = judged
        output.error(message)
    return code if isinstance(code, int) else exits.OK
