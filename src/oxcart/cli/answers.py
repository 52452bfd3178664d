"""Prints the rows of a query: as a table or row by row for people, as CSV, JSON or Parquet for programs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any

from oxcart.cli import output

#: Rows of CSV that are printed at once.
_CHUNK = 10_000


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows for people: a table, or one block per row where a table would be too wide."""
    found = list(rows)
    if not columns or not found:
        output.text("no rows")
        return
    cells = [[_cell(value) for value in row] for row in found]
    widths = [max(len(name), *(len(row[place]) for row in cells)) + 2 for place, name in enumerate(columns)]
    if sum(widths) <= output.console().width:
        heads = [
            f"{name}#" if _are_numbers(row[place] for row in found) else name
            for place, name in enumerate(columns)
        ]
        output.table(heads, cells)
        return
    for number, row in enumerate(cells, start=1):
        output.text(f"row {number}")
        output.facts(dict(zip(columns, row, strict=True)))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as CSV, with a head; null is empty, and lists and maps are JSON."""
    import csv

    given = iter(rows)
    head: list[Sequence[Any]] = [columns]
    while chunk := head + [[_csv_cell(value) for value in row] for row in islice(given, _CHUNK)]:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(chunk)
        output.block(text.getvalue().removesuffix("\n"))
        head = []


def print_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as one JSON list of objects."""
    output.document([dict(zip(columns, map(plain, row), strict=True)) for row in rows])


def plain(value: Any) -> Any:
    """Returns a value of a table as JSON has it: times as ISO text in UTC, decimals as numbers."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime):
        return output.clock(value).replace(" ", "T")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bytes | bytearray):
        return bytes(value) if isinstance(value, bytearray) else value
    return str(value)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return output.clock(value)
    value = plain(value)
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return output.count(value)


def _csv_cell(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, dict | list | bytes):
        return output.show(value)
    return "" if value is None else value


def _are_numbers(values: Iterable[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in known
    )
