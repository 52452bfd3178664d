"""Prints the output of commands: tables and facts for people, JSON for programs.

Every command prints through this module, which sanitizes all of it (``oxcart.observe.terminal``). Text of
other programs cannot control the terminal, and cannot pass for a line of ours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import typer

from oxcart.observe.terminal import clean, clean_json, clean_lines, indented

if TYPE_CHECKING:
    from rich.console import Console

#: The width of a table that goes to a file or a pipe, where no window bounds it.
PIPE_WIDTH = 200


def document(value: Any) -> None:
    """Prints one JSON document."""
    import json

    # Not msgspec: its formatter refuses half a surrogate pair, which a peer's data may hold.
    _write(clean_json(json.dumps(json.loads(_encode(value)), indent=2)).encode())


def element(value: Any, *, last: bool = False) -> None:
    """Prints one element of a JSON list whose brackets the caller prints."""
    import json

    shown = json.dumps(json.loads(_encode(value)), indent=2).replace("\n", "\n  ")
    _write(clean_json(f"  {shown}{'' if last else ','}").encode())


def line(value: Any) -> None:
    """Prints one JSON value on one line, at once."""
    _write(clean_json(_encode(value).decode()).encode())


def text(message: str) -> None:
    """Prints one line of plain text; a newline in it is shown as an escape."""
    _write(clean(message).encode())


def block(message: str) -> None:
    """Prints text of several lines: a stack trace, a drawing."""
    _write(clean_lines(message).encode())


def error(message: str) -> None:
    """Prints an error to standard error; its further lines are indented."""
    typer.echo(f"oxcart: {indented(message)}", err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table; columns whose name ends in ``#`` are numbers, and the column ``state`` has colours.

    Every cell is printed whole: `oxcart.cli.table` wraps the last column, or rearranges a table that is too
    wide.
    """
    from oxcart.cli.table import lay_out

    numbers = [name.endswith("#") for name in columns]
    heads = [show(name.removesuffix("#")) for name in columns]
    cells = [
        [count(cell) if number else show(cell) for number, cell in zip(numbers, row, strict=True)]
        for row in rows
    ]
    _draw(*lay_out(heads, numbers, cells, console()))


def grid(rows: Iterable[Sequence[Any]], styles: Sequence[str] = ()) -> None:
    """Prints rows in columns, without a head.

    Args:
        rows: The rows.
        styles: The style of the first two cells of each row; on a terminal alone.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[show(cell) for cell in row] for row in rows]
    made = Table.grid(padding=(0, 2))
    for _ in cells[0] if cells else ():
        made.add_column(overflow="fold")
    for row, style in zip_longest(cells, styles, fillvalue=""):
        made.add_row(*(Text(cell, style if at < 2 else "") for at, cell in enumerate(row)))
    _draw(made)


def facts(pairs: Mapping[str, Any], *, skip_none: bool = False) -> None:
    """Prints names and values, one pair per line; leaves out None if ``skip_none``."""
    from rich.table import Table
    from rich.text import Text

    from oxcart.cli.table import styled

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        if value is not None or not skip_none:
            made.add_row(Text(show(name)), styled(name, show(value)))
    _draw(made)


def console() -> Console:
    """Returns the console for tables: as wide as the terminal, and wide enough for files and pipes."""
    from rich.console import Console

    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if wide else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)


def _draw(*drawings: Any) -> None:
    screen = console()
    with screen.capture() as captured:
        for drawing in drawings:
            screen.print(drawing)
    _write(captured.get().rstrip("\n").encode("utf-8", "backslashreplace"))


def show(value: Any) -> str:
    """Returns a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return clean(value)
    return clean(_encode(value).decode())


def count(value: Any) -> str:
    """Returns a number for a column of numbers, with separators of thousands."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return show(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def data(value: Any) -> str:
    """Returns a value of a user as JSON, exactly as it is."""
    return clean(_encode(value).decode())


def moment(ms: int | None) -> str | None:
    """Returns a time in ms as text, or None."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"
    except (OverflowError, ValueError, OSError):  # a peer stored a value that is no time
        return str(ms)


def clock(at: datetime) -> str:
    """Returns a time in UTC as text; a datetime without a zone is in UTC."""
    known = at if at.tzinfo is None else at.astimezone(UTC)
    return f"{known.replace(tzinfo=None).isoformat(' ', 'milliseconds')}Z"


def age(ms: int | None) -> str | None:
    """Returns roughly how long ago a time in ms was."""
    if ms is None:
        return None
    return span(time.time() - ms / 1000)


def ago(ms: int | None) -> str | None:
    """Returns roughly how long ago a time in ms was, in words."""
    return None if ms is None else f"{age(ms)} ago"


def span(seconds: float) -> str:
    """Returns a duration, roughly."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{sign}{seconds / size:.0f}{unit}"
    return f"{sign}{seconds:.0f}s" if seconds >= 10 else f"{sign}{seconds:.1f}s"


def took(ms: int) -> str:
    """Returns how long something took: to the ms below a second, then in seconds, then roughly."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else span(ms / 1000)


def _encode(value: Any) -> bytes:
    from oxcart.model import payload
    from oxcart.model.errors import PayloadError

    try:
        return payload.encode(value, field="output")
    except PayloadError:
        # Values of a peer may be deeper or longer than ours, or not finite.
        import json

        return json.dumps(_shallow(value), default=repr, separators=(",", ":")).encode()


def _shallow(value: Any, deepest: int = 100) -> Any:
    """Returns a value without its deepest levels."""
    if isinstance(value, dict):
        return {str(key): _shallow(item, deepest - 1) for key, item in value.items()} if deepest else "{…}"
    if isinstance(value, list | tuple):
        return [_shallow(item, deepest - 1) for item in value] if deepest else "[…]"
    return value


def _write(data: bytes) -> None:
    try:
        sys.stdout.flush()
        out = sys.stdout.buffer
        out.write(data + b"\n")
        out.flush()
    except BrokenPipeError:
        # The reader has closed the pipe: no error. Nothing may be written from now on, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
