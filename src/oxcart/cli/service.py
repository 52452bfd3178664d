"""``oxcart history slo | anomalies | capacity | costs | changes``: questions about the service as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output
from oxcart.cli.answers import plain, print_rows
from oxcart.cli.settings import JsonOption
from oxcart.cli.spark_options import LAKE, LakeOption, check_lake

if TYPE_CHECKING:
    from oxcart.history.reader import LakeReader
    from oxcart.spark.lake.versions import Version

QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")]
SinceOption = Annotated[
    str, typer.Option("--since", metavar="TIME", help="From that day on: 7d, 2026-11-15; days are in UTC.")
]
_ROUNDED = 4


def slo(lake: LakeOption = LAKE, queue: QueueOption = None, as_json: JsonOption = False) -> None:
    """Show the error budget and burn of each objective of LAKE/objectives.toml."""
    from oxcart.history import service

    found = _ask(lake, service.objectives_reader, lambda reader: service.objectives(reader, queue))
    _show(found, as_json, f"no objective is declared in {lake}/objectives.toml, or no attempt has ended yet")


def anomalies(
    lake: LakeOption = LAKE, since: SinceOption = "1d", queue: QueueOption = None, as_json: JsonOption = False
) -> None:
    """Show hours that differ from the same hour of the week in the weeks before."""
    from oxcart.history import service

    day = _day(since)
    found = _ask(
        lake,
        lambda version: service.anomalies_reader(version, day),
        lambda reader: service.anomalies(reader, day, queue),
    )
    _show(found, as_json, f"no anomaly since {day}")


def capacity(
    lake: LakeOption = LAKE, since: SinceOption = "7d", queue: QueueOption = None, as_json: JsonOption = False
) -> None:
    """Show how many workers the busiest hour of each queue needed for its target of waiting."""
    from oxcart.history import service

    day = _day(since)
    found = _ask(
        lake,
        lambda version: service.since_reader(version, day),
        lambda reader: service.capacity(reader, day, queue),
    )
    _show(found, as_json, f"no attempt has ended in a whole hour since {day}")


def costs(
    lake: LakeOption = LAKE,
    since: SinceOption = "30d",
    queue: QueueOption = None,
    tag: Annotated[str | None, typer.Option("--by-tag", help="By the values of this tag too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the seconds that workers spent, by job name and tenant."""
    from oxcart.history import service

    day = _day(since)
    found = _ask(
        lake,
        lambda version: service.since_reader(version, day),
        lambda reader: service.costs(reader, day, queue, tag),
    )
    _show(found, as_json, f"no attempt {f'with the tag {tag} ' if tag else ''}has ended since {day}")


def changes(
    lake: LakeOption = LAKE, since: SinceOption = "7d", queue: QueueOption = None, as_json: JsonOption = False
) -> None:
    """Show what differs between a version of your program and the one before it."""
    from oxcart.history import service

    day = _day(since)
    found = _ask(
        lake,
        lambda version: service.changes_reader(version, day),
        lambda reader: service.changes(reader, day, queue),
    )
    _show(found, as_json, f"no new version since {day}: workers name theirs by --app-version")


def _ask(
    lake: Path,
    reader_of: Callable[[Version], LakeReader],
    question: Callable[[LakeReader], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    check_lake(lake)
    from oxcart.spark.lake.versions import Lake

    with reader_of(Lake(lake).head()) as reader:
        return question(reader)


def _show(found: Sequence[dict[str, Any]], as_json: bool, nothing: str) -> None:
    if as_json:
        output.document([plain(row) for row in found])
    elif not found:
        output.text(nothing)
    else:
        columns = tuple(found[0])
        print_rows(columns, [[_short(row[name]) for name in columns] for row in found])


def _short(value: Any) -> Any:
    return round(value, _ROUNDED) if isinstance(value, float) else value


def _day(since: str) -> str:
    from datetime import UTC, datetime

    from oxcart.model.moment import parse_moment

    at_ms = parse_moment(since, "since", now_ms=time.time_ns() // 1_000_000)
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
