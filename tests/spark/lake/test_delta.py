"""Delta tables over the lake's files: one commit per version, also after a kill or a race."""

from __future__ import annotations

import shutil
import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from oxcart.spark.lake.delta import Delta
from oxcart.spark.lake.upkeep import compact, expire
from oxcart.spark.lake.versions import Change, File, Lake, LakeError

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
parquet = pytest.importorskip("pyarrow.parquet")

DAY = "2026-11-02"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def put(lake: Lake, values: list[int], *, table: str = "t", queue: str = "q", **more: Any) -> File:
    stage = lake.staging()
    columns = {"day": [date.fromisoformat(DAY)] * len(values), "queue": [queue] * len(values), "v": values}
    parquet.write_table(pa.table({**columns, **more}), stage / "x.parquet")
    return lake.take(stage / "x.parquet", table, DAY, queue)


def rows(lake: Lake, table: str = "t") -> list[int]:
    """Reads the table as any Delta reader does."""
    return sorted(deltalake.DeltaTable(lake.root / table).to_pyarrow_table()["v"].to_pylist())


def commits(lake: Lake, table: str = "t") -> list[tuple[int, str]]:
    actual = deltalake.DeltaTable(lake.root / table).history()
    return [(one["version"], one.get("why", "")) for one in reversed(actual)]


def test_every_version_is_one_commit_of_the_tables_it_changes(lake: Lake) -> None:
    delta = Delta(lake)
    lake.publish(Change("one", add=[put(lake, [1, 2]), put(lake, [7], table="u")]))
    assert delta.follow() == {"t": 1, "u": 1}
    lake.publish(Change("two", add=[put(lake, [3], queue="a/b ü")]))
    assert delta.follow() == {"t": 1}
    replaced = frozenset({("t", DAY, "q")})
    lake.publish(Change("three", add=[put(lake, [4])], replace=replaced))
    assert delta.follow() == {"t": 2}
    assert rows(lake) == [3, 4]
    assert rows(lake, "u") == [7]
    assert [why for _, why in commits(lake)] == ["", "one", "two", "three"]
    assert delta.follow() == {}, "nothing new, no commit"
    assert [
        path.suffix for path in (lake.root / "t").rglob("*.parquet") if "_delta_log" not in str(path)
    ] == [".parquet"] * 3, "no row was copied"


def test_a_follower_that_comes_late_needs_no_old_version(lake: Lake) -> None:
    for value in range(5):
        lake.publish(Change("add", add=[put(lake, [value])]))
    compact(lake)
    assert Delta(lake).follow() == {"t": 1}
    assert rows(lake) == [0, 1, 2, 3, 4]


def test_a_reader_skips_files_of_other_days_and_queues(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1]), put(lake, [2], queue="other")]))
    Delta(lake).follow()
    table = Delta(lake).table("t")
    found = table.to_pyarrow_dataset().get_fragments(
        filter=parquet.filters_to_expression([("queue", "=", "q")])
    )
    assert len(list(found)) == 1
    assert table.to_pyarrow_table(filters=[("queue", "=", "q")])["v"].to_pylist() == [1]


def test_followers_that_race_commit_everything_once(lake: Lake) -> None:
    wrong: list[BaseException] = []

    def follow(done: threading.Event) -> None:
        mine = Delta(Lake(lake.root))
        try:
            while not done.is_set():
                mine.follow()
        except BaseException as error:
            wrong.append(error)

    lake.publish(Change("add", add=[put(lake, [0])]))
    Delta(lake).follow()
    done = threading.Event()
    racers = [threading.Thread(target=follow, args=(done,)) for _ in range(3)]
    for racer in racers:
        racer.start()
    for value in range(1, 20):
        lake.publish(Change("add", add=[put(lake, [value])]))
    done.set()
    for racer in racers:
        racer.join()
    assert wrong == []
    Delta(lake).follow()
    assert rows(lake) == list(range(20))


def test_a_column_that_comes_later_is_added(lake: Lake) -> None:
    delta = Delta(lake)
    lake.publish(Change("add", add=[put(lake, [1])]))
    delta.follow()
    lake.publish(Change("add", add=[put(lake, [2], more=["x"])]))
    delta.follow()
    found = deltalake.DeltaTable(lake.root / "t").to_pyarrow_table().to_pylist()
    assert sorted((row["v"], row["more"]) for row in found) == [(1, None), (2, "x")]


def test_expiry_leaves_the_logs_alone(tmp_path: Path) -> None:
    now = [1_793_577_600_000]
    lake = Lake(tmp_path / "lake", clock=lambda: now[0])
    for value in range(3):
        lake.publish(Change("rewrite", add=[put(lake, [value])], replace=frozenset({("t", DAY, "q")})))
        Delta(lake).follow()
    now[0] = 4_000_000_000_000
    assert expire(lake, keep=1, older_than_ms=0) == 2
    assert rows(lake) == [2]


def test_lake_restored_from_a_backup_is_noticed(lake: Lake, tmp_path: Path) -> None:
    lake.publish(Change("add", add=[put(lake, [1])]))
    shutil.copytree(lake.root, tmp_path / "backup")
    for value in (2, 3):
        lake.publish(Change("add", add=[put(lake, [value])]))
    Delta(lake).follow()
    shutil.rmtree(lake.root / "_versions")
    shutil.copytree(tmp_path / "backup" / "_versions", lake.root / "_versions")
    with pytest.raises(LakeError, match=r"put back to an older state; delete .*_delta_log and run it again"):
        Delta(Lake(lake.root)).follow()
    shutil.rmtree(lake.root / "t" / "_delta_log")
    Delta(Lake(lake.root)).follow()
    assert rows(lake) == [1]


def test_without_a_log_it_says_what_to_run(lake: Lake) -> None:
    with pytest.raises(LakeError, match="run 'oxcart pipeline delta'"):
        Delta(lake).table("t")
