"""``oxcart serve``: serves queues over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.settings import Settings

if TYPE_CHECKING:
    from oxcart.http.application import Application
    from oxcart.queue import Queue


class Priorities(StrEnum):
    """How priorities are read."""

    formal = "formal"
    wire = "wire"


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 for a free one.")] = 8080,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queues",
            metavar="NAME,...",
            help="The queues to serve; repeatable.",
            show_default="those that exist when it starts",
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE=QUEUE", help="The queue of a job type; repeatable."),
    ] = None,
    default: Annotated[
        str | None,
        typer.Option(help="The queue of types that lead to no other.", show_default="default, or the first"),
    ] = None,
    priorities: Annotated[
        Priorities, typer.Option(help="formal: critical to bulk, 0 to 4. wire: BullMQ's numbers.")
    ] = Priorities.formal,
    lifetime: Annotated[
        str, typer.Option(help="How long after its delay a job may take to end; none for no limit.")
    ] = "7d",
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OXCART_TOKENS",
            metavar="ROLE:TOKEN",
            help="A token with its role: read, submit, operate or admin; repeatable. Other users of this "
            "machine can read a command line: prefer the variable or a file.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file of tokens, one ROLE:TOKEN per line.", show_default=False)
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open-to-all", help="Serve every caller without a token, from anywhere.")
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may call the API (CORS); repeatable.", show_default="none"),
    ] = None,
) -> None:
    """Serve queues over HTTP until it is interrupted."""
    using = settings.of(ctx)
    try:
        from oxcart.http.access import parse_tokens, read_tokens
        from oxcart.http.server import check_host
    except ModuleNotFoundError as error:
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("oxcart serve", "web") from error
    tokens = parse_tokens(token or ())
    if token_file is not None:
        tokens |= read_tokens(token_file)
    check_host(host, has_tokens=bool(tokens), open_to_all=open_to_all)
    names = [name.strip() for one in queues or () for name in one.split(",") if name.strip()]

    async def run() -> None:
        from oxcart.http.application import app

        opened = _open(using, names or await _existing(using), priorities)
        try:
            api = app(
                opened,
                types=_pairs(types or ()),
                default=default,
                lifetime=None if lifetime == "none" else lifetime,
                tokens=tokens,
                trusted=open_to_all,
                origins=origin or (),
            )
            await _serve(api, host, port)
        finally:
            for queue in opened:
                await queue.close()

    import asyncio

    asyncio.run(run())


async def _serve(api: Application, host: str, port: int) -> None:
    import asyncio
    import signal

    from oxcart.http.server import Server
    from oxcart.observe import logs

    logs.configure("text", "INFO")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    server = Server(api, host=host, port=port)
    try:
        await server.start()
    except OSError as error:
        raise CommandError(f"cannot listen on {host}:{port}: {error.strerror or error}", FAILED) from error
    output.text(f"HTTP API on {server.url}, queues {', '.join(api.service.queues)}")
    await ended.wait()
    output.text("ending: requests under way have 10 s")
    await server.stop()


def _open(using: Settings, names: Iterable[str], priorities: Priorities) -> list[Queue]:
    from oxcart.queue import Queue

    if using.namespace is not None:
        return [
            Queue(name, protocol="bridge", namespace=using.namespace, server=using.server) for name in names
        ]
    formal: Literal["formal"] | None = "formal" if priorities is Priorities.formal else None
    return [Queue(name, prefix=using.prefix, server=using.server, priorities=formal) for name in names]


async def _existing(using: Settings) -> list[str]:
    from oxcart.broker.discovery import find_queues

    if using.namespace is not None:
        raise CommandError("name the job types to serve: --queues resize,encode", USAGE)
    names = await find_queues(using.server, using.prefix, using.reconnect)
    if not names:
        raise CommandError("there are no queues yet; name those to serve: --queues emails,video", USAGE)
    return names


def _pairs(types: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in types:
        job_type, separator, queue = one.partition("=")
        if not (job_type and separator and queue):
            raise CommandError(f"--type must be TYPE=QUEUE, got {one!r}", USAGE)
        found[job_type] = queue
    return found
