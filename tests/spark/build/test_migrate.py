"""A lake of an earlier release becomes Delta tables with the same rows, and grows on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pytest

from tests.spark.story import Story

pytest.importorskip("pyspark")

from oxcart.spark.build.migrate import Migrated, migrate
from oxcart.spark.build.notes import Built, Ledger
from oxcart.spark.lake.columns import BUILDS
from oxcart.spark.lake.tables import TABLES, TALLIES, Tables
from oxcart.spark.lake.versions import Lake, LakeError
from tests.spark.build.test_spans import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def old_layout(tables: Tables, root: Path) -> None:
    """Writes the tables of a lake as earlier releases did: a file per day and queue, and manifests."""
    from pyarrow import parquet

    head = tables.lake.head()
    files: list[dict[str, Any]] = []
    for table in (*TABLES, TALLIES):
        for file in head.of(table):
            for stream in sorted(tables.lake.streams(file)):
                queue, _, lane = stream.partition("@")
                rows = tables.load(table, [file], queues=[stream])
                if "lane" in rows.columns:
                    rows = rows.filter(f"lane = '{lane}'" if lane else "lane IS NULL")
                path = f"{table}/day={file.day}/queue={quote(stream, safe='')}/{len(files)}.parquet"
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                found = rows.toArrow()
                parquet.write_table(found, root / path)
                named = {"table": table, "day": file.day, "queue": stream, "path": path}
                size = (root / path).stat().st_size
                files.append({**named, "rows": found.num_rows, "size": size, "pending": file.pending})
    built: dict[str, Any] = {}
    for day, notes in all_notes(tables.lake).items():
        for queue, one in notes.items():
            built.setdefault(f"built:{queue}", {})[day] = {
                "basis": msgspec.to_builtins(one.basis),
                "through": one.through,
                "handed": one.handed,
                "kin": one.related,
                "tallied": True,
            }
    ingest = {"ingest:main": {"q": {"id": "1-0", "n": 1}}}
    half = len(files) // 2
    manifests: list[dict[str, Any]] = [
        {"number": 32, "marks": built, "files": files[:half]},
        {"number": 33, "marks": {**ingest, "gone": 1}, "add": files[half:]},
        {"number": 34, "marks": {"gone": None}, "remove": []},
    ]
    (root / "_versions").mkdir(parents=True)
    for manifest in manifests:
        place = root / "_versions" / f"{manifest['number']:020d}.json"
        place.write_text(json.dumps({"at_ms": 1, "why": "build", **manifest}))
    (root / "jobs" / "_delta_log").mkdir()


def all_notes(lake: Lake) -> dict[str, dict[str, Built]]:
    ledger = Ledger(lake).look(lake.head())
    return {day: ledger.of(day) for day in lake.head().days(BUILDS)}


def all_rows(tables: Tables) -> dict[str, list[str]]:
    return {
        table: sorted(
            json.dumps(row, default=str, sort_keys=True) for row in tables.read(table).toArrow().to_pylist()
        )
        for table in TABLES
    }


def test_a_migrated_lake_has_the_same_rows(spark: SparkSession, asked: Lake, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    known = Tables(spark, asked)
    old_layout(known, lake.root)
    with pytest.raises(LakeError, match="run 'oxcart pipeline migrate"):
        lake.head()
    found = migrate(lake)
    assert found.before > found.after
    assert all_rows(Tables(spark, lake)) == all_rows(known)
    assert all_notes(lake) == all_notes(asked)
    assert Ledger(lake).look(lake.head()).stale() == {}, "nothing has to be built anew"
    assert lake.head().marks == {"ingest:main": {"q": {"id": "1-0", "n": 1}}}
    assert not (lake.root / "_versions").exists()
    assert list(lake.root.glob("*/day=*/queue=*")) == []
    assert migrate(lake) == Migrated(0, 0, found.after), "once is enough"


def test_a_migrated_lake_grows_on(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(spark, tmp_path / "before")
    story = Story()
    story.run("1", ("completed", {}), take=500)
    story.event("added", "2", name="n")
    made.ingest(story.rows)
    made.builder.refresh()
    root = tmp_path / "lake"
    old_layout(made.tables, root)
    # Killed after it published, before it deleted the old files.
    again = tmp_path / "versions"
    shutil.copytree(root / "_versions", again)
    migrate(Lake(root))
    shutil.copytree(again, root / "_versions")
    assert migrate(Lake(root)).rows == 0
    grown = Made(spark, root)
    known = len(story.rows)
    story.event("waiting", "2")
    story.run("3", ("completed", {}))
    for one in (made, grown):
        one.ingest(story.rows[known:])
        one.builder.refresh()
    assert grown.shown() == made.shown()


def test_a_file_that_is_missing_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "_versions").mkdir()
    file = {
        "table": "jobs",
        "day": "2026-11-02",
        "queue": "q",
        "path": "jobs/x.parquet",
        "rows": 1,
        "size": 1,
    }
    text = json.dumps({"number": 1, "at_ms": 1, "why": "x", "marks": {}, "files": [file]})
    (tmp_path / "_versions" / f"{1:020d}.json").write_text(text)
    with pytest.raises(LakeError, match=r"jobs/x\.parquet cannot be read"):
        migrate(Lake(tmp_path))
    assert (tmp_path / "_versions").is_dir()


def test_a_migration_that_cannot_delete_old_rows_fails_and_is_repeated(tmp_path: Path) -> None:
    lake, elsewhere = Lake(tmp_path / "lake"), tmp_path / "elsewhere"
    old = lake.root / "_versions"
    old.mkdir(parents=True)
    text = json.dumps({"number": 1, "at_ms": 1, "why": "x", "marks": {}, "files": []})
    (old / f"{1:020d}.json").write_text(text)
    # Of an older version; moved away by an operator, so that it cannot be deleted.
    folder = lake.root / "jobs" / "day=2026-11-02" / "queue=q"
    folder.parent.mkdir(parents=True)
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(LakeError, match=f"{folder} could not be deleted"):
        migrate(lake)
    assert old.is_dir(), "else the next migration would leave the folder"
    folder.unlink()
    migrate(lake)
    assert not old.exists()
