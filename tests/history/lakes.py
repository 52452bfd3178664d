"""Lakes with rows written by hand, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from oxcart.model.target import split_lane
from oxcart.spark.lake.columns import public, public_name
from oxcart.spark.lake.delta import arrow_type
from oxcart.spark.lake.versions import Change, File, Lake

#: 2026-11-02, midnight.
MIDNIGHT = 1_793_577_600_000
DAY = date(2026, 11, 2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Rows = Sequence[Mapping[str, Any]]


def write(lake: Lake, table: str, rows: Rows, *, without: Sequence[str] = ()) -> File:
    """Writes rows into a new file of a table, which is not yet published; missing values are null.

    Args:
        lake: The lake.
        table: The table.
        rows: The rows, with instants in ms as transforms have them; the day of the first is the file's.
        without: Columns that the file shall lack.
    """
    columns = {name: kind for name, kind in public(table).items() if name not in without}
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
    whole = [{"day": DAY, "queue": "mail", **row} for row in rows]
    values = [_stored(row, columns) for row in whole]
    made = lake.staging() / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(values, schema=schema), made)
    return lake.take(made, table, whole[0]["day"].isoformat())


def _stored(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    given = {public_name(name): value for name, value in row.items()}
    if row.get("lane") is None:
        given["queue"], given["lane"] = split_lane(row["queue"])
    return {
        name: _EPOCH + timedelta(milliseconds=given[name])
        if kind == "timestamp" and given.get(name) is not None
        else given.get(name)
        for name, kind in columns.items()
    }


def make_lake(root: Path, **tables: Rows) -> Lake:
    """Makes a lake with these rows, published as one version, with a file per table and day."""
    lake = Lake(root, clock=lambda: MIDNIGHT)
    files = []
    for table, rows in tables.items():
        by_day: dict[date, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_day.setdefault(row.get("day", DAY), []).append(row)
        files += [write(lake, table, found) for found in by_day.values()]
    lake.publish(Change("build", add=files))
    return lake
