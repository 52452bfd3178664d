"""``oxcart pipeline`` commands that need neither a server nor Spark."""

from __future__ import annotations

from pathlib import Path

from oxcart.spark.lake.versions import Change, File, Lake
from tests.cli.conftest import Commands


def test_expire_deletes_the_files_of_old_versions_however_young(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    files = [File("jobs", "2026-11-18", "mail", f"jobs/{name}.parquet", 1, 3) for name in ("old", "new")]
    (lake.root / "jobs").mkdir(parents=True)
    for file in files:
        (lake.root / file.path).write_bytes(b"row")
    lake.publish(Change("first", add=files[:1]))
    lake.publish(Change("second", add=files[1:], remove=frozenset({files[0].path})))
    done = Commands(None)("pipeline", "expire", "--lake", str(lake.root), "--older-than", "0s")
    assert (done.code, done.out) == (0, "1 files deleted\n")
    assert [path.name for path in (lake.root / "jobs").iterdir()] == ["new.parquet"]
    assert list(lake.head().files) == [files[1].path]
