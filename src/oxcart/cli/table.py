"""Tables on a terminal of any width, without losing a word.

The last column, mostly a reason, wraps within its column, or below its row if that would be too narrow. If
the other columns do not fit either, texts among them wrap. If that is not enough, every row becomes a list of
names and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Spaces between columns.
GAP = 2
#: A last column that would be narrower than this goes below its row.
NARROWEST = 24
#: Columns of texts are wrapped down to this width.
WRAPPED = 10
#: Indent of a last column below its row.
INDENT = 4

#: The colours of states, formal ones and those of the wire.
STATE_STYLES = {
    "scheduled": "cyan",
    "waiting": "cyan",
    "prioritized": "cyan",
    "pending": "cyan",
    "waiting-children": "cyan",
    "delayed": "blue",
    "retrying": "yellow",
    "running": "bold yellow",
    "active": "bold yellow",
    "completed": "green",
    "failed": "red",
    "dead_letter": "bold red",
    "cancelled": "magenta",
}


def lay_out(
    heads: Sequence[str],
    numbers: Sequence[bool],
    rows: Sequence[Sequence[str]],
    console: Console,
) -> list[Text]:
    """Returns the lines of a table.

    Args:
        heads: The names of the columns.
        numbers: Whether each column is aligned to the right.
        rows: The cells, as text without control characters.
        console: The console, for its width.
    """
    from rich.cells import cell_len

    widths = [
        max(cell_len(head), *(cell_len(row[at]) for row in rows), 1) if rows else cell_len(head)
        for at, head in enumerate(heads)
    ]
    taken = sum(widths[:-1]) + GAP * (len(widths) - 1)
    left = console.width - taken
    if left >= min(widths[-1], NARROWEST):
        widths[-1] = min(widths[-1], left)
        return _Grid(heads, numbers, widths, console).lines(rows)
    if (narrowed := _narrowed(widths[:-1], numbers, console.width)) is not None:
        return _Grid(heads, numbers, narrowed, console).lines(rows, below=heads[-1])
    return _records(heads, rows, console)


def _narrowed(widths: Sequence[int], numbers: Sequence[bool], width: int) -> list[int] | None:
    """Returns widths that fit, or None. The first column, which readers copy, and numbers keep theirs."""
    found = [*widths]
    flexible = [at for at in range(1, len(found)) if not numbers[at]]
    while (over := sum(found) + GAP * (len(found) - 1) - width) > 0:
        widest = max(flexible, key=lambda at: found[at], default=None)
        if widest is None or found[widest] <= WRAPPED:
            return None
        found[widest] = max(WRAPPED, found[widest] - over)
    return found


class _Grid:
    def __init__(
        self, heads: Sequence[str], numbers: Sequence[bool], widths: Sequence[int], console: Console
    ) -> None:
        self._heads = heads
        self._numbers = numbers
        self._widths = widths
        self._console = console

    def lines(self, rows: Sequence[Sequence[str]], below: str | None = None) -> list[Text]:
        from rich.text import Text

        shown = [*self._heads[: len(self._widths)]]
        made = self._row([Text(head, style="bold") for head in shown])
        if below is not None:
            made += [Text(" " * INDENT).append(below, style="bold")]
        made.append(Text("─" * (sum(self._widths) + GAP * (len(self._widths) - 1)), style="dim"))
        for row in rows:
            cells = [styled(head, cell) for head, cell in zip(shown, row, strict=False)]
            made += self._row(cells)
            if below is not None and row[-1] not in ("", "-"):
                made += _indented(styled(below, row[-1]), INDENT, self._console)
        return made

    def _row(self, cells: Sequence[Text]) -> list[Text]:
        from rich.text import Text

        columns = [
            [cell] if number else _wrapped(cell, width, self._console)
            for cell, width, number in zip(cells, self._widths, self._numbers, strict=False)
        ]
        lines: list[Text] = []
        for parts in zip_longest(*columns, fillvalue=Text()):
            line = Text()
            for at, part in enumerate(parts):
                line.append(" " * GAP if at else "")
                line.append_text(_padded(part, self._widths[at], self._numbers[at]))
            line.rstrip()
            lines.append(line)
        return lines


def _records(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> list[Text]:
    from rich.cells import cell_len
    from rich.text import Text

    width = max(cell_len(head) for head in heads)
    made: list[Text] = []
    for number, row in enumerate(rows):
        made += [Text()] if number else []
        for head, cell in zip(heads, row, strict=True):
            name = Text(head, style="bold")
            name.append(" " * (width - cell_len(head) + GAP))
            value = _wrapped(styled(head, cell), max(1, console.width - width - GAP), console)
            made.append(name.append_text(value[0]))
            made += [Text(" " * (width + GAP)).append_text(part) for part in value[1:]]
    return made


def styled(head: str, cell: str) -> Text:
    """Returns a cell with the colour of its state, if its column has states."""
    from rich.text import Text

    style = STATE_STYLES.get(cell, "") if head in ("state", "from", "to") else ""
    return Text(cell, style=style)


def _padded(cell: Text, width: int, number: bool) -> Text:
    from rich.cells import cell_len
    from rich.text import Text

    space = Text(" " * (width - cell_len(cell.plain)))
    return space.append_text(cell) if number else Text().append_text(cell).append_text(space)


def _wrapped(cell: Text, width: int, console: Console) -> list[Text]:
    from rich.text import Text

    lines = [*cell.wrap(console, width, overflow="fold")] or [Text()]
    for line in lines:
        line.rstrip()
    return lines


def _indented(cell: Text, indent: int, console: Console) -> list[Text]:
    from rich.text import Text

    parts = _wrapped(cell, max(1, console.width - indent), console)
    return [Text(" " * indent).append_text(part) for part in parts]
