"""``oxcart queues``, ``pause``, ``resume``: the queues of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.settings import JsonOption, Settings

if TYPE_CHECKING:
    from oxcart.broker.bullmq.broker import BullMQBroker

#: States by shorter names, for the heads of columns.
_SHORT = {"prioritized": "priority", "waiting-children": "children"}

QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")]


def queues(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Only these queues.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the queues and how many jobs are in each state."""
    found = settings.run(_overview(settings.of(ctx), names or []))
    if as_json:
        output.document(found)
    elif not found and not names:
        output.text("no queues yet")
    elif found:
        _show(found)
    missing = sorted(set(names or ()) - {row["queue"] for row in found})
    if missing:
        raise CommandError(f"no such queue: {', '.join(missing)}", FAILED)


def require(ctx: typer.Context, name: str) -> None:
    """Refuses a queue that is not there: a slip of the pen should not look like an empty queue.

    Raises:
        CommandError: There is no such queue.
    """
    using = settings.of(ctx)
    if using.namespace is None and not settings.run(_overview(using, [name])):
        raise CommandError(f"no such queue: {name}", FAILED)


def _show(found: list[dict[str, Any]]) -> None:
    states = list(found[0]["counts"])
    columns = ["queue", *(f"{_SHORT.get(state, state)}#" for state in states)]
    # Columns that would be empty are left out: the table should fit a narrow window.
    more = [name for name in ("paused", "version") if any(row[name] for row in found)]
    output.table(
        columns + more,
        (
            [
                row["queue"],
                *(row["counts"][state] for state in states),
                *(row[name] or None for name in more),
            ]
            for row in found
        ),
    )


def pause(ctx: typer.Context, names: QueueNames, as_json: JsonOption = False) -> None:
    """Let no worker take a job of these queues; running jobs go on."""
    _switch(ctx, names, True, as_json)


def resume(ctx: typer.Context, names: QueueNames, as_json: JsonOption = False) -> None:
    """Let workers take jobs of these queues again."""
    _switch(ctx, names, False, as_json)


def _switch(ctx: typer.Context, names: list[str], paused: bool, as_json: bool) -> None:
    using = settings.of(ctx)

    async def switch() -> set[str]:
        # A Bridge namespace has its own idea of which types are there.
        known = names if using.namespace else [row["queue"] for row in await _overview(using, names)]
        for name in names:
            async with using.queue(name) as queue:
                await (queue.pause() if paused else queue.resume())
        return set(names) - set(known)

    for name in sorted(settings.run(switch())):
        # It may be meant: a queue can be paused before its first job. More often it is a slip of the pen.
        typer.echo(f"oxcart: note: there was no queue {name} until now", err=True)
    if as_json:
        output.document([{"queue": name, "paused": paused} for name in names])
    else:
        for name in names:
            output.text(f"{name}: {'paused' if paused else 'resumed'}")


async def _overview(using: Settings, names: list[str]) -> list[dict[str, Any]]:
    if using.namespace is not None:
        from oxcart.cli import namespace

        return await namespace.overview(using, names)
    from oxcart.broker.bullmq.broker import BullMQBroker
    from oxcart.broker.caller import Caller
    from oxcart.broker.discovery import find_queues

    server = using.server
    # On a single server one connection is enough for all; on a cluster each slot has its own.
    shared = None if server.is_cluster else Caller(server, None, "cli", reconnect=using.reconnect)
    rows = []
    try:
        for name in names or await find_queues(server, using.prefix, using.reconnect):
            broker = BullMQBroker(server, name, prefix=using.prefix, caller=shared, reconnect=using.reconnect)
            try:
                row = await _row(broker)
            finally:
                if shared is None:
                    await broker.close()
            if row is not None:
                rows.append(row)
    finally:
        if shared is not None:
            await shared.close()
    return rows


async def _row(broker: BullMQBroker) -> dict[str, Any] | None:
    from oxcart.queue import LISTABLE

    counts = await broker.counts_over_lanes()
    known, paused, version = await broker.caller.pipeline(
        [
            ("EXISTS", broker.keys.meta()),
            ("HEXISTS", broker.keys.meta(), "paused"),
            ("HGET", broker.keys.meta(), "version"),
        ]
    )
    if not known and not any(counts.values()):
        return None
    return {
        "queue": broker.queue,
        "counts": {state: sum(counts[key] for key in keys) for state, keys in LISTABLE.items()},
        "paused": bool(paused),
        "version": version.decode("utf-8", "replace") if version else None,
    }
