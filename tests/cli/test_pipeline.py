"""``oxcart pipeline`` commands that need neither a server nor Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from oxcart.spark.lake.versions import Change
from tests.cli.conftest import Commands
from tests.history.lakes import make_lake, write


def test_expire_deletes_the_files_of_old_versions_however_young(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", jobs=[{"job_id": "1"}])
    (old,) = lake.head().of("jobs")
    lake.publish(Change("second", add=[write(lake, "jobs", [{"job_id": "2"}])], remove=frozenset({old.path})))
    done = Commands(None)("pipeline", "expire", "--lake", str(lake.root), "--older-than", "0s")
    assert (done.code, done.out) == (0, "1 files deleted\n")
    (new,) = lake.head().of("jobs")
    assert list((lake.root / "jobs").glob("day=*/*.parquet")) == [lake.root / new.path]
