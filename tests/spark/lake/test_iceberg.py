"""Iceberg tables over the lake's files: the rows of the newest version, none copied."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.iceberg import open_catalog, show_iceberg
from oxcart.spark.lake.upkeep import forget
from oxcart.spark.lake.versions import Change, Lake
from tests.cli.conftest import Commands
from tests.history.lakes import MIDNIGHT, make_lake, write


def jobs(lake: Lake) -> list[str]:
    found = open_catalog(lake).load_table("oxcart.jobs").scan(row_filter="day = '2026-11-02'").to_arrow()
    return sorted(found["job_id"].to_pylist())


def test_the_rows_of_the_newest_version_are_shown(tmp_path: Path) -> None:
    lake = make_lake(
        tmp_path / "lake",
        jobs=[{"job_id": "1", "ended_ms": MIDNIGHT, "tags": [("tenant", "acme")]}, {"job_id": "2"}],
        failures=[{"names": ["welcome"], "count": 3}],
    )
    assert show_iceberg(lake).keys() == STORED.keys()
    assert show_iceberg(lake) == {}, "nothing new"
    assert jobs(lake) == ["1", "2"]
    (old,) = lake.head().of("jobs")
    new = write(lake, "jobs", [{"job_id": "3"}])
    lake.publish(Change("build", add=[new], remove=frozenset({old.path})))
    done = Commands(None)("pipeline", "iceberg", "--lake", str(lake.root))
    assert (done.code, done.out) == (0, "jobs: 1 files\n")
    assert jobs(lake) == ["3"], "replaced rows are not seen"
    data = list((lake.root / "_iceberg").rglob("*.parquet"))
    assert data == [], "no row was copied"
    forget(lake)
    assert not list((lake.root / "_iceberg").iterdir())
    assert show_iceberg(lake).keys() == STORED.keys()
    assert jobs(lake) == ["3"]
