"""``oxcart events``: follows the events of a queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.settings import JsonOption, QueueArgument

if TYPE_CHECKING:
    from oxcart.model.event import Event


def events(
    ctx: typer.Context,
    queue: QueueArgument,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME|ID",
            help="Since 2h, 02:30, 2026-11-15T12:00Z; or after an event id, 0 from the oldest, $ only new.",
        ),
    ] = "$",
    name: Annotated[
        list[str] | None, typer.Option(help="Only events of these names.", show_default="all")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow the events of a queue until interrupted; with --json one object per line."""
    if since != "$" and not re.fullmatch(r"[0-9]{1,20}(-[0-9]{1,20})?", since, re.ASCII):
        since = _first_id(since)

    async def follow() -> None:
        left = count
        async with settings.of(ctx).queue(queue) as source, source.events(since, name) as stream:
            async for event in stream:
                _show(event, as_json)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    settings.run(follow())


def _first_id(since: str) -> str:
    """Returns the event id after which the events of a time begin."""
    import time

    from oxcart.model.errors import ValidationError
    from oxcart.model.moment import parse_moment

    try:
        at = parse_moment(since, "since", now_ms=time.time_ns() // 1_000_000)
    except ValidationError as error:
        known = "a time such as 2h or 02:30, an event id such as 1794781479132-0, 0 or $"
        raise CommandError(f"since must be {known}, got {since!r}", USAGE) from error
    return f"{max(0, at - 1)}-18446744073709551615"


def _show(event: Event, as_json: bool) -> None:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(event)
    if as_json:
        output.line({name: value for name, value in fields.items() if value not in (None, {})})
        return
    details = {
        "from": event.prev,
        "due": output.moment(event.delay),
        "progress": event.data,
        "result": event.return_value,
        "reason": event.failed_reason,
        "attempts": event.attempts_made,
        **event.fields,
    }
    words = [f"{name}={output.show(value)}" for name, value in details.items() if value is not None]
    about = f"{output.moment(event.timestamp)}  {event.kind:<16} {event.job_id or '-'}"
    output.text("  ".join([about, *words]))
