"""``oxcart queues``, ``pause``, ``resume``: the queues of a server."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.completion import queue_names
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.options import LISTS
from oxcart.cli.settings import JsonOption, Settings

if TYPE_CHECKING:
    from oxcart.broker.port.results import QueueRow

#: States of the wire by shorter names, for the heads of columns.
_SHORT = {"prioritized": "priority", "waiting-children": "children"}

QueueNames = Annotated[
    list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.", autocompletion=queue_names)
]

#: Queues of one page.
PAGE = 500


def queues(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUEUE]...", help="Only these queues.", show_default=False, autocompletion=queue_names
        ),
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only queues whose names match: mail-*, *.webhooks.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many queues at most.", show_default="all")
    ] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="Show the states of BullMQ's wire: waiting, active, …")
    ] = False,
    as_json: JsonOption = False,
    as_lines: Annotated[
        bool, typer.Option("--json-lines", help="Print one JSON object per line, as queues are found.")
    ] = False,
) -> None:
    """List the queues and how many jobs are in each state, a page at a time.

    Up to 500 queues are sorted by name; more come in sorted pages of 500.
    """
    if names and match is not None:
        raise CommandError("pass names or --match, not both", USAGE)
    printer = _Printer(as_json, as_lines, wire)
    seen = settings.run(_print(settings.of(ctx), names or [], match, limit, printer))
    printer.end(bool(names))
    missing = sorted(set(names or ()) - seen)
    if missing:
        raise CommandError(f"no such queue: {', '.join(missing)}", FAILED)


class _Printer:
    """Prints pages of queues as they come: a table each, elements of one JSON list, or a line per queue."""

    def __init__(self, as_json: bool, as_lines: bool, wire: bool) -> None:
        self._wire = wire
        self._as_json = as_json
        self._as_lines = as_lines
        self._printed = 0
        self._held: dict[str, Any] | None = None  # printed when it is known whether another follows

    def page(self, rows: list[dict[str, Any]]) -> None:
        """Prints some queues."""
        if not rows:
            return
        if self._as_lines:
            for row in rows:
                output.line(row)
        elif self._as_json:
            for row in rows:
                if self._held is None:
                    output.text("[")
                else:
                    output.element(self._held)
                self._held = row
        else:
            _show(rows, self._wire)
        self._printed += len(rows)

    def end(self, named: bool) -> None:
        """Ends the list."""
        if self._as_lines:
            return
        if self._as_json:
            if self._held is None:
                output.text("[]")
            else:
                output.element(self._held, last=True)
                output.text("]")
        elif not self._printed and not named:
            output.text("no queues yet")


async def _print(
    using: Settings, names: list[str], match: str | None, limit: int | None, printer: _Printer
) -> set[str]:
    """Prints the queues; returns the names of those that were requested and found."""
    found: set[str] = set()
    left = limit
    async for rows in _pages(using, names, match):
        page = rows if left is None else rows[:left]
        printer.page(page)
        if names:
            found.update(row["queue"] for row in rows)
        if left is not None:
            left -= len(page)
            if not left:
                break
    return found


async def _pages(using: Settings, names: list[str], match: str | None) -> AsyncIterator[list[dict[str, Any]]]:
    from oxcart.broker.factory import overview

    if names or using.namespace is not None:
        rows = await _overview(using, names)
        chosen = [row for row in rows if match is None or fnmatchcase(row["queue"], match)]
        for at in range(0, len(chosen), PAGE):
            yield chosen[at : at + PAGE]
        return
    async for page in overview(using.server, using.prefix, using.reconnect, match=match):
        yield [_row(one) for one in page]


def require(ctx: typer.Context, name: str) -> None:
    """Refuses a queue that does not exist: a typing error should not look like an empty queue.

    Raises:
        CommandError: There is no such queue.
    """
    using = settings.of(ctx)
    if settings.run(missing(using, [name])):
        raise _unknown(using, [name])


def _unknown(using: Settings, names: list[str], more: str = "") -> CommandError:
    """Returns the error for queues that do not exist, with names that are nearly the same."""

    async def first_page() -> list[str]:
        async for page in _pages(using, [], None):
            return [row["queue"] for row in page]
        return []

    known = settings.run(first_page())
    close = {one for name in names for one in difflib.get_close_matches(name, known, 2)}
    hint = f"; did you mean {' or '.join(sorted(close))}?" if close else ""
    return CommandError(f"no such queue: {', '.join(names)}{hint}{more}", FAILED)


def _show(found: list[dict[str, Any]], wire: bool) -> None:
    lists = {state: (state,) for state in found[0]["counts"]} if wire else LISTS
    columns = ["queue", *(f"{_SHORT.get(state, state) if wire else state}#" for state in lists)]
    # Columns that would be empty are left out: the table should fit a narrow window.
    more = [name for name in ("paused", "version") if any(row[name] for row in found)]
    output.table(
        columns + more,
        (
            [
                row["queue"],
                *(sum(row["counts"][one] for one in states) for states in lists.values()),
                *(row[name] or None for name in more),
            ]
            for row in found
        ),
    )


def pause(
    ctx: typer.Context,
    names: QueueNames,
    new: Annotated[bool, typer.Option("--new", help="Also queues that do not exist yet.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Block claims of these queues' jobs; running jobs continue."""
    _switch(ctx, names, True, new, as_json)


