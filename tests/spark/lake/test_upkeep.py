"""Small files are joined, and rows stay the same for readers of the lake and of Delta."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest

from oxcart.spark.lake import join
from oxcart.spark.lake.upkeep import MOST_SMALL, QUIET_MS, compact, expire, tidy
from oxcart.spark.lake.versions import Change, File, Lake, LakeError, Version

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
deltalake = pytest.importorskip("deltalake")

DAY = "2026-11-02"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def put(lake: Lake, values: list[int], queue: str = "q", day: str = DAY, *, pending: bool = False) -> File:
    stage = lake.staging()
    columns = {"day": [date.fromisoformat(day)] * len(values), "queue": [queue] * len(values), "v": values}
    parquet.write_table(pa.table(columns), stage / "x.parquet")
    return lake.take(stage / "x.parquet", "t", day, pending=pending)


def fill(lake: Lake, files: int, rows: int = 1, day: str = DAY, first: int = 0) -> None:
    for number in range(first, first + files):
        values = list(range(number * rows, (number + 1) * rows))
        lake.publish(Change("add", add=[put(lake, values, day=day)]))


def values(lake: Lake) -> list[int]:
    found: list[int] = []
    for path in lake.paths(lake.head().of("t")):
        found += parquet.read_table(path, partitioning=None)["v"].to_pylist()
    return sorted(found)


def test_joined_files_have_row_groups_of_full_size(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "GROUP_ROWS", 1000)
    fill(lake, files=50, rows=100)
    assert compact(lake) == 49
    (path,) = lake.paths(lake.head().of("t"))
    footer = parquet.read_metadata(path)
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [1000] * 5
    assert values(lake) == list(range(5000))


def test_rows_are_joined_in_the_order_of_their_files(lake: Lake) -> None:
    for number in (2, 0, 1):
        file = put(lake, [number])
        lake.publish(Change("add", add=[file]))
        os.utime(lake.root / file.path, (1000 + number,) * 2)
    compact(lake)
    (path,) = lake.paths(lake.head().of("t"))
    assert parquet.read_table(path, partitioning=None)["v"].to_pylist() == [0, 1, 2]


def test_a_day_with_many_small_files_is_joined(lake: Lake) -> None:
    fill(lake, MOST_SMALL - 1)
    assert tidy(lake) == 0
    fill(lake, 1, first=MOST_SMALL - 1)
    assert tidy(lake) == MOST_SMALL - 1
    assert values(lake) == list(range(MOST_SMALL))


def test_a_day_that_became_quiet_is_joined_however_few_files_it_has(tmp_path: Path) -> None:
    now = [0]
    lake = Lake(tmp_path / "lake", clock=lambda: now[0])
    fill(lake, 2)
    now[0] = int(max(path.stat().st_mtime for path in lake.root.rglob("*.parquet")) * 1000)
    assert tidy(lake) == 0
    now[0] += QUIET_MS + 1000
    assert tidy(lake) == 1
    assert tidy(lake) == 0
    assert values(lake) == [0, 1]


def test_a_large_file_is_not_rewritten_for_a_few_small_ones(lake: Lake) -> None:
    fill(lake, 1, rows=500_000)
    large = lake.head().of("t")[0].path
    fill(lake, MOST_SMALL, first=500_000)
    assert tidy(lake) == MOST_SMALL - 1
    assert large in lake.head().files
    assert len(lake.head().of("t")) == 2


def test_a_tiny_file_does_not_keep_larger_ones_from_being_joined(lake: Lake) -> None:
    fill(lake, 1)
    fill(lake, MOST_SMALL, rows=20_000, first=1)
    assert tidy(lake) == MOST_SMALL
    assert len(lake.head().of("t")) == 1


def test_tidying_ends_when_it_is_stopped(lake: Lake) -> None:
    fill(lake, MOST_SMALL)
    assert tidy(lake, stop=lambda: True) == 0


def test_a_day_that_another_writer_changes_is_left_to_the_next_compaction(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, 3)
    fill(lake, 3, day="2026-11-03")
    publish, paths = lake.publish, [lake.head().of("t", days=[DAY])[0].path]

    def meanwhile(change: Change, base: Version | None = None) -> Version:
        if paths and paths[0] in change.remove:
            Lake(lake.root).publish(Change("less", remove=frozenset({paths.pop(0)})))
        return publish(change, base)

    monkeypatch.setattr(lake, "publish", meanwhile)
    assert compact(lake) == 2, "the other day's"
    assert len(lake.head().of("t", days=[DAY])) == 2
    assert compact(lake) == 1


def test_a_file_that_is_missing_is_an_error_with_its_name(lake: Lake) -> None:
    fill(lake, 2)
    lost = lake.head().of("t")[0]
    (lake.root / lost.path).unlink()
    with pytest.raises(LakeError, match=f"lacks {lost.path}, which its newest version names"):
        compact(lake)


def test_files_that_the_next_build_replaces_are_left_to_it(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [value], pending=True) for value in range(3)]))
    fill(lake, 2, first=3)
    assert compact(lake) == 1
    found = lake.head().of("t")
    assert sorted(file.pending for file in found) == [False, True, True, True]


def test_joined_rows_are_sorted_by_queue_and_keep_their_order(lake: Lake) -> None:
    lake.publish(Change("add", add=[put(lake, [1, 2], "b"), put(lake, [3, 4], "a"), put(lake, [5], "b")]))
    for place, file in enumerate(lake.head().of("t")):
        os.utime(lake.root / file.path, (1000 + place,) * 2)
    compact(lake)
    (file,) = lake.head().of("t")
    found = parquet.read_table(lake.root / file.path, partitioning=None)
    assert found["queue"].to_pylist() == ["a", "a", "b", "b", "b"]
    assert found["v"].to_pylist()[:2] == [3, 4]
    assert (file.low, file.high) == ("a", "b")


def test_compaction_changes_no_row_for_readers_of_delta(lake: Lake) -> None:
    def seen() -> list[int]:
        return sorted(deltalake.DeltaTable(lake.root / "t").to_pyarrow_table()["v"].to_pylist())

    fill(lake, MOST_SMALL)
    tidy(lake)
    assert seen() == list(range(MOST_SMALL))
    expire(lake, older_than_ms=0)
    assert seen() == list(range(MOST_SMALL)) == values(Lake(lake.root))
    assert len(list((lake.root / "t").glob("day=*/*.parquet"))) == 1
