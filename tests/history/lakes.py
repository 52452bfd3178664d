"""Lakes with rows written by hand, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.versions import Change, File, Lake

#: 2026-11-02, midnight.
MIDNIGHT = 1_793_577_600_000
DAY = date(2026, 11, 2)

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<string>": pa.list_(pa.string()),
}

Rows = Sequence[Mapping[str, Any]]


def write(lake: Lake, table: str, rows: Rows, *, without: Sequence[str] = ()) -> File:
    """Writes rows into a new file of a table, which is not yet published; missing values are null.

    Args:
        lake: The lake.
        table: The table.
        rows: The rows; the day and queue of the first are those of the file.
        without: Columns that the file shall lack.
    """
    columns = {name: kind for name, kind in STORED[table].items() if name not in without}
    if table in ("events", "open"):
        columns.pop("lane", None)
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    whole = [{"day": DAY, "queue": "mail", **row} for row in rows]
    values = [{name: row.get(name) for name in columns} for row in whole]
    made = lake.staging() / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(values, schema=schema), made)
    first = whole[0]
    return lake.take(made, table, first["day"].isoformat(), str(first["queue"]))


def make_lake(root: Path, **tables: Rows) -> Lake:
    """Makes a lake with these rows, published as one version."""
    lake = Lake(root, clock=lambda: MIDNIGHT)
    lake.publish(Change("build", add=[write(lake, table, rows) for table, rows in tables.items()]))
    return lake
