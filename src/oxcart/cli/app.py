"""Registers the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oxcart.cli import (
    cancel,
    dead,
    dedup,
    doctor,
    events,
    exits,
    find,
    flow,
    history,
    jobs,
    keys,
    limits,
    operations,
    output,
    pipeline,
    queues,
    schedules,
    server,
    work,
    workers,
)
from oxcart.cli import namespace as namespace_
from oxcart.cli.demo.command import demo
from oxcart.cli.settings import DEFAULT_PREFIX, Settings

#: Options that may stand anywhere on the command line, not only before the command.
_GLOBAL = ("--url", "--prefix", "--namespace")


class Root(TyperGroup):
    """The group of all commands, in the order of their registration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line, global options first."""
        return super().parse_args(ctx, _hoist(args))


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
    epilog="--url, --prefix and --namespace may stand anywhere. Exit codes: 0 fine, 1 not found or failed, "
    "2 wrong usage, 3 server unreachable.",
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
    ctx.obj = Settings(url=(url or "").strip() or None, prefix=prefix, namespace=namespace)


app.command()(demo)
app.command()(work.work)
app.command()(workers.workers)
app.command()(queues.queues)
app.command()(namespace_.namespace)
app.command()(queues.pause)
app.command()(queues.resume)
app.command()(jobs.add)
app.command()(find.jobs)
app.command()(find.failures)
app.command()(jobs.job)
app.command()(jobs.logs)
app.add_typer(flow.app)
app.command()(jobs.retry)
app.command()(cancel.cancel)
app.command()(jobs.remove)
app.command()(operations.promote)
app.command()(operations.clean)
app.command()(operations.clear)
app.command()(operations.obliterate)
app.command()(operations.orphans)
app.command()(operations.priorities)
app.command()(operations.metrics)
app.command()(operations.clear_logs)
app.command()(events.events)
app.command()(operations.publish)
app.command()(operations.trim_events)
app.add_typer(dead.app)
app.add_typer(schedules.app)
app.add_typer(limits.app)
app.add_typer(dedup.app)
app.add_typer(keys.app)
app.add_typer(pipeline.app)
app.add_typer(history.app)
app.add_typer(server.app, name="server")
app.command()(doctor.doctor)


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
