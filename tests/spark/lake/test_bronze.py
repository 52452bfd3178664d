"""Bronze as tasks write it: every row once, in a file of its day; a failed write leaves no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart.spark.lake import bronze
from oxcart.spark.lake.bronze import file_rows, files_of, write_rows
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.read.entries import page_rows
from oxcart.spark.read.stream import Page

parquet = pytest.importorskip("pyarrow.parquet")

DAY_MS = 86_400_000
FIRST = 1_793_577_600_000  # 2026-11-02


def page(first: int, *times: int, queue: str = "q/1") -> Any:
    entries = [(f"{at}-0".encode(), [b"event", b"waiting", b"jobId", b"%d" % at]) for at in times]
    return page_rows(Page(first, 1, entries), queue, "events")


def ordinals(path: str) -> list[int]:
    found: list[int] = parquet.read_table(path, partitioning=None)["ordinal"].to_pylist()
    return found


def test_every_row_is_in_a_file_of_its_day(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    batches = [page(1, FIRST, FIRST + 1), page(3, FIRST + 2, FIRST + DAY_MS), page(5, FIRST + DAY_MS + 1)]
    written = write_rows(lake, iter(batches))
    files = [one.file for one in written]
    assert [(file.day, file.rows, file.pending) for file in files] == [
        ("2026-11-02", 3, True),
        ("2026-11-03", 2, True),
    ]
    assert [one.queues for one in written] == [{"q/1": 3}, {"q/1": 2}]
    assert [ordinals(path) for path in lake.paths(files)] == [[1, 2, 3], [4, 5]]
    assert lake.head().files == {}, "nothing shows before it is published"
    assert len(list((lake.root / "_staging").iterdir())) == 2, "the two files"


def test_queues_share_a_file_and_lanes_have_a_column(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    (one,) = write_rows(lake, [page(1, FIRST), page(1, FIRST + 1, queue="video@all;c=gpu")])
    assert one.queues == {"q/1": 1, "video@all;c=gpu": 1}
    found = parquet.read_table(lake.paths([one.file])[0], partitioning=None).to_pylist()
    assert [(row["queue"], row["lane"]) for row in found] == [("q/1", None), ("video", "all;c=gpu")]
    assert [row["occurred_at"].timestamp() * 1000 for row in found] == [FIRST, FIRST + 1]
    assert lake.streams(one.file) == one.queues.keys()


def test_groups_of_rows_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bronze, "GROUP", 4)
    lake = Lake(tmp_path / "lake")
    (one,) = write_rows(lake, (page(1 + 2 * at, FIRST, FIRST + 1) for at in range(5)))
    (path,) = lake.paths([one.file])
    groups = parquet.read_metadata(path)
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [4, 4, 2]
    assert ordinals(path) == list(range(1, 11))


def test_files_come_back_from_spark_as_they_were(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    files = write_rows(lake, [page(1, FIRST), page(2, FIRST + DAY_MS)])
    (batch,) = file_rows(files)
    assert [field.split()[0] for field in bronze.FILES.split(", ")] == batch.schema.names

    class Row:
        def __init__(self, values: dict[str, Any]) -> None:
            self.__dict__.update(values)

    back = files_of([Row(values) for values in batch.to_pylist()])
    assert back == sorted(files, key=lambda one: one.file.path)
    lake.publish(Change("ingest", add=[one.file for one in back]))
    assert sum(file.rows for file in lake.head().of("events")) == 2


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    files = write_rows(Lake(tmp_path / "lake"), [])
    assert files == []
    assert list(file_rows(files)) == []


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")

    def rows() -> Iterator[Any]:
        yield page(1, FIRST)
        raise ConnectionError("the server is away")

    with pytest.raises(ConnectionError):
        write_rows(lake, rows())
    assert [path for path in lake.root.rglob("*") if path.is_file()] == []
