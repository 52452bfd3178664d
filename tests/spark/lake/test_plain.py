"""A folder of one version, for programs that can only list Parquet files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("duckdb")

import duckdb
from pyarrow import dataset

from oxcart.spark.lake.columns import STORED
from oxcart.spark.lake.files import LakeError
from oxcart.spark.lake.plain import CURRENT, PLAIN, renew_plain, show_plain
from oxcart.spark.lake.upkeep import compact, disk_bytes, expire, forget
from oxcart.spark.lake.versions import Change, Lake
from tests.cli.conftest import Commands
from tests.history.lakes import make_lake, write
from tests.spark.lake.contents import words_in

DAY_MS = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = make_lake(tmp_path / "lake", jobs=[{"job_id": "job-1", "state": "delayed"}])
    return Lake(made.root)  # with the clock of this machine, as files have


def replace(lake: Lake, *ids: str) -> None:
    """Replaces all files of jobs, as a build does."""
    old = frozenset(file.path for file in lake.head().of("jobs"))
    made = [write(lake, "jobs", [{"job_id": one}]) for one in ids]
    lake.publish(Change("build", add=made, remove=old))


def listed(folder: Path) -> list[str]:
    """The jobs of all files of a folder."""
    return sorted(dataset.dataset(folder / "jobs", format="parquet").to_table()["job_id"].to_pylist())


def test_a_folder_has_each_row_of_one_version_once(lake: Lake) -> None:
    shown = show_plain(lake)
    assert {path.name for path in shown.iterdir()} == STORED.keys()
    assert listed(lake.root / PLAIN / CURRENT) == ["job-1"]
    replace(lake, "job-1", "job-2")
    table = lake.root / "jobs"
    assert len(list(table.rglob("*.parquet"))) == 3, "the table's own folder has the replaced file too"
    assert listed(shown) == ["job-1"], "a shown version does not change"
    made = Commands(None)("pipeline", "plain", "--lake", str(lake.root))
    assert (made.code, made.out) == (0, f"{lake.root / PLAIN / CURRENT}\n")
    assert listed(lake.root / PLAIN / CURRENT) == ["job-1", "job-2"]
    assert show_plain(lake) == show_plain(lake), "the same version is shown once"
    text = f"SELECT job_id FROM read_parquet('{lake.root}/_plain/current/jobs/*.parquet') ORDER BY 1"
    with duckdb.connect() as questions:
        assert questions.execute(text).fetchall() == [("job-1",), ("job-2",)]


def test_readers_that_resolve_the_link_see_each_row_once_during_builds(lake: Lake) -> None:
    done = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not done.is_set():
            seen.append(listed(Path(os.path.realpath(lake.root / PLAIN / CURRENT))))

    replace(lake, "job-1", "job-2", "job-3")
    show_plain(lake)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(15):
            replace(lake, "job-1", "job-2", "job-3")
            compact(lake, "jobs")
            show_plain(lake)
    finally:
        done.set()
        reader.join(60)
    assert seen
    assert all(one == ["job-1", "job-2", "job-3"] for one in seen)


def test_older_folders_go_after_a_day(lake: Lake) -> None:
    old = show_plain(lake)
    replace(lake, "job-2")
    new = show_plain(lake)
    assert old.exists()
    written = new.stat().st_mtime * 1000
    lake.clock = lambda: int(written + 2 * DAY_MS)
    assert show_plain(lake) == new
    assert not old.exists()
    assert listed(new) == ["job-2"]


def test_expiry_renews_a_shown_version_and_makes_none(lake: Lake) -> None:
    expire(lake)
    renew_plain(lake)
    assert not (lake.root / PLAIN).exists()
    first = show_plain(lake)
    kept = disk_bytes(lake)
    replace(lake, "job-2")
    expire(lake, older_than_ms=0)
    assert listed(lake.root / PLAIN / CURRENT) == ["job-2"]
    assert not first.exists()
    assert disk_bytes(lake) <= kept + 4096, "files of older versions are gone, their links too"
    assert words_in(lake.root, "job-1") == set()


def test_a_link_keeps_its_bytes_on_disk_and_counts(lake: Lake) -> None:
    show_plain(lake)
    before = disk_bytes(lake)
    (file,) = lake.head().of("jobs")
    (lake.root / file.path).unlink()
    assert disk_bytes(lake) == before


@pytest.mark.parametrize("how", [forget, lambda lake: expire(lake, older_than_ms=0)])
def test_an_erasure_leaves_no_folder_with_the_subject(lake: Lake, how: Callable[[Lake], int]) -> None:
    show_plain(lake)
    replace(lake, "job-2")
    assert words_in(lake.root, "job-1") == {"job-1"}
    how(lake)
    assert words_in(lake.root, "job-1") == set()
    if how is forget:
        assert not (lake.root / PLAIN).exists(), "the next command shows the new version"


def move_away(folder: Path, elsewhere: Path) -> None:
    """Puts a link in a folder's place, as an operator who lacks space does; then it cannot be deleted."""
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("name", [PLAIN, "_staging/one", "_iceberg/one"])
def test_an_erasure_fails_if_a_folder_of_the_subject_stays(lake: Lake, tmp_path: Path, name: str) -> None:
    shown = show_plain(lake)
    folder = lake.root / name
    if name != PLAIN:
        folder.mkdir(parents=True)
        os.link(next(shown.glob("jobs/*")), folder / "rows.parquet")
    replace(lake, "job-2")
    move_away(folder, tmp_path / "elsewhere")
    with pytest.raises(LakeError, match=f"{folder} could not be deleted"):
        forget(lake)
    assert words_in(tmp_path / "elsewhere", "job-1") == {"job-1"}
    folder.unlink()
    forget(lake)
    assert words_in(lake.root, "job-1") == set()


def test_an_older_folder_that_cannot_be_deleted_is_named(lake: Lake, tmp_path: Path) -> None:
    first = show_plain(lake)
    replace(lake, "job-2")
    move_away(first, tmp_path / "elsewhere")
    with pytest.raises(LakeError, match=f"{first} could not be deleted"):
        expire(lake, older_than_ms=0)
    assert len(list(lake.root.glob("jobs/day=*/*.parquet"))) == 1, "the table's old files are gone"
    assert listed(lake.root / PLAIN / CURRENT) == ["job-2"], "readers have the new version all the same"


def test_a_killed_switch_leaves_the_shown_version(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    show_plain(lake)
    replace(lake, "job-2")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            show_plain(lake)
    assert listed(lake.root / PLAIN / CURRENT) == ["job-1"]
    show_plain(lake, keep_ms=0)
    assert listed(lake.root / PLAIN / CURRENT) == ["job-2"]
    assert len(list((lake.root / PLAIN).iterdir())) == 2, "a folder and the link"