def resume(ctx: typer.Context, names: QueueNames, as_json: JsonOption = False) -> None:
    """Allow claims of these queues' jobs again."""
    _switch(ctx, names, False, False, as_json)


def _switch(ctx: typer.Context, names: list[str], paused: bool, new: bool, as_json: bool) -> None:
    using = settings.of(ctx)
    if not new and (unknown := settings.run(missing(using, names))):
        raise _unknown(using, unknown, "; pass --new to pause it before its first job" if paused else "")

    async def switch() -> None:
        for name in names:
            async with using.queue(name) as queue:
                await (queue.pause() if paused else queue.resume())

    settings.run(switch())
    if as_json:
        output.document([{"queue": name, "paused": paused} for name in names])
    else:
        for name in names:
            output.text(f"{name}: {'paused' if paused else 'resumed'}")


async def missing(using: Settings, names: list[str]) -> list[str]:
    """Returns the queues among these that do not exist, sorted; in a namespace, any type may be used."""
    if using.namespace is not None:
        return []
    return sorted(set(names) - {row["queue"] for row in await _overview(using, names)})


def note_new(names: list[str]) -> None:
    """Notes that a command made queues. It may be intended; more often it is a typing error."""
    for name in names:
        output.error(f"note: there was no queue {name} until now")


async def _overview(using: Settings, names: list[str]) -> list[dict[str, Any]]:
    """Returns queues by their names; for a namespace all of its job types if none is named."""
    if using.namespace is not None:
        from oxcart.cli import namespace

        return await namespace.overview(using, names)
    from oxcart.broker.factory import count_queues

    rows = [row for name in names if (row := await _partitioned(using, name)) is not None]
    rest = [name for name in names if name not in {row["queue"] for row in rows}]
    if rest:
        found = await count_queues(using.server, using.prefix, rest, using.reconnect)
        rows += [_row(one) for one in found]
    return sorted(rows, key=lambda row: str(row["queue"]))


async def _partitioned(using: Settings, name: str) -> dict[str, Any] | None:
    """Returns the row of a queue with partitions, None for another."""
    async with using.partitioned(name) as queue:
        if queue is None:
            return None
        counts = await queue.counts()
        return {"queue": name, "counts": counts, "paused": await queue.is_paused(), "version": None}


def _row(one: QueueRow) -> dict[str, Any]:
    from oxcart.jobs import LISTABLE

    return {
        "queue": one.queue,
        "counts": {state: sum(one.counts[key] for key in keys) for state, keys in LISTABLE.items()},
        "paused": one.paused,
        "version": one.version,
    }
