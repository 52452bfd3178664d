"""The tables as readers of Delta see them: days, times, and columns that come later."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from oxcart.spark.lake.columns import STORED, public
from oxcart.spark.lake.versions import Change, File, Lake

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
parquet = pytest.importorskip("pyarrow.parquet")

DAY = "2026-11-02"
AT = datetime(2026, 11, 2, 23, 59, 59, 999_000, UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def put(lake: Lake, values: list[int], *, table: str = "t", queue: str = "q", **more: Any) -> File:
    stage = lake.staging()
    columns = {
        "day": [date.fromisoformat(DAY)] * len(values),
        "queue": [queue] * len(values),
        "at": pa.array([AT] * len(values), pa.timestamp("us", "UTC")),
        "v": values,
    }
    parquet.write_table(pa.table({**columns, **more}), stage / "x.parquet")
    return lake.take(stage / "x.parquet", table, DAY)


def test_other_readers_see_the_rows_of_the_newest_version(lake: Lake) -> None:
    lake.publish(Change("one", add=[put(lake, [1]), put(lake, [2])]))
    replaced = frozenset({lake.head().of("t")[0].path})
    lake.publish(Change("two", add=[put(lake, [3])], remove=replaced))
    table = deltalake.DeltaTable(lake.root / "t")
    wanted = sorted(parquet.read_table(path, partitioning=None)["v"][0].as_py() for path in table.file_uris())
    assert len(wanted) == 2
    for found in (table.to_pandas()["v"].tolist(), table.to_pyarrow_table()["v"].to_pylist()):
        assert sorted(found) == wanted
    polars = pytest.importorskip("polars")
    frame = polars.scan_delta(str(lake.root / "t")).filter(polars.col("day") == date.fromisoformat(DAY))
    assert sorted(frame.collect()["v"].to_list()) == wanted
    assert table.to_pyarrow_table()["at"].to_pylist() == [AT, AT]


def test_a_reader_skips_files_of_other_queues(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1]), put(lake, [2], queue="other")]))
    table = deltalake.DeltaTable(lake.root / "t")
    found = table.to_pyarrow_dataset().get_fragments(
        filter=parquet.filters_to_expression([("queue", "=", "q")])
    )
    assert len(list(found)) == 1


def test_a_column_that_comes_later_is_added(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    lake.publish(Change("add", add=[put(lake, [2], more=["x"])]))
    found = deltalake.DeltaTable(lake.root / "t").to_pyarrow_table().to_pylist()
    assert sorted((row["v"], row["more"]) for row in found) == [(1, None), (2, "x")]
    assert len(Lake(lake.root).head().of("t")) == 2


def test_every_table_can_be_read_before_it_has_rows(lake: Lake) -> None:
    lake.create_tables(STORED)
    lake.create_tables(STORED)
    for table in STORED:
        found = deltalake.DeltaTable(lake.root / table).to_pyarrow_table()
        assert (found.num_rows, set(found.schema.names)) == (0, set(public(table)))
    assert len(lake.history()) == 1
