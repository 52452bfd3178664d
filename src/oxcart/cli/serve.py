"""``oxcart serve``: serves queues over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.settings import DEFAULT_PREFIX, Settings

if TYPE_CHECKING:
    from oxcart.http.access import Forward
    from oxcart.http.server import Server
    from oxcart.http.service import Service
    from oxcart.queue import Queue

log = logging.getLogger("oxcart.http")

#: The queue that is served while there is none.
NONE_YET = "default"
#: Seconds between two searches for new queues, and how many times as long as a search they are at least.
EVERY, SHARE = 10.0, 50.0


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
            show_default="those that exist, and those made later",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--app",
            metavar="MODULE:QUEUE",
            help="The queues to serve as an application makes them, with their servers, prefixes, priorities "
            "and keys; repeatable. Instead of --queues.",
            show_default="none",
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
        Priorities,
        typer.Option(help="formal: critical to bulk, 0 to 4. wire: BullMQ's numbers. Not with --app."),
    ] = Priorities.formal,
    lifetime: Annotated[
        str, typer.Option(help="How long after its delay a job may take to end; none for no limit.")
    ] = "7d",
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OXCART_TOKENS",
            metavar="ROLE:TOKEN",
            help="A token with its role: observer, submitter, operator or admin; for some queues alone "
            "operator@emails*; repeatable. Other users of this machine can read a command line: prefer the "
            "variable, a file, or the keys of oxcart access.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file of tokens, one ROLE:TOKEN per line.", show_default=False)
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open-to-all", help="Serve every caller without a key, from anywhere.")
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="A file with the certificate: serve HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="A file with its private key.", show_default="in the same file")
    ] = None,
    rate: Annotated[
        float,
        typer.Option(min=0, help="Requests per second of each key, twice as many at once; 0: no limit."),
    ] = 500.0,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Fields of payloads and results that no answer shows, such as *token*; repeatable.",
            show_default="none",
        ),
    ] = None,
    forward_header: Annotated[
        str | None,
        typer.Option(help="The header in which a proxy names the user it has checked.", show_default="none"),
    ] = None,
    forward_from: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="The proxies' addresses; repeatable.", show_default="none"),
    ] = None,
    forward_grant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USER=ROLE", help="The role of a user of the proxy; * for all others; repeatable."
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may call the API (CORS); repeatable.", show_default="none"),
    ] = None,
    lake: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a pipeline's lake: the dashboard shows its history.", show_default="none"
        ),
    ] = None,
) -> None:
    """Serve queues over HTTP until it is interrupted."""
    using = settings.of(ctx)
    try:
        from oxcart.http.credentials import parse_tokens, read_tokens
        from oxcart.http.server import check_host, check_tls
    except ModuleNotFoundError as error:
        from oxcart.model.errors import MissingExtra

        raise MissingExtra("oxcart serve", "web") from error
    tokens = parse_tokens(token or ())
    if token_file is not None:
        tokens |= read_tokens(token_file)
    check_tls(tls_cert, tls_key)
    forward = _forward(forward_header, forward_from or (), forward_grant or ())
    names = [name.strip() for one in queues or () for name in one.split(",") if name.strip()]
    of_app = _load(using, targets, names) if targets else None

    async def run() -> None:
        from oxcart.http.access import is_loopback
        from oxcart.http.application import app
        from oxcart.http.server import Server

        opened = of_app or await _open(using, names, priorities)
        try:
            has_keys = bool(tokens or forward) or (not is_loopback(host) and await _has_keys(opened))
            check_host(host, has_keys=has_keys, open_to_all=open_to_all)
            api = app(
                opened,
                types=_pairs(types or (), "--type", "TYPE=QUEUE"),
                default=default,
                lifetime=None if lifetime == "none" else lifetime,
                tokens=tokens,
                forward=forward,
                trusted=open_to_all,
                origins=origin or (),
                rate=rate or None,
                mask=mask or (),
                lake=lake,
            )
            watching = None
            if not of_app and using.namespace is None:
                watching = asyncio.create_task(_watch(using, api.service, opened, priorities, names))
            try:
                await _serve(Server(api, host=host, port=port, tls_cert=tls_cert, tls_key=tls_key))
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
        finally:
            for queue in opened:
                await queue.close()

    import asyncio

    asyncio.run(run())


def _load(using: Settings, targets: Sequence[str], names: Sequence[str]) -> list[Queue]:
    """Returns the queues of an application as it makes them."""
    from oxcart.cli import apps
    from oxcart.queue import Queue

    if names:
        raise CommandError("--app and --queues exclude each other", USAGE)
    if using.prefix != DEFAULT_PREFIX or using.namespace is not None:
        raise CommandError("a queue's prefix and namespace are set where the queue is made", USAGE)
    using.export()
    found = []
    for one in apps.load(targets, handlers=False):
        queue = getattr(one, "asynchronous", one)
        if not isinstance(queue, Queue) or queue._core.is_remote:
            raise CommandError(f"queue {one.name!r} is none that can be served", USAGE)
        found.append(queue)
    return found


async def _has_keys(queues: list[Queue]) -> bool:
    from oxcart.http.application import store_of

    store = store_of(queues)
    if store is None:
        return False
    try:
        return bool(await store.keys())
    finally:
        await store.close()


def _forward(header: str | None, networks: Iterable[str], grants: Iterable[str]) -> Forward | None:
    if header is None:
        if list(networks) or list(grants):
            raise CommandError("--forward-from and --forward-grant need --forward-header", USAGE)
        return None
    from oxcart.http.access import Forward

    given = _pairs(grants, "--forward-grant", "USER=ROLE")
    default = given.pop("*", None)
    return Forward(header, networks, grants=given, default=default)


async def _serve(server: Server) -> None:
    import asyncio
    import signal

    from oxcart.http.pauses import shorten_pauses
    from oxcart.observe import logs

    logs.configure("text", "INFO")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        await server.start()
    except OSError as error:
        raise CommandError(f"cannot listen on {server.url}: {error.strerror or error}", FAILED) from error
    shorten_pauses()
    output.text(f"HTTP API on {server.url}, queues {', '.join(server.api.service.queues)}")
    await ended.wait()
    output.text("ending: requests under way have 10 s")
    await server.stop()


async def _open(using: Settings, names: Sequence[str], priorities: Priorities) -> list[Queue]:
    """Returns the named queues, or all that exist. Partitions are served as the queue they belong to."""
    if using.namespace is not None:
        from oxcart.queue import Queue

        if not names:
            raise CommandError("name the job types to serve: --queues resize,encode", USAGE)
        return [
            Queue(name, protocol="bridge", namespace=using.namespace, server=using.server) for name in names
        ]
    found = await _find(using, names)
    chosen = names or list(found) or [NONE_YET]
    return [_queue(using, name, priorities, found.get(name, False)) for name in chosen]


def _has_partitions(queue: Queue) -> bool:
    return queue._core.broker.partitions is not None


async def _find(using: Settings, names: Iterable[str] = ()) -> dict[str, bool]:
    """Returns the queues that exist, by name, and whether each is partitioned."""
    from oxcart.broker.discovery import find_queues
    from oxcart.broker.slots import has_tag
    from oxcart.model.partitions import partition_name, split_partition

    found = await find_queues(using.server, using.prefix, using.reconnect)
    bases = {*found, *names, *(part[0] for part in map(split_partition, found) if part)}
    # A queue whose keys are all in one slot has no partitions: a peer's `{x}#0` is a queue of its own.
    tagged = has_tag(using.prefix)
    whole = {base for base in bases if not (tagged or has_tag(base)) and partition_name(base, 0) in found}
    parts = {name for name in found if (part := split_partition(name)) and part[0] in whole}
    return {name: name in whole for name in sorted({*found, *whole} - parts)}


def _queue(using: Settings, name: str, priorities: Priorities, is_partitioned: bool) -> Queue:
    from oxcart.queue import Queue

    formal: Literal["formal"] | None = "formal" if priorities is Priorities.formal else None
    # The number of partitions is the stored one; this is the number of a queue that has none yet.
    partitions = 1 if is_partitioned else None
    return Queue(name, prefix=using.prefix, server=using.server, priorities=formal, partitions=partitions)


async def _watch(
    using: Settings, service: Service, opened: list[Queue], priorities: Priorities, names: Sequence[str]
) -> None:
    """Serves queues that are made later, and those that get partitions later, as soon as a search finds them.

    Args:
        using: The global options.
        service: What serves the queues.
        opened: The queues to close at the end; opened ones are appended.
        priorities: How priorities of new jobs are read.
        names: The only queues to serve; none for all.
    """
    import asyncio
    import time

    from oxcart.model.errors import OxcartError, ValidationError

    pause, refused = EVERY, set[str]()
    while True:
        await asyncio.sleep(pause)
        began = time.monotonic()
        try:
            found = await _find(using, names)
        except OxcartError as error:
            log.warning("could not look for new queues, trying again: %s", error)
            continue
        # A search reads the names of all keys of the server: a long one must stay a small part of its work.
        pause = max(EVERY, SHARE * (time.monotonic() - began))
        for name, is_partitioned in found.items():
            served = service.queues.get(name)
            if (served is None and names) or name in refused:
                continue
            if served is not None and _has_partitions(served) >= is_partitioned:
                continue
            try:
                made = _queue(using, name, priorities, is_partitioned)
                opened.append(made)
                if served is None:
                    await service.add_queue(made)
                    log.info("queue %s is served from now on", name)
                else:
                    await service.replace_queue(made)
                    log.info("queue %s is served with its partitions from now on", name)
                    await _warn_of_jobs(served)
            except ValidationError as error:
                refused.add(name)
                log.warning("could not serve queue %s, leaving it out until a restart: %s", name, error)
            except OxcartError as error:
                log.warning("could not serve queue %s, trying again: %s", name, error)


async def _warn_of_jobs(queue: Queue) -> None:
    """Logs how many jobs were added before the queue had partitions: workers of these do not see them."""
    counts = await queue.counts()
    waiting = sum(counts.get(state, 0) for state in ("wait", "waiting", "paused", "prioritized", "delayed"))
    if waiting:
        log.warning(
            "%d jobs were added to queue %s before it had partitions, and no worker of the partitions runs "
            "them: run them with a worker of Queue(%r) without partitions=, or add them again",
            waiting, queue.name, queue.name,
        )  # fmt: skip


def _pairs(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in texts:
        name, separator, value = one.partition("=")
        if not (name and separator and value):
            raise CommandError(f"{option} must be {form}, got {one!r}", USAGE)
        found[name] = value
    return found
